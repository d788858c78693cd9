#include "unpack/model.h"

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "bind.h"
#include "call.h"
#include "unpack/chat.h"
#include "unpack/choice.h"
#include "unpack/cost.h"
#include "unpack/intervene.h"
#include "unpack/models.h"
#include "unpack/prepared.h"
#include "unpack/question.h"

namespace py = pybind11;

namespace unpack::python {
namespace {

using Ids = std::vector<TokenId>;
using Release = py::call_guard<py::gil_scoped_release>;

LoadOptions load_options(const std::string& device, int threads, bool weight_products,
                         bool mapped = true) {
  LoadOptions options;
  options.device = device;
  options.threads = threads;
  options.weight_products = weight_products;
  options.mapped = mapped;
  return options;
}

Model load(const std::string& name, const std::string& device, int threads, bool weight_products,
           bool mapped) {
  return Model::load(name, load_options(device, threads, weight_products, mapped));
}

DType parse_dtype(const std::string& name) {
  const std::vector<DType> known = {DType::f32, DType::f16, DType::bf16, DType::f64};
  return read_word("dtype", text_field(name), words_of(known));
}

Model random_model(const std::string& shape, std::uint64_t seed, const std::string& device,
                   int threads, const std::string& dtype) {
  return Model::random(shape, seed, load_options(device, threads, false), parse_dtype(dtype));
}

// Python's arrays stay alive with the model; the last reference may be dropped on any thread.
std::shared_ptr<const void> keep(const py::object& object) {
  auto* held = new py::object(object);
  return {held, [](const py::object* p) {
            if (!Py_IsInitialized()) return;
            const py::gil_scoped_acquire acquire;
            delete p;
          }};
}

Model from_tensors(const std::string& config,
                   const std::vector<std::tuple<std::string, std::string, std::vector<std::int64_t>,
                                                std::uintptr_t>>& tensors,
                   const py::object& owner, const std::string& device, int threads) {
  std::map<std::string, TensorRef> refs;
  for (const auto& [name, dtype, shape, address] : tensors) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): numpy and torch hand addresses out as numbers
    refs[name] = {parse_dtype(dtype), shape, reinterpret_cast<const void*>(address)};
  }
  std::shared_ptr<const void> kept = keep(owner);
  const py::gil_scoped_release release;
  return Model::from_tensors(config, refs, std::move(kept), load_options(device, threads, false));
}

template <class T>
py::object or_none(const std::optional<T>& value) {
  return value ? py::object(py::cast(*value)) : py::object(py::none());
}

py::dict config(const Model& model) {
  const ModelConfig& c = model.config();
  // Layers may differ: some of a mixture are dense, some have no window.
  int neurons = 0, experts = 0, chosen = 0;
  bool qk_norm = false;
  std::optional<int> window;
  for (const LayerConfig& layer : c.layers) {
    neurons = std::max(neurons, layer.n_neurons);
    experts = std::max(experts, layer.n_experts);
    chosen = std::max(chosen, layer.experts_per_token);
    qk_norm = qk_norm || layer.qk_norm != QkNorm::none;
    if (layer.window > 0) window = layer.window;
  }
  py::dict out;
  out["family"] = c.family;
  out["name"] = c.name;
  out["n_layers"] = c.n_layers;
  out["n_heads"] = c.n_heads;
  out["n_kv_heads"] = c.n_kv_heads;
  out["d_model"] = c.d_model;
  out["d_head"] = c.d_head;
  out["d_mlp"] = neurons;
  out["vocab_size"] = c.vocab_size;
  out["n_ctx"] = c.n_ctx;
  out["norm"] = c.norm == Norm::layer ? "layer" : "rms";
  out["block"] = c.block == Block::sequential ? "sequential" : "parallel";
  out["mlp"] = c.gated() ? "gated" : "plain";
  out["positions"] = c.has_pos_writer() ? "learned" : "rotary";
  out["norm_eps"] = c.norm_eps;
  out["tied_head"] = c.tied_head;
  out["qk_norm"] = qk_norm;
  out["sliding_window"] = or_none(window);
  out["experts"] = experts;
  out["experts_per_token"] = chosen;
  out["bos_token"] = or_none(c.bos_token);
  out["dtype"] = to_string(c.dtype);
  return out;
}

std::vector<std::string> writer_names(const Model& model) {
  std::vector<std::string> names;
  for (int w = 0; w < model.writers().count(); ++w) names.push_back(model.writers().name(w));
  return names;
}

std::vector<std::tuple<int, TokenId, py::str>> tokens(const Model& model, const Ids& ids) {
  std::vector<std::tuple<int, TokenId, py::str>> out;
  for (const Token& token : model.tokens(ids))
    out.emplace_back(token.position, token.id, py::str(token.text));
  return out;
}

// The ids as the tokenizer makes them; decoding may end inside a character, which Python replaces.
py::str decode(const Model& model, const Ids& ids) {
  const std::string text = model.tokenizer().decode(ids);
  return py::reinterpret_steal<py::str>(PyUnicode_DecodeUTF8(text.data(), text.size(), "replace"));
}

PredictResult predict(const Model& model, const Ids& ids, int top, bool lens, bool experts,
                      int position, const py::object& progress) {
  PredictOptions options;
  options.top = top;
  options.lens = lens;
  options.experts = experts;
  options.position = position;
  return interruptible(
      progress, [&](const RunContext& context) { return model.predict(ids, options, context); });
}

Ids generate(const Model& model, const Ids& ids, int max_tokens, double temperature, int top_k,
             std::uint64_t seed, const py::object& on_token, const Ids& stops) {
  SamplingOptions options;
  options.max_tokens = max_tokens;
  options.temperature = temperature;
  options.top_k = top_k;
  options.seed = seed;
  std::function<bool(TokenId)> emit;
  if (!on_token.is_none()) {
    emit = [&on_token](TokenId id) {
      const py::gil_scoped_acquire acquire;
      const py::object answer = on_token(id);
      return answer.is_none() || answer.cast<bool>();
    };
  }
  return interruptible(py::none(), [&](const RunContext& context) {
    return generate_until(model, ids, options, stops, emit, context);
  });
}

std::vector<Prepared> prepare(const Model& model, const std::vector<Ids>& prompts,
                              std::size_t memory_budget, const py::object& progress) {
  return interruptible(progress, [&](RunContext context) {
    context.memory_budget = memory_budget;
    for (const Ids& prompt : prompts) check_memory(model, planned_trace(prompt.size()));
    return model.prepare(prompts, context);
  });
}

AttributeResult attribute_tokens(const Model& model, const Ids& prompt, const Ids& continuation,
                                 const Asked& asked, const py::object& progress) {
  return interruptible(progress, [&](const RunContext& context) {
    return attribute(model, prompt, continuation, asked.question.options, context);
  });
}

Ablation ablation_named(const std::string& name) {
  return read_word("ablate", text_field(name), words_of(kAblations));
}

std::string prove_on(const Model& model, const Ids& ids, const std::vector<std::string>& components,
                     const std::string& ablate, const Ids& patch_from, const Asked& asked,
                     const py::object& progress) {
  const Ablation ablation = ablation_named(ablate);
  return interruptible(progress, [&](const RunContext& context) {
    return to_json(
        prove_nodes(model, ids, components, ablation, patch_from, asked.question.target, context));
  });
}

InterventionResult intervene_on(const Model& model, const Ids& ids, std::optional<std::string> cut,
                                const std::string& channel, std::vector<std::string> edges,
                                Ids patch_from, std::vector<int> zero,
                                std::vector<std::string> components, bool keep,
                                const std::string& ablate, double scale, const Asked& asked,
                                const py::object& progress) {
  Intervention intervention;
  intervention.keep = keep;
  intervention.cut = std::move(cut);
  intervention.channel = read_word("channel", text_field(channel), words_of(kChannels));
  intervention.edges = std::move(edges);
  intervention.patch_from = std::move(patch_from);
  intervention.zero = std::move(zero);
  intervention.ablate = std::move(components);
  intervention.scale = scale;
  intervention.ablation = ablation_named(ablate);
  return interruptible(progress, [&](const RunContext& context) {
    return intervene(model, ids, intervention, asked.question.target, context);
  });
}

}  // namespace

void bind_model(py::module_& module) {
  const auto ids = py::arg("ids");
  const auto progress = py::arg("progress");
  py::class_<Prepared>(module, "Prepared");  // its methods: prepared.cc
  py::class_<Model>(module, "Model")
      .def_static("load", &load, py::arg("name"), py::arg("device"), py::arg("threads"),
                  py::arg("weight_products"), py::arg("mapped"), Release())
      .def_static("random", &random_model, py::arg("shape"), py::arg("seed"), py::arg("device"),
                  py::arg("threads"), py::arg("dtype"), Release())
      .def_static("from_tensors", &from_tensors, py::arg("config"), py::arg("tensors"),
                  py::arg("owner"), py::arg("device"), py::arg("threads"))
      .def_property_readonly("config", &config)
      .def_property_readonly("fingerprint", [](const Model& m) { return m.info().fingerprint; })
      .def_property_readonly("device", [](const Model& m) { return m.program().device; })
      .def_property_readonly("threads", [](const Model& m) { return m.program().threads; })
      .def_property_readonly("writers", &writer_names)
      .def_property_readonly("has_tokenizer", &Model::has_tokenizer)
      .def(
          "encode",
          [](const Model& m, const std::string& text, bool special) {
            return m.tokenizer().encode(text, special);
          },
          py::arg("text"), py::arg("special"), Release())
      .def(
          "encode_prompt",
          [](const Model& m, const std::string& text, bool bos) {
            return m.encode_prompt(text, !bos);
          },
          py::arg("text"), py::arg("bos"), Release())
      .def("prefix", [](const Model& m) { return prompt_prefix(m.config(), m.tokenizer()); })
      .def("decode", &decode, ids)
      .def(
          "single_token",
          [](const Model& m, const std::string& text) { return m.single_token(text); },
          py::arg("text"))
      .def("tokens", &tokens, ids)
      .def(
          "check_component",
          [](const Model& m, const std::string& text) {
            return m.writers().name(m.writers().parse(text));
          },
          py::arg("text"))
      .def(
          "check_node",
          [](const Model& m, const std::string& text, int length) {
            return to_string(m.writers(), parse_node(m.writers(), text, length));
          },
          py::arg("text"), py::arg("length"))
      .def("predict", &predict, ids, py::arg("top"), py::arg("lens"), py::arg("experts"),
           py::arg("position"), progress)
      .def("generate", &generate, ids, py::arg("max_tokens"), py::arg("temperature"),
           py::arg("top_k"), py::arg("seed"), py::arg("on_token"), py::arg("stops") = Ids{})
      .def("prepare", &prepare, py::arg("prompts"), py::arg("memory_budget"), progress)
      .def("attribute", &attribute_tokens, py::arg("prompt"), py::arg("continuation"),
           py::arg("asked"), progress)
      .def("intervene", &intervene_on, ids, py::arg("cut"), py::arg("channel"), py::arg("edges"),
           py::arg("patch_from"), py::arg("zero"), py::arg("components"), py::arg("keep"),
           py::arg("ablate"), py::arg("scale"), py::arg("asked"), progress)
      .def("prove", &prove_on, ids, py::arg("components"), py::arg("ablate"), py::arg("patch_from"),
           py::arg("asked"), progress);
}

}  // namespace unpack::python
