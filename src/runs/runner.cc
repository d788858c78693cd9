#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string_view>

#include "base/checksum.h"
#include "base/files.h"
#include "batch/merge.h"
#include "batch/run_file.h"
#include "circuit/edges_experiment.h"
#include "experiments/document_credit.h"
#include "experiments/session.h"
#include "experiments/source.h"
#include "model/load.h"
#include "unpack/about.h"
#include "unpack/error.h"
#include "unpack/field_json.h"
#include "unpack/question.h"
#include "unpack/report.h"

namespace unpack {

namespace {

constexpr experiments::Experiment kExperiments[] = {
    {"faithfulness", 300, experiments::run_faithfulness, experiments::report_faithfulness},
    {"beta", 300, experiments::run_beta, experiments::report_beta},
    {"sink", 50, experiments::run_sink, experiments::report_sink},
    {"knockout", 1000, experiments::run_knockout, experiments::report_knockout},
    {"suppression", 100, experiments::run_suppression, experiments::report_suppression},
    {"ioi", 100, experiments::run_ioi, experiments::report_ioi},
    {"greater-than", 100, experiments::run_greater_than, experiments::report_greater_than},
    {"sources", 100, experiments::run_sources, experiments::report_sources},
    {"edges", 16, circuit::run_edges, circuit::report_edges},
    {"compiled", 4, experiments::run_compiled, experiments::report_compiled, true},
};

const experiments::Experiment& find_experiment(const std::string& name) {
  std::string known;
  for (const experiments::Experiment& e : kExperiments) {
    if (name == e.name) return e;
    known += (known.empty() ? "" : ", ") + std::string(e.name);
  }
  throw UsageError(fmt::format("'{}' is no experiment: use {}", name, known));
}

// An option that changes nothing would only seem to have been obeyed.
void check_options(const ExperimentOptions& o) {
  const auto only = [&](bool given, const char* option,
                        std::initializer_list<std::string_view> names) {
    if (!given || std::find(names.begin(), names.end(), o.name) != names.end()) return;
    throw UsageError(fmt::format("{} has no meaning for {}: it is for {}", option, o.name,
                                 fmt::join(names, ", ")));
  };
  only(o.corpus.has_value(), "corpus", {"faithfulness", "beta", "sink", "knockout"});
  only(o.prompts.has_value(), "prompts", {"sink"});
  only(o.roles.has_value(), "roles", {"ioi"});
  only(o.claims.has_value(), "claims", {"greater-than"});
  only(o.readout != FaithfulnessReadout::probability, "readout", {"faithfulness", "beta"});
  only(o.raw_logit, "raw_logit", {"faithfulness", "beta"});
  only(o.whole_sentences, "whole_sentences", {"faithfulness", "beta"});
  only(o.narrow_paths, "narrow_paths", {"ioi", "greater-than"});
  only(o.all, "all", {"knockout"});
  const CompiledOptions plain;
  only(o.compiled.program.has_value(), "program", {"compiled"});
  only(o.compiled.format.has_value(), "format", {"compiled"});
  only(o.compiled.noise != plain.noise, "noise", {"compiled"});
  only(o.compiled.sharpness != plain.sharpness, "sharpness", {"compiled"});
  only(o.compiled.save.has_value(), "save", {"compiled"});
}

// What must be the same for a run to be continued.
experiments::Json settings_of(const ExperimentOptions& o, int n) {
  experiments::Json settings = {
      {"experiment", o.name},
      {"n", n},
      {"seed", o.seed},
      {"corpus", o.corpus ? o.corpus->filename().string() : ""},
      {"prompts", o.prompts ? o.prompts->filename().string() : ""},
      {"roles", o.roles ? std::filesystem::path(*o.roles).filename().string() : ""},
      {"claims", o.claims ? std::filesystem::path(*o.claims).filename().string() : ""},
      {"readout", to_string(o.readout)},
      {"raw_logit", o.raw_logit},
      {"whole_sentences", o.whole_sentences},
      {"narrow_paths", o.narrow_paths},
      {"all", o.all}};
  settings.update(fields_json(to_fields(o.options)));
  settings.erase("reroot");  // no experiment asks for a root's other direction
  if (find_experiment(o.name).makes_models) {
    settings["program"] = o.compiled.program.value_or("");
    settings["format"] = o.compiled.format.value_or("");
    settings["noise"] = o.compiled.noise;
    settings["sharpness"] = o.compiled.sharpness;
  }
  return settings;
}

}  // namespace

std::vector<std::string> experiment_names() {
  std::vector<std::string> out;
  for (const experiments::Experiment& e : kExperiments) out.emplace_back(e.name);
  return out;
}

int experiment_default_n(const std::string& name) { return find_experiment(name).default_n; }

namespace {

std::string checksum_of(const std::optional<std::filesystem::path>& file) {
  if (!file) return "";
  base::Hash64 hash;
  hash.add(base::read_plain_file(*file, std::size_t{1} << 30));
  return hash.text();
}

// Runs all models on these records. Without a summary where other shards hold the rest of them.
ExperimentResult conduct(const ExperimentOptions& options,
                         const experiments::Experiment& experiment, int n,
                         experiments::Records& records, const RunContext& context) {
  ExperimentResult result;
  result.folder = options.out;
  experiments::Json summaries = experiments::Json::object();
  const auto run = [&](const Model& model, const std::string& name) {
    experiments::ModelSession session{model, name, options, n, records, result.warnings, context};
    try {
      summaries[name] = experiment.run(session);
    } catch (const experiments::Json::exception&) {
      // Records that a run finds are taken as they are; what it makes itself has all members.
      throw InputError(
          fmt::format("{}: a record lacks something or holds another kind of value: it "
                      "is not one of this version, or was changed",
                      (options.out / "results.jsonl").string()));
    }
  };
  if (experiment.makes_models) {
    for (const std::string& format : experiments::compiled_formats(options.compiled))
      run(experiments::open_compiled(options, format), format);
  } else {
    for (const std::string& name : options.models) {
      const Model model = options.open(name, options.load);
      run(model, model.info().name);
    }
  }
  std::sort(result.warnings.begin(), result.warnings.end());
  result.warnings.erase(std::unique(result.warnings.begin(), result.warnings.end()),
                        result.warnings.end());
  if (records.partial()) {
    result.report = fmt::format(
        "Shard {} of {} is done: its records are in {}. unpack merge joins all shards.\n",
        to_string(options.shard), options.name, (options.out / "results.jsonl").string());
    return result;
  }
  std::vector<experiments::ReportFile> files;
  result.report = fmt::format("# {}\n\n", options.name);
  if (!options.command.empty()) result.report += fmt::format("    {}\n\n", options.command);
  result.report += experiment.report(summaries, files);
  if (!result.warnings.empty()) result.report += "\nSkipped:\n\n";
  for (const std::string& warning : result.warnings) result.report += "- " + warning + "\n";
  const experiments::Json summary = {{"settings", settings_of(options, n)}, {"models", summaries}};
  write_file(options.out / "summary.json",
             summary.dump(2, ' ', false, experiments::Json::error_handler_t::replace) + "\n");
  for (const experiments::ReportFile& file : files)
    write_file(options.out / file.name, file.content);
  write_file(options.out / "report.md", result.report);
  return result;
}

// What a shard leaves for the merge: what must be the same in all of them, and where this one found
// its files.
experiments::Json run_json(const ExperimentOptions& o, int n) {
  experiments::Json fingerprints = experiments::Json::array();
  for (const std::string& name : o.models) {
    if (!find_experiment(o.name).makes_models)
      fingerprints.push_back(model::load_folder(locate_model(name)).fingerprint);
  }
  return {{"version", 1},
          {"kind", "experiment"},
          {"program", version()},
          {"settings", settings_of(o, n)},
          {"files",
           {{"corpus", checksum_of(o.corpus)},
            {"prompts", checksum_of(o.prompts)},
            {"roles", checksum_of(o.roles)},
            {"claims", checksum_of(o.claims)}}},
          {"fingerprints", fingerprints},
          {"source", experiments::source_json(o)},
          {"shard", to_string(o.shard)}};
}

void make_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw InputError(
        fmt::format("cannot make the folder {}: {}", folder.string(), error.message()));
}

// Where there are no records of ours yet, the other files that a run writes are not ours either.
void refuse_foreign_files(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder / "results.jsonl", error) &&
      std::filesystem::file_size(folder / "results.jsonl", error) > 0)
    return;  // the records say whose they are
  constexpr const char* kWritten[] = {"summary.json", "report.md"};
  batch::refuse_foreign(folder, kWritten);
  for (const std::filesystem::path& path : base::folder_contents(folder, error)) {
    if (path.extension() != ".svg") continue;
    const std::string name = path.filename().string();
    const char* names[] = {name.c_str()};
    batch::refuse_foreign(folder, names);
  }
}

}  // namespace

ExperimentResult run_experiment(const ExperimentOptions& options, const RunContext& context) {
  const experiments::Experiment& experiment = find_experiment(options.name);
  options.options.check();
  check_options(options);
  const int n = options.n.value_or(experiment.default_n);
  if (n < 1) throw UsageError(fmt::format("n takes a number of 1 or more, not {}", n));
  if (options.models.empty()) throw UsageError("name a model");
  if (std::set<std::string>(options.models.begin(), options.models.end()).size() !=
      options.models.size())
    throw UsageError("a model is named twice");
  if (options.compiled.save) {
    ExperimentResult saved;
    saved.folder = *options.compiled.save;
    saved.report = experiments::save_compiled(options, n);
    return saved;
  }
  if (options.out.empty()) throw UsageError("out takes the name of a folder");
  for (const std::string& name : options.models) {
    // All of them, before the first one works for minutes.
    if (!experiment.makes_models) (void)model::load_folder(locate_model(name));
  }
  make_folder(options.out);
  experiments::Json settings = settings_of(options, n);
  if (!options.shard.whole()) {
    batch::settle_run_file(options.out, run_json(options, n));
    settings["shard"] = to_string(options.shard);
  }
  refuse_foreign_files(options.out);
  experiments::Records records(options.out / "results.jsonl", settings, options.shard);
  return conduct(options, experiment, n, records, context);
}

MergeResult merge_experiment(const batch::ShardSet& shards, const std::filesystem::path& out,
                             const LoadOptions& load, const RunContext& context) {
  ExperimentOptions options = experiments::options_from(
      batch::run_member(shards.run, "source", experiments::Json::value_t::object));
  batch::run_member(shards.run, "fingerprints", experiments::Json::value_t::array);
  batch::run_member(shards.run, "files", experiments::Json::value_t::object);
  options.load = load;
  options.out = out;
  const experiments::Experiment& experiment = find_experiment(options.name);
  const int n = options.n.value_or(experiment.default_n);
  const experiments::Json now = run_json(options, n);
  for (const char* part : {"fingerprints", "files"}) {
    if (now.at(part) != shards.run.at(part))
      throw InputError(
          fmt::format("the {} of the shards are no longer the same ones here: put back what they "
                      "were made with",
                      part == std::string("files") ? "corpus, prompts or tables" : "models"));
  }
  experiments::RecordMap all;
  for (const auto& folder : shards.folders) {
    experiments::Json settings;
    for (auto& [key, record] : experiments::read_records(folder / "results.jsonl", settings)) {
      const auto [there, fresh] = all.try_emplace(key, record);
      if (!fresh && there->second != record)
        throw InputError(
            fmt::format("{} and another shard hold different records of {}: they were made by "
                        "different programs or machines",
                        folder.string(), key));
    }
  }
  std::error_code ignored;
  if (std::filesystem::exists(out / "results.jsonl", ignored) ||
      std::filesystem::exists(out / "run.json", ignored)) {
    experiments::Json there;
    experiments::read_records(out / "results.jsonl", there);
    if (there != settings_of(options, n))
      throw InputError(fmt::format("{} holds another run: choose another folder", out.string()));
  }
  make_folder(out);
  refuse_foreign_files(out);
  experiments::Records records(out / "results.jsonl", settings_of(options, n), std::move(all),
                               shards.folders.size());
  ExperimentResult result = conduct(options, experiment, n, records, context);
  return {out, std::move(result.report), std::move(result.warnings)};
}

MergeResult merge_shards(const std::vector<std::filesystem::path>& folders,
                         const std::filesystem::path& out, const LoadOptions& load,
                         const RunContext& context) {
  if (folders.empty()) throw UsageError("name the folders of the shards");
  if (out.empty()) throw UsageError("out takes the name of a folder");
  const batch::ShardSet shards = batch::gather_shards(folders);
  const std::string kind =
      batch::run_member(shards.run, "kind", experiments::Json::value_t::string).get<std::string>();
  if (kind == "batch") return batch::merge_batch(shards, out, context);
  if (kind == "experiment") return merge_experiment(shards, out, load, context);
  throw InputError(
      fmt::format("{} was written by another version of this program", folders[0].string()));
}

}  // namespace unpack
