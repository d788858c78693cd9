// Circuits: what a pass with ablated edges gives against plain loops and known ends, and that
// compiled programs are found whole.
#include <gtest/gtest.h>

#include <cmath>

#include "circuit/gradients.h"
#include "circuit/rank.h"
#include "experiments/compiled/methods.h"
#include "experiments/compiled/plain_model.h"
#include "unpack/error.h"
#include "unpack/prepared.h"

namespace unpack {
namespace {

namespace cc = compiled;

LoadOptions precisely() {
  LoadOptions load;
  load.device = "reference";
  load.threads = 1;
  return load;
}

LoadOptions quickly() {
  LoadOptions load;
  load.device = "cpu";
  load.threads = 1;
  return load;
}

Task task_of(const cc::Program& program) {
  Task task{program.name, {}};
  for (const cc::Prompt& p : program.prompts)
    task.prompts.push_back({p.ids, p.counterfactual, {p.target}, std::vector<TokenId>{p.contrast}});
  return task;
}

cc::EdgeName name_of(const Writers& writers, const CircuitEdge& edge) {
  return {writers.name(edge.writer), edge.reader < 0 ? "target" : writers.name(edge.reader),
          edge.branch};
}

class CompiledCircuit : public ::testing::TestWithParam<std::tuple<std::string, cc::Format>> {
 protected:
  CompiledCircuit()
      : settings_{std::get<1>(GetParam()), 12, 0, 3},
        program_(cc::make_program(std::get<0>(GetParam()), settings_, 2)),
        compiled_(cc::compile(program_, settings_)),
        plain_(compiled_),
        model_(compiled_.open(precisely())),
        table_(model_),
        task_(task_of(program_)) {}

  cc::Settings settings_;
  cc::Program program_;
  cc::CompiledModel compiled_;
  cc::PlainModel plain_;
  Model model_;
  EdgeTable table_;
  Task task_;
};

TEST_P(CompiledCircuit, KeepsEverythingOrNothingExactly) {
  CircuitRunner runner(model_, table_, task_.prompts, EdgeAblation::counterfactual, {});
  const std::vector<double> all = runner.measure(table_.all(), {}),
                            none = runner.measure(table_.none(), {});
  for (std::size_t p = 0; p < task_.prompts.size(); ++p) {
    const cc::Prompt& prompt = program_.prompts[p];
    EXPECT_NEAR(runner.clean()[p],
                plain_.run(prompt.ids, prompt.target, prompt.contrast).difference, 1e-8);
    EXPECT_NEAR(all[p], runner.clean()[p], 1e-8);
    EXPECT_NEAR(none[p],
                plain_.run(prompt.counterfactual, prompt.target, prompt.contrast).difference, 1e-8);
  }
}

TEST_P(CompiledCircuit, IsFoundWholeAtItsTrueSize) {
  CircuitOptions options;
  options.minimality = 0;
  int size = 0;
  for (const cc::EdgeName& edge : program_.edges())
    size += program_.truth(edge) == cc::Truth::yes ? 1 : 0;
  options.sizes = {{1, 0}};
  const CircuitResult found = find_circuit(model_, task_, options);
  // Edges that carry only a constant count for nobody.
  int taken = 0;
  for (const RankedEdge& ranked : found.edges) {
    const cc::Truth truth = program_.truth(name_of(model_.writers(), ranked.edge));
    if (truth == cc::Truth::neutral) continue;
    if (++taken > size) break;
    EXPECT_EQ(truth, cc::Truth::yes) << to_string(model_.writers(), ranked.edge);
  }
  EXPECT_GE(taken, size);
}

// Every edge by every method against the experiment's own loops, which know nothing of the engine.
class CompiledScores : public CompiledCircuit {
 protected:
  CompiledScores() {
    task_.prompts.resize(1);
    const cc::Prompt& prompt = program_.prompts[0];
    answers_ = cc::ask_all(program_, model_, plain_, prompt, RunContext());
    scale_ =
        std::fabs(plain_.run(prompt.ids, prompt.target, prompt.contrast).difference -
                  plain_.run(prompt.counterfactual, prompt.target, prompt.contrast).difference);
  }

  void expect_scores(const EdgeScores& scores, const std::string& method, double scale) {
    const std::vector<cc::EdgeName> names = program_.edges();
    std::map<cc::EdgeName, double> want;
    for (std::size_t i = 0; i < names.size(); ++i)
      want[names[i]] = scale * answers_.at(method).edges[i];
    ASSERT_EQ(names.size(), table_.size());
    for (std::size_t e = 0; e < table_.size(); ++e) {
      const double value = want.at(name_of(model_.writers(), table_.edge(e)));
      EXPECT_NEAR(scores.credit[e], value, 1e-7 * std::max(1.0, std::fabs(value)))
          << method << ": " << to_string(model_.writers(), table_.edge(e));
    }
  }

  std::map<std::string, cc::Answer> answers_;
  double scale_ = 1;
};

TEST_P(CompiledScores, AreThoseOfPlainLoops) {
  expect_scores(rank_patching(model_, table_, task_, EdgeAblation::counterfactual, {}), "patching",
                scale_);
  expect_scores(rank_gradients(model_, table_, task_, 1, {}), "EAP", scale_);
  expect_scores(rank_gradients(model_, table_, task_, 5, {}), "EAP-IG 5", scale_);
  expect_scores(rank_ifr(model_, table_, task_, {}), "IFR", 1);
  CircuitOptions best;
  expect_scores(rank_ours(model_, table_, task_, best, {}), "best", 1);
}

std::string program_label(
    const ::testing::TestParamInfo<std::tuple<std::string, cc::Format>>& info) {
  std::string name = std::get<0>(info.param) + "_" + to_string(std::get<1>(info.param));
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Programs, CompiledCircuit,
                         ::testing::Combine(::testing::ValuesIn(cc::program_names()),
                                            ::testing::Values(cc::Format::gpt2, cc::Format::llama)),
                         program_label);
INSTANTIATE_TEST_SUITE_P(Programs, CompiledScores,
                         ::testing::Combine(::testing::Values("induction", "fact-lookup"),
                                            ::testing::Values(cc::Format::gpt2, cc::Format::llama)),
                         program_label);

// Real blocks: parallel ones, grouped heads, gates, norms of queries and norms behind.
class PocketCircuit : public ::testing::TestWithParam<std::string> {
 protected:
  PocketCircuit() : model_(Model::load(GetParam(), quickly())), table_(model_) {
    TaskOptions options;
    options.n = 1;
    task_ = read_task(model_, "ioi", options);
  }
  Model model_;
  EdgeTable table_;
  Task task_;
};

TEST_P(PocketCircuit, ThePartsFromTheEmbeddingsAddUpToTheWholeDifference) {
  CircuitRunner runner(model_, table_, task_.prompts, EdgeAblation::counterfactual, {});
  const std::vector<double> none = runner.measure(table_.none(), {}),
                            all = runner.measure(table_.all(), {});
  double want = 0;
  for (std::size_t p = 0; p < none.size(); ++p) {
    EXPECT_NEAR(all[p], runner.clean()[p], 1e-4);
    want += (runner.clean()[p] - none[p]) / static_cast<double>(none.size());
  }
  // Integrated over the way between two embeddings, gradients give the difference of the ends. The
  // error of a sum over steps halves with their length, so that twice the finer sum less the
  // coarser one has next to none.
  const auto sum = [&](int steps) {
    const EdgeScores scores = rank_gradients(model_, table_, task_, steps, {});
    double out = 0;
    for (std::size_t e = 0; e < table_.size(); ++e) {
      if (table_.edge(e).writer == 0) out += scores.credit[e];
    }
    return out;
  };
  EXPECT_NEAR(2 * sum(24) - sum(12), want, 0.02 * std::fabs(want));
}

TEST_P(PocketCircuit, AnEdgeRemovedBehindABaseIsAnEdgeRemovedFromTheStart) {
  CircuitRunner runner(model_, table_, task_.prompts, EdgeAblation::counterfactual, {});
  EdgeMask kept = table_.all();
  for (std::size_t e = 0; e < kept.size(); e += 3) kept[e] = 0;
  std::vector<std::size_t> edges;
  for (std::size_t e = 1; e < kept.size(); e += kept.size() / 7) {
    if (kept[e] != 0) edges.push_back(e);
  }
  const auto quick = runner.measure_without(kept, edges, {});
  for (std::size_t i = 0; i < edges.size(); ++i) {
    EdgeMask fewer = kept;
    fewer[edges[i]] = 0;
    const std::vector<double> whole = runner.measure(fewer, {});
    for (std::size_t p = 0; p < whole.size(); ++p) EXPECT_NEAR(quick[i][p], whole[p], 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PocketCircuit,
                         ::testing::Values("pocket-gpt2", "pocket-llama", "pocket-neox"),
                         [](const auto& name) { return std::string(name.param.substr(7)); });

TEST(CircuitGraph, OnlyWhatLiesBetweenATokenAndTheTargetIsConnected) {
  const Model model = Model::load("pocket-gpt2", quickly());
  const EdgeTable table(model);
  const Writers& writers = model.writers();
  const auto edge = [&](const std::string& w, const std::string& r, const std::string& b) {
    return table.index(parse_circuit_edge(model, w, r, b));
  };
  EdgeMask kept = table.none();
  const std::size_t way[] = {edge("emb", "A0.H1", "K"), edge("A0.H1", "MLP2", ""),
                             edge("MLP2", "target", "")};
  for (const std::size_t e : way) kept[e] = 1;
  kept[edge("A1.H0", "target", "")] = 1;  // nothing feeds it
  kept[edge("pos", "A3.H0", "V")] = 1;    // nobody reads it
  kept[edge("A4.H0", "A5.H0", "Q")] = 1;  // neither
  const EdgeMask connected = table.connected(kept);
  EXPECT_EQ(count_kept(connected), 3U);
  for (const std::size_t e : way) EXPECT_NE(connected[e], 0) << to_string(writers, table.edge(e));
}

TEST(CircuitGraph, SizesAreReadOrRefusedInOneLine) {
  const std::vector<CircuitSize> sizes = parse_sizes("0.5%,20");
  ASSERT_EQ(sizes.size(), 2U);
  EXPECT_DOUBLE_EQ(sizes[0].share, 0.005);
  EXPECT_EQ(sizes[1].count, 20);
  for (const char* bad : {"", "0%", "101%", "1.5", "-3", "x", "1%,,2%"})
    EXPECT_THROW(parse_sizes(bad), UsageError) << bad;
}

TEST(CircuitAreas, AreMibsTrapezoids) {
  const Model model = Model::load("pocket-neox", quickly());
  TaskOptions few;
  few.n = 2;
  CircuitOptions options;
  options.method = CircuitMethod::random;
  options.sizes = parse_sizes("10%,60%,100%");
  options.minimality = 0;
  const CircuitResult r = find_circuit(model, read_task(model, "ioi", few), options);
  const auto& p = r.measure.points;
  ASSERT_EQ(p.size(), 3U);
  EXPECT_NEAR(p[2].faithfulness, 1, 1e-5);
  EXPECT_NEAR(p[2].necessity, 1, 1e-5);
  EXPECT_NEAR(r.measure.cpr,
              0.5 * (p[0].faithfulness + p[1].faithfulness) / 2 + 0.4 * (p[1].faithfulness + 1) / 2,
              1e-5);
  EXPECT_NEAR(r.measure.cmd,
              0.5 * (std::fabs(1 - p[0].faithfulness) + std::fabs(1 - p[1].faithfulness)) / 2 +
                  0.4 * std::fabs(1 - p[1].faithfulness) / 2,
              1e-5);
}

}  // namespace
}  // namespace unpack
