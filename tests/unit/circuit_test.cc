// Circuits: what a pass with ablated edges gives against plain loops and known ends, and that
// compiled programs are found whole.
#include <gtest/gtest.h>

#include <cmath>

#include "circuit/gradients.h"
#include "circuit/rank.h"
#include "engine/state.h"
#include "experiments/compiled/methods.h"
#include "experiments/compiled/plain_model.h"
#include "test_paths.h"
#include "unpack/error.h"
#include "unpack/intervene.h"
#include "unpack/prepared.h"

namespace unpack {
namespace {

namespace cc = experiments::compiled;

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
  circuit::EdgeTable table_;
  Task task_;
};

TEST_P(CompiledCircuit, KeepsEverythingOrNothingExactly) {
  circuit::CircuitRunner runner(model_, table_, task_.prompts, EdgeAblation::counterfactual, {});
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

TEST_P(CompiledCircuit, WithNothingKeptTheTargetSeesTheMeansOrNothing) {
  // Over all prompts and positions, writer by writer; the stream is their sum.
  std::vector<double> mean(static_cast<std::size_t>(compiled_.d_model), 0.0);
  double rows = 0;
  std::vector<cc::Run> runs;
  for (const cc::Prompt& prompt : program_.prompts) {
    runs.push_back(plain_.run(prompt.ids, prompt.target, prompt.contrast));
    rows += static_cast<double>(prompt.ids.size());
    for (const cc::Rows& writer : runs.back().writers) {
      for (const auto& row : writer) {
        for (std::size_t i = 0; i < row.size(); ++i) mean[i] += row[i];
      }
    }
  }
  for (double& x : mean) x /= rows;
  circuit::CircuitRunner means(model_, table_, task_.prompts, EdgeAblation::mean, {}),
      nothing(model_, table_, task_.prompts, EdgeAblation::zero, {});
  const std::vector<double> with_means = means.measure(table_.none(), {}),
                            with_nothing = nothing.measure(table_.none(), {});
  const cc::Port port{compiled_.n_layers(), -1, Branch::none};
  for (std::size_t p = 0; p < runs.size(); ++p) {
    const cc::Prompt& prompt = program_.prompts[p];
    cc::Rows change(prompt.ids.size(), mean);
    for (const cc::Rows& writer : runs[p].writers) {
      for (std::size_t s = 0; s < change.size(); ++s) {
        for (std::size_t i = 0; i < mean.size(); ++i) change[s][i] -= writer[s][i];
      }
    }
    cc::RunOptions options;
    options.port = &port;
    options.change = &change;
    EXPECT_NEAR(with_means[p],
                plain_.run(prompt.ids, prompt.target, prompt.contrast, options).difference, 1e-7);
    EXPECT_NEAR(with_nothing[p], 0, 1e-9);
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

  void expect_scores(const circuit::EdgeScores& scores, const std::string& method, double scale) {
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
  expect_scores(circuit::rank_patching(model_, table_, task_, EdgeAblation::counterfactual, {}),
                "patching", scale_);
  expect_scores(circuit::rank_gradients(model_, table_, task_, 1, {}), "EAP", scale_);
  expect_scores(circuit::rank_gradients(model_, table_, task_, 5, {}), "EAP-IG 5", scale_);
  expect_scores(circuit::rank_ifr(model_, table_, task_, {}), "IFR", 1);
  CircuitOptions best;
  expect_scores(circuit::rank_ours(model_, table_, task_, best, {}), "best", 1);
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
  circuit::EdgeTable table_;
  Task task_;
};

TEST_P(PocketCircuit, AnEdgeRemovedBehindABaseIsAnEdgeRemovedFromTheStart) {
  circuit::CircuitRunner runner(model_, table_, task_.prompts, EdgeAblation::counterfactual, {});
  circuit::EdgeMask kept = table_.all();
  for (std::size_t e = 0; e < kept.size(); e += 3) kept[e] = 0;
  std::vector<std::size_t> edges;
  for (std::size_t e = 1; e < kept.size(); e += kept.size() / 7) {
    if (kept[e] != 0) edges.push_back(e);
  }
  const auto quick = runner.measure_without(kept, edges, {});
  for (std::size_t i = 0; i < edges.size(); ++i) {
    circuit::EdgeMask fewer = kept;
    fewer[edges[i]] = 0;
    const std::vector<double> whole = runner.measure(fewer, {});
    for (std::size_t p = 0; p < whole.size(); ++p) EXPECT_NEAR(quick[i][p], whole[p], 1e-4);
  }
}

// Side by side, and only the rows that can change: prompts of several lengths and beginnings.
TEST_P(PocketCircuit, EdgesPatchedSideBySideAreEdgesPatchedOneByOne) {
  std::vector<TaskPrompt> prompts = task_.prompts;
  TaskOptions options;
  options.n = 2;
  for (const char* name : {"greater-than", "induction"}) {
    for (TaskPrompt& prompt : read_task(model_, name, options).prompts) prompts.push_back(prompt);
  }
  prompts.push_back(task_.prompts[0]);
  prompts.back().counterfactual = prompts.back().ids;  // nothing is replaced
  std::vector<std::size_t> edges = {table_.size() - 1};
  for (std::size_t e = 1; e < table_.size(); e += table_.size() / 17) edges.push_back(e);
  for (const int l : {0, model_.config().n_layers - 1}) {
    for (std::size_t p = table_.mlp_ports(l); table_.ports()[p].reader == model_.writers().mlp(l);
         ++p)
      edges.push_back(table_.ports()[p].first);
  }
  for (const EdgeAblation ablation : {EdgeAblation::counterfactual, EdgeAblation::mean}) {
    circuit::CircuitRunner runner(model_, table_, prompts, ablation, {});
    const auto together = runner.measure_without(table_.all(), edges, {});
    for (std::size_t i = 0; i < edges.size(); ++i) {
      circuit::EdgeMask fewer = table_.all();
      fewer[edges[i]] = 0;
      const std::vector<double> whole = runner.measure(fewer, {});
      ASSERT_EQ(together[i].size(), whole.size());
      for (std::size_t p = 0; p < whole.size(); ++p)
        EXPECT_NEAR(together[i][p], whole[p], 1e-4) << edges[i] << ' ' << p;
      if (ablation == EdgeAblation::counterfactual) {
        EXPECT_NEAR(together[i].back(), runner.clean().back(), 1e-4);
      }
    }
  }
}

TEST_P(PocketCircuit, PromptsOfOneBatchDoNotSeeEachOther) {
  TaskOptions options;
  options.n = 3;
  const Task three = read_task(model_, "ioi", options);
  circuit::EdgeMask kept = table_.all();
  for (std::size_t e = 0; e < kept.size(); e += 2) kept[e] = 0;
  circuit::CircuitRunner together(model_, table_, three.prompts, EdgeAblation::counterfactual, {});
  const std::vector<double> values = together.measure(kept, {});
  const circuit::EdgeScores scores = circuit::rank_gradients(model_, table_, three, 1, {});
  std::vector<double> mean(table_.size(), 0.0);
  double largest = 0;
  for (std::size_t p = 0; p < three.prompts.size(); ++p) {
    const Task one{"one", {three.prompts[p]}};
    circuit::CircuitRunner alone(model_, table_, one.prompts, EdgeAblation::counterfactual, {});
    EXPECT_NEAR(values[p], alone.measure(kept, {})[0], 1e-4);
    const circuit::EdgeScores own = circuit::rank_gradients(model_, table_, one, 1, {});
    for (std::size_t e = 0; e < mean.size(); ++e) {
      mean[e] += own.credit[e] / 3;
      largest = std::max(largest, std::fabs(own.credit[e]));
    }
  }
  for (std::size_t e = 0; e < mean.size(); ++e)
    ASSERT_NEAR(scores.credit[e], mean[e], 1e-4 * largest) << e;
}

INSTANTIATE_TEST_SUITE_P(Models, PocketCircuit,
                         ::testing::Values("pocket-gpt2", "pocket-llama", "pocket-neox"),
                         [](const auto& name) { return std::string(name.param.substr(7)); });

// Grouped heads, gates, mixtures, norms of queries and keys, norms behind, windows, caps.
class FamilyCircuit : public ::testing::TestWithParam<std::string> {
 protected:
  FamilyCircuit()
      : model_(Model::load(std::string(UNPACK_TEST_DATA) + "/golden/" + GetParam(), precisely())),
        table_(model_) {
    TaskPrompt prompt;
    for (int i = 0; i < 6; ++i) {
      prompt.ids.push_back((7 * i + 3) % model_.config().vocab_size);
      prompt.counterfactual.push_back((5 * i + 11) % model_.config().vocab_size);
    }
    prompt.target = {4};
    prompt.versus = std::vector<TokenId>{9};
    prompts_ = {prompt};
  }

  // The same edge at every pair of positions, for the code that patches single ones.
  std::vector<Edge> at_all_positions(const CircuitEdge& edge) const {
    std::vector<Edge> out;
    const int length = static_cast<int>(prompts_[0].ids.size());
    if (edge.reader < 0) return {{{edge.writer, length - 1}, Branch::none, std::nullopt}};
    for (int q = 0; q < length; ++q) {
      const bool across = edge.branch == Branch::K || edge.branch == Branch::V;
      for (int s = across ? 0 : q; s <= q; ++s)
        out.push_back({{edge.writer, s}, edge.branch, Node{edge.reader, q}});
    }
    return out;
  }

  Model model_;
  circuit::EdgeTable table_;
  std::vector<TaskPrompt> prompts_;
};

TEST_P(FamilyCircuit, PatchesAnEdgeAsInterventionsDo) {
  circuit::CircuitRunner runner(model_, table_, prompts_, EdgeAblation::counterfactual, {});
  const TaskPrompt& prompt = prompts_[0];
  EXPECT_NEAR(runner.measure(table_.all(), {})[0], runner.clean()[0], 1e-9);
  const std::vector<TaskPrompt> swapped = {
      {prompt.counterfactual, prompt.ids, prompt.target, prompt.versus}};
  circuit::CircuitRunner other(model_, table_, swapped, EdgeAblation::counterfactual, {});
  EXPECT_NEAR(runner.measure(table_.none(), {})[0], other.clean()[0], 1e-9);
  std::vector<std::size_t> edges;
  std::vector<std::vector<Edge>> patches;
  for (std::size_t e = 0; e < table_.size(); e += 3) {
    edges.push_back(e);
    patches.push_back(at_all_positions(table_.edge(e)));
  }
  const auto values = runner.measure_without(table_.all(), edges, {});
  const std::vector<double> want =
      patched_targets(model_, prompt.ids, prompt.counterfactual, patches,
                      {prompt.target, prompt.versus, false, -1});
  for (std::size_t i = 0; i < edges.size(); ++i)
    EXPECT_NEAR(values[i][0], want[i], 1e-9) << to_string(model_.writers(), table_.edge(edges[i]));
}

TEST_P(FamilyCircuit, GradientsAreWhatSmallPartsOfAChangeDo) {
  try {
    circuit::check_gradients(model_.config());
  } catch (const InputError&) {
    EXPECT_THROW(circuit::rank_gradients(model_, table_, {"one", prompts_}, 1, {}), InputError);
    return;
  }
  // Along the way from the counterfactual's embeddings to the prompt's, whose own are at 1.
  const circuit::PromptChunk chunk = circuit::cut_chunks(model_.config(), prompts_, 100)[0];
  backend::Backend& backend = *engine::state_of(model_)->backend;
  const backend::Array own = circuit::record_writers(model_, {prompts_[0].ids}, {}).written[0],
                       other = circuit::record_writers(model_, {prompts_[0].counterfactual}, {})
                                   .written[0];
  const auto answer = [&](double part) {
    const circuit::WriterRun run =
        circuit::record_writers(model_, {prompts_[0].ids},
                                [&](backend::Array& emb) {
                                  backend.copy(other, 0, emb, 0, emb.size());
                                  backend.add(other, emb, emb.size(), -part);
                                  backend.add(own, emb, emb.size(), part);
                                },
                                nullptr, {});
    return circuit::differences(model_, prompts_, chunk, run.streams.back())[0];
  };
  constexpr double kStep = 1e-5;
  const double want = (answer(1 + kStep) - answer(1 - kStep)) / (2 * kStep);
  const circuit::EdgeScores scores =
      circuit::rank_gradients(model_, table_, {"one", prompts_}, 1, {});
  double sum = 0;
  for (std::size_t e = 0; e < table_.size(); ++e) {
    if (table_.edge(e).writer == 0) sum += scores.credit[e];
  }
  EXPECT_NEAR(sum, want, 1e-5 * std::max(1.0, std::fabs(want)));
}

INSTANTIATE_TEST_SUITE_P(Golden, FamilyCircuit,
                         ::testing::Values("tiny-gpt2", "tiny-llama", "tiny-neox", "tiny-gemma2",
                                           "tiny-gemma3", "tiny-qwen3", "tiny-olmo2",
                                           "tiny-mixtral", "tiny-gptoss", "tiny-phi3"),
                         [](const auto& name) {
                           std::string text = name.param;
                           for (char& c : text)
                             c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return text;
                         });

TEST(CircuitGraph, OnlyWhatLiesBetweenATokenAndTheTargetIsConnected) {
  const Model model = Model::load("pocket-gpt2", quickly());
  const circuit::EdgeTable table(model);
  const Writers& writers = model.writers();
  const auto edge = [&](const std::string& w, const std::string& r, const std::string& b) {
    return table.index(parse_circuit_edge(model, w, r, b));
  };
  circuit::EdgeMask kept = table.none();
  const std::size_t way[] = {edge("emb", "A0.H1", "K"), edge("A0.H1", "MLP2", ""),
                             edge("MLP2", "target", "")};
  for (const std::size_t e : way) kept[e] = 1;
  kept[edge("A1.H0", "target", "")] = 1;  // nothing feeds it
  kept[edge("pos", "A3.H0", "V")] = 1;    // nobody reads it
  kept[edge("A4.H0", "A5.H0", "Q")] = 1;  // neither
  const circuit::EdgeMask connected = table.connected(kept);
  EXPECT_EQ(circuit::count_kept(connected), 3U);
  for (const std::size_t e : way) EXPECT_NE(connected[e], 0) << to_string(writers, table.edge(e));
}

TEST(CircuitGraph, ChunksKeepTheOrderOfPromptsAndTheirRows) {
  const Model model = Model::load("pocket-gpt2", quickly());
  std::vector<TaskPrompt> prompts;
  for (const std::size_t length : {5U, 9U, 3U, 30U, 2U})
    prompts.push_back({std::vector<TokenId>(length, 1), {}, {2}, std::nullopt});
  const std::vector<circuit::PromptChunk> chunks = circuit::cut_chunks(model.config(), prompts, 15);
  ASSERT_EQ(chunks.size(), 4U);  // 5 + 9, 3, 30 (longer than asked), 2
  EXPECT_EQ(chunks[0].members, (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(chunks[0].segments[1].begin, 5);
  EXPECT_EQ(chunks[2].rows, 30);
  EXPECT_EQ(chunks[3].members, std::vector<std::size_t>{4});
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
