// What every experiment is given, and the table of them.
#pragma once

#include <string>
#include <vector>

#include "experiments/records.h"
#include "unpack/experiments.h"

namespace unpack::experiments {

// One model's part of a run.
struct ModelSession {
  const Model& model;
  std::string name;
  const ExperimentOptions& options;
  int n = 0;
  Records& records;
  std::vector<std::string>& warnings;
  const RunContext& context;

  std::string key(const std::string& what) const { return name + "|" + what; }
  // The index-th record of its kind, made where it is not there yet; nothing where another shard
  // makes it.
  template <class Make>
  const Json* record(std::size_t index, const std::string& its_key, const Make& make) const {
    const Json* known = records.find(its_key);
    if (known || !records.mine(index)) return known;
    return &records.add(its_key, make());
  }
};

struct ReportFile {
  std::string name, content;
};

struct Experiment {
  const char* name;
  int default_n;
  Json (*run)(ModelSession& session);  // records, then the summary of one model
  // Tables and plots of all models' summaries, keyed by model.
  std::string (*report)(const Json& summaries, std::vector<ReportFile>& files);
  bool makes_models = false;  // those of --model play no part in it
};

Json run_faithfulness(ModelSession& session);
Json run_beta(ModelSession& session);
std::string report_faithfulness(const Json& summaries, std::vector<ReportFile>& files);
std::string report_beta(const Json& summaries, std::vector<ReportFile>& files);
Json run_sink(ModelSession& session);
std::string report_sink(const Json& summaries, std::vector<ReportFile>& files);
Json run_knockout(ModelSession& session);
std::string report_knockout(const Json& summaries, std::vector<ReportFile>& files);
Json run_suppression(ModelSession& session);
std::string report_suppression(const Json& summaries, std::vector<ReportFile>& files);
Json run_ioi(ModelSession& session);
std::string report_ioi(const Json& summaries, std::vector<ReportFile>& files);
Json run_greater_than(ModelSession& session);
std::string report_greater_than(const Json& summaries, std::vector<ReportFile>& files);

Json run_compiled(ModelSession& session);
std::string report_compiled(const Json& summaries, std::vector<ReportFile>& files);
// The formats it compiles to, in place of names of models, and a model to hold for one of them.
std::vector<std::string> compiled_formats(const CompiledOptions& options);
Model open_compiled(const ExperimentOptions& options, const std::string& format);
// --save: the models in place of the experiment; says what was written.
std::string save_compiled(const ExperimentOptions& options, int n);

// | a | b | rows of a Markdown table; the first one is the head.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows);
std::vector<double> numbers(const Json& array);
std::string slug(const std::string& model);  // fit for a file name

}  // namespace unpack::experiments
