// The parts of tokenizer.json, each on a vocabulary small enough to read.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "unpack/tokenizer.h"

namespace unpack {
namespace {

using nlohmann::json;
using Strings = std::vector<std::string>;

json bpe(const Strings& tokens, const std::vector<Strings>& merges = {}) {
  json vocab = json::object();
  for (const std::string& token : tokens) vocab[token] = vocab.size();
  return {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
}

json added(const std::string& content, int id, const json& flags = json::object()) {
  json token = {{"content", content}, {"id", id}, {"special", false}, {"normalized", false}};
  token.update(flags);
  return token;
}

// The tokens' own bytes: readable, and it shows at once where a text was cut.
Strings pieces(const json& file, const std::string& text, bool special = false) {
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "made.json");
  Strings result;
  for (const TokenId id : tokenizer.encode(text, special))
    result.push_back(tokenizer.token_bytes(id));
  return result;
}

std::string round_trip(const json& file, const std::string& text) {
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "made.json");
  return tokenizer.decode(tokenizer.encode(text));
}

const json kLettersByLevel =
    bpe({"a", "b", "c", "\u0120", "1", "2", "'", "s", "\u0120a", "ab", "\u0120ab", "12", "'s"},
        {{"\u0120", "a"}, {"a", "b"}, {"\u0120a", "b"}, {"1", "2"}, {"'", "s"}});

json byte_level(const json& pre_tokenizer) {
  return {{"model", kLettersByLevel},
          {"pre_tokenizer", pre_tokenizer},
          {"decoder", {{"type", "ByteLevel"}}}};
}

TEST(TokenizerSteps, ByteLevelSplitsAsGpt2Does) {
  const json file = byte_level({{"type", "ByteLevel"}, {"add_prefix_space", false}});
  EXPECT_EQ(pieces(file, "ab ab12's"), (Strings{"ab", " ab", "12", "'s"}));
}

TEST(TokenizerSteps, ByteLevelMayPutASpaceInFront) {
  const json file = byte_level({{"type", "ByteLevel"}, {"add_prefix_space", true}});
  EXPECT_EQ(pieces(file, "ab"), Strings{" ab"});
  EXPECT_EQ(pieces(file, " ab"), Strings{" ab"});
}

TEST(TokenizerSteps, MergesMayBeStringsOrPairs) {
  json file = byte_level({{"type", "ByteLevel"}, {"add_prefix_space", false}});
  const Strings expected = pieces(file, " ab12's");
  json strings = json::array();
  for (const json& merge : file["model"]["merges"])
    strings.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  file["model"]["merges"] = strings;
  EXPECT_EQ(pieces(file, " ab12's"), expected);
}

TEST(TokenizerSteps, SplitFollowsItsBehaviour) {
  const auto split = [](const char* behavior, bool invert = false) {
    const json step = {{"type", "Split"},
                       {"pattern", {{"Regex", "[12]"}}},
                       {"behavior", behavior},
                       {"invert", invert}};
    const json file = {
        {"model",
         bpe({"a", "b", "1", "2", "1a", "a1", "11", "ab", "1b", "12", "b1"},
             {{"1", "1"}, {"1", "2"}, {"a", "1"}, {"b", "1"}, {"1", "a"}, {"1", "b"}, {"a", "b"}})},
        {"pre_tokenizer", step}};
    return pieces(file, "ab112a");
  };
  EXPECT_EQ(split("Isolated"), (Strings{"ab", "1", "1", "2", "a"}));
  EXPECT_EQ(split("Removed"), (Strings{"ab", "a"}));
  EXPECT_EQ(split("Removed", true), (Strings{"1", "1", "2"}));
  EXPECT_EQ(split("Contiguous"), (Strings{"ab", "11", "2", "a"}));
  EXPECT_EQ(split("MergedWithPrevious"), (Strings{"a", "b1", "1", "2", "a"}));
  EXPECT_EQ(split("MergedWithNext"), (Strings{"ab", "1", "1", "2", "a"}));
}

TEST(TokenizerSteps, SplitKnowsCaseInsensitiveGroups) {
  const json step = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(?i:'s)|[a-z]+"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const json file = {
      {"model", bpe({"a", "'", "S", "s", "'S", "'s", "Sa"}, {{"S", "a"}, {"'", "S"}, {"'", "s"}})},
      {"pre_tokenizer", step}};
  EXPECT_EQ(pieces(file, "a'Sa"), (Strings{"a", "'S", "a"}));
}

// PCRE2's own \s takes U+180E; the reference library's does not.
TEST(TokenizerSteps, WhiteSpaceInPatternsIsThatOfUnicode) {
  const json step = {{"type", "Split"}, {"pattern", {{"Regex", "\\s+"}}}, {"behavior", "Removed"}};
  const json file = {{"model", bpe({"a", "b", "\u180E", "\u0085", "\u3000"})},
                     {"pre_tokenizer", step}};
  EXPECT_EQ(pieces(file, "a\u180Eb"), (Strings{"a", "\u180E", "b"}));
  EXPECT_EQ(pieces(file, "a\u0085\u3000b"), (Strings{"a", "b"}));
}

TEST(TokenizerSteps, DigitsStandAloneOrTogether) {
  const auto file = [](bool individual) {
    return json{{"model", bpe({"a", "1", "11"}, {{"1", "1"}})},
                {"pre_tokenizer", {{"type", "Digits"}, {"individual_digits", individual}}}};
  };
  EXPECT_EQ(pieces(file(true), "a11"), (Strings{"a", "1", "1"}));
  EXPECT_EQ(pieces(file(false), "a11"), (Strings{"a", "11"}));
}

TEST(TokenizerSteps, IgnoreMergesKeepsAPieceThatIsAToken) {
  json file = byte_level({{"type", "ByteLevel"}, {"add_prefix_space", false}});
  file["model"]["vocab"]["abc"] = 100;
  EXPECT_EQ(pieces(file, "abc"), (Strings{"ab", "c"}));
  file["model"]["ignore_merges"] = true;
  EXPECT_EQ(pieces(file, "abc"), Strings{"abc"});
}

json llama2() {
  Strings tokens = {"<unk>", "<s>"};
  const char* hex = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte)
    tokens.push_back(std::string("<0x") + hex[byte / 16] + hex[byte % 16] + ">");
  for (const char* token : {"\u2581", "a", "b", "\u2581a", "ab", "\u2581ab"})
    tokens.emplace_back(token);
  json model = bpe(tokens, {{"\u2581", "a"}, {"a", "b"}, {"\u2581a", "b"}});
  model.update({{"byte_fallback", true}, {"fuse_unk", true}, {"unk_token", "<unk>"}});
  return {{"added_tokens",
           {added("<unk>", 0, {{"special", true}}), added("<s>", 1, {{"special", true}})}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {1}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder",
           {{"type", "Sequence"},
            {"decoders",
             {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
              {{"type", "ByteFallback"}},
              {{"type", "Fuse"}},
              {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}}},
          {"model", model}};
}

TEST(TokenizerSteps, Llama2StyleFallsBackToBytesAndComesBack) {
  EXPECT_EQ(pieces(llama2(), "ab ab"), (Strings{" ab", " ab"}));
  EXPECT_EQ(pieces(llama2(), "a\u00E9"), (Strings{" a", "\xC3", "\xA9"}));
  for (const std::string text : {"ab ab", "  a  b ", "\u00E9\n\u65E5", ""})
    EXPECT_EQ(round_trip(llama2(), text), text);
}

TEST(TokenizerSteps, Llama2StylePrependsAfterEverySpecialToken) {
  EXPECT_EQ(pieces(llama2(), "ab<s>ab", true), (Strings{" ab", "<s>", " ab"}));
}

TEST(TokenizerSteps, UnknownCharactersFuseWhenTheFileSaysSo) {
  json file = {{"model", bpe({"<unk>", "a"})}};
  EXPECT_EQ(pieces(file, "xxa"), Strings{"a"}) << "without an unknown token they are left out";
  file["model"]["unk_token"] = "<unk>";
  EXPECT_EQ(pieces(file, "xxa"), (Strings{"<unk>", "<unk>", "a"}));
  file["model"]["fuse_unk"] = true;
  EXPECT_EQ(pieces(file, "xxa"), (Strings{"<unk>", "a"}));
}

TEST(TokenizerSteps, MetaspacePrependsByItsScheme) {
  const auto file = [](const json& flags) {
    json step = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
    step.update(flags);
    return json{
        {"added_tokens", json::array({added("<s>", 9)})},
        {"model", bpe({"\u2581", "a", "\u2581a", "a\u2581"}, {{"a", "\u2581"}, {"\u2581", "a"}})},
        {"pre_tokenizer", step},
        {"decoder", step}};
  };
  EXPECT_EQ(pieces(file({{"prepend_scheme", "always"}}), "a a<s>a"),
            (Strings{" a", " a", "<s>", " a"}));
  EXPECT_EQ(pieces(file({{"prepend_scheme", "first"}}), "a a<s>a"),
            (Strings{" a", " a", "<s>", "a"}));
  EXPECT_EQ(pieces(file({{"prepend_scheme", "never"}}), "a a<s>a"),
            (Strings{"a", " a", "<s>", "a"}));
  EXPECT_EQ(pieces(file({{"add_prefix_space", false}}), "a a"), (Strings{"a", " a"}));
  EXPECT_EQ(pieces(file({{"prepend_scheme", "never"}, {"split", false}}), "a a"),
            (Strings{"a ", "a"}));
  EXPECT_EQ(round_trip(file({{"prepend_scheme", "always"}}), "a a"), "a a");
}

TEST(TokenizerSteps, NfcComposes) {
  json file = {{"model", bpe({"e", "\u0301", "\u00E9"})}};
  EXPECT_EQ(pieces(file, "e\u0301"), (Strings{"e", "\u0301"}));
  file["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(pieces(file, "e\u0301"), Strings{"\u00E9"});
}

json with_added(const json& tokens) {
  return {{"added_tokens", tokens}, {"model", bpe({"a", "b", " ", "<", ">", "X"})}};
}

TEST(TokenizerSteps, AddedTokensThatAreNotSpecialAreAlwaysFound) {
  EXPECT_EQ(pieces(with_added(json::array({added("<X>", 10)})), "a<X>b"),
            (Strings{"a", "<X>", "b"}));
  EXPECT_EQ(pieces(with_added(json::array({added("<X>", 10, {{"special", true}})})), "a<X>b"),
            (Strings{"a", "<", "X", ">", "b"}));
  EXPECT_EQ(pieces(with_added(json::array({added("<X>", 10, {{"special", true}})})), "a<X>b", true),
            (Strings{"a", "<X>", "b"}));
}

TEST(TokenizerSteps, TheLongestAddedTokenWins) {
  EXPECT_EQ(pieces(with_added({added("<X", 10), added("<X>", 11)}), "<X><X"),
            (Strings{"<X>", "<X"}));
}

TEST(TokenizerSteps, AddedTokensTakeWhiteSpaceWhenTheFileSaysSo) {
  EXPECT_EQ(pieces(with_added(json::array({added("<X>", 10, {{"lstrip", true}})})), "a  <X> b"),
            (Strings{"a", "<X>", " ", "b"}));
  EXPECT_EQ(pieces(with_added(json::array({added("<X>", 10, {{"rstrip", true}})})), "a <X>  b"),
            (Strings{"a", " ", "<X>", "b"}));
}

TEST(TokenizerSteps, WhiteSpaceThatAnAddedTokenTookIsNotFoundAgain) {
  const json file =
      with_added({added("<X>", 10, {{"rstrip", true}}), added("  ", 11, {{"lstrip", true}})});
  EXPECT_EQ(pieces(file, "<X>  a     <X>"), (Strings{"<X>", "a", "  ", "  ", " ", "<X>"}));
}

TEST(TokenizerSteps, AddedTokensMayHaveToBeWords) {
  const json file = with_added(
      {added("X", 5, {{"single_word", true}}), added("aa", 10, {{"single_word", true}})});
  EXPECT_EQ(pieces(file, "aa aab"), (Strings{"aa", " ", "a", "a", "b"}));
}

TEST(TokenizerSteps, NormalisedAddedTokensAreFoundInNormalisedText) {
  const auto file = [](bool normalized) {
    return json{{"added_tokens", json::array({added("e\u0301", 10, {{"normalized", normalized}})})},
                {"normalizer", {{"type", "NFC"}}},
                {"model", bpe({"a", "\u00E9"})}};
  };
  EXPECT_EQ(pieces(file(true), "a\u00E9"), (Strings{"a", "e\u0301"}));
  EXPECT_EQ(pieces(file(false), "a\u00E9"), (Strings{"a", "\u00E9"}));
}

TEST(TokenizerSteps, ThePostProcessorSaysWhatGoesInFront) {
  json file = llama2();
  EXPECT_EQ(Tokenizer::from_json(file.dump(), "made.json").prefix(), std::vector<TokenId>{1});
  const json template_step = file["post_processor"];
  file["post_processor"] = {{"type", "Sequence"},
                            {"processors", {{{"type", "ByteLevel"}}, template_step}}};
  EXPECT_EQ(Tokenizer::from_json(file.dump(), "made.json").prefix(), std::vector<TokenId>{1});
  file["post_processor"] = nullptr;
  EXPECT_TRUE(Tokenizer::from_json(file.dump(), "made.json").prefix().empty());
}

}  // namespace
}  // namespace unpack
