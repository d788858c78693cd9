// The measurements behind the method, one call each: records as they come, a summary, a report and
// plots in a folder.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "unpack/model.h"
#include "unpack/options.h"
#include "unpack/run_context.h"
#include "unpack/shard.h"

namespace unpack {

enum class FaithfulnessReadout { probability, logit };
constexpr const char* to_string(FaithfulnessReadout readout) {
  return readout == FaithfulnessReadout::logit ? "logit" : "probability";
}
inline constexpr std::array kReadouts = {FaithfulnessReadout::probability,
                                         FaithfulnessReadout::logit};

// compiled: models with known circuits, made for the experiment.
struct CompiledOptions {
  std::optional<std::string> program;  // one of compiled_programs(); nothing: all
  std::optional<std::string> format;   // "gpt2" or "llama"; nothing: both
  std::vector<double> noise = {0.0, 0.02};
  double sharpness = 12;
  std::optional<std::filesystem::path> save;  // write the models there as Hugging Face folders
};
std::vector<std::string> compiled_programs();

struct ExperimentOptions {
  std::string name;  // one of experiment_names()
  std::vector<std::string> models = {"pocket-gpt2"};
  LoadOptions load;
  std::filesystem::path out;
  std::optional<int> n;  // prompts; nothing: the experiment's own default
  std::uint64_t seed = 0;
  std::optional<std::filesystem::path>
      corpus;  // sentences, one a line; nothing: the text that comes with the program
  std::optional<std::filesystem::path>
      prompts;  // prompts in place of generated ones, where an experiment takes them
  std::optional<std::string> roles;   // ioi: a table of heads, "gpt2" (published) or "find";
                                      // nothing: published for GPT-2 small, found otherwise
  std::optional<std::string> claims;  // greater-than: a table of what feeds what, likewise
  Options options;
  FaithfulnessReadout readout = FaithfulnessReadout::probability;
  bool raw_logit = false;  // faithfulness: explain the raw logit
  // faithfulness, beta: whole sentences as prompts, in place of sentences cut before a content word
  bool whole_sentences = false;
  // ioi, greater-than: path patching into queries, keys and values leaves out the MLPs between
  bool narrow_paths = false;
  bool all = false;  // knockout: every writer
  bool stop_at_bad_line = false;
  CompiledOptions compiled;
  std::string command;  // written into the report
  Shard shard;  // a part of the records alone, without summary and report: merge_shards makes these
  std::function<Model(const std::string& name, const LoadOptions& load)> open = Model::load;
};

struct ExperimentResult {
  std::string report;  // Markdown
  std::filesystem::path folder;
  std::vector<std::string> warnings;  // lines that were skipped, prompts that did not fit
};

std::vector<std::string> experiment_names();
int experiment_default_n(const std::string& name);
// Continues where an interrupted run with the same settings stopped. Throws InputError when the
// folder holds a run with other settings.
ExperimentResult run_experiment(const ExperimentOptions& options, const RunContext& context = {});

}  // namespace unpack
