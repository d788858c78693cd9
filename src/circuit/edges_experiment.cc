// How closely does what a method says of an edge follow what happens when the edge is patched?
#include "circuit/edges_experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "circuit/edge_measures.h"
#include "experiments/number_text.h"
#include "experiments/plots.h"
#include "experiments/statistics.h"
#include "unpack/error.h"

namespace unpack::circuit {

namespace {

constexpr const char* kTasks[] = {"ioi", "greater-than", "induction"};
constexpr std::size_t kTogether = 8;       // prompts that are patched at once
constexpr std::size_t kFewestWriters = 4;  // of a reader whose order is looked at

using Values = std::vector<double>;

std::string branch_name(const ReaderPort& port) {
  if (port.reader < 0) return "target";
  return port.branch == Branch::mlp ? "MLP" : to_string(port.branch);
}

experiments::Json rho_json(double rho) {
  return std::isnan(rho) ? experiments::Json(nullptr) : experiments::Json(rho);
}

// [over all edges of a branch, mean over its readers]
experiments::Json correlations_by_branch(const EdgeTable& table, const Values& measure,
                                         const Values& effect) {
  std::map<std::string, std::pair<Values, Values>> pools;
  std::map<std::string, Values> within;
  for (const ReaderPort& port : table.ports()) {
    Values x, y;
    for (std::size_t e = port.first; e < port.first + port.visible; ++e) {
      if (std::isnan(measure[e])) continue;
      x.push_back(measure[e]);
      y.push_back(effect[e]);
    }
    const double rho = x.size() >= kFewestWriters ? experiments::spearman(x, y) : NAN;
    for (const std::string& pool : {branch_name(port), std::string("all")}) {
      auto& [all_x, all_y] = pools[pool];
      all_x.insert(all_x.end(), x.begin(), x.end());
      all_y.insert(all_y.end(), y.begin(), y.end());
      if (!std::isnan(rho)) within[pool].push_back(rho);
    }
  }
  experiments::Json out = experiments::Json::object();
  for (const auto& [pool, values] : pools)
    out[pool] = {rho_json(values.first.size() >= kFewestWriters
                              ? experiments::spearman(values.first, values.second)
                              : NAN),
                 within.contains(pool) ? experiments::Json(experiments::mean(within[pool]))
                                       : experiments::Json(nullptr)};
  return out;
}

// What patching does to the prompts of one batch: every edge alone, and every writer wholly.
struct PatchEffects {
  std::vector<Values> edges;    // [prompt][edge], sizes
  std::vector<Values> writers;  // [prompt][C]
};

PatchEffects patch(const Model& model, const EdgeTable& table,
                   const std::vector<TaskPrompt>& prompts, const RunContext& context) {
  CircuitRunner runner(model, table, prompts, EdgeAblation::counterfactual, context);
  std::vector<std::size_t> all(table.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  const auto values = runner.measure_without(table.all(), all, context);
  PatchEffects out;
  out.edges.assign(prompts.size(), Values(table.size(), 0.0));
  out.writers.assign(prompts.size(), Values(table.writers().count(), 0.0));
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    for (std::size_t e = 0; e < all.size(); ++e)
      out.edges[p][e] = std::fabs(runner.clean()[p] - values[e][p]);
  }
  for (int w = 0; w < table.writers().count(); ++w) {
    EdgeMask kept = table.all();
    for (const ReaderPort& port : table.ports()) {
      if (w < port.visible) kept[port.first + w] = 0;
    }
    const Values without = runner.measure(kept, context);
    for (std::size_t p = 0; p < prompts.size(); ++p)
      out.writers[p][w] = std::fabs(runner.clean()[p] - without[p]);
  }
  return out;
}

experiments::Json record_of(const EdgeTable& table, const PromptMeasures& measures,
                            const Values& edges, const Values& writers) {
  experiments::Json out = {{"edges", experiments::Json::object()},
                           {"writers", experiments::Json::object()}};
  for (const auto& [name, values] : measures.edges)
    out["edges"][name] = correlations_by_branch(table, values, edges);
  for (const auto& [name, values] : measures.writers)
    out["writers"][name] = rho_json(experiments::spearman(values, writers));
  return out;
}

experiments::Json mean_and_interval(const Values& rhos, std::uint64_t seed) {
  if (rhos.empty()) return nullptr;
  const experiments::Interval interval = experiments::bootstrap_interval(rhos, seed);
  return {experiments::mean(rhos), interval.low, interval.high};
}

}  // namespace

experiments::Json run_edges(experiments::ModelSession& session) {
  const EdgeTable table(session.model);
  std::map<std::string, std::map<std::string, std::array<Values, 2>>> edges;
  std::map<std::string, Values> writers;
  experiments::Json summary = {{"seed", session.options.seed}, {"edges_in_all", table.size()}};
  std::size_t index = 0;
  for (const char* name : kTasks) {
    TaskOptions options;
    options.n = session.n;
    options.n_given = true;
    options.seed = session.options.seed;
    Task task;
    try {
      task = read_task(session.model, name, options);
    } catch (const InputError& error) {
      session.warnings.push_back(fmt::format("{}: {}", name, error.what()));
      continue;
    }
    const auto key_of = [&](std::size_t i) {
      return session.key(fmt::format("{}|prompt {}", name, i));
    };
    std::vector<std::size_t> missing;
    for (std::size_t i = 0; i < task.prompts.size(); ++i) {
      if (!session.records.find(key_of(i)) && session.records.mine(index + i)) missing.push_back(i);
    }
    for (std::size_t begin = 0; begin < missing.size(); begin += kTogether) {
      std::vector<TaskPrompt> prompts;
      const std::size_t end = std::min(begin + kTogether, missing.size());
      for (std::size_t i = begin; i < end; ++i) prompts.push_back(task.prompts[missing[i]]);
      const PatchEffects effects = patch(session.model, table, prompts, session.context);
      for (std::size_t i = begin; i < end; ++i) {
        const PromptMeasures measures =
            measure_prompt(session, table, prompts[i - begin],
                           session.options.seed * 1000003 + index + missing[i]);
        session.records.add(key_of(missing[i]), record_of(table, measures, effects.edges[i - begin],
                                                          effects.writers[i - begin]));
      }
    }
    index += task.prompts.size();
    if (session.records.partial()) continue;
    summary["tasks"][name] = task.prompts.size();
    for (std::size_t i = 0; i < task.prompts.size(); ++i) {
      const experiments::Json& record = *session.records.find(key_of(i));
      for (const auto& [measure, pools] : record.at("edges").items()) {
        for (const auto& [pool, rhos] : pools.items()) {
          for (const std::size_t k : {0U, 1U}) {
            if (!rhos[k].is_null()) edges[measure][pool][k].push_back(rhos[k]);
          }
        }
      }
      for (const auto& [measure, rho] : record.at("writers").items()) {
        if (!rho.is_null()) writers[measure].push_back(rho);
      }
    }
  }
  if (session.records.partial()) return {};
  if (!summary.contains("tasks")) throw InputError("no task can be made for this model");
  for (const auto& [measure, pools] : edges) {
    for (const auto& [pool, rhos] : pools) {
      summary["all"][measure][pool] = mean_and_interval(rhos[0], session.options.seed);
      summary["within"][measure][pool] = mean_and_interval(rhos[1], session.options.seed);
    }
  }
  for (const auto& [measure, rhos] : writers)
    summary["writers"][measure] = mean_and_interval(rhos, session.options.seed);
  return summary;
}

namespace {

std::string rho_cell(const experiments::Json& value) {
  if (value.is_null()) return "n/a";
  return experiments::with_interval(value[0], value[1], value[2], 2);
}

std::vector<std::string> pools_of(const experiments::Json& table) {
  std::vector<std::string> out;
  for (const char* pool : {"K", "Q", "V", "MLP", "G", "U", "R", "target", "all"}) {
    if (std::any_of(table.begin(), table.end(),
                    [&](const experiments::Json& measure) { return measure.contains(pool); }))
      out.emplace_back(pool);
  }
  return out;
}

std::string branch_table(const experiments::Json& table) {
  const std::vector<std::string> pools = pools_of(table);
  std::vector<std::vector<std::string>> rows = {{"measure"}};
  rows[0].insert(rows[0].end(), pools.begin(), pools.end());
  for (const std::string& name : edge_measure_names()) {
    if (!table.contains(name)) continue;
    rows.push_back({name});
    for (const std::string& pool : pools)
      rows.back().push_back(
          rho_cell(table.at(name).contains(pool) ? table.at(name).at(pool) : experiments::Json()));
  }
  return experiments::markdown_table(rows);
}

std::string branch_plot(const std::string& model, const experiments::Json& table) {
  std::vector<std::string> groups;
  std::vector<experiments::BarSeries> series;
  for (const std::string& name : edge_measure_names()) {
    if (table.contains(name)) groups.push_back(name);
  }
  for (const std::string& pool : pools_of(table)) {
    experiments::BarSeries bars{pool, {}, {}};
    for (const std::string& name : groups) {
      const experiments::Json value =
          table.at(name).contains(pool) ? table.at(name).at(pool) : experiments::Json();
      bars.values.push_back(value.is_null() ? NAN : value[0].get<double>());
      bars.interval.emplace_back(value.is_null() ? NAN : value[1].get<double>(),
                                 value.is_null() ? NAN : value[2].get<double>());
    }
    series.push_back(std::move(bars));
  }
  return experiments::bar_plot(fmt::format("{}: measures of an edge against its effect", model),
                               "Spearman, mean over prompts", groups, series);
}

}  // namespace

std::string report_edges(const experiments::Json& summaries,
                         std::vector<experiments::ReportFile>& files) {
  std::string out =
      "Every edge of the model (writer, reader, branch) carries, alone and at all positions, what "
      "it carries in the counterfactual prompt; its effect is the size of the change in the "
      "target's\nlogit difference. Figures: rank correlation (Spearman) of a measure of the edge "
      "with that effect, prompt by prompt, then the mean over prompts with its 95% bootstrap "
      "interval (2,000\nresamples over prompts). Across: over all edges of a branch. Within "
      "readers: among the writers that one reader sees, mean over readers. Composition mass: "
      "rerooted at the reader at the\ntarget's position, total of all routes that enter it from "
      "the writer by the branch; times the size of the reader's own credit there where it says "
      "so. Edge credit: what the reader\npasses to the writer, over all positions. Interaction "
      "scores know keys and what MLPs read (a gated one's gate) alone, IFR knows values and one "
      "input of an MLP; what a measure\ndoes not know is 0 (IFR) or left out (interaction "
      "scores). Components: all edges of a writer are patched at once.\n";
  for (const auto& [model, s] : summaries.items()) {
    std::string tasks;
    for (const auto& [task, n] : s.at("tasks").items())
      tasks += fmt::format("{}{} {}", tasks.empty() ? "" : ", ", n.get<int>(), task);
    out += fmt::format("\n## {}\n\n{} edges; prompts: {}; seed {}.\n\n### Across\n\n{}", model,
                       s.at("edges_in_all").get<std::size_t>(), tasks,
                       s.at("seed").get<std::uint64_t>(), branch_table(s.at("all")));
    const std::string file = fmt::format("edges-{}.svg", experiments::slug(model));
    files.push_back({file, branch_plot(model, s.at("all"))});
    out += fmt::format("\n![Correlation by measure and branch]({})\n", file);
    out += "\n### Within readers\n\n" + branch_table(s.at("within"));
    std::vector<std::vector<std::string>> rows = {{"measure", "components"}};
    for (const std::string& name : writer_measure_names()) {
      if (s.at("writers").contains(name))
        rows.push_back({name, rho_cell(s.at("writers").at(name))});
    }
    out += "\n### Components\n\n" + experiments::markdown_table(rows);
  }
  return out;
}

}  // namespace unpack::circuit
