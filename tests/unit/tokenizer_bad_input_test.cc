// Files that a tokenizer cannot be read from: one line that names the file and what is wrong in it.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "unit/temp_folder.h"
#include "unpack/error.h"
#include "unpack/tokenizer.h"

namespace unpack {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json good() {
  return json::parse(
      R"({"added_tokens": [{"id": 3, "content": "<s>", "special": true}], "normalizer": null, )"
      R"("pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing", "single":
           [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [3]}}},
    "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
          "merges": [["a", "b"]]}})");
}

void expect_error(const std::string& file, const std::string& what) {
  try {
    Tokenizer::from_json(file, "some/tokenizer.json");
    ADD_FAILURE() << "accepted: " << file.substr(0, 300);
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_TRUE(message.starts_with("some/tokenizer.json: ")) << message;
    EXPECT_NE(message.find(what), std::string::npos) << message << "\n  should say: " << what;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 500u);
  }
}

void expect_error_with(const char* pointer, const json& value, const std::string& what) {
  json file = good();
  file[json::json_pointer(pointer)] = value;
  expect_error(file.dump(), what);
}

TEST(TokenizerBadInput, TheUnchangedFileIsGood) {
  EXPECT_EQ(Tokenizer::from_json(good().dump(), "t").size(), 4u);
}

TEST(TokenizerBadInput, IsNotJson) {
  expect_error("", "not valid JSON (at byte");
  expect_error("{\"model\": ", "not valid JSON (at byte");
  expect_error("version https://git-lfs.github.com/spec/v1", "not valid JSON (at byte 1");
  expect_error("[1]", "the file must be a JSON object");
  expect_error("{}", "model is missing");
  expect_error("{\"a\xFF\": 1}", "not valid JSON");
  expect_error(std::string(100000, '['), "nested more than");
  expect_error(R"({"model": {}, "model": {}})", "\"model\" stands there twice");
}

TEST(TokenizerBadInput, HasAFieldOfTheWrongKind) {
  expect_error_with("/model", 3, "model must be a JSON object");
  expect_error_with("/model/vocab", json::array(), "model.vocab must be an object");
  expect_error_with("/model/vocab/a", "0", "vocabulary token \"a\" must be a whole number");
  expect_error_with("/model/vocab/a", 0.5, "vocabulary token \"a\" must be a whole number");
  expect_error_with("/model/vocab/a", json::object(),
                    "vocabulary token \"a\" must be a whole number");
  expect_error_with("/model/merges", "a b", "model.merges must be a list");
  expect_error_with("/model/merges/0", 3, "model.merges[0] must be a string or a list");
  expect_error_with("/model/merges/0", {"a"}, "model.merges[0] must be two tokens");
  expect_error_with("/model/merges/0", {"a", "b", "a"}, "model.merges[0] must be two tokens");
  expect_error_with("/model/merges/0", "a  b", "model.merges[0] must be two tokens");
  expect_error_with("/model/ignore_merges", "yes", "model.ignore_merges must be true or false");
  expect_error_with("/model/unk_token", 3, "model.unk_token must be a string");
  expect_error_with("/added_tokens", json::object(), "added_tokens must be a list");
  expect_error_with("/added_tokens/0", 3, "added_tokens[0] must be a JSON object");
  expect_error_with("/added_tokens/0/content", 3, "added_tokens[0].content must be a string");
  expect_error_with("/added_tokens/0/id", "3", "added_tokens[0].id must be a whole number");
  expect_error_with("/normalizer", "NFC", "normalizer must be a JSON object");
  expect_error_with("/pre_tokenizer", {{"type", "Split"}, {"pattern", "x"}},
                    "pre_tokenizer.pattern must be a JSON object");
  expect_error_with("/pre_tokenizer", {{"type", "Split"}, {"pattern", json::object()}},
                    "pre_tokenizer.pattern must have a String or a Regex");
  expect_error_with("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}},
                    "pre_tokenizer.replacement must be one character");
  expect_error_with("/decoder", {{"type", "Strip"}, {"content", " "}, {"start", -1}, {"stop", 0}},
                    "decoder.start must not be negative");
}

TEST(TokenizerBadInput, LacksAPart) {
  json file = good();
  file["model"].erase("vocab");
  expect_error(file.dump(), "model.vocab is missing");
  expect_error_with("/model/vocab", json::object(), "the vocabulary is missing or empty");
  file = good();
  file["model"].erase("merges");
  expect_error(file.dump(), "model.merges is missing");
  file = good();
  file["added_tokens"][0].erase("id");
  expect_error(file.dump(), "added_tokens[0].id is missing");
}

TEST(TokenizerBadInput, HasIdsThatCannotBe) {
  expect_error_with("/model/vocab/a", -1, "\"a\" has the id -1, outside 0 to");
  expect_error_with("/model/vocab/a", 4000000000u, "\"a\" has the id 4000000000, outside 0 to");
  expect_error_with("/model/vocab/a", 18446744073709551615u, "outside 0 to");
  expect_error_with("/model/vocab/a", 1, "have the same id 1");
  expect_error_with("/added_tokens/0/id", 2, "have the same id 2");
  expect_error_with("/added_tokens/0/id", 1 << 30, "outside 0 to");
  expect_error_with("/added_tokens/0/id", 18446744073709551615u,
                    "added_tokens[0].id is out of range");
  expect_error_with("/added_tokens/0/content", "a",
                    "added_tokens gives \"a\" the id 3, the vocabulary 0");
  expect_error_with("/added_tokens/1", {{"id", 4}, {"content", "<s>"}},
                    "added_tokens holds \"<s>\" twice");
  expect_error_with("/post_processor/special_tokens/<s>/ids", {7},
                    "\"7\", which is the id of no token");
  expect_error(R"({"model": {"vocab": {"a": 0, "a": 1}, "merges": []}})",
               "\"a\" stands there twice");
}

TEST(TokenizerBadInput, HasMergesOfUnknownTokens) {
  expect_error_with("/model/merges/0", {"a", "c"},
                    "merge 0 (\"a\" with \"c\") needs the token \"ac\"");
  expect_error_with("/model/merges/1", "b a", "merge 1 (\"b\" with \"a\") needs the token \"ba\"");
  expect_error_with("/model/unk_token", "<unk>",
                    "model.unk_token \"<unk>\" is not in the vocabulary");
}

TEST(TokenizerBadInput, IsOfAKindThatIsNotSupported) {
  expect_error_with("/model/type", "WordPiece", "model.type \"WordPiece\" is not supported");
  expect_error_with("/model/dropout", 0.1, "model.dropout is not supported");
  expect_error_with("/model/end_of_word_suffix", "</w>",
                    "model.end_of_word_suffix is not supported");
  expect_error_with("/normalizer", {{"type", "BertNormalizer"}},
                    "normalizer.type \"BertNormalizer\" is not supported");
  expect_error_with("/pre_tokenizer", {{"type", "BertPreTokenizer"}},
                    "pre_tokenizer.type \"BertPreTokenizer\" is not supported");
  expect_error_with(
      "/pre_tokenizer",
      {{"type", "Sequence"}, {"pretokenizers", {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}},
      "pre_tokenizer.pretokenizers[1].type follows a ByteLevel step");
  expect_error_with("/pre_tokenizer",
                    {{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Other"}},
                    "pre_tokenizer.behavior \"Other\"");
  expect_error_with("/decoder", {{"type", "WordPiece"}},
                    "decoder.type \"WordPiece\" is not supported");
  expect_error_with("/post_processor", {{"type", "BertProcessing"}},
                    "post_processor.type \"BertProcessing\" is not supported");
  const json unigram = {{"type", "Unigram"}, {"vocab", json::array({json::array({"a", -1.5})})}};
  expect_error_with("/model", unigram, "model.type \"Unigram\" is not supported");
}

TEST(TokenizerBadInput, HasAPatternThatDoesNotCompile) {
  expect_error_with("/pre_tokenizer", {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}},
                    "pre_tokenizer.pattern is a pattern that does not compile");
  expect_error_with("/pre_tokenizer",
                    {{"type", "Split"}, {"pattern", {{"Regex", std::string(100000, 'a')}}}},
                    "pattern of more than");
}

TEST(TokenizerBadInput, HasAPatternThatBacktracksWithoutEnd) {
  json file = good();
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a|aa)+[bc]"}}}, {"behavior", "Isolated"}};
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "t");
  EXPECT_THROW(tokenizer.encode(std::string(5000, 'a')), InputError);
}

// Sixty doublings would fill any memory.
TEST(TokenizerBadInput, MakesTextGrowWithoutBound) {
  const json twice = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  json file = good();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json(60, twice)}};
  const Tokenizer tokenizer = Tokenizer::from_json(file.dump(), "t");
  EXPECT_THROW(tokenizer.encode("a"), InputError);
  expect_error_with("/decoder", {{"type", "Sequence"}, {"decoders", json(60, twice)}},
                    "grow without bound");
  expect_error_with("/normalizer", {{"type", "Sequence"}, {"normalizers", json(65, twice)}},
                    "more than 64 are not supported");
}

class TokenizerFolder : public testing::Test {
 protected:
  void write(const char* name, const std::string& text) { temporary_.write(name, text); }
  std::string error() {
    try {
      Tokenizer::load(folder_);
    } catch (const InputError& error) {
      return error.what();
    }
    return "no error";
  }
  const test::TempFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(TokenizerFolder, WithoutTokenizerFilesSaysWhatToPutThere) {
  EXPECT_FALSE(Tokenizer::exists(folder_));
  write("vocab.json", "{}");
  EXPECT_FALSE(Tokenizer::exists(folder_)) << "vocab.json alone is no tokenizer";
  EXPECT_NE(error().find("put tokenizer.json, or vocab.json and merges.txt"), std::string::npos)
      << error();
}

TEST_F(TokenizerFolder, WithABadMergesTxtNamesTheLine) {
  write("vocab.json", R"({"a": 0, "b": 1, "ab": 2})");
  write("merges.txt", "#version: 0.2\na b\nab\n");
  EXPECT_NE(error().find("merges.txt: line 3 must be two tokens"), std::string::npos) << error();
}

TEST_F(TokenizerFolder, WithABadVocabJsonNamesIt) {
  write("merges.txt", "a b\n");
  write("vocab.json", "[1, 2]");
  EXPECT_NE(error().find("vocab.json: the vocabulary is missing or empty"), std::string::npos)
      << error();
  write("vocab.json", R"({"a": 0, "b": 1})");
  EXPECT_NE(error().find("merges.txt: merge 0"), std::string::npos) << error();
}

TEST_F(TokenizerFolder, WithAFolderInPlaceOfTheFileSaysSo) {
  fs::create_directories(folder_ / "tokenizer.json");
  EXPECT_NE(error().find("tokenizer.json: is a folder"), std::string::npos) << error();
}

}  // namespace
}  // namespace unpack
