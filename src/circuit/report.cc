// report.md and the curves beside it.
#include "unpack/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/plots.h"
#include "experiments/session.h"
#include "unpack/circuit.h"
#include "unpack/error.h"

namespace unpack {

namespace {

std::string method_label(const CircuitOptions& o) {
  std::string text = to_string(o.method);
  if (o.method == CircuitMethod::ours && !o.preset.empty()) text += ", " + o.preset;
  if (o.contrast) text += ", contrast";
  if (o.method == CircuitMethod::patching && o.patched > 0)
    text += fmt::format(", {} prompts", o.patched);
  if (o.method == CircuitMethod::eap_ig) text += fmt::format(", {} steps", o.steps);
  return text;
}

std::string share_text(double share) { return fmt::format("{:g}%", 100 * share); }

std::string heading(const CircuitResult& r, const std::string& command) {
  std::string out = fmt::format("# {} on {}\n\n", r.task.name, r.model.name);
  if (!command.empty()) out += fmt::format("    {}\n\n", command);
  const std::string ablated =
      r.options.ablation == EdgeAblation::counterfactual ? "what they carry in the counterfactual"
      : r.options.ablation == EdgeAblation::mean ? "their mean over all prompts and positions"
                                                 : "nothing";
  out += fmt::format(
      "{} prompts took part{}{}. The difference of the logits is {:.3f} on the whole model and "
      "{:.3f} "
      "with all {} edges ablated. Edges outside a circuit carry {}. Faithfulness: how much of the "
      "way from the one to the other a circuit keeps. Necessity: how much is lost when the circuit "
      "is ablated and all else kept. CPR: area under faithfulness over the size; CMD: area between "
      "it and 1 (trapezoids over the linear size, from the smallest size on).\n\n",
      r.task.prompts.size(),
      r.wrong > 0
          ? fmt::format("; {} were left out, on which the model prefers another answer", r.wrong)
          : "",
      r.other_length > 0
          ? fmt::format("; {} were left out that have another length than most", r.other_length)
          : "",
      r.clean, r.ablated, r.all_edges, ablated);
  return out;
}

std::string sizes_table(const CircuitResult& r) {
  std::vector<std::vector<std::string>> rows = {{"size", r.options.nodes ? "components" : "edges",
                                                 "connected edges", "difference", "faithfulness",
                                                 "necessity"}};
  for (const CircuitPoint& p : r.measure.points)
    rows.push_back({share_text(p.share), std::to_string(p.asked), std::to_string(p.edges),
                    fmt::format("{:.3f}", p.value), fmt::format("{:.3f}", p.faithfulness),
                    fmt::format("{:.3f}", p.necessity)});
  return experiments::markdown_table(rows);
}

std::string cost_text(const CircuitResult& r) {
  return fmt::format(
      "Ranking took {:g} forward passes (a backward pass counted as two), the proof {:g} passes in "
      "which each reader sees its own input; one of these reads {:.1f} times the inputs of a plain "
      "pass.\n",
      r.cost.ranking, r.cost.proof, r.cost.proof_cost);
}

const CircuitPoint* first_faithful(const CircuitResult& r) {
  for (const CircuitPoint& p : r.measure.points) {
    if (p.faithfulness >= r.options.faithful) return &p;
  }
  return nullptr;
}

}  // namespace

std::string circuit_curves(const std::vector<CircuitResult>& results) {
  std::vector<experiments::Series> series;
  for (const CircuitResult& r : results) {
    experiments::Series line;
    line.name = method_label(r.options);
    for (const CircuitPoint& p : r.measure.points) {
      line.x.push_back(std::log10(100 * p.share));
      line.y.push_back(p.faithfulness);
    }
    series.push_back(std::move(line));
  }
  return experiments::line_plot(
      fmt::format("{} on {}", results[0].task.name, results[0].model.name),
      "log10 of the size in %", "faithfulness", series);
}

std::string to_markdown(const CircuitResult& r, const std::string& command) {
  const Writers writers = r.writer_table();
  std::string out = heading(r, command);
  out += fmt::format("Method: {}. CPR {:.3f}, CMD {:.3f}.\n\n", method_label(r.options),
                     r.measure.cpr, r.measure.cmd);
  out += sizes_table(r) + "\n![faithfulness](curves.svg)\n\n";
  out += fmt::format(
      "## The circuit\n\n{} edges ({} asked for), faithfulness {:.3f}, necessity {:.3f}. Drop: "
      "what "
      "faithfulness loses when that edge alone is removed.\n\n",
      r.final_point.edges, r.final_point.asked, r.final_point.faithfulness,
      r.final_point.necessity);
  constexpr std::size_t kListed = 40;
  std::vector<std::vector<std::string>> rows = {{"edge", "rank", "credit", "absolute", "drop"}};
  for (const RankedEdge& e : r.edges) {
    if (!e.kept || rows.size() > kListed) continue;
    rows.push_back({"`" + to_string(writers, e.edge) + "`", std::to_string(e.rank),
                    fmt::format("{:.4f}", e.credit), fmt::format("{:.4f}", e.absolute),
                    e.drop ? fmt::format("{:.4f}", *e.drop) : ""});
  }
  out += experiments::markdown_table(rows);
  if (r.final_point.edges > static_cast<int>(kListed))
    out += fmt::format("\nThe strongest {}; all are in circuit.json.\n", kListed);
  out += "\n![circuit](circuit.svg)\n\n" + cost_text(r);
  for (const std::string& warning : r.warnings) out += fmt::format("\n- {}\n", warning);
  return out;
}

std::string to_markdown(const std::vector<CircuitResult>& results, const std::string& command) {
  std::string out = heading(results[0], command);
  std::vector<std::vector<std::string>> rows = {
      {"method", "CPR", "CMD", "smallest faithful size", "its edges", "passes of the ranking"}};
  for (const CircuitResult& r : results) {
    const CircuitPoint* point = first_faithful(r);
    rows.push_back({method_label(r.options), fmt::format("{:.3f}", r.measure.cpr),
                    fmt::format("{:.3f}", r.measure.cmd), point ? share_text(point->share) : "-",
                    point ? std::to_string(point->edges) : "-",
                    fmt::format("{:g}", r.cost.ranking)});
  }
  out += experiments::markdown_table(rows) + "\n![faithfulness](curves.svg)\n";
  for (const CircuitResult& r : results) {
    out +=
        fmt::format("\n## {}\n\n", method_label(r.options)) + sizes_table(r) + "\n" + cost_text(r);
    for (const std::string& warning : r.warnings) out += fmt::format("\n- {}\n", warning);
  }
  return out;
}

void write_circuit(const std::filesystem::path& folder, const std::vector<CircuitResult>& results,
                   const std::string& command) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw InputError(
        fmt::format("cannot make the folder {}: {}", folder.string(), error.message()));
  write_file(folder / "circuit.json", to_json(results[0]));
  write_file(folder / "circuit.svg", to_svg(results[0]));
  write_file(folder / "circuit.dot", to_dot(results[0]));
  write_file(folder / "circuit.graphml", to_graphml(results[0]));
  write_file(folder / "curves.svg", circuit_curves(results));
  write_file(folder / "report.md",
             results.size() > 1 ? to_markdown(results, command) : to_markdown(results[0], command));
}

}  // namespace unpack
