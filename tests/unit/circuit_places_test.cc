// Edges at one position: they add up to the edges without positions, and patching one is what
// interventions do at that position. And searches that are interrupted.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "circuit/ablation.h"
#include "circuit/rank.h"
#include "test_paths.h"
#include "unit/naive/recursion.h"
#include "unit/random_model.h"
#include "unit/temp_folder.h"
#include "unpack/circuit.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack {
namespace {

LoadOptions in_double() {
  LoadOptions options;
  options.device = "reference";
  return options;
}

class PlacedCircuit : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int kLength = 6;

  PlacedCircuit()
      : model_(Model::load(std::string(UNPACK_TEST_DATA) + "/golden/" + GetParam(), in_double())),
        table_(model_),
        placed_(model_, kLength) {
    TaskPrompt prompt;
    for (int i = 0; i < kLength; ++i) {
      prompt.ids.push_back((7 * i + 3) % model_.config().vocab_size);
      prompt.counterfactual.push_back((5 * i + 11) % model_.config().vocab_size);
    }
    prompt.target = {4};
    prompt.versus = std::vector<TokenId>{9};
    task_ = {"one", {prompt}};
  }

  void expect_sums(const circuit::EdgeScores& whole, const circuit::EdgeScores& parts,
                   const char* method) const {
    ASSERT_EQ(parts.credit.size(), kLength * whole.credit.size());
    double largest = 0;
    for (const double x : whole.credit) largest = std::max(largest, std::fabs(x));
    int spread = 0;
    for (std::size_t e = 0; e < whole.credit.size(); ++e) {
      double sum = 0, most = 0;
      for (std::size_t s = 0; s < kLength; ++s) {
        sum += parts.credit[s * table_.size() + e];
        most = std::max(most, std::fabs(parts.credit[s * table_.size() + e]));
      }
      ASSERT_NEAR(sum, whole.credit[e], 1e-9 * largest)
          << method << ' ' << to_string(model_.writers(), table_.edge(e));
      if (most < 0.99 * std::fabs(sum)) ++spread;
    }
    EXPECT_GT(spread, 0) << method << " knows one position only";
  }

  Model model_;
  circuit::EdgeTable table_, placed_;
  Task task_;
};

TEST_P(PlacedCircuit, ScoresAddUpToThoseOfAllPositions) {
  for (const char* preset : {"paper", "best"}) {
    CircuitOptions options;
    options.options = preset_options(preset);
    expect_sums(circuit::rank_ours(model_, table_, task_, options, {}),
                circuit::rank_ours(model_, placed_, task_, options, {}), preset);
  }
  expect_sums(circuit::rank_ifr(model_, table_, task_, {}),
              circuit::rank_ifr(model_, placed_, task_, {}), "ifr");
  if (GetParam() == "tiny-mixtral") return;  // has no gradients here
  expect_sums(circuit::rank_gradients(model_, table_, task_, 2, {}),
              circuit::rank_gradients(model_, placed_, task_, 2, {}), "eap-ig");
}

// What is read of a difference is linear in it: nothing where nothing differs, and at the target
// the product with its direction.
TEST_P(PlacedCircuit, ContrastReadsWhatDiffers) {
  TaskPrompt& prompt = task_.prompts[0];
  prompt.counterfactual = prompt.ids;
  prompt.counterfactual[2] = 1;
  CircuitOptions options;
  options.contrast = true;
  const circuit::EdgeScores scores = circuit::rank_ours(model_, placed_, task_, options, {});
  const naive::Forward own(testing::weights_of(model_), prompt.ids),
      other(testing::weights_of(model_), prompt.counterfactual);
  const naive::Vec direction =
      naive::Recursion::target_direction(own, kLength - 1, prompt.target, prompt.versus, false);
  double first = 0;
  for (int w = 0; w < model_.writers().count(); ++w)
    first += std::fabs(naive::dot(own.center(own.vectors[w][kLength - 1]), direction));
  int some = 0;
  for (std::size_t e = 0; e < placed_.size(); ++e) {
    const CircuitEdge edge = placed_.edge(e);
    const naive::Vec &here = own.vectors[edge.writer][edge.position],
                     &there = other.vectors[edge.writer][edge.position];
    double change = 0;
    for (std::size_t i = 0; i < here.size(); ++i) change += std::fabs(here[i] - there[i]);
    if (change == 0) {
      EXPECT_EQ(scores.credit[e], 0) << to_string(model_.writers(), edge);
    } else if (edge.reader >= 0) {
      some += scores.credit[e] != 0 ? 1 : 0;
    }
    if (edge.reader >= 0 || edge.position != kLength - 1) continue;
    EXPECT_NEAR(
        scores.credit[e],
        (naive::dot(own.center(here), direction) - naive::dot(own.center(there), direction)) /
            first,
        1e-9)
        << to_string(model_.writers(), edge);
  }
  EXPECT_GT(some, 10);
}

TEST_P(PlacedCircuit, PatchesAnEdgeAtOnePositionAsInterventionsDo) {
  const TaskPrompt& prompt = task_.prompts[0];
  circuit::CircuitRunner runner(model_, placed_, task_.prompts, EdgeAblation::counterfactual, {});
  std::vector<std::size_t> edges;
  std::vector<std::vector<Edge>> patches;
  for (std::size_t e = 0; e < placed_.size(); e += 11) {
    const CircuitEdge edge = placed_.edge(e);
    ASSERT_EQ(placed_.index(edge), e);
    edges.push_back(e);
    patches.emplace_back();
    const int s = edge.position;
    if (edge.reader < 0) {
      if (s == kLength - 1)
        patches.back().push_back({{edge.writer, s}, Branch::none, std::nullopt});
      continue;
    }
    const bool across = edge.branch == Branch::K || edge.branch == Branch::V;
    for (int q = s; q < (across ? kLength : s + 1); ++q)
      patches.back().push_back({{edge.writer, s}, edge.branch, Node{edge.reader, q}});
  }
  const auto values = runner.measure_without(placed_.all(), edges, {});
  const std::vector<double> want =
      patched_targets(model_, prompt.ids, prompt.counterfactual, patches,
                      {prompt.target, prompt.versus, false, -1});
  for (std::size_t i = 0; i < edges.size(); ++i)
    EXPECT_NEAR(values[i][0], want[i], 1e-9) << to_string(model_.writers(), placed_.edge(edges[i]));
}

TEST_P(PlacedCircuit, AMaskOfAllPositionsIsTheMaskWithoutThem) {
  circuit::EdgeMask some = table_.all(), everywhere = placed_.all();
  for (std::size_t e = 0; e < placed_.size(); ++e) {
    const bool kept = e % table_.size() % 3 != 0;
    some[e % table_.size()] = everywhere[e] = static_cast<char>(kept);
  }
  circuit::CircuitRunner plain(model_, table_, task_.prompts, EdgeAblation::counterfactual, {}),
      placed(model_, placed_, task_.prompts, EdgeAblation::counterfactual, {});
  EXPECT_NEAR(plain.measure(some, {})[0], placed.measure(everywhere, {})[0], 1e-9);
}

TEST_P(PlacedCircuit, OnlyWhatATokenFeedsAndTheLastPositionReadsIsConnected) {
  circuit::EdgeMask kept = placed_.none();
  const auto keep = [&](const std::string& writer, const std::string& reader,
                        const std::string& branch) {
    kept[placed_.index(parse_circuit_edge(model_, writer, reader, branch))] = 1;
  };
  keep("emb@1", "A0.H0", "V");    // read by every later query
  keep("A0.H0@5", "target", "");  // among them the last
  keep("A0.H0@3", "target", "");  // the target reads at the last position alone
  keep("emb@2", "A0.H1", "Q");    // a query of its own position,
  keep("A0.H1@4", "A1.H0", "V");  // which feeds no other
  EXPECT_EQ(circuit::count_kept(placed_.connected(kept)), 2U);
}

INSTANTIATE_TEST_SUITE_P(Golden, PlacedCircuit,
                         ::testing::Values("tiny-gpt2", "tiny-llama", "tiny-gemma2",
                                           "tiny-mixtral"),
                         [](const auto& name) { return std::string(name.param.substr(5)); });

// Searches that are stopped
// ------------------------------------------------------------------------------------------------

TEST(CircuitMemory, AStoppedSearchGoesOnAndEndsAsIfItHadNotBeenStopped) {
  const Model model = Model::load(std::string(UNPACK_TEST_DATA) + "/golden/tiny-gpt2", in_double());
  Task task{"two", {}};
  for (int i = 0; i < 4; ++i)
    task.prompts.push_back({{1 + i, 2, 3}, {4, 5 + i, 6}, {7}, std::vector<TokenId>{8}});
  for (int i = 0; i < 4; ++i)
    task.prompts.push_back({{1 + i, 2, 3}, {4, 5 + i, 6}, {8}, std::vector<TokenId>{7}});
  const test::TempFolder temporary;
  const std::filesystem::path folder = temporary.path() / "memory";
  for (const char* method : {"ours", "patching", "eap-ig"}) {
    CircuitOptions options;
    options.method = parse_circuit_method(method);
    options.sizes = parse_sizes("5%,100%");
    const std::string want = to_json(find_circuit(model, task, options));
    const std::string search = circuit_search(model, task, options);
    int runs = 0;
    std::size_t kept = 0;
    for (std::string got; got != want; ++runs) {
      ASSERT_LT(runs, 200);
      CircuitMemory memory(folder / "search.jsonl", search);
      EXPECT_GE(memory.size(), kept) << "what was computed is forgotten";
      std::stop_source stop;
      RunContext context;
      context.stop = stop.get_token();
      const std::size_t before = memory.size();
      context.progress = [&](const Progress&) {  // some new values a run
        if (memory.size() > before + 20) stop.request_stop();
      };
      try {
        got = to_json(find_circuit(model, task, options, context, &memory));
        EXPECT_EQ(got, want);
        memory.forget();
        EXPECT_FALSE(std::filesystem::exists(folder)) << "nothing of it is left";
      } catch (const Cancelled&) {
        kept = memory.size();
      }
    }
    if (std::string(method) == "patching") {
      EXPECT_GT(runs, 2);
    }
  }
}

TEST(CircuitMemory, OfAnotherSearchIsBegunAnew) {
  const test::TempFolder temporary;
  const std::filesystem::path file = temporary.path() / "memory" / "search.jsonl";
  {
    CircuitMemory memory(file, "a search");
    memory.keep("x", {1, 2.5});
  }
  {
    CircuitMemory same(file, "a search");
    ASSERT_NE(same.find("x"), nullptr);
    EXPECT_EQ(*same.find("x"), (std::vector<double>{1, 2.5}));
  }
  CircuitMemory other(file, "another search");
  EXPECT_EQ(other.find("x"), nullptr);
  other.keep("y", {3});
  other.forget();
  EXPECT_FALSE(std::filesystem::exists(file.parent_path()));
}

}  // namespace
}  // namespace unpack
