// Results keep their C++ form; Python reads arrays in place and everything else through the same
// JSON as the command line writes.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "arrays.h"
#include "bind.h"
#include "unpack/choice.h"
#include "unpack/groups.h"
#include "unpack/intervene.h"
#include "unpack/report.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

using Release = py::call_guard<py::gil_scoped_release>;

template <class Result>
std::string json(const Result& result) {
  return to_json(result);
}

template <class Result>
std::string terminal(const Result& result, bool color, int width, bool unicode) {
  return to_terminal(result, {color, width, unicode});
}

template <class Result>
std::string svg(const Result& result) {
  return to_svg(result);
}

template <class Result>
std::string html(const Result& result) {
  return to_html(result);
}

std::string graph(const TraceResult& result, const std::string& format) {
  return to_graph(result, read_word<GraphFormat>("format", text_field(format),
                                                 {{"graphml", GraphFormat::graphml},
                                                  {"dot", GraphFormat::dot},
                                                  {"json", GraphFormat::json}}));
}

py::dict incoming(const TraceResult& result) {
  py::dict out;
  for (const auto& [branch, rows] : result.incoming)
    out[to_string(branch)] = stack(rows, result.tokens.size());
  return out;
}

// [N]; of a mixture [experts, N], 0 for the experts that are not in use.
py::array neuron_shares(const TraceResult& result) {
  CachedArray shares;
  const bool mixture = !result.expert_entries.empty();
  std::int64_t neurons = std::ssize(result.neuron_entries);
  std::int64_t experts = 1;
  if (mixture) {
    const LayerConfig& layer =
        result.layout.layer(result.writer_table()[result.root->writer].layer);
    neurons = layer.n_neurons;
    experts = layer.n_experts;
    shares.shape.push_back(experts);
  }
  shares.shape.push_back(neurons);
  shares.values.assign(experts * neurons, 0.0);
  for (const NeuronEntry& entry : result.neuron_entries) {
    const std::int64_t row = mixture ? entry.expert * neurons : 0;
    shares.values.at(row + entry.neuron) = entry.credit;
  }
  return take(std::move(shares));
}

}  // namespace

void bind_results(py::module_& module) {
  const auto color = py::arg("color");
  const auto width = py::arg("width");
  const auto unicode = py::arg("unicode");
  py::class_<TraceResult>(module, "TraceResult")
      .def("json", &json<TraceResult>, Release())
      .def("terminal", &terminal<TraceResult>, color, width, unicode, Release())
      .def("svg", &svg<TraceResult>, Release())
      .def("html", &html<TraceResult>, Release())
      .def("tikz", &to_tikz, Release())
      .def("graph", &graph, py::arg("format"), Release())
      .def(
          "words",
          [](const TraceResult& r) { return to_json(merge_words(r.tokens, r.token_credit)); },
          Release())
      .def_property_readonly("writers", [](const TraceResult& r) { return r.writers; })
      .def_property_readonly("token_credit",
                             [](const py::object& self) {
                               return view(self.cast<const TraceResult&>().token_credit, self);
                             })
      .def_property_readonly("token_percent",
                             [](const py::object& self) {
                               return view(self.cast<const TraceResult&>().token_percent, self);
                             })
      .def_property_readonly("importance",
                             [](const py::object& self) {
                               return view(self.cast<const TraceResult&>().importance, self);
                             })
      .def_property_readonly("entries",
                             [](const py::object& self) {
                               return view(self.cast<const TraceResult&>().entries, self);
                             })
      .def_property_readonly("neuron_shares", &neuron_shares)
      .def_property_readonly(
          "node_credit", [](const TraceResult& r) { return stack(r.node_credit, r.tokens.size()); })
      .def_property_readonly("incoming", &incoming);
  py::class_<PredictResult>(module, "PredictResult")
      .def("json", &json<PredictResult>, Release())
      .def("terminal", &terminal<PredictResult>, color, width, unicode, Release());
  py::class_<InteractionResult>(module, "InteractionResult")
      .def("json", &json<InteractionResult>, Release())
      .def("terminal", &terminal<InteractionResult>, color, width, unicode, Release())
      .def("svg", &svg<InteractionResult>, Release());
  py::class_<AttributeResult>(module, "AttributeResult")
      .def("json", &json<AttributeResult>, Release())
      .def("terminal", &terminal<AttributeResult>, color, width, unicode, Release())
      .def("svg", &svg<AttributeResult>, Release())
      .def("html", &html<AttributeResult>, Release());
  py::class_<InterventionResult>(module, "InterventionResult")
      .def("json", &json<InterventionResult>, Release());
}

}  // namespace unpack::python
