// The tokenizer of a GGUF file in the words of tokenizer.json.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/json_reader.h"
#include "base/message.h"
#include "model/gguf_model.h"
#include "tokenizer/utf8.h"
#include "unpack/error.h"
#include "unpack/json.h"

namespace unpack::model {
namespace {

using Json = JsonValue;

constexpr int kControl = 3, kUserDefined = 4;
constexpr std::size_t kLongestPiece = 256;  // bytes; longer ones are not looked into for merges

constexpr const char* kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwenSplit =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr const char* kTekkenSplit =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// How texts are cut before they are merged, by the names of tokenizer.ggml.pre.
struct PreTokenizer {
  const char* name;
  const char* split;  // nullptr: every digit by itself, then GPT-2's pattern
  bool whole_first =
      false;  // a piece that is a token is not merged; BOS in front unless it is said
};
constexpr PreTokenizer kPreTokenizers[] = {
    {"default", kGpt2Split},
    {"gpt-2", kGpt2Split},
    {"olmo", kGpt2Split},
    {"phi-2", kGpt2Split},
    {"mpt", kGpt2Split},
    {"llama-bpe", kLlama3Split, true},
    {"llama3", kLlama3Split, true},
    {"llama-v3", kLlama3Split, true},
    {"falcon3", kLlama3Split, true},
    {"pixtral", kLlama3Split, true},
    {"smaug-bpe", kLlama3Split},
    {"dbrx", kLlama3Split},
    {"tekken", kTekkenSplit, true},
    {"qwen2", kQwenSplit},
    {"stablelm2", kQwenSplit},
    {"megrez", kQwenSplit},
    {"gpt-4o", kGpt4oSplit},
    {"llama4", kGpt4oSplit},
    {"refact", nullptr},
    {"starcoder", nullptr},
    {"granite", nullptr},
    {"smollm", nullptr},
    {"command-r", nullptr},
};

struct Source {
  const Json& metadata;
  std::string origin;

  const Json* find(const char* key) const {
    const auto it = metadata.find(std::string("tokenizer.ggml.") + key);
    return it == metadata.end() ? nullptr : &*it;
  }
  std::optional<std::int64_t> id(const char* key, std::size_t size) const {
    const Json* value = find(key);
    if (!value || !value->is_number_integer()) return std::nullopt;
    const auto id = value->get<std::int64_t>();
    return id >= 0 && id < static_cast<std::int64_t>(size) ? std::optional(id) : std::nullopt;
  }
  bool flag(const char* key, bool fallback) const {
    const Json* value = find(key);
    return value && value->is_boolean() ? value->get<bool>() : fallback;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: {}", origin, what));
  }
};

std::vector<std::string> read_tokens(const Source& source) {
  const Json* list = source.find("tokens");
  if (!list || !list->is_array()) source.fail("tokenizer.ggml.tokens is missing");
  std::vector<std::string> tokens;
  for (const Json& token : *list) {
    if (!token.is_string()) source.fail("tokenizer.ggml.tokens holds something other than texts");
    tokens.push_back(token.get<std::string>());
    if (tokenizer::first_invalid_utf8(tokens.back()) != std::string_view::npos)
      source.fail(fmt::format("token {} is not valid UTF-8", tokens.size() - 1));
  }
  return tokens;
}

// A sentencepiece vocabulary joins the neighbours whose union has the best score: the same as
// merges ranked by the score of what they make.
Json merges_by_score(const Source& source, const std::vector<std::string>& tokens) {
  const Json* scores = source.find("scores");
  if (!scores || !scores->is_array() || scores->size() != tokens.size())
    source.fail("tokenizer.ggml.scores does not have a score for every token");
  std::unordered_map<std::string_view, std::size_t> id_of;
  for (std::size_t i = 0; i < tokens.size(); ++i) id_of.emplace(tokens[i], i);
  struct Merge {
    double score;
    std::size_t whole, left, right;
  };
  std::vector<Merge> merges;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view text = tokens[i];
    if (text.size() > kLongestPiece || !(*scores)[i].is_number()) continue;
    for (std::size_t cut = text.empty() ? 0 : tokenizer::utf8_length(text[0]); cut < text.size();
         cut += tokenizer::utf8_length(text[cut])) {
      const auto left = id_of.find(text.substr(0, cut)), right = id_of.find(text.substr(cut));
      if (left != id_of.end() && right != id_of.end())
        merges.push_back({(*scores)[i].get<double>(), i, left->second, right->second});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    return a.score != b.score ? a.score > b.score : a.whole < b.whole;
  });
  Json out = Json::array();
  for (const Merge& m : merges) out.push_back({tokens[m.left], tokens[m.right]});
  return out;
}

Json given_merges(const Source& source) {
  const Json* list = source.find("merges");
  if (!list || !list->is_array()) source.fail("tokenizer.ggml.merges is missing");
  Json out = Json::array();
  for (const Json& merge : *list) {
    const std::string text = merge.is_string() ? merge.get<std::string>() : std::string();
    const std::size_t blank = text.find(' ', 1);
    if (blank == std::string::npos || tokenizer::first_invalid_utf8(text) != std::string_view::npos)
      source.fail("tokenizer.ggml.merges holds something other than pairs");
    out.push_back({text.substr(0, blank), text.substr(blank + 1)});
  }
  return out;
}

const PreTokenizer& pre_tokenizer(const Source& source) {
  const Json* pre = source.find("pre");
  const std::string name = pre && pre->is_string() ? pre->get<std::string>() : "default";
  const auto* const found =
      std::find_if(std::begin(kPreTokenizers), std::end(kPreTokenizers),
                   [&](const PreTokenizer& each) { return each.name == name; });
  if (found == std::end(kPreTokenizers))
    source.fail(fmt::format("the pre-tokenizer {} is not supported", base::shown(name)));
  return *found;
}

Json byte_level(const PreTokenizer& pre) {
  const Json first = pre.split ? Json{{"type", "Split"},
                                      {"pattern", {{"Regex", pre.split}}},
                                      {"behavior", "Isolated"},
                                      {"invert", false}}
                               : Json{{"type", "Digits"}, {"individual_digits", true}};
  return {{"type", "Sequence"},
          {"pretokenizers",
           {first,
            {{"type", "ByteLevel"},
             {"add_prefix_space", false},
             {"trim_offsets", true},
             {"use_regex", pre.split == nullptr}}}}};
}

// ▁ for blanks, bytes where a character is not in the vocabulary.
void set_sentencepiece(const Source& source, Json& file) {
  Json steps = Json::array();
  const bool prefix = source.flag("add_space_prefix", true);
  if (prefix) steps.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  file["pre_tokenizer"] = nullptr;
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  file["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
}

}  // namespace

std::string gguf_tokenizer(const GgufFiles& gguf) {
  const Source source{gguf.content.metadata, gguf.path.string()};
  const Json* model = source.find("model");
  if (!model || !model->is_string()) return {};
  const std::string kind = model->get<std::string>();
  if (kind != "gpt2" && kind != "llama")
    source.fail(
        fmt::format("the tokenizer {} is not supported; gpt2 and llama are", base::shown(kind)));
  const std::vector<std::string> tokens = read_tokens(source);
  const bool bytes = kind == "gpt2";
  Json vocab = Json::object();
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!vocab.contains(tokens[i])) vocab[tokens[i]] = i;
  }
  Json added = Json::array();
  if (const Json* types = source.find("token_type"); types && types->is_array()) {
    for (std::size_t i = 0; i < std::min(types->size(), tokens.size()); ++i) {
      const Json& type = (*types)[i];
      if (!type.is_number_integer() || (type != kControl && type != kUserDefined)) continue;
      if (tokens[i].empty() || vocab[tokens[i]] != i) continue;
      added.push_back({{"id", i},
                       {"content", tokens[i]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", type == kControl}});
    }
  }
  Json file = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", added},
               {"post_processor", nullptr}};
  file["model"] = {{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", !bytes},
                   {"byte_fallback", !bytes},
                   {"ignore_merges", false},
                   {"vocab", vocab}};
  file["model"]["merges"] = bytes ? given_merges(source) : merges_by_score(source, tokens);
  bool wants_bos = !bytes;
  if (bytes) {
    const PreTokenizer& pre = pre_tokenizer(source);
    file["normalizer"] = std::string_view(pre.name) == "qwen2" ? Json{{"type", "NFC"}} : Json();
    file["model"]["ignore_merges"] = pre.whole_first;
    file["pre_tokenizer"] = byte_level(pre);
    wants_bos = pre.whole_first;
    file["decoder"] = {{"type", "ByteLevel"},
                       {"add_prefix_space", true},
                       {"trim_offsets", true},
                       {"use_regex", true}};
  } else {
    set_sentencepiece(source, file);
  }
  const auto bos = source.id("bos_token_id", tokens.size());
  if (bos && source.flag("add_bos_token", wants_bos)) {
    const std::string& text = tokens[*bos];
    file["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", text}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", Json::array()},
        {"special_tokens", {{text, {{"id", text}, {"ids", {*bos}}, {"tokens", {text}}}}}}};
  }
  return file.dump();
}

}  // namespace unpack::model
