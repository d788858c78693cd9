#include "circuit/rank.h"

#include <cmath>
#include <random>

#include "unpack/error.h"
#include "unpack/prepared.h"

namespace unpack {

void add_scores(EdgeScores& scores, const std::vector<double>& of_prompt, double prompts) {
  scores.credit.resize(of_prompt.size(), 0.0);
  scores.absolute.resize(of_prompt.size(), 0.0);
  for (std::size_t i = 0; i < of_prompt.size(); ++i) {
    scores.credit[i] += of_prompt[i] / prompts;
    scores.absolute[i] += std::fabs(of_prompt[i]) / prompts;
  }
}

EdgeScores rank_ours(const Model& model, const EdgeTable& table, const Task& task,
                     const CircuitOptions& options, const RunContext& context) {
  EdgeScores scores;
  const auto prompts = static_cast<double>(task.prompts.size());
  RunContext quiet = context;
  quiet.progress = {};
  for (std::size_t i = 0; i < task.prompts.size(); ++i) {
    context.report("prompts", static_cast<double>(i), prompts);
    const TaskPrompt& prompt = task.prompts[i];
    Question question;
    question.target.ids = prompt.target;
    question.target.versus = prompt.versus;
    question.options = options.options;
    question.paths.top = 0;
    std::vector<double> credit(table.size(), 0.0);
    double first = 0;
    const auto ask = [&](const std::vector<TokenId>& ids, double sign) {
      scores.passes += 1;
      for (const EdgeCredit& edge : model.prepare(ids, quiet).edge_credit(question, quiet)) {
        credit[table.index({edge.writer, edge.reader, edge.branch})] += sign * edge.credit;
        if (sign > 0 && edge.reader < 0) first += std::fabs(edge.credit);
      }
    };
    ask(prompt.ids, 1);
    if (options.contrast) ask(prompt.counterfactual, -1);
    for (double& x : credit) x /= first > 0 ? first : 1.0;
    add_scores(scores, credit, prompts);
  }
  return scores;
}

EdgeScores rank_patching(const Model& model, const EdgeTable& table, const Task& task,
                         EdgeAblation ablation, const RunContext& context) {
  CircuitRunner runner(model, table, task.prompts, ablation, context);
  std::vector<std::size_t> edges(table.size());
  for (std::size_t i = 0; i < edges.size(); ++i) edges[i] = i;
  const std::vector<std::vector<double>> values =
      runner.measure_without(table.all(), edges, context);
  EdgeScores scores;
  const auto prompts = static_cast<double>(task.prompts.size());
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
  for (std::size_t i = 0; i < table.size(); ++i)
    values.push_back(static_cast<double>(generator() >> 11) * 0x1p-53);
  add_scores(scores, values, 1);
  return scores;
}

}  // namespace unpack
