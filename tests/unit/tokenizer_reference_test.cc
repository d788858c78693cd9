// The ids that the public tokenizers give, for the files of six model families.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cpu_seconds.h"
#include "test_paths.h"
#include "unpack/tokenizer.h"

namespace unpack {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

const fs::path kShared = fs::path(UNPACK_SOURCE_DIR) / ".." / "shared" / "tokenizers";

class TokenizerReference : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!fs::exists(kShared / "expected.json"))
      GTEST_SKIP() << "the reference tokenizers are not here (" << kShared << ")";
    std::ifstream file(kShared / "expected.json");
    expected_ = nlohmann::json::parse(file);
  }
  Tokenizer load() const {
    const std::string name = GetParam();
    return Tokenizer::load(name == "pocket" ? fs::path(UNPACK_SOURCE_DIR) / "models" / "pocket-gpt2"
                                            : kShared / name);
  }
  nlohmann::json expected_;
};

TEST_P(TokenizerReference, GivesTheSameIds) {
  const Tokenizer tokenizer = load();
  const auto texts = expected_["texts"].get<std::vector<std::string>>();
  const auto ids = expected_[GetParam()].get<std::vector<Ids>>();
  ASSERT_EQ(texts.size(), ids.size());
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(tokenizer.encode(texts[i], true), ids[i]) << texts[i];
}

TEST_P(TokenizerReference, PutsTheSameTokensInFront) {
  const auto special = expected_.find(std::string(GetParam()) + "/special");
  if (special == expected_.end()) GTEST_SKIP() << "no ids with special tokens for it";
  const Tokenizer tokenizer = load();
  for (std::size_t i = 0; i < special->size(); ++i) {
    Ids ids = tokenizer.prefix();
    const Ids rest = tokenizer.encode(expected_["texts"][i].get<std::string>());
    ids.insert(ids.end(), rest.begin(), rest.end());
    EXPECT_EQ(ids, (*special)[i].get<Ids>());
  }
}

TEST_P(TokenizerReference, DecodesToTheText) {
  const Tokenizer tokenizer = load();
  const std::string name = GetParam();
  const bool composes = name == "pythia" || name == "qwen3";
  for (const auto& text : expected_["texts"].get<std::vector<std::string>>()) {
    if (composes && text.find("e\u0301") != std::string::npos) continue;  // NFC changes it
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text, true)), text);
  }
}

TEST_P(TokenizerReference, EncodesHundredKilobytesWithoutSpacesAtOnce) {
  const Tokenizer tokenizer = load();
  std::string text;
  while (text.size() < 100000)
    text += "thequickbrownfoxjumpsoverthelazydog" + std::to_string(text.size());
  Ids ids;
  EXPECT_LT(cpu_seconds([&] { ids = tokenizer.encode(text); }), 5);
  EXPECT_EQ(tokenizer.decode(ids), text);
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerReference,
                         testing::Values("gpt2", "pythia", "pocket", "llama3", "qwen3", "llama2"),
                         [](const auto& file) { return std::string(file.param); });

}  // namespace
}  // namespace unpack
