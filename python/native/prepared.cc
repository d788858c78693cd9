#include "unpack/prepared.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "bind.h"
#include "call.h"
#include "unpack/baselines.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

TraceResult trace(const Prepared& prepared, const Target& target,
                  const std::optional<std::string>& root, const Options& options,
                  const PathQuery& paths, const std::string& method, const py::object& progress) {
  const Method by = parse_method(method);
  const Question question{target, root, options, paths};
  return interruptible(progress, [&](const RunContext& context) {
    return by == Method::unpack ? prepared.trace(question, context)
                                : baseline(prepared, target, by, context);
  });
}

InteractionResult interactions(const Prepared& prepared, std::optional<int> query, bool all,
                               const py::object& progress) {
  return interruptible(progress, [&](const RunContext& context) {
    return prepared.interactions(query, all, context);
  });
}

py::array scores(const Prepared& prepared, int layer, const std::string& branch) {
  for (const Branch known :
       {Branch::K, Branch::Q, Branch::V, Branch::mlp, Branch::G, Branch::U, Branch::R}) {
    if (branch == to_string(known))
      return take(interruptible(py::none(),
                                [&](const RunContext&) { return prepared.scores(layer, known); }));
  }
  throw UsageError("branch must be one of 'K', 'Q', 'V', 'MLP', 'G', 'U', not '" + branch + "'");
}

py::array cache(const Prepared& prepared, const std::string& name, int layer) {
  return take(
      interruptible(py::none(), [&](const RunContext&) { return prepared.cache(name, layer); }));
}

std::vector<std::tuple<std::string, double, double, bool>> validate(const Prepared& prepared,
                                                                    const py::object& progress) {
  const std::vector<ClosureCheck> checks = interruptible(
      progress, [&](const RunContext& context) { return prepared.validate(context); });
  std::vector<std::tuple<std::string, double, double, bool>> out;
  for (const ClosureCheck& check : checks)
    out.emplace_back(check.name, check.error, check.limit, check.passed());
  return out;
}

}  // namespace

void bind_prepared(py::module_& module) {
  const auto progress = py::arg("progress");
  py::reinterpret_borrow<py::class_<Prepared>>(module.attr("Prepared"))
      .def_property_readonly("ids", [](const Prepared& p) { return p.ids(); })
      .def("trace", &trace, py::arg("target"), py::arg("root"), py::arg("options"),
           py::arg("paths"), py::arg("method"), progress)
      .def("interactions", &interactions, py::arg("query"), py::arg("all"), progress)
      .def("scores", &scores, py::arg("layer"), py::arg("branch"))
      .def("cache", &cache, py::arg("name"), py::arg("layer"))
      .def("validate", &validate, progress);
}

}  // namespace unpack::python
