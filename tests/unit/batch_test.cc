// What stands behind a batch: lines that carry their checksum, prompt files of every kind, answers
// that do not depend on their company.
#include "unpack/batch.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "batch/facts.h"
#include "report/line_log.h"
#include "test_paths.h"
#include "unit/devices.h"
#include "unit/temp_folder.h"
#include "unpack/error.h"

namespace unpack {
namespace {

using Json = nlohmann::ordered_json;

class Batch : public ::testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    return temporary_.write(name, text).string();
  }
  std::vector<PromptRecord> records(const std::string& name, const std::string& text) const {
    PromptReader reader(write(name, text));
    std::vector<PromptRecord> out;
    for (PromptRecord record; reader.next(record);) out.push_back(record);
    EXPECT_EQ(out.size(), reader.count());
    return out;
  }

  const test::TempFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST(Checksum, IsTheOneOfZlib) {
  EXPECT_EQ(base::crc32("123456789"), 0xCBF43926U);
  EXPECT_EQ(base::crc32(""), 0U);
  EXPECT_EQ(base::crc32_text("The quick brown fox jumps over the lazy dog"), "414fa339");
}

RC_GTEST_PROP(Checksum, ASealedLineIsValidJsonAndAnyChangedByteShows,
              (const std::string& text, std::size_t at, char to)) {
  const Json object = {{"text", text}};
  std::string line = report::seal(object);
  RC_ASSERT(report::is_sealed(line));
  Json read = Json::parse(line);
  RC_ASSERT(read.erase("crc32") == 1U);
  RC_ASSERT(read.dump() == object.dump(-1, ' ', false, Json::error_handler_t::replace));
  char& changed = line[at % line.size()];
  RC_PRE(changed != to);
  changed = to;
  RC_ASSERT(!report::is_sealed(line));
}

TEST(Checksum, ALineOfAnEarlierVersionIsStillWhole) {
  const std::string line = R"({"index":0,"x":[0.1,1e-07,"\u0001"],"crc32":"6428f365"})";
  EXPECT_TRUE(report::is_sealed(line));
  Json object = Json::parse(line);
  object.erase("crc32");
  EXPECT_EQ(report::seal(object), line);
  EXPECT_FALSE(report::is_sealed(R"({"index":0})"));
  EXPECT_FALSE(report::is_sealed(""));
}

TEST_F(Batch, ALogIsCutBehindItsLastWholeLine) {
  const auto file = folder_ / "log";
  const auto read = [&] {
    std::vector<std::string> out;
    report::LineLog log(file, [&](std::string_view object) { out.emplace_back(object); });
    return out;
  };
  {
    report::LineLog log(file, [](std::string_view) { FAIL(); });
    log.append(report::seal({{"a", 1}}) + "\n" + report::seal({{"a", 2}}) + "\n");
    EXPECT_THROW(report::LineLog(file, [](std::string_view) {}),
                 InputError);  // one writer at a time
  }
  const auto whole = std::filesystem::file_size(file);
  std::ofstream(file, std::ios::app) << report::seal({{"a", 3}});  // no line end
  EXPECT_EQ(read(), (std::vector<std::string>{report::seal({{"a", 1}}), report::seal({{"a", 2}})}));
  EXPECT_EQ(std::filesystem::file_size(file), whole);
  std::ofstream(file, std::ios::app) << "{\"a\":3,\"crc32\":\"00000000\"}\n";
  EXPECT_EQ(read().size(), 2U);
  EXPECT_EQ(std::filesystem::file_size(file), whole);
}

TEST_F(Batch, AFileOfSomebodyElseIsNotCut) {
  const std::string file = write("log", "not ours\n");
  EXPECT_THROW(report::LineLog(file, [](std::string_view) {}), InputError);
  EXPECT_EQ(std::filesystem::file_size(file), 9U);
}

TEST_F(Batch, TextHasAPromptALine) {
  const auto got = records("p.txt", "\xEF\xBB\xBFMary\r\n\n  \n# not a remark\nlast \"one\"");
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got[0].fields, "{\"prompt\":\"Mary\"}");
  EXPECT_EQ(got[1].line, 4U);
  EXPECT_EQ(got[2].index, 2U);
  EXPECT_EQ(Json::parse(got[2].fields)["prompt"], "last \"one\"");
}

TEST_F(Batch, TablesHaveQuotesAndLineEndsInCells) {
  const auto got = records("p.csv",
                           "id, Prompt ,position\r\n1,\"a \"\"b\"\"\r\nc, d\",-1\r\n2,plain "
                           "\"quote\",\r\n3,\"open\"x,1\r\n4,e,2\r\n");
  ASSERT_EQ(got.size(), 4U);
  EXPECT_EQ(Json::parse(got[0].fields),
            Json({{"id", "1"}, {"prompt", "a \"b\"\r\nc, d"}, {"position", "-1"}}));
  EXPECT_EQ(Json::parse(got[1].fields),
            Json({{"id", "2"}, {"prompt", "plain \"quote\""}}));  // an empty cell says nothing
  EXPECT_EQ(got[1].line, 4U);
  EXPECT_NE(got[2].problem, "");
  EXPECT_EQ(Json::parse(got[3].fields)["prompt"], "e");  // the line behind a bad one is read
}

TEST_F(Batch, AnOpenQuoteIsSaid) {
  const auto got = records("p.csv", "prompt\n\"never closed\nmore\n");
  ASSERT_EQ(got.size(), 1U);
  EXPECT_NE(got[0].problem.find("never closed"), std::string::npos);
}

TEST_F(Batch, AReaderBeginsAgain) {
  PromptReader reader(write("p.csv", "prompt\na\nb\n"));
  PromptRecord record;
  while (reader.next(record)) {
  }
  reader.rewind();
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record.index, 0U);
  EXPECT_EQ(record.fields, "{\"prompt\":\"a\"}");
}

TEST_F(Batch, TheQuestionOfARunSurvivesItsTextForm) {
  Asked asked;
  asked.question.target.ids = {3, 4};
  asked.question.target.versus = std::vector<TokenId>{5};
  asked.question.target.position = -2;
  asked.question.root = "A1.H0@-1";
  asked.question.options.beta = 0.1;
  asked.question.options.mlp = MlpRule::l2;
  asked.question.paths.tau = 0.25;
  asked.question.paths.branch = Branch::Q;
  asked.question.paths.sign = -1;
  asked.top_paths = 7;
  asked.no_bos = true;
  EXPECT_EQ(to_json(read_asked(to_json(asked))), to_json(asked));
  EXPECT_EQ(read_asked(to_json(asked)).question.paths.sign, -1);
  EXPECT_THROW(read_asked("{\"bta\": 1}"), InputError);
  EXPECT_THROW(read_asked("{\"prompt\": \"a\"}"), InputError);
  EXPECT_THROW(read_asked("{\"target\": \" Mary\"}"), UsageError);  // no model to split it
}

class BatchOnEveryDevice : public testing::OnEveryDevice {};
UNPACK_ON_EVERY_DEVICE(BatchOnEveryDevice);

TEST_P(BatchOnEveryDevice, ALineDoesNotDependOnItsCompanyNorOnThreads) {
  LoadOptions one = load(), two = load();
  one.threads = 1;
  two.threads = 2;
  // The bundled model is slow where no device is behind it.
  const std::string name = device() == "cpu" || device() == "cuda" ? "pocket-gpt2"
                                                                   : UNPACK_TEST_DATA
                               "/golden/tiny-gpt2";
  const Model model = Model::load(name, one), other = Model::load(name, two);
  std::vector<PromptRecord> all;
  for (std::size_t i = 0; i < 9; ++i)
    all.push_back(
        {i, i + 1,
         i == 4 ? "{"
                : "{\"ids\": [" + std::string(i % 3 > 0 ? "7, 8, " : "") + std::to_string(i) + "]}",
         ""});
  const Asked asked;
  const std::vector<BatchLine> together = trace_prompts(model, asked, all);
  const std::vector<BatchLine> elsewhere = trace_prompts(other, asked, {all.rbegin(), all.rend()});
  ASSERT_EQ(together.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(together[i].index, i);
    EXPECT_EQ(together[i].error, i == 4);
    EXPECT_EQ(elsewhere[all.size() - 1 - i].text, together[i].text);
    EXPECT_EQ(trace_prompts(model, asked, {all[i]}).at(0).text, together[i].text);
  }
}

TEST_F(Batch, WhatASummaryNeedsIsReadBackFromALineAsItWas) {
  const Model model = Model::load("pocket-gpt2");
  const std::vector<PromptRecord> asked = {
      {0, 1,
       R"({"id": "\"target\":{\"position\": [", "prompt": "a \"node_credit\":{\"emb\":[1]} )"
       R"({\"position\":3}"})",
       ""},
      {1, 2, R"({"ids": [3], "root": "A1.H0@0"})", ""},
      {2, 3, R"({"ids": [3, 4], "method": "ifr"})", ""}};
  for (const BatchLine& line : trace_prompts(model, {}, asked)) {
    ASSERT_FALSE(line.error) << line.reason;
    const batch::LineValues back = batch::read_line(line.text, "results.jsonl", true);
    EXPECT_EQ(back.facts, line.facts);
    EXPECT_EQ(back.index, line.index);
    const Json json = Json::parse(line.text);
    EXPECT_EQ(line.facts.at(0), static_cast<double>(json["tokens"].size()));
    EXPECT_EQ(line.facts.at(1), json["target"]["probability"].get<double>());
    EXPECT_EQ(line.facts.size() > 2, json.contains("node_credit"));
  }
  EXPECT_THROW(batch::read_line("{}", "results.jsonl", true), InputError);
}

TEST_F(Batch, AFolderTakesLinesOnlyInOrder) {
  const std::string file = write("p.txt", "a\nb\nc\n");
  BatchOptions options;
  options.out = folder_ / "out";
  BatchMaker maker;
  const auto line = [](std::size_t index) {
    return BatchLine{index, false, report::seal({{"index", index}}), "", {1, 0.5}, {}};
  };
  BatchFolder folder(options, maker, PromptReader(file));
  EXPECT_EQ(folder.next(2).size(), 2U);
  EXPECT_EQ(folder.next(2).size(), 1U);
  EXPECT_TRUE(folder.next(2).empty());
  folder.append({line(1)});
  EXPECT_THROW(folder.append({line(0)}), InputError);
  EXPECT_THROW(folder.finish(), InputError);  // not all are there
}

TEST(ShardsOfARun, EveryPromptBelongsToExactlyOne) {
  for (std::size_t i = 0; i < 100; ++i) {
    int owners = 0;
    for (int s = 1; s <= 7; ++s) owners += Shard{s, 7}.owns(i);
    EXPECT_EQ(owners, 1);
  }
  EXPECT_EQ(parse_shard("2/4"), (Shard{2, 4}));
  for (const char* wrong : {"", "0/4", "5/4", "2", "2/", "/4", "2/4/", "a", "2/-4"})
    EXPECT_THROW(parse_shard(wrong), UsageError) << wrong;
}

}  // namespace
}  // namespace unpack
