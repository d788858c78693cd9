// Tiny random models of every family, with weights large enough that heads attend and neurons bend.
#pragma once

#include <fmt/format.h>
#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/state.h"
#include "model/load.h"
#include "unpack/error.h"
#include "unpack/model.h"
#include "unpack/options.h"
#include "unpack/prepared.h"

namespace unpack::testing {

struct Shape {
  std::string family = "gpt2";
  int layers = 2;
  int heads = 2;
  int kv_heads = 1;  // families with grouped heads; a divisor of heads
  int d_head = 4;
  int d_model = 8;  // families where it may differ from heads * d_head
  int neurons = 6;
  int vocabulary = 11;
  int context = 8;
  bool parallel = true;  // gpt_neox
  bool tied = false;
  int rope = 0;            // 0 plain, 1 linear, 2 llama3, 3 yarn, 4 longrope
  bool biases = false;     // attention_bias and mlp_bias where the family has them
  std::string activation;  // empty: the family's own
  int window = 0;          // in the layers where the family may slide; 0: none
  bool caps = true;        // soft caps, where the family has them
  int experts = 3, chosen = 2;
  bool divided = true;  // norm_topk_prob, where the family asks
  int dense = -1;       // qwen3_moe: this layer is no mixture

  bool mixture() const {
    return family == "mixtral" || family == "qwen3_moe" || family == "olmoe" || family == "gpt_oss";
  }
  bool gemma() const { return family.starts_with("gemma"); }

  std::string config() const {
    using nlohmann::json;
    if (family == "gpt2") {
      return json{{"model_type", "gpt2"},
                  {"n_layer", layers},
                  {"n_head", heads},
                  {"n_embd", heads * d_head},
                  {"n_inner", neurons},
                  {"vocab_size", vocabulary},
                  {"n_positions", context},
                  {"tie_word_embeddings", tied},
                  {"activation_function", activation.empty() ? "gelu_new" : activation}}
          .dump();
    }
    if (family == "gpt_neox") {
      return json{{"model_type", "gpt_neox"},
                  {"num_hidden_layers", layers},
                  {"num_attention_heads", heads},
                  {"hidden_size", heads * d_head},
                  {"intermediate_size", neurons},
                  {"vocab_size", vocabulary},
                  {"max_position_embeddings", context},
                  {"use_parallel_residual", parallel},
                  {"rotary_pct", rope == 0 ? 0.5 : 1.0},
                  {"tie_word_embeddings", tied},
                  {"attention_bias", biases},
                  {"hidden_act", activation.empty() ? "gelu" : activation}}
          .dump();
    }
    json c = {{"model_type", family},
              {"num_hidden_layers", layers},
              {"num_attention_heads", heads},
              {"num_key_value_heads", kv_heads},
              {"head_dim", d_head},
              {"hidden_size", own_width() ? d_model : heads * d_head},
              {"intermediate_size", neurons},
              {"vocab_size", vocabulary},
              {"max_position_embeddings", context},
              {"tie_word_embeddings", tied},
              {"attention_bias", biases},
              {"mlp_bias", biases},
              {"sliding_window", window > 0 ? json(window) : json(nullptr)},
              {"use_sliding_window", window > 0},
              {"max_window_layers", 1},
              {gemma() && family != "gemma" ? "hidden_activation" : "hidden_act",
               activation.empty() ? (gemma() ? "gelu_pytorch_tanh" : "silu") : activation}};
    if (const json scaling = rope_scaling(); !scaling.is_null()) c["rope_scaling"] = scaling;
    add_family_keys(c);
    if (family != "gemma3") return c.dump();
    c["model_type"] = "gemma3_text";
    return json{{"model_type", "gemma3"}, {"text_config", c}, {"vision_config", json::object()}}
        .dump();
  }

 private:
  // Whether the width is not that of the heads together.
  bool own_width() const { return family != "qwen2"; }

  nlohmann::json rope_scaling() const {
    using nlohmann::json;
    const auto factors = [&](double first, double step) {
      json list = json::array();
      for (int i = 0; i < d_head / 2; ++i) list.push_back(first + step * i);
      return list;
    };
    switch (rope) {
      case 1:
        return {{"rope_type", "linear"}, {"factor", 2.0}};
      case 2:
        return {{"rope_type", "llama3"},
                {"factor", 8.0},
                {"low_freq_factor", 1.0},
                {"high_freq_factor", 4.0},
                {"original_max_position_embeddings", 64}};
      case 3:
        if (family == "phi3") break;  // where the name means longrope
        return {{"rope_type", "yarn"},
                {"factor", 4.0},
                {"beta_fast", 4.0},
                {"original_max_position_embeddings", 64},
                {"truncate", !biases}};
      case 4:  // prompts of 5 tokens are long
        return {{"rope_type", "longrope"},
                {"short_factor", factors(1.0, 0.25)},
                {"long_factor", factors(1.5, 0.75)},
                {"original_max_position_embeddings", 4}};
      default:
        break;
    }
    return nullptr;
  }

  void add_family_keys(nlohmann::json& c) const {
    using nlohmann::json;
    if (gemma() && family != "gemma") {
      c["query_pre_attn_scalar"] = 2.5;
      c["attn_logit_softcapping"] = caps && family == "gemma2" ? json(1.5) : json(nullptr);
      c["final_logit_softcapping"] = caps ? json(3.0) : json(nullptr);
      c["sliding_window_pattern"] = 2;
      c["rope_local_base_freq"] = 100.0;
    }
    if (family == "phi3" && rope == 0 && d_head == 4) c["partial_rotary_factor"] = 0.5;
    if (family == "phi3") c["original_max_position_embeddings"] = 4;
    if (family == "smollm3") c["no_rope_layer_interval"] = 2;
    if (family == "granite") {
      c["embedding_multiplier"] = 3.0;
      c["residual_multiplier"] = 0.4;
      c["attention_multiplier"] = 0.7;
      c["logits_scaling"] = 2.5;
    }
    if (!mixture()) return;
    c[family == "mixtral" || family == "gpt_oss" ? "num_local_experts" : "num_experts"] = experts;
    c["num_experts_per_tok"] = chosen;
    c["norm_topk_prob"] = divided;
    if (family == "gpt_oss") c["attention_bias"] = true;
    if (family == "qwen3_moe") {
      c["moe_intermediate_size"] = neurons;
      c["intermediate_size"] = neurons + 2;
      if (dense >= 0) c["mlp_only_layers"] = json::array({dense});
    }
  }
};

inline const std::vector<std::string> kFamilies = {
    "gpt2",    "gpt_neox", "llama",     "mistral", "qwen2",   "qwen3",
    "gemma",   "gemma2",   "gemma3",    "olmo2",   "phi3",    "smollm3",
    "granite", "mixtral",  "qwen3_moe", "olmoe",   "gpt_oss", "gemma3_text"};

// Float tensors under their Hugging Face names, to be changed before a model is made of them.
struct Tensors {
  std::string config;
  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::map<std::string, std::vector<float>> values;

  Model model(const std::string& device, int threads = 1) const {
    LoadOptions options;
    options.device = device;
    options.threads = threads;
    return model(options);
  }

  Model model(const LoadOptions& options) const {
    const auto kept = std::make_shared<std::map<std::string, std::vector<float>>>(values);
    std::map<std::string, TensorRef> refs;
    for (const auto& [name, data] : *kept) refs[name] = {DType::f32, shapes.at(name), data.data()};
    return Model::from_tensors(config, refs, kept, options);
  }
};

inline Tensors random_tensors_of(const std::string& config, std::uint64_t seed) {
  const model::TensorSet set = model::random_tensors(config, seed);
  Tensors out;
  out.config = config;
  for (const auto& [name, t] : set.tensors) {
    std::vector<float> data(t.bytes / sizeof(float));
    tensor::convert_run(t.data, t.dtype, static_cast<std::int64_t>(data.size()), data.data());
    // Norms vary around 1, or around 0 where 1 is added to what is stored.
    const bool norm_weight = t.shape.size() == 1 && name.ends_with(".weight");
    const float middle = norm_weight && config.find("gemma") == std::string::npos ? 1.0F : 0.0F;
    for (float& x : data) x = norm_weight ? middle + 6 * (x - middle) : 15 * x;
    out.shapes[name] = t.shape;
    out.values[name] = std::move(data);
  }
  return out;
}

inline const model::ModelWeights& weights_of(const Model& model) {
  return *engine::state_of(model)->weights;
}

// From the whole range from the first try on: a tiny model is not too large to begin with.
inline int draw_int(int low, int end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, end));
}

// Drawn inside a property, so that a counterexample shrinks towards a small model.
inline Shape draw_shape(int max_layers, int max_heads, int max_neurons) {
  Shape shape;
  shape.family = *rc::gen::elementOf(kFamilies);
  shape.layers = draw_int(1, max_layers + 1);
  shape.heads = draw_int(1, max_heads + 1);
  shape.kv_heads = shape.heads % 2 == 0 ? *rc::gen::element(1, 2, shape.heads)
                                        : *rc::gen::element(1, shape.heads);
  shape.d_head = *rc::gen::element(4, 6);
  if (shape.family == "gpt_neox")
    shape.d_head = 4;  // an even number of rotated dims at half a head
  shape.d_model = draw_int(4, 11);
  shape.neurons = draw_int(1, max_neurons + 1);
  shape.parallel = *rc::gen::arbitrary<bool>();
  shape.tied = *rc::gen::arbitrary<bool>();
  shape.rope = draw_int(0, 5);
  shape.biases = *rc::gen::arbitrary<bool>();
  shape.window = *rc::gen::element(0, 1, 2, 3);
  shape.caps = *rc::gen::arbitrary<bool>();
  shape.experts = draw_int(1, 5);
  shape.chosen = draw_int(1, std::min(shape.experts, 3) + 1);
  shape.divided = *rc::gen::arbitrary<bool>();
  shape.dense = draw_int(-1, shape.layers);
  return shape;
}

inline std::vector<TokenId> draw_prompt(int max_length, int vocabulary) {
  const int length = draw_int(1, max_length + 1);
  std::vector<TokenId> ids;
  for (int i = 0; i < length; ++i) ids.push_back(draw_int(0, vocabulary));
  return ids;
}

inline Options draw_options(const std::vector<double>& betas) {
  Options o;
  o.beta = *rc::gen::elementOf(betas);
  o.weights = *rc::gen::elementOf(std::vector<std::array<double, 3>>{
      {1.0 / 3, 1.0 / 3, 1.0 / 3}, {1, 0, 0}, {0.5, 0.3, 0.2}, {0, 0.5, 0.5}, {0, 1, 0}});
  o.mlp_weights =
      *rc::gen::elementOf(std::vector<std::array<double, 2>>{{0.5, 0.5}, {1, 0}, {0.3, 0.7}});
  o.expert_weights = *rc::gen::elementOf(std::vector<std::array<double, 3>>{
      {1.0 / 3, 1.0 / 3, 1.0 / 3}, {1, 0, 0}, {0.2, 0.5, 0.3}, {0, 0.5, 0.5}, {0.5, 0, 0.5}});
  o.dispatch = *rc::gen::element(Dispatch::aligned, Dispatch::gate);
  o.mlp = *rc::gen::element(MlpRule::per_neuron, MlpRule::linearized, MlpRule::l2);
  o.scores = *rc::gen::element(Scores::raw, Scores::centered);
  o.reroot = *rc::gen::element(Reroot::output, Reroot::target);
  return o;
}

inline Target draw_target(int length, int vocabulary) {
  Target t;
  t.ids = *rc::gen::element(std::vector<TokenId>{1}, std::vector<TokenId>{2, 5, 7});
  t.position = draw_int(0, length);
  const int kind = draw_int(0, 4);
  if (kind == 1) t.versus = std::vector<TokenId>{4};
  if (kind == 2) t.versus = std::vector<TokenId>{3, vocabulary - 1};
  t.raw = kind == 3;
  return t;
}

// A head or an MLP at a position of the prompt.
inline std::string draw_root(const Writers& writers, int length) {
  const int writer = draw_int(writers.terminals(), writers.count());
  return fmt::format("{}@{}", writers.name(writer), draw_int(0, length));
}

inline std::string to_text(const Shape& shape, const std::vector<TokenId>& ids, const Options& o) {
  return fmt::format(
      "{} ids [{}] beta {} weights {} mlp_weights {} expert_weights {} dispatch {} mlp {} scores "
      "{} "
      "reroot {}",
      shape.config(), fmt::join(ids, ","), o.beta, fmt::join(o.weights, ","),
      fmt::join(o.mlp_weights, ","), fmt::join(o.expert_weights, ","), to_string(o.dispatch),
      to_string(o.mlp), to_string(o.scores), to_string(o.reroot));
}

}  // namespace unpack::testing
