#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "unit/report_fixture.h"
#include "unpack/groups.h"

namespace unpack {
namespace {

std::vector<std::string> texts_of(const std::vector<WordCredit>& words) {
  std::vector<std::string> texts;
  for (const WordCredit& word : words) texts.push_back(word.text);
  return texts;
}

TEST(MergeWords, JoinsSubwordsAndAddsTheirCredit) {
  const auto tokens = test::make_tokens({"<|endoftext|>", "Inter", "pret", "ability", " isn", "'t",
                                         " easy", ".", "\n", "We", " try"});
  const std::vector<double> credit = {1, 1, 2, 3, 1, -5, 0.5, 0.25, 0, 1, 1};
  const std::vector<WordCredit> words = merge_words(tokens, credit);
  EXPECT_EQ(texts_of(words),
            (std::vector<std::string>{"<|endoftext|>", "Interpretability", " isn't", " easy", ".",
                                      "\n", "We", " try"}));
  EXPECT_EQ(words[1].first, 1);
  EXPECT_EQ(words[1].last, 3);
  EXPECT_DOUBLE_EQ(words[1].credit, 6);
  EXPECT_DOUBLE_EQ(words[2].credit, -4);
  double total = 0, positive = 0;
  for (const WordCredit& word : words) {
    total += word.credit;
    positive += std::max(word.percent, 0.0);
  }
  EXPECT_DOUBLE_EQ(total, 5.75);
  EXPECT_NEAR(positive, 100, 1e-9);
}

TEST(MergeWords, OfNothingIsNothing) { EXPECT_TRUE(merge_words({}, {}).empty()); }

Path route(const Writers& writers, int source, int reader, double credit) {
  Path path;
  path.nodes = {{0, source}, {writers.head(8, 6), reader}};
  path.branches = {Branch::none, Branch::V};
  path.credit = credit;
  return path;
}

TEST(GroupPaths, MergesTheSameComponentsAtTheSameRoles) {
  std::vector<TraceResult> results(2, test::make_trace());
  const Writers writers = results[0].writer_table();
  results[0].paths = {route(writers, 1, 13, 0.5), route(writers, 3, 13, -0.25)};
  results[1].paths = {route(writers, 4, 13, 0.25)};
  for (TraceResult& r : results) r.coverage.absolute_total = 1;
  const auto role = [](std::size_t prompt, int position) -> std::string {
    return position == 13 ? "end" : position == (prompt == 0 ? 1 : 4) ? "IO" : "S";
  };
  const std::vector<PathGroup> groups = group_paths(results, role);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].text, "emb[IO] -[V]-> A8.H6[end] -> target");
  EXPECT_EQ(groups[0].count, 2u);
  EXPECT_EQ(groups[0].prompts, 2u);
  EXPECT_DOUBLE_EQ(groups[0].mean_credit, 0.375);
  EXPECT_DOUBLE_EQ(groups[0].share, 0.375);
  EXPECT_DOUBLE_EQ(groups[1].mean_credit, -0.125) << "the mean counts prompts without such a path";
  EXPECT_EQ(nlohmann::json::parse(to_json(groups))[0]["prompts"], 2);
  EXPECT_NE(to_text(groups, 1).find("1 weaker groups are not shown"), std::string::npos);
}

TEST(GroupPaths, WithoutRolesGoByComponentAlone) {
  std::vector<TraceResult> results(1, test::make_trace());
  const Writers writers = results[0].writer_table();
  results[0].paths = {route(writers, 1, 13, 0.5), route(writers, 3, 13, -0.25)};
  const std::vector<PathGroup> groups = group_paths(results, {});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].text, "emb -[V]-> A8.H6 -> target");
  EXPECT_EQ(groups[0].count, 2u);
  EXPECT_EQ(groups[0].prompts, 1u);
}

}  // namespace
}  // namespace unpack
