#include "tokenizer/added_tokens.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::tokenizer {
namespace {

constexpr std::size_t kMaxContent = 4096;  // bounds the work at each position of a text

bool is_word_char(char32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return c == 0x200C || c == 0x200D;  // the joiners within words
  }
}

bool ends_in_word(std::string_view text) {
  return !text.empty() && is_word_char(first_char(text.substr(last_char_start(text))));
}
bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word_char(first_char(text));
}

std::size_t without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    const std::size_t last = last_char_start(text);
    if (!is_white_space(first_char(text.substr(last)))) break;
    text = text.substr(0, last);
  }
  return text.size();
}

std::size_t leading_space(std::string_view text) {
  std::size_t length = 0;
  while (length < text.size() && is_white_space(first_char(text.substr(length))))
    length += utf8_length(text[length]);
  return length;
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const Fields& file) {
  std::vector<AddedToken> tokens;
  if (file.missing("added_tokens")) return tokens;
  for (const Fields& item : file.objects("added_tokens")) {
    AddedToken token;
    token.content = item.string("content");
    token.id = item.integer("id");
    token.single_word = item.boolean("single_word", false);
    token.lstrip = item.boolean("lstrip", false);
    token.rstrip = item.boolean("rstrip", false);
    token.special = item.boolean("special", false);
    token.normalized = item.boolean("normalized", !token.special);
    if (token.content.size() > kMaxContent)
      item.fail("content", "is longer than " + std::to_string(kMaxContent) + " bytes");
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer,
                         const std::string& origin)
    : tokens_(std::move(tokens)) {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    if (!token.normalized || normalizer.empty()) {
      (token.normalized ? normalized_ : raw_).insert(token.content, i);
      continue;
    }
    const std::string content = normalizer.apply(token.content);
    if (content.size() > kMaxContent)
      throw InputError(origin + ": the added token " + in_quotes(token.content) +
                       " is too long once normalised");
    normalized_.insert(content, i);
  }
}

void AddedTokens::Trie::insert(std::string_view text, std::size_t token) {
  if (text.empty()) return;
  first_.set(static_cast<unsigned char>(text[0]));
  std::size_t node = 0;
  for (const char byte : text) {
    const auto [found, fresh] = next_.try_emplace(step(node, byte), tokens_.size());
    if (fresh) tokens_.push_back(-1);
    node = found->second;
  }
  if (tokens_[node] < 0) tokens_[node] = token;
}

std::int64_t AddedTokens::Trie::longest(std::string_view text, std::size_t at,
                                        std::size_t& length) const {
  if (!first_.test(static_cast<unsigned char>(text[at]))) return -1;
  std::int64_t found = -1;
  std::size_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto next = next_.find(step(node, text[i]));
    if (next == next_.end()) break;
    node = next->second;
    if (tokens_[node] >= 0) {
      found = tokens_[node];
      length = i + 1 - at;
    }
  }
  return found;
}

std::vector<Section> AddedTokens::split(const Trie& trie, std::string_view text,
                                        bool recognise_special) const {
  std::vector<Section> sections;
  std::size_t done = 0;
  const auto text_until = [&](std::size_t end) {
    if (done < end) sections.push_back({Section::kText, text.substr(done, end - done)});
  };
  for (std::size_t at = 0; at < text.size() && !trie.empty();) {
    std::size_t length = 0;
    const std::int64_t found = trie.longest(text, at, length);
    if (found < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found];
    std::size_t start = at;
    std::size_t end = at + length;
    at = end;  // also past a token that is not taken: what overlaps it stays text, as in the
               // reference library
    if (token.special && !recognise_special) continue;
    if (token.single_word &&
        (ends_in_word(text.substr(0, start)) || starts_with_word(text.substr(end))))
      continue;
    if (token.lstrip) start = done + without_trailing_space(text.substr(done, start - done));
    if (token.rstrip) end += leading_space(text.substr(end));
    text_until(start);
    sections.push_back({static_cast<TokenId>(token.id), {}});
    at = done = end;
  }
  text_until(text.size());
  return sections;
}

}  // namespace unpack::tokenizer
