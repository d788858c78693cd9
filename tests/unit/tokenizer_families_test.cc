// Small tokenizer files in the form that Gemma, Phi-3, Granite, SmolLM, OLMo and gpt-oss have
// theirs, against plain loops.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "unpack/config.h"
#include "unpack/error.h"
#include "unpack/models.h"
#include "unpack/tokenizer.h"

namespace unpack {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;
using Strings = std::vector<std::string>;
using Ranks = std::map<std::pair<std::string, std::string>, int>;

constexpr const char* kSpace = "\u2581";

// A vocabulary that grows by merges, and what plain loops need to know of it.
struct Model {
  json vocab = json::object();
  json merges = json::array();
  Ranks ranks;

  void add(const std::string& token) {
    if (!vocab.contains(token)) vocab[token] = vocab.size();
  }
  void merge(const std::string& left, const std::string& right) {
    if (!ranks.emplace(std::pair(left, right), static_cast<int>(ranks.size())).second) return;
    merges.push_back({left, right});
    add(left + right);
  }
  TokenId id(const std::string& token) const { return vocab.at(token).get<TokenId>(); }

  // The pair of lowest rank, the leftmost of equals, until there is none.
  Ids merged(Strings symbols) const {
    while (true) {
      std::size_t best = symbols.size();
      int lowest = std::numeric_limits<int>::max();
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto found = ranks.find({symbols[i], symbols[i + 1]});
        if (found == ranks.end() || found->second >= lowest) continue;
        lowest = found->second;
        best = i;
      }
      if (best == symbols.size()) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    Ids ids;
    for (const std::string& symbol : symbols) ids.push_back(id(symbol));
    return ids;
  }
};

json added(const std::string& content, TokenId id, const json& flags = json::object()) {
  json token = {{"content", content},  {"id", id},        {"special", true},
                {"normalized", false}, {"lstrip", false}, {"rstrip", false},
                {"single_word", false}};
  token.update(flags);
  return token;
}

Model with_byte_tokens(const Strings& first) {
  Model model;
  for (const std::string& token : first) model.add(token);
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte)
    model.add(std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">");
  for (const char* c : {kSpace, "a", "b", "c", "1", "2", "\n", ".", "\u00e9"}) model.add(c);
  model.merge("a", "b");
  model.merge(kSpace, "a");
  model.merge(kSpace, kSpace);
  model.merge("ab", "c");
  model.merge(std::string(kSpace) + "a", "b");
  model.merge("\n", "\n");
  model.merge("1", "2");
  model.merge("b", kSpace);  // across words: nothing splits at spaces
  return model;
}

json fallback_file(const Model& model, const json& normalizer, const json& decoder_end) {
  json decoders = {{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  for (const json& step : decoder_end) decoders.push_back(step);
  return {{"normalizer", normalizer},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"ignore_merges", false},
            {"vocab", model.vocab},
            {"merges", model.merges}}}};
}

json spaces_replaced() {
  return {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}};
}

json gemma_file(const Model& model) {
  json file = fallback_file(model, spaces_replaced(), json::array());
  // Of the text after its normaliser this finds nothing; the files have it all the same.
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"String", " "}}},
                           {"behavior", "MergedWithPrevious"},
                           {"invert", false}};
  file["added_tokens"] = {added("<pad>", 0), added("<eos>", 1), added("<bos>", 2),
                          added("<unk>", 3), added("\n\n\n", 4, {{"special", false}})};
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<bos>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"special_tokens", {{"<bos>", {{"id", "<bos>"}, {"ids", {2}}, {"tokens", {"<bos>"}}}}}}};
  return file;
}

// Characters as they stand, spaces as the sign for them, everything unknown as its bytes.
Strings characters(const std::vector<std::string>& text, const Model& model) {
  constexpr char kHex[] = "0123456789ABCDEF";
  Strings symbols;
  for (const std::string& c : text) {
    const std::string shown = c == " " ? kSpace : c;
    if (model.vocab.contains(shown)) {
      symbols.push_back(shown);
      continue;
    }
    for (const char byte : shown) {
      const auto value = static_cast<unsigned char>(byte);
      symbols.push_back(std::string("<0x") + kHex[value >> 4] + kHex[value & 15] + ">");
    }
  }
  return symbols;
}

std::string joined(const Strings& parts) {
  std::string text;
  for (const std::string& part : parts) text += part;
  return text;
}

Strings drawn(const Strings& alphabet) {
  return *rc::gen::container<Strings>(rc::gen::elementOf(alphabet));
}

TEST(TokenizerOfGemma, IsCharactersByteFallbackAndMergesAcrossWords) {
  const Model model = with_byte_tokens({"<pad>", "<eos>", "<bos>", "<unk>", "\n\n\n"});
  const Tokenizer tokenizer = Tokenizer::from_json(gemma_file(model).dump(), "gemma.json");
  EXPECT_TRUE(rc::check("any text", [&] {
    const Strings text = drawn({" ", "a", "b", "c", "1", "2", ".", "\u00e9", "\u4e2d", "z", "<"});
    RC_ASSERT(tokenizer.encode(joined(text)) == model.merged(characters(text, model)));
    RC_ASSERT(tokenizer.decode(tokenizer.encode(joined(text))) == joined(text));
  }));
  // A run of line ends is an added token, found before anything is merged.
  EXPECT_EQ(tokenizer.encode("a\n\n\n\n"), (Ids{model.id("a"), 4, model.id("\n")}));
  EXPECT_EQ(tokenizer.encode("<bos>a", true), (Ids{2, model.id("a")}));
}

TEST(TokenizerOfGemma, PutsBosInFrontWithOrWithoutATemplate) {
  const Model model = with_byte_tokens({"<pad>", "<eos>", "<bos>", "<unk>", "\n\n\n"});
  json file = gemma_file(model);
  ModelConfig config;
  config.bos_token = 2;
  config.prepend_bos = true;
  EXPECT_EQ(prompt_prefix(config, Tokenizer::from_json(file.dump(), "gemma.json")), Ids{2});
  file.erase("post_processor");
  EXPECT_EQ(prompt_prefix(config, Tokenizer::from_json(file.dump(), "gemma.json")), Ids{2});
}

TEST(TokenizerOfPhi3, PrependsASpaceAndStripsBehindItsMarks) {
  const Model model = with_byte_tokens({"<unk>", "<s>", "</s>"});
  json file = fallback_file(
      model,
      {{"type", "Sequence"},
       {"normalizers", {{{"type", "Prepend"}, {"prepend", kSpace}}, spaces_replaced()}}},
      {{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}});
  const auto user = static_cast<TokenId>(model.vocab.size());
  file["added_tokens"] = {added("<unk>", 0), added("<s>", 1),
                          added("</s>", 2, {{"special", false}, {"rstrip", true}}),
                          added("<|user|>", user, {{"rstrip", true}})};
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                            {"special_tokens", json::object()}};
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "phi.json");
  EXPECT_TRUE(tokenizer.prefix().empty());
  EXPECT_TRUE(rc::check("any text", [&] {
    const Strings text = drawn({" ", "a", "b", "c", "1", ".", "\u00e9", "\u4e2d", "\n"});
    Strings symbols = characters(text, model);
    if (!symbols.empty()) symbols.insert(symbols.begin(), kSpace);
    RC_ASSERT(tokenizer.encode(joined(text)) == model.merged(symbols));
  }));
  // The mark takes the line end behind it; what follows is a text of its own.
  const TokenId space = model.id(kSpace), ab = model.id("ab");
  EXPECT_EQ(tokenizer.encode("<|user|>\nab</s> \n ab", true), (Ids{user, space, ab, 2, space, ab}));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("ab ab")), "ab ab");
}

// Byte-level files: letters, digits and a few signs, and a merge of every pair of them, so that a
// cut in the wrong place shows.
Model byte_level_model() {
  const Strings units = {"\u0120", "a", "b", "A", "B", "1", "'", "s", ".", "/", "\u010a"};
  Model model;
  for (const std::string& unit : units) model.add(unit);
  for (const std::string& left : units) {
    for (const std::string& right : units) model.merge(left, right);
  }
  model.merge("ab", "ab");
  return model;
}

const Strings kUnits = {" ", "a", "b", "A", "B", "1", "'", "s", ".", "/", "\n"};

Strings spelled(const std::string& piece) {
  Strings symbols;
  for (const char c : piece)
    symbols.push_back(c == ' ' ? "\u0120" : c == '\n' ? "\u010a" : std::string(1, c));
  return symbols;
}

using Splitter = std::function<std::size_t(const std::string&, std::size_t)>;  // end of a piece

void expect_pieces(const json& file, const Model& model, const Splitter& end) {
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "made.json");
  EXPECT_TRUE(rc::check("any text", [&] {
    const std::string text = joined(drawn(kUnits));
    Ids ids;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t next = end(text, at);
      const Ids piece = model.merged(spelled(text.substr(at, next - at)));
      ids.insert(ids.end(), piece.begin(), piece.end());
      at = next;
    }
    RC_LOG(json(text).dump());
    RC_ASSERT(tokenizer.encode(text) == ids);
    RC_ASSERT(tokenizer.decode(ids) == text);
  }));
}

bool lower(char c) { return c >= 'a' && c <= 'z'; }
bool upper(char c) { return c >= 'A' && c <= 'Z'; }
bool letter(char c) { return lower(c) || upper(c); }
bool digit(char c) { return c >= '0' && c <= '9'; }
bool blank(char c) { return c == ' ' || c == '\n'; }
bool sign(char c) { return !letter(c) && !digit(c) && !blank(c); }

std::size_t run(const std::string& text, std::size_t at, bool (*kind)(char)) {
  while (at < text.size() && kind(text[at])) ++at;
  return at;
}

// 's, 't, ... of the patterns; the units here only write 's.
std::size_t contraction(const std::string& text, std::size_t at) {
  return text.compare(at, 2, "'s") == 0 ? at + 2 : at;
}

// White space: up to the last line end of a run, else all of it but a last one before a word.
std::size_t blanks(const std::string& text, std::size_t at) {
  const std::size_t end = run(text, at, blank);
  const std::size_t line = text.substr(at, end - at).rfind('\n');
  if (line != std::string::npos) return at + line + 1;
  return end < text.size() && end - at > 1 ? end - 1 : end;
}

// One word of o200k: an odd sign in front, capitals, small letters, 's behind.
std::size_t cased_word(const std::string& text, std::size_t at) {
  std::size_t from = at;
  if (!letter(text[at]) && !digit(text[at]) && text[at] != '\n') ++from;
  if (from == text.size() || !letter(text[from])) return at;
  return contraction(text, run(text, run(text, from, upper), lower));
}

std::size_t o200k(const std::string& text, std::size_t at) {
  if (const std::size_t word = cased_word(text, at); word > at) return word;
  if (digit(text[at])) return std::min(at + 3, run(text, at, digit));
  const std::size_t signs = text[at] == ' ' ? at + 1 : at;
  if (const std::size_t end = run(text, signs, sign); end > signs)
    return run(text, end, [](char c) { return c == '\n' || c == '/'; });
  return blanks(text, at);
}

json split(const std::string& pattern, const char* behavior, bool invert) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", behavior},
          {"invert", invert}};
}

json byte_level_file(const Model& model, const json& steps) {
  return {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", model.vocab}, {"merges", model.merges}}}};
}

json bytes_only() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
}

TEST(TokenizerOfGptOss, SplitsByCase) {
  const std::string ends = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?";
  const std::string pattern =
      "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" +
      ends +
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" +
      ends + "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const Model model = byte_level_model();
  expect_pieces(byte_level_file(model, {split(pattern, "Isolated", false), bytes_only()}), model,
                o200k);
  // The same as files write it that name what stands between.
  expect_pieces(byte_level_file(model, {split(pattern, "Removed", true), bytes_only()}), model,
                o200k);
}

// cl100k, which OLMo-2 and SmolLM3 have.
std::size_t cl100k(const std::string& text, std::size_t at) {
  if (const std::size_t end = contraction(text, at); end > at) return end;
  const std::size_t from = !letter(text[at]) && !digit(text[at]) && text[at] != '\n' ? at + 1 : at;
  if (const std::size_t end = run(text, from, letter); end > from) return end;
  if (digit(text[at])) return std::min(at + 3, run(text, at, digit));
  const std::size_t signs = text[at] == ' ' ? at + 1 : at;
  if (const std::size_t end = run(text, signs, sign); end > signs)
    return run(text, end, [](char c) { return c == '\n'; });
  return blanks(text, at);
}

TEST(TokenizerOfOlmo2, SplitsAsCl100kDoes) {
  const std::string pattern =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
      " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const Model model = byte_level_model();
  json file = byte_level_file(model, {split(pattern, "Isolated", false), bytes_only()});
  expect_pieces(file, model, cl100k);
  // With ignore_merges a piece that is a token stays whole, whatever the merges would make of it.
  file["model"]["ignore_merges"] = true;
  file["model"]["vocab"]["abB"] = model.vocab.size();
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "made.json");
  EXPECT_EQ(tokenizer.encode("abB"), Ids{static_cast<TokenId>(model.vocab.size())});
  EXPECT_EQ(tokenizer.encode("abBb"), (Ids{model.id("ab"), model.id("Bb")}));
}

// Granite and SmolLM: every digit alone, then GPT-2's pattern within what is left.
TEST(TokenizerOfGranite, SplitsDigitsBeforeWords) {
  const auto gpt2_within = [](const std::string& text, std::size_t at) {
    if (digit(text[at])) return at + 1;
    std::size_t stop = at;
    while (stop < text.size() && !digit(text[stop])) ++stop;
    const std::string part = text.substr(0, stop);  // of which a piece never sees the end
    if (const std::size_t end = contraction(part, at); end > at) return end;
    const std::size_t from = part[at] == ' ' && at + 1 < part.size() ? at + 1 : at;
    if (const std::size_t end = run(part, from, letter); end > from) return end;
    if (const std::size_t end = run(part, from, sign); end > from) return end;
    const std::size_t end = run(part, at, blank);
    return end < part.size() && end - at > 1 ? end - 1 : end;
  };
  const Model model = byte_level_model();
  const json file = byte_level_file(
      model, {{{"type", "Digits"}, {"individual_digits", true}},
              {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}});
  expect_pieces(file, model, gpt2_within);
}

TEST(TokenizerOfTheseFamilies, NamesAPartItDoesNotUnderstand) {
  const Model model = with_byte_tokens({"<unk>"});
  const auto message = [](const json& file) {
    try {
      (void)Tokenizer::from_json(file.dump(), "made.json");
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  for (const auto& [part, type] :
       {std::pair("normalizer", "Precompiled"), std::pair("pre_tokenizer", "UnicodeScripts"),
        std::pair("decoder", "CTC"), std::pair("post_processor", "RobertaProcessing")}) {
    json file = fallback_file(model, spaces_replaced(), json::array());
    file[part] = {{"type", type}};
    const std::string text = message(file);
    EXPECT_NE(text.find(part), std::string::npos) << text;
    EXPECT_NE(text.find(type), std::string::npos) << text;
  }
  json unigram = fallback_file(model, spaces_replaced(), json::array());
  unigram["model"]["type"] = "Unigram";
  EXPECT_NE(message(unigram).find("Unigram"), std::string::npos);
}

}  // namespace
}  // namespace unpack
