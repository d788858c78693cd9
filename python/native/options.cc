#include "unpack/options.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <initializer_list>
#include <utility>

#include "bind.h"
#include "unpack/error.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

template <class T>
T choose(const char* argument, const std::string& text,
         std::initializer_list<std::pair<const char*, T>> choices) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    known += std::string(known.empty() ? "'" : ", '") + name + "'";
  }
  throw UsageError(std::string(argument) + " must be one of " + known + ", not '" + text + "'");
}

Options make_options(double beta, const std::array<double, 3>& weights,
                     const std::array<double, 2>& mlp_weights, const std::string& dispatch,
                     const std::string& mlp, const std::string& scores, const std::string& reroot) {
  Options options;
  options.beta = beta;
  options.weights = weights;
  options.mlp_weights = mlp_weights;
  options.dispatch = choose<Dispatch>("dispatch", dispatch,
                                      {{"aligned", Dispatch::aligned}, {"gate", Dispatch::gate}});
  options.mlp = choose<MlpRule>("mlp", mlp,
                                {{"per-neuron", MlpRule::per_neuron},
                                 {"linearized", MlpRule::linearized},
                                 {"l2", MlpRule::l2}});
  options.scores =
      choose<Scores>("scores", scores, {{"raw", Scores::raw}, {"centered", Scores::centered}});
  options.reroot =
      choose<Reroot>("reroot", reroot, {{"output", Reroot::output}, {"target", Reroot::target}});
  options.check();
  return options;
}

PathQuery make_query(std::size_t top, std::optional<double> tau, const std::string& rule,
                     const std::optional<std::string>& branch, std::optional<std::string> through,
                     std::optional<int> from, std::optional<int> min_layer,
                     const std::optional<std::string>& sign) {
  PathQuery query;
  query.top = top;
  query.tau = tau;
  query.rule =
      choose<TauRule>("tau_rule", rule, {{"named", TauRule::named}, {"entry", TauRule::entry}});
  if (branch) {
    query.branch = choose<Branch>("branch", *branch,
                                  {{"K", Branch::K},
                                   {"Q", Branch::Q},
                                   {"V", Branch::V},
                                   {"G", Branch::G},
                                   {"U", Branch::U},
                                   {"R", Branch::R}});
  }
  query.through = std::move(through);
  query.from = from;
  query.min_layer = min_layer;
  if (sign) query.sign = choose<int>("sign", *sign, {{"positive", 1}, {"negative", -1}});
  return query;
}

Target make_target(std::vector<TokenId> ids, std::optional<std::vector<TokenId>> versus, bool raw,
                   int position) {
  return {std::move(ids), std::move(versus), raw, position};
}

}  // namespace

void bind_options(py::module_& module) {
  py::class_<Options>(module, "Options")
      .def(py::init(&make_options), py::arg("beta"), py::arg("weights"), py::arg("mlp_weights"),
           py::arg("dispatch"), py::arg("mlp"), py::arg("scores"), py::arg("reroot"));
  py::class_<PathQuery>(module, "PathQuery")
      .def(py::init(&make_query), py::arg("top"), py::arg("tau"), py::arg("rule"),
           py::arg("branch"), py::arg("through"), py::arg("from_"), py::arg("min_layer"),
           py::arg("sign"));
  py::class_<Target>(module, "Target")
      .def(py::init(&make_target), py::arg("ids"), py::arg("versus"), py::arg("raw"),
           py::arg("position"));
}

}  // namespace unpack::python
