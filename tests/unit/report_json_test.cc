#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "unit/report_fixture.h"
#include "unpack/report.h"

namespace unpack {
namespace {

using Json = nlohmann::ordered_json;
using test::make_trace;

TEST(PathText, PutsTheBranchOnTheArrowIntoItsNode) {
  TraceResult r = make_trace();
  const Writers writers = r.writer_table();
  Path path;
  path.nodes = {{0, 9}, {writers.mlp(0), 9}, {writers.head(8, 6), 13}};
  path.branches = {Branch::none, Branch::mlp, Branch::V};
  EXPECT_EQ(path_text(r, path), "emb@9 -> MLP0@9 -[V]-> A8.H6@13 -> target");
  r.root = path.nodes.back();
  EXPECT_EQ(path_text(r, path), "emb@9 -> MLP0@9 -[V]-> A8.H6@13");
  path.branches[1] = Branch::G;
  EXPECT_EQ(path_text(r, path), "emb@9 -[G]-> MLP0@9 -[V]-> A8.H6@13");
}

TEST(TraceJson, HoldsTheKeysOfTheInterfaceInOrder) {
  const Json json = Json::parse(to_json(make_trace()));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"version", "program", "model", "tokens", "target",
                                            "options", "root", "predictions", "importance",
                                            "token_credit", "token_percent", "node_credit", "paths",
                                            "coverage", "conservation", "warnings"}));
  EXPECT_EQ(json["root"], "target");
  EXPECT_EQ(json["options"]["mlp"], "per-neuron");
  EXPECT_EQ(json["options"]["mlp_weights"], Json::array({0.5, 0.5}));
  EXPECT_EQ(json["tokens"][3], Json::parse(R"({"position":3,"id":103,"text":" John"})"));
  EXPECT_EQ(json["importance"].size(), 2u + 12 * 13);
}

TEST(TraceJson, KeepsEveryDigit) {
  TraceResult r = make_trace();
  r.token_credit[0] = 1.0 / 3.0;
  r.node_credit[0][1] = -1e-17;
  const Json json = Json::parse(to_json(r));
  EXPECT_EQ(json["token_credit"][0].get<double>(), 1.0 / 3.0);
  EXPECT_EQ(json["node_credit"]["emb"][1].get<double>(), -1e-17);
}

TEST(TraceJson, WritesNullForWhatIsMissingOrNotFinite) {
  TraceResult r = make_trace();
  r.target.versus_ids.reset();
  r.target.versus_text.reset();
  r.target.logit_difference.reset();
  r.token_credit[2] = std::numeric_limits<double>::quiet_NaN();
  r.coverage.absolute_total = std::numeric_limits<double>::infinity();
  const Json json = Json::parse(to_json(r));
  EXPECT_TRUE(json["target"]["versus_ids"].is_null());
  EXPECT_TRUE(json["target"]["versus_text"].is_null());
  EXPECT_TRUE(json["target"]["logit_difference"].is_null());
  EXPECT_TRUE(json["token_credit"][2].is_null());
  EXPECT_TRUE(json["coverage"]["absolute_total"].is_null());
}

TEST(TraceJson, ListsPathsWithNullForHopsOfOneBranch) {
  TraceResult r = make_trace();
  const Writers writers = r.writer_table();
  Path path;
  path.nodes = {{0, 9}, {writers.mlp(0), 9}, {writers.head(8, 6), 13}};
  path.branches = {Branch::none, Branch::mlp, Branch::V};
  path.credit = 0.5;
  path.percent = 14.5;
  r.paths = {path};
  const Json row = Json::parse(to_json(r))["paths"][0];
  EXPECT_EQ(row["nodes"], Json::array({"emb@9", "MLP0@9", "A8.H6@13"}));
  EXPECT_EQ(row["branches"], Json::array({nullptr, nullptr, "V"}));
  EXPECT_EQ(row["text"], "emb@9 -> MLP0@9 -[V]-> A8.H6@13 -> target");
  EXPECT_EQ(row["percent"], 14.5);
}

TEST(TraceJson, OfARootedHeadHasIncomingEntriesAndComposition) {
  const Json json = Json::parse(to_json(make_trace({.rooted = true})));
  EXPECT_EQ(json["root"], "A11.H1@13");
  ASSERT_EQ(json["incoming"].size(), 3u);
  EXPECT_EQ(json["incoming"]["V"].size(), 2u) << "writers that get nothing are left out";
  EXPECT_EQ(json["incoming"]["V"]["emb"][1], 0.25);
  EXPECT_EQ(json["entries"].size(), 14u);
  EXPECT_EQ(json["composition"]["all"][0],
            Json::parse(R"({"component":"MLP0","mass":1.5,"credit":0.75})"));
}

TEST(TraceJson, OfARootedMlpListsTheTwentyLargestNeurons) {
  TraceResult r = make_trace({.rooted = true});
  r.root->writer = r.writer_table().mlp(5);
  r.incoming.clear();
  r.incoming[Branch::mlp] =
      std::vector<std::vector<double>>(r.writers.size(), std::vector<double>(r.tokens.size(), 0));
  for (int n = 0; n < 30; ++n) r.neuron_entries.push_back({n, 1.0 / (n + 1)});
  const Json json = Json::parse(to_json(r));
  ASSERT_TRUE(json["entries"].is_object());
  EXPECT_EQ(json["entries"]["neurons"].size(), 20u);
  EXPECT_EQ(json["entries"]["neurons"][1], Json::parse(R"({"neuron":1,"credit":0.5})"));
  EXPECT_TRUE(json["incoming"]["MLP"].empty()) << "a branch that sends nothing stays, empty";
}

TEST(TraceJson, OfABaselineHoldsTokensOnly) {
  TraceResult r = make_trace();
  r.method = "ifr";
  const Json json = Json::parse(to_json(r));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys,
            (std::vector<std::string>{"version", "program", "model", "tokens", "target", "method",
                                      "predictions", "token_credit", "token_percent"}));
}

TEST(TraceJson, SurvivesBrokenUtf8) {
  TraceResult r = make_trace();
  r.tokens[1].text = "\xff\xc3";
  EXPECT_TRUE(Json::parse(to_json(r)).is_object());
}

TEST(PredictJson, HasNullForTheFirstToken) {
  PredictResult r;
  r.tokens = test::make_tokens({"a", "b"});
  r.log_probability = {std::nullopt, -1.5};
  r.predictions = {{7, " c", 2.5, 0.25}};
  Json json = Json::parse(to_json(r));
  EXPECT_TRUE(json["tokens"][0]["log_probability"].is_null());
  EXPECT_EQ(json["tokens"][1]["log_probability"], -1.5);
  EXPECT_EQ(json["predictions"][0],
            Json::parse(R"({"id":7,"text":" c","logit":2.5,"probability":0.25})"));
  EXPECT_FALSE(json.contains("lens"));
  r.lens = {r.predictions, r.predictions};
  EXPECT_EQ(Json::parse(to_json(r))["lens"].size(), 2u);
}

TEST(InteractionJson, NamesTheQueryOnlyWhereThereIsOne) {
  InteractionResult r;
  r.writers = {"emb", "A0.H0", "MLP0"};
  r.attention = {{1, -1, 0, 0.5}};
  EXPECT_EQ(Json::parse(to_json(r))["attention"][0],
            Json::parse(R"({"reader":"A0.H0","writer":"emb","score":0.5})"));
  r.per_query = true;
  r.attention[0].query = 3;
  EXPECT_EQ(Json::parse(to_json(r))["attention"][0]["query"], 3);
}

TEST(AttributeJson, HasARowPerPredictedToken) {
  AttributeResult r;
  r.tokens = test::make_tokens({"a", "b", "c"});
  r.rows = {{1, 102, "c", 0.5, {0.25, -0.5}, {100, -200}}};
  const Json row = Json::parse(to_json(r))["rows"][0];
  EXPECT_EQ(row["position"], 1);
  EXPECT_EQ(row["target_id"], 102);
  EXPECT_EQ(row["token_credit"], Json::array({0.25, -0.5}));
}

}  // namespace
}  // namespace unpack
