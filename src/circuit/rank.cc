#include "circuit/rank.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <random>

#include "engine/read_trace.h"
#include "engine/state.h"
#include "unpack/error.h"
#include "unpack/prepared.h"

namespace unpack::circuit {

void add_scores(EdgeScores& scores, const std::vector<double>& of_prompt, double prompts) {
  scores.credit.resize(of_prompt.size(), 0.0);
  scores.absolute.resize(of_prompt.size(), 0.0);
  for (std::size_t i = 0; i < of_prompt.size(); ++i) {
    scores.credit[i] += of_prompt[i] / prompts;
    scores.absolute[i] += std::fabs(of_prompt[i]) / prompts;
  }
}

namespace {

// What every edge is worth on one prompt, over the sizes of the direct credit.
std::vector<double> credit_of_edges(const Model& model, const EdgeTable& table,
                                    const TaskPrompt& prompt, const CircuitOptions& options,
                                    const RunContext& context) {
  Question question;
  question.target.ids = prompt.target;
  question.target.versus = prompt.versus;
  question.options = options.options;
  question.options.settle();
  question.paths.top = 0;
  std::vector<double> credit(table.size(), 0.0);
  const auto add = [&](const engine::EdgeSums& sums, double part) {
    for (const auto& [key, value] : sums) {
      const auto& [reader, branch, writer, position] = key;
      credit[table.index({writer, reader, branch, table.placed() ? position : -1})] += part * value;
    }
  };
  const Prepared own = model.prepare(prompt.ids, context);
  std::optional<Prepared> other;
  engine::EdgeQuestion how;
  how.positions = table.placed();
  // Along outputs shares are all there is, which no difference has: credit less credit.
  const bool differences = question.options.direction == Direction::read;
  if (options.contrast) {
    other = model.prepare(prompt.counterfactual, context);
    if (differences) how.other = engine::state_of(*other).get();
  }
  const engine::EdgeAnswer here = engine::edge_sums(*engine::state_of(own), question, how, context);
  const double first = here.first;
  add(here.sums, 1);
  if (options.contrast && !differences)
    add(engine::edge_sums(*engine::state_of(*other), question, how, context).sums, -1);
  for (double& x : credit) x /= first > 0 ? first : 1.0;
  return credit;
}

}  // namespace

EdgeScores rank_ours(const Model& model, const EdgeTable& table, const Task& task,
                     const CircuitOptions& options, const RunContext& context,
                     CircuitMemory* memory) {
  EdgeScores scores;
  const double prompts = task.prompts.size();
  RunContext quiet = context;
  quiet.progress = {};
  for (std::size_t i = 0; i < task.prompts.size(); ++i) {
    context.report("prompts", i, prompts);
    add_scores(
        scores,
        recalled(memory, fmt::format("ours{} {}", options.contrast ? ", contrast" : "", i),
                 [&] { return credit_of_edges(model, table, task.prompts[i], options, quiet); }),
        prompts);
    scores.passes += options.contrast ? 2 : 1;
  }
  return scores;
}

EdgeScores rank_patching(const Model& model, const EdgeTable& table, const Task& task,
                         EdgeAblation ablation, const RunContext& context, CircuitMemory* memory) {
  CircuitRunner runner(model, table, task.prompts, ablation, context, memory);
  std::vector<std::size_t> edges(table.size());
  for (std::size_t i = 0; i < edges.size(); ++i) edges[i] = i;
  const std::vector<std::vector<double>> values =
      runner.measure_without(table.all(), edges, context);
  EdgeScores scores;
  const double prompts = task.prompts.size();
  for (std::size_t p = 0; p < task.prompts.size(); ++p) {
    std::vector<double> drop;
    for (std::size_t e = 0; e < edges.size(); ++e) drop.push_back(runner.clean()[p] - values[e][p]);
    add_scores(scores, drop, prompts);
  }
  scores.passes = runner.passes();
  return scores;
}

EdgeScores rank_random(const EdgeTable& table, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  EdgeScores scores;
  std::vector<double> values;
  for (std::size_t i = 0; i < table.size(); ++i) values.push_back((generator() >> 11) * 0x1p-53);
  add_scores(scores, values, 1);
  return scores;
}

}  // namespace unpack::circuit
