// The bundled tokenizer: what it must give for texts that are easy to get wrong, and what must hold
// for every text.
#include "unpack/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "cpu_seconds.h"
#include "test_paths.h"
#include "unit/temp_folder.h"
#include "unpack/error.h"

namespace unpack {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<TokenId>;

const fs::path kPocket = fs::path(UNPACK_SOURCE_DIR) / "models" / "pocket-gpt2";

const Tokenizer& pocket() {
  static const Tokenizer tokenizer = Tokenizer::load(kPocket);
  return tokenizer;
}

std::string utf8(const std::vector<char32_t>& code_points) {
  std::string text;
  for (const char32_t c : code_points) {
    if (c < 0x80) {
      text += static_cast<char>(c);
    } else if (c < 0x800) {
      text += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
    } else if (c < 0x10000) {
      text += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
               static_cast<char>(0x80 | (c & 0x3F))};
    } else {
      text += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)),
               static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
    }
  }
  return text;
}

// Any Unicode text, with ASCII and white space often enough that splits and merges come into play.
rc::Gen<std::string> any_text() {
  const auto code_point = rc::gen::weightedOneOf<char32_t>(
      {{6, rc::gen::map(rc::gen::inRange(0, 0x80), [](int c) { return static_cast<char32_t>(c); })},
       {3, rc::gen::elementOf(std::u32string(U" \n\t\u00A0\u0085\u180E\u3000'etaoins0"))},
       {2, rc::gen::map(rc::gen::inRange(0x80, 0xD800),
                        [](int c) { return static_cast<char32_t>(c); })},
       {1, rc::gen::map(rc::gen::inRange(0xE000, 0x110000),
                        [](int c) { return static_cast<char32_t>(c); })}});
  return rc::gen::map(rc::gen::container<std::vector<char32_t>>(code_point), utf8);
}

struct Expectation {
  const char* text;
  Ids ids;
};

TEST(Tokenizer, GivesTheIdsOfTheReferenceLibraryForTheBundledVocabulary) {
  const std::vector<Expectation> expectations = {
      {"Mary and John went to the store. John gave a drink to",
       {4119, 272, 790, 613, 267, 260, 1301, 14, 790, 592, 259, 1161, 267}},
      {" Hello  world   three", {7284, 79, 221, 1486, 221, 221, 1541}},
      {"a\nb\n\nc\n", {65, 199, 66, 199, 199, 67, 199}},
      {"\t\ttabs\tand \t mixed \n lines\r\nCRLF",
       {198, 198, 84, 448, 83, 198, 449, 221, 198, 7546, 221, 199, 3810, 202, 199, 35, 50, 44, 38}},
      {"it's I'm you'll they've we'd DON'T can't o'clock 'tis",
       {277,  422, 307, 1690, 338, 1438, 516, 1675, 454, 1495, 392,
        2432, 7,   52,  695,  604, 270,  7,   3156, 713, 3947}},
      {"The year 1732 to the year 17, 3.14159 1,000,000 007",
       {679,  2128, 374, 1206, 267, 260,  2128, 374,  12,  6883, 14,
        1193, 1187, 25,  266,  12,  5874, 12,   5874, 221, 1108, 23}},
      {"na\u00EFve caf\u00E9 r\u00E9sum\u00E9 \u00DCbergr\u00F6\u00DFe \u00C7A",
       {750, 128, 108,  305,  278, 735, 3550, 356, 3550, 83,  399, 3550, 221,
        128, 251, 1392, 1806, 128, 115, 128,  254, 69,   221, 128, 230,  33}},
      {"\u65E5\u672C\u8A9E\u306E\u30C6\u30AD\u30B9\u30C8\u3001\u6F22\u5B57\u3068\u304B\u306A\u3002",
       {163, 246, 99,  163, 251, 106, 165, 104, 253, 160, 224, 107, 160, 226, 229,
        160, 225, 256, 160, 225, 118, 160, 226, 231, 160, 223, 224, 163, 121, 96,
        162, 256, 246, 160, 224, 102, 160, 224, 234, 160, 224, 104, 160, 223, 225}},
      {"\U0001F44D\U0001F3FD \U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466 "
       "\U0001F1F3\U0001F1F1 \u2603",
       {173, 254, 240, 236, 173, 254, 238, 122, 221, 173, 254, 240, 102, 159, 223, 236,
        173, 254, 240, 103, 159, 223, 236, 173, 254, 240, 101, 159, 223, 236, 173, 254,
        240, 100, 221, 173, 254, 230, 112, 173, 254, 230, 110, 221, 159, 247, 226}},
      {"e\u0301 vs \u00E9 combining", {69, 137, 224, 416, 83, 221, 3550, 3739, 2591}},
      {"zero\u200Bwidth nb\u00A0sp em\u2003space",
       {90, 265, 79,  159,  223,  234, 87,  306, 421,  300,
        66, 127, 255, 4807, 1680, 159, 223, 226, 4807, 424}},
      {"text<|endoftext|>more", {450, 1713, 0, 5566}},
      {"<|endoftext|>Mary", {0, 4119}},
      {"    indented code\n        more",
       {221, 221, 221, 1136, 2338, 552, 1976, 199, 221, 221, 221, 221, 221, 221, 221, 655}},
      {"   ", {221, 221, 221}},
      {"don't' '", {5732, 604, 7, 713}},
      {"\uFEFFBOM", {2356, 34, 6933}},
  };
  for (const Expectation& expected : expectations) {
    EXPECT_EQ(pocket().encode(expected.text, true), expected.ids) << expected.text;
    EXPECT_EQ(pocket().decode(expected.ids), expected.text);
  }
}

TEST(Tokenizer, KeepsNulAndControlCharacters) {
  const std::string text("\0nul\1", 5);
  EXPECT_EQ(pocket().decode(pocket().encode(text)), text);
}

TEST(Tokenizer, RecognisesSpecialTokensOnlyWhenAsked) {
  EXPECT_EQ(pocket().encode("<|endoftext|>", true), Ids{0});
  const Ids spelled = pocket().encode("<|endoftext|>");
  EXPECT_GT(spelled.size(), 1u);
  EXPECT_EQ(pocket().decode(spelled), "<|endoftext|>");
}

TEST(Tokenizer, KnowsItsSizeItsTokensAndThatNothingGoesInFront) {
  EXPECT_EQ(pocket().size(), 8192u);
  EXPECT_EQ(pocket().id_of("<|endoftext|>"), 0);
  EXPECT_EQ(pocket().id_of("no such token"), std::nullopt);
  EXPECT_TRUE(pocket().prefix().empty());
  const auto the = pocket().id_of("\u0120the");
  ASSERT_TRUE(the.has_value());
  EXPECT_EQ(pocket().token_text(*the), " the");
}

TEST(Tokenizer, ShowsTokensThatArePartOfACharacter) {
  const Ids ids = pocket().encode("\u65E5");
  ASSERT_GT(ids.size(), 1u) << "the test needs a character that takes several tokens";
  std::string bytes;
  for (const TokenId id : ids) {
    bytes += pocket().token_bytes(id);
    EXPECT_EQ(pocket().token_text(id), "\uFFFD");
  }
  EXPECT_EQ(bytes, "\u65E5");
  EXPECT_EQ(pocket().decode(std::span(ids).first(1)), "\uFFFD");
}

TEST(Tokenizer, ShowsIdsPastTheVocabularyAsNumbers) {
  EXPECT_EQ(pocket().token_text(9000), "[9000]");
  EXPECT_EQ(pocket().token_text(-1), "[-1]");
  EXPECT_EQ(pocket().token_bytes(9000), "");
  EXPECT_EQ(pocket().decode(Ids{9000, -5}), "");
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8AndSaysWhere) {
  for (const std::string bad :
       {"ab\xFF", "ab\xC0\x80", "ab\xED\xA0\x80", "ab\xF4\x90\x80\x80", "ab\xE6\x97", "ab\x80"}) {
    try {
      pocket().encode(bad);
      FAIL() << "accepted " << bad;
    } catch (const InputError& error) {
      EXPECT_NE(std::string(error.what()).find("at byte 2"), std::string::npos) << error.what();
    }
  }
}

TEST(Tokenizer, DecodesWhatItEncodedForAnyText) {
  EXPECT_TRUE(rc::check("decode(encode(x)) == x", [] {
    const std::string text = *any_text();
    RC_ASSERT(pocket().decode(pocket().encode(text)) == text);
    RC_ASSERT(pocket().decode(pocket().encode(text, true)) == text);
  }));
}

TEST(Tokenizer, TokenBytesJoinToTheText) {
  EXPECT_TRUE(rc::check("joined token_bytes == x", [] {
    const std::string text = *any_text();
    std::string joined;
    for (const TokenId id : pocket().encode(text)) joined += pocket().token_bytes(id);
    RC_ASSERT(joined == text);
  }));
}

// Byte-pair encoding as it is defined: again and again the pair of lowest rank, the leftmost of
// equals.
Ids merge_plainly(std::vector<std::string> symbols,
                  const std::map<std::pair<std::string, std::string>, int>& ranks,
                  const Tokenizer& tokenizer) {
  while (true) {
    int best = -1;
    int lowest = std::numeric_limits<int>::max();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = ranks.find({symbols[i], symbols[i + 1]});
      if (found != ranks.end() && found->second < lowest) {
        lowest = found->second;
        best = static_cast<int>(i);
      }
    }
    if (best < 0) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + best + 1);
  }
  Ids ids;
  for (const std::string& symbol : symbols) ids.push_back(tokenizer.id_of(symbol).value());
  return ids;
}

TEST(Tokenizer, MergesShortAndLongPiecesByTheDefinition) {
  std::ifstream file(kPocket / "tokenizer.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  std::map<std::pair<std::string, std::string>, int> ranks;
  for (const auto& merge : json["model"]["merges"])
    ranks[{merge[0], merge[1]}] = static_cast<int>(ranks.size());
  EXPECT_TRUE(rc::check("one run of letters", [&] {
    const auto size = *rc::gen::elementOf(std::vector<int>{3, 20, 47, 48, 49, 50, 150});
    const auto letters =
        *rc::gen::container<std::string>(size, rc::gen::elementOf(std::string("etaoinshrdlu")));
    std::vector<std::string> symbols;
    for (const char c : letters) symbols.emplace_back(1, c);
    RC_ASSERT(pocket().encode(letters) == merge_plainly(symbols, ranks, pocket()));
  }));
}

// Tokenizers without a pre-tokenizer may be cut at "▁" to save time; which ones is for the
// tokenizer to find out.
TEST(Tokenizer, MergesTextWithoutAPreTokenizerByTheDefinition) {
  EXPECT_TRUE(rc::check("random merges over a, b and the space sign", [] {
    std::vector<std::string> tokens = {"\u2581", "a", "b"};
    nlohmann::json vocab = {{"\u2581", 0}, {"a", 1}, {"b", 2}};
    nlohmann::json merges = nlohmann::json::array();
    std::map<std::pair<std::string, std::string>, int> ranks;
    const bool within_words = *rc::gen::arbitrary<bool>();
    for (int i = 0; i < 12; ++i) {
      const std::string left = *rc::gen::elementOf(tokens);
      const std::string right = *rc::gen::elementOf(tokens);
      if (within_words && right.starts_with("\u2581") && !left.ends_with("\u2581")) continue;
      if (left.size() + right.size() > 24 ||
          !ranks.emplace(std::pair(left, right), static_cast<int>(ranks.size())).second)
        continue;
      merges.push_back({left, right});
      if (!vocab.contains(left + right)) {
        vocab[left + right] = vocab.size();
        tokens.push_back(left + right);
      }
    }
    const nlohmann::json json = {
        {"normalizer",
         {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
    const Tokenizer tokenizer = Tokenizer::from_json(json.dump(), "made.json");
    const auto text = *rc::gen::container<std::string>(rc::gen::elementOf(std::string(" aab")));
    std::vector<std::string> symbols;
    for (const char c : text) symbols.push_back(c == ' ' ? "\u2581" : std::string(1, c));
    RC_ASSERT(tokenizer.encode(text) == merge_plainly(symbols, ranks, tokenizer));
  }));
}

TEST(Tokenizer, ReadsVocabJsonWithMergesTxtLikeTheSameTokenizerJson) {
  std::ifstream file(kPocket / "tokenizer.json");
  const nlohmann::json model = nlohmann::json::parse(file)["model"];
  const test::TempFolder temporary;
  const fs::path folder = temporary.path();
  std::ofstream(folder / "vocab.json") << model["vocab"].dump();
  std::ofstream merges(folder / "merges.txt");
  merges << "#version: 0.2\n";
  for (const auto& merge : model["merges"])
    merges << merge[0].get<std::string>() << ' ' << merge[1].get<std::string>() << '\n';
  merges.close();
  EXPECT_TRUE(Tokenizer::exists(folder));
  const Tokenizer tokenizer = Tokenizer::load(folder);
  EXPECT_EQ(tokenizer.size(), pocket().size());
  for (const char* text :
       {"Mary and John went to the store.", "it's   3,000\n\n\u00E9t\u00E9 <|endoftext|>"}) {
    EXPECT_EQ(tokenizer.encode(text), pocket().encode(text));
    EXPECT_EQ(tokenizer.encode(text, true), pocket().encode(text, true));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, EncodesFromManyThreadsAtOnce) {
  std::string text;
  for (int i = 0; i < 500; ++i)
    text += "Mary and John " + std::to_string(i * 7919) + " went to the store.\n";
  const Ids expected = pocket().encode(text);
  std::vector<Ids> results(4);
  std::vector<std::thread> threads;
  for (Ids& result : results) threads.emplace_back([&] { result = pocket().encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& result : results) EXPECT_EQ(result, expected);
}

// Quadratic merging would take far longer; the limit leaves room for sanitizers and slow machines.
TEST(Tokenizer, EncodesAMegabyteWithoutSpacesInSeconds) {
  std::string text;
  while (text.size() < (1u << 20)) text += "thequickbrownfoxjumpsoverthelazydog";
  Ids ids;
  EXPECT_LT(cpu_seconds([&] { ids = pocket().encode(text); }), 30);
  EXPECT_EQ(pocket().decode(ids), text);
}

}  // namespace
}  // namespace unpack
