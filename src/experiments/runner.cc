#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "experiments/session.h"
#include "unpack/error.h"
#include "unpack/report.h"

namespace unpack {

namespace {

constexpr Experiment kExperiments[] = {
    {"faithfulness", 300, run_faithfulness, report_faithfulness},
    {"beta", 300, run_beta, report_beta},
    {"sink", 50, run_sink, report_sink},
    {"knockout", 1000, run_knockout, report_knockout},
    {"suppression", 100, run_suppression, report_suppression},
    {"ioi", 100, run_ioi, report_ioi},
    {"greater-than", 100, run_greater_than, report_greater_than},
};

const Experiment& find_experiment(const std::string& name) {
  std::string known;
  for (const Experiment& e : kExperiments) {
    if (name == e.name) return e;
    known += (known.empty() ? "" : ", ") + std::string(e.name);
  }
  throw UsageError(fmt::format("'{}' is no experiment: use {}", name, known));
}

// What must be the same for a run to be continued.
Json settings_of(const ExperimentOptions& o, int n) {
  return {{"experiment", o.name},
          {"n", n},
          {"seed", o.seed},
          {"corpus", o.corpus ? o.corpus->filename().string() : ""},
          {"prompts", o.prompts ? o.prompts->filename().string() : ""},
          {"roles", o.roles ? std::filesystem::path(*o.roles).filename().string() : ""},
          {"claims", o.claims ? std::filesystem::path(*o.claims).filename().string() : ""},
          {"beta", o.options.beta},
          {"weights", o.options.weights},
          {"mlp_weights", o.options.mlp_weights},
          {"dispatch", to_string(o.options.dispatch)},
          {"mlp", to_string(o.options.mlp)},
          {"scores", to_string(o.options.scores)},
          {"readout", o.readout == FaithfulnessReadout::logit ? "logit" : "probability"},
          {"raw_logit", o.raw_logit},
          {"all", o.all}};
}

}  // namespace

std::vector<std::string> experiment_names() {
  std::vector<std::string> out;
  for (const Experiment& e : kExperiments) out.emplace_back(e.name);
  return out;
}

int experiment_default_n(const std::string& name) { return find_experiment(name).default_n; }

std::string markdown_table(const std::vector<std::vector<std::string>>& rows) {
  std::string out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (const std::string& cell : rows[r]) out += "| " + cell + " ";
    out += "|\n";
    if (r > 0) continue;
    for (std::size_t c = 0; c < rows[0].size(); ++c) out += c == 0 ? "|---" : "|---:";
    out += "|\n";
  }
  return out;
}

std::vector<double> numbers(const Json& array) { return array.get<std::vector<double>>(); }

std::string slug(const std::string& model) {
  std::string out;
  for (const char c : model) out += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ? c : '-';
  return out;
}

ExperimentResult run_experiment(const ExperimentOptions& options, const RunContext& context) {
  const Experiment& experiment = find_experiment(options.name);
  options.options.check();
  const int n = options.n.value_or(experiment.default_n);
  if (n < 1) throw UsageError(fmt::format("--n takes a number of 1 or more, not {}", n));
  if (options.models.empty()) throw UsageError("name a model");
  if (std::set<std::string>(options.models.begin(), options.models.end()).size() != options.models.size()) throw UsageError("a model is named twice");
  if (options.out.empty()) throw UsageError("--out takes the name of a folder");
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error) throw InputError(fmt::format("cannot make the folder {}: {}", options.out.string(), error.message()));

  ExperimentResult result;
  result.folder = options.out;
  Records records(options.out / "results.jsonl", settings_of(options, n));
  Json summaries = Json::object();
  for (const std::string& name : options.models) {
    const Model model = Model::load(name, options.load);
    ModelSession session{model, model.info().name, options, n, records, result.warnings, context};
    summaries[session.name] = experiment.run(session);
  }
  std::sort(result.warnings.begin(), result.warnings.end());
  result.warnings.erase(std::unique(result.warnings.begin(), result.warnings.end()), result.warnings.end());
  std::vector<ReportFile> files;
  result.report = fmt::format("# {}\n\n", options.name);
  if (!options.command.empty()) result.report += fmt::format("    {}\n\n", options.command);
  result.report += experiment.report(summaries, files);
  if (!result.warnings.empty()) result.report += "\nSkipped:\n\n";
  for (const std::string& warning : result.warnings) result.report += "- " + warning + "\n";
  const Json summary = {{"settings", settings_of(options, n)}, {"models", summaries}};
  write_file(options.out / "summary.json", summary.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  for (const ReportFile& file : files) write_file(options.out / file.name, file.content);
  write_file(options.out / "report.md", result.report);
  return result;
}

}  // namespace unpack
