#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "bind.h"
#include "call.h"
#include "unpack/experiments.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

using OptionalPath = std::optional<std::filesystem::path>;

py::tuple experiment(const std::string& name, std::vector<std::string> models, const std::filesystem::path& out, std::optional<int> n, std::uint64_t seed,
                     OptionalPath corpus, OptionalPath prompts, std::optional<std::string> roles, std::optional<std::string> claims, const std::string& readout,
                     bool raw_logit, bool all, bool stop_at_bad_line, const Options& options, const std::string& device, int threads,
                     const py::object& progress) {
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
  if (readout != "probability" && readout != "logit") throw UsageError("readout must be one of 'probability', 'logit', not '" + readout + "'");
  asked.readout = readout == "logit" ? FaithfulnessReadout::logit : FaithfulnessReadout::probability;
  asked.raw_logit = raw_logit;
  asked.all = all;
  asked.stop_at_bad_line = stop_at_bad_line;
  asked.options = options;
  const ExperimentResult result = interruptible(progress, [&](const RunContext& context) { return run_experiment(asked, context); });
  return py::make_tuple(result.report, result.warnings);
}

}  // namespace

void bind_experiment(py::module_& module) {
  module.def("experiment_names", &experiment_names);
  module.def("experiment", &experiment, py::arg("name"), py::arg("models"), py::arg("out"), py::arg("n"), py::arg("seed"), py::arg("corpus"),
             py::arg("prompts"), py::arg("roles"), py::arg("claims"), py::arg("readout"), py::arg("raw_logit"), py::arg("all"), py::arg("stop_at_bad_line"),
             py::arg("options"), py::arg("device"), py::arg("threads"), py::arg("progress"));
}

}  // namespace unpack::python
