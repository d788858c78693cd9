#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <map>
#include <mutex>
#include <tuple>

#include "bind.h"
#include "call.h"
#include "unpack/choice.h"
#include "unpack/experiments.h"
#include "unpack/question.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

using OptionalPath = std::optional<std::filesystem::path>;

// A process that works on one shard after the other loads its models once.
Model kept_model(const std::string& name, const LoadOptions& load) {
  static std::mutex mutex;
  static std::map<std::tuple<std::string, std::string, int>, Model> kept;
  const std::lock_guard lock(mutex);
  const std::tuple key(name, load.device, load.threads);
  const auto known = kept.find(key);
  return known != kept.end() ? known->second
                             : kept.emplace(key, Model::load(name, load)).first->second;
}

py::tuple experiment(const std::string& name, std::vector<std::string> models,
                     const std::filesystem::path& out, std::optional<int> n, std::uint64_t seed,
                     OptionalPath corpus, OptionalPath prompts, std::optional<std::string> roles,
                     std::optional<std::string> claims, const std::string& readout, bool raw_logit,
                     bool whole_sentences, bool narrow_paths, bool all, bool stop_at_bad_line,
                     const Asked& question, const std::string& device, int threads,
                     const std::string& shard, const py::object& progress) {
  ExperimentOptions asked;
  asked.name = name;
  asked.models = std::move(models);
  asked.load.device = device;
  asked.load.threads = threads;
  asked.out = out;
  asked.n = n;
  asked.seed = seed;
  asked.corpus = std::move(corpus);
  asked.prompts = std::move(prompts);
  asked.roles = std::move(roles);
  asked.claims = std::move(claims);
  asked.readout = read_word("readout", text_field(readout), words_of(kReadouts));
  asked.raw_logit = raw_logit;
  asked.whole_sentences = whole_sentences;
  asked.narrow_paths = narrow_paths;
  asked.all = all;
  asked.stop_at_bad_line = stop_at_bad_line;
  asked.options = question.question.options;
  if (!shard.empty()) {
    asked.shard = parse_shard(shard);
    asked.open = kept_model;
  }
  const ExperimentResult result = interruptible(
      progress, [&](const RunContext& context) { return run_experiment(asked, context); });
  return py::make_tuple(result.report, result.warnings);
}

}  // namespace

void bind_experiment(py::module_& module) {
  module.def("experiment_names", &experiment_names);
  module.def("experiment", &experiment, py::arg("name"), py::arg("models"), py::arg("out"),
             py::arg("n"), py::arg("seed"), py::arg("corpus"), py::arg("prompts"), py::arg("roles"),
             py::arg("claims"), py::arg("readout"), py::arg("raw_logit"),
             py::arg("whole_sentences"), py::arg("narrow_paths"), py::arg("all"),
             py::arg("stop_at_bad_line"), py::arg("options"), py::arg("device"), py::arg("threads"),
             py::arg("shard"), py::arg("progress"));
}

}  // namespace unpack::python
