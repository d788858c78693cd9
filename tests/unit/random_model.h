// Tiny random models of every family, with weights large enough that heads attend and neurons bend.
#pragma once

#include <fmt/format.h>
#include <rapidcheck.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/state.h"
#include "model/load.h"
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
  int rope = 0;            // 0 plain, 1 linear, 2 llama3
  bool biases = false;     // attention_bias and mlp_bias where the family has them
  std::string activation;  // empty: the family's own

  std::string config() const {
    const auto yes = [](bool b) { return b ? "true" : "false"; };
    if (family == "gpt2") {
      return fmt::format(
          R"({{"model_type":"gpt2","n_layer":{},"n_head":{},"n_embd":{},"n_inner":{},"vocab_size":{},"n_positions":{},"tie_word_embeddings":{},"activation_function":"{}"}})",
          layers, heads, heads * d_head, neurons, vocabulary, context, yes(tied),
          activation.empty() ? "gelu_new" : activation);
    }
    if (family == "gpt_neox") {
      return fmt::format(
          R"({{"model_type":"gpt_neox","num_hidden_layers":{},"num_attention_heads":{},"hidden_size":{},"intermediate_size":{},"vocab_size":{},"max_position_embeddings":{},)"
          R"("use_parallel_residual":{},"rotary_pct":{},"tie_word_embeddings":{},"attention_bias":{},"hidden_act":"{}"}})",
          layers, heads, heads * d_head, neurons, vocabulary, context, yes(parallel),
          rope == 0 ? "0.5" : "1.0", yes(tied), yes(biases),
          activation.empty() ? "gelu" : activation);
    }
    static const char* const kRope[] = {
        "", R"("rope_scaling":{"rope_type":"linear","factor":2.0},)",
        R"("rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":64},)"};
    // Qwen2 has no head size of its own.
    const int width = family == "qwen2" ? heads * d_head : d_model;
    return fmt::format(
        R"({{"model_type":"{}","num_hidden_layers":{},"num_attention_heads":{},"num_key_value_heads":{},"head_dim":{},"hidden_size":{},"intermediate_size":{},"vocab_size":{},)"
        R"("max_position_embeddings":{},"tie_word_embeddings":{},"attention_bias":{},"mlp_bias":{},"sliding_window":null,{}"hidden_act":"{}"}})",
        family, layers, heads, kv_heads, d_head, width, neurons, vocabulary, context, yes(tied),
        yes(biases), yes(biases), kRope[rope], activation.empty() ? "silu" : activation);
  }
};

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
  const TensorSet set = random_tensors(config, seed);
  Tensors out;
  out.config = config;
  for (const auto& [name, t] : set.tensors) {
    std::vector<float> data(t.bytes / sizeof(float));
    convert_run(t.data, t.dtype, static_cast<std::int64_t>(data.size()), data.data());
    const bool norm_weight = t.shape.size() == 1 && name.ends_with(".weight");
    for (float& x : data) x = norm_weight ? 1 + 6 * (x - 1) : 15 * x;
    out.shapes[name] = t.shape;
    out.values[name] = std::move(data);
  }
  return out;
}

inline const ModelWeights& weights_of(const Model& model) { return *model.state()->weights; }

// From the whole range from the first try on: a tiny model is not too large to begin with.
inline int draw_int(int low, int end) {
  return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(low, end));
}

// Drawn inside a property, so that a counterexample shrinks towards a small model.
inline Shape draw_shape(int max_layers, int max_heads, int max_neurons) {
  static const std::vector<std::string> kFamilies = {"gpt2",    "gpt_neox", "llama",
                                                     "mistral", "qwen2",    "qwen3"};
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
  shape.rope = draw_int(0, 3);
  shape.biases = *rc::gen::arbitrary<bool>();
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
      "{} ids [{}] beta {} weights {} mlp_weights {} dispatch {} mlp {} scores {} reroot {}",
      shape.config(), fmt::join(ids, ","), o.beta, fmt::join(o.weights, ","),
      fmt::join(o.mlp_weights, ","), to_string(o.dispatch), to_string(o.mlp), to_string(o.scores),
      to_string(o.reroot));
}

}  // namespace unpack::testing
