#include "unpack/prepared.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "bind.h"
#include "call.h"
#include "unpack/choice.h"
#include "unpack/explain.h"
#include "unpack/question.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

TraceResult trace(const Prepared& prepared, const Asked& asked, const py::object& progress) {
  return interruptible(progress, [&](const RunContext& context) {
    return asked.method == Method::unpack
               ? prepared.trace(asked.question, context)
               : baseline(prepared, asked.question.target, asked.method, context);
  });
}

// writer, reader, branch, credit; branch nothing for plain MLPs and the target.
std::vector<std::tuple<std::string, std::string, std::optional<std::string>, double>> edge_credit(
    const Prepared& prepared, const Asked& asked, const py::object& progress) {
  const std::vector<EdgeCredit> edges = interruptible(progress, [&](const RunContext& context) {
    return prepared.edge_credit(asked.question, context);
  });
  const Writers& writers = prepared.model().writers();
  std::vector<std::tuple<std::string, std::string, std::optional<std::string>, double>> out;
  for (const EdgeCredit& e : edges) {
    std::optional<std::string> branch;
    if (e.branch != Branch::none && e.branch != Branch::mlp) branch = to_string(e.branch);
    out.emplace_back(writers.name(e.writer), e.reader < 0 ? "target" : writers.name(e.reader),
                     branch, e.credit);
  }
  return out;
}

std::string sentences(const Prepared& prepared, const Asked& asked, int count,
                      const py::object& progress) {
  const std::vector<Sentence> found = interruptible(progress, [&](const RunContext& context) {
    const TraceResult result = prepared.trace(asked.question, context);
    return explain(prepared, asked.question, result, count, context);
  });
  return to_json(found, prepared.model().writers());
}

InteractionResult interactions(const Prepared& prepared, std::optional<int> query, bool all,
                               const py::object& progress) {
  return interruptible(progress, [&](const RunContext& context) {
    return prepared.interactions(query, all, context);
  });
}

py::array scores(const Prepared& prepared, int layer, const std::string& branch) {
  const std::vector<Branch> known = {Branch::K, Branch::Q, Branch::V, Branch::mlp,
                                     Branch::G, Branch::U, Branch::R};
  const Branch of = read_word("branch", text_field(branch), words_of(known));
  return take(
      interruptible(py::none(), [&](const RunContext&) { return prepared.scores(layer, of); }));
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
      .def("trace", &trace, py::arg("asked"), progress)
      .def_property_readonly("bytes", &Prepared::bytes)
      .def("edge_credit", &edge_credit, py::arg("asked"), progress)
      .def("sentences", &sentences, py::arg("asked"), py::arg("count"), progress)
      .def("interactions", &interactions, py::arg("query"), py::arg("all"), progress)
      .def("scores", &scores, py::arg("layer"), py::arg("branch"))
      .def("cache", &cache, py::arg("name"), py::arg("layer"))
      .def("validate", &validate, progress);
}

}  // namespace unpack::python
