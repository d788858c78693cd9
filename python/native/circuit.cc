#include "unpack/circuit.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <filesystem>

#include "bind.h"
#include "call.h"
#include "unpack/choice.h"
#include "unpack/question.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

// writer, reader, branch ("": none), credit, absolute, drop (None: not measured)
using EdgeRow =
    std::tuple<std::string, std::string, std::string, double, double, std::optional<double>>;

TaskOptions task_options(std::optional<int> n, std::uint64_t seed) {
  TaskOptions out;
  out.n_given = n.has_value();
  if (n) out.n = *n;
  out.seed = seed;
  return out;
}

// A search that goes on where one in the same folder stopped, and leaves its results there.
CircuitResult kept_search(const Model& model, const Task& task, const CircuitOptions& options,
                          const std::filesystem::path& out, const RunContext& context) {
  std::error_code ignored;
  if (std::filesystem::exists(out, ignored) && !std::filesystem::is_directory(out, ignored))
    throw InputError(out.string() + " is no folder");
  CircuitMemory memory(out / "search.jsonl", circuit_search(model, task, options));
  std::optional<CircuitResult> found;
  try {
    found = find_circuit(model, task, options, context, &memory);
  } catch (const Cancelled&) {
    throw;  // what was computed waits for the next call
  } catch (const Error&) {
    memory.forget();
    throw;
  }
  write_circuit(out, {*found}, "");
  memory.forget();
  return std::move(*found);
}

py::tuple circuit(const Model& model, const std::string& task, std::optional<int> n,
                  std::uint64_t seed, const std::string& method, const std::string& preset,
                  const Asked& question, bool contrast, int steps, const std::string& ablate,
                  bool nodes, bool positions, int patched, const std::string& sizes,
                  const std::string& size, double faithful, int minimality, const std::string& out,
                  const py::object& progress) {
  CircuitOptions options;
  options.method = parse_circuit_method(method);
  options.preset = preset;
  options.options = question.question.options;
  options.contrast = contrast;
  options.steps = steps;
  options.ablation = read_word("ablate", text_field(ablate), words_of(kEdgeAblations));
  options.nodes = nodes;
  options.positions = positions;
  options.patched = patched;
  if (!sizes.empty()) options.sizes = parse_sizes(sizes);
  if (!size.empty()) options.size = parse_size(size);
  options.faithful = faithful;
  options.minimality = minimality;
  options.seed = seed;
  const CircuitResult found = interruptible(progress, [&](const RunContext& context) {
    const Task prompts = read_task(model, task, task_options(n, seed));
    return out.empty() ? find_circuit(model, prompts, options, context)
                       : kept_search(model, prompts, options, out, context);
  });
  return py::make_tuple(to_json(found), to_markdown(found, ""), to_mib(found));
}

std::vector<std::tuple<int, double, double, double>> prove(
    const Model& model, const std::string& task, std::optional<int> n, std::uint64_t seed,
    const std::vector<std::vector<EdgeRow>>& circuits, const std::string& ablate,
    const py::object& progress) {
  std::vector<std::vector<CircuitEdge>> lists;
  for (const std::vector<EdgeRow>& circuit : circuits) {
    lists.emplace_back();
    for (const EdgeRow& e : circuit)
      lists.back().push_back(
          parse_circuit_edge(model, std::get<0>(e), std::get<1>(e), std::get<2>(e)));
  }
  const EdgeAblation ablation = read_word("ablate", text_field(ablate), words_of(kEdgeAblations));
  const CircuitProof proof = interruptible(progress, [&](const RunContext& context) {
    return prove_circuits(model, read_task(model, task, task_options(n, seed)), lists, ablation,
                          context);
  });
  std::vector<std::tuple<int, double, double, double>> out;
  for (const CircuitPoint& p : proof.points)
    out.emplace_back(p.edges, p.value, p.faithfulness, p.necessity);
  return out;
}

// A circuit as it would be drawn had it been found so: "svg", "dot", "graphml".
std::string draw(const Model& model, const std::string& title, const std::vector<EdgeRow>& edges,
                 double faithfulness, double necessity, int all_edges, const std::string& format) {
  CircuitResult shown;
  shown.model = model.info();
  shown.layout = model.config();
  shown.task.name = title;
  shown.all_edges = all_edges;
  shown.final_point.edges = edges.size();
  shown.final_point.faithfulness = faithfulness;
  shown.final_point.necessity = necessity;
  for (const EdgeRow& e : edges)
    shown.edges.push_back(
        {parse_circuit_edge(model, std::get<0>(e), std::get<1>(e), std::get<2>(e)), std::get<3>(e),
         std::get<4>(e), static_cast<int>(shown.edges.size()) + 1, true, std::get<5>(e)});
  using Writing = std::string (*)(const CircuitResult&);
  return read_word<Writing>("format", text_field(format),
                            {{"svg", to_svg}, {"dot", to_dot}, {"graphml", to_graphml}})(shown);
}

}  // namespace

void bind_circuit(py::module_& module) {
  module.def("circuit", &circuit, py::arg("model"), py::arg("task"), py::arg("n"), py::arg("seed"),
             py::arg("method"), py::arg("preset"), py::arg("options"), py::arg("contrast"),
             py::arg("steps"), py::arg("ablate"), py::arg("nodes"), py::arg("positions"),
             py::arg("patched"), py::arg("sizes"), py::arg("size"), py::arg("faithful"),
             py::arg("minimality"), py::arg("out"), py::arg("progress"));
  module.def("prove_circuits", &prove, py::arg("model"), py::arg("task"), py::arg("n"),
             py::arg("seed"), py::arg("circuits"), py::arg("ablate"), py::arg("progress"));
  module.def("draw_circuit", &draw, py::arg("model"), py::arg("title"), py::arg("edges"),
             py::arg("faithfulness"), py::arg("necessity"), py::arg("all_edges"),
             py::arg("format"));
}

}  // namespace unpack::python
