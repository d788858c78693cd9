// Mixtral, OLMoE and gpt-oss, and what mixtures share.
#include "model/families/mixture.h"

#include <fmt/format.h>

#include <cmath>
#include <tuple>

#include "base/index.h"

namespace unpack::model {

LayerConfig read_experts(const ConfigReader& reader, const ExpertKeys& keys) {
  for (const std::string_view key :
       {"shared_expert_intermediate_size", "n_shared_experts", "num_shared_experts"}) {
    if (reader.has(key) && !reader.is_null(key) && reader.integer(key).value_or(0) != 0)
      reader.fail(fmt::format("{}: shared experts are not supported", key));
  }
  LayerConfig layer;
  layer.n_experts = reader.size(keys.experts_key, keys.experts);
  layer.experts_per_token = reader.size("num_experts_per_tok", keys.chosen);
  layer.n_neurons = reader.size(keys.neurons_key, keys.neurons);
  if (layer.experts_per_token > layer.n_experts) {
    reader.fail(fmt::format("num_experts_per_tok is {}, but there are {} experts",
                            layer.experts_per_token, layer.n_experts));
  }
  layer.expert_weights = keys.weights.value_or(
      reader.flag("norm_topk_prob", false) ? ExpertWeights::all_divided : ExpertWeights::all);
  return layer;
}

void use_experts(const LayerConfig& experts, LayerConfig& layer) {
  layer.n_experts = experts.n_experts;
  layer.experts_per_token = experts.experts_per_token;
  layer.n_neurons = experts.n_neurons;
  layer.expert_weights = experts.expert_weights;
}

namespace {

FamilyConfig read_mixtral(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.intermediate_size = 14336,
                                                 .max_position_embeddings = 131072,
                                                 .num_key_value_heads = 8,
                                                 .bos_token = 1,
                                                 .eos_token = 2,
                                                 .norm_eps = 1e-5,
                                                 .rope_theta = 1e6});
  const LayerConfig experts = read_experts(reader, {.experts_key = "num_local_experts",
                                                    .neurons = 14336,
                                                    .weights = ExpertWeights::all_divided});
  for (LayerConfig& layer : family.model.layers) use_experts(experts, layer);
  if (reader.has("sliding_window")) set_windows(reader, family, 4096, [](int) { return true; });
  family.model.prepend_bos = true;
  return family;
}

std::vector<TensorRow> with_experts(const FamilyConfig& family, int layer,
                                    const ExpertNames& names) {
  const Index D = family.model.d_model;
  std::vector<TensorRow> rows;
  add_norm(rows, family, "model.layers.{}.input_layernorm.weight", Role::attn_norm_w, D);
  add_attention(rows, family, layer);
  add_norm(rows, family, "model.layers.{}.post_attention_layernorm.weight", Role::mlp_norm_w, D);
  add_experts(rows, family, layer, names);
  return rows;
}

std::vector<TensorRow> mixtral_tensors(const FamilyConfig& family, int layer) {
  if (layer < 0) return llama_model_tensors(family);
  const std::string mlp = "model.layers.{}.block_sparse_moe.";
  return with_experts(family, layer,
                      {mlp + "gate.weight", mlp + "experts.{e}.w1.weight",
                       mlp + "experts.{e}.w3.weight", mlp + "experts.{e}.w2.weight"});
}

FamilyConfig read_olmoe(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.vocab_size = 50304,
                                                 .d_model = 2048,
                                                 .n_layers = 16,
                                                 .n_heads = 16,
                                                 .intermediate_size = 2048,
                                                 .max_position_embeddings = 4096,
                                                 .eos_token = 50279,
                                                 .norm_eps = 1e-5});
  if (reader.has("clip_qkv") && !reader.is_null("clip_qkv"))
    reader.fail("clip_qkv is not supported (keys, queries and values cut off at a bound)");
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  const LayerConfig experts = read_experts(
      reader, {.experts_key = "num_experts", .experts = 64, .chosen = 8, .neurons = 2048});
  for (LayerConfig& layer : family.model.layers) {
    layer.qk_norm = QkNorm::projection;
    use_experts(experts, layer);
  }
  return family;
}

std::vector<TensorRow> olmoe_tensors(const FamilyConfig& family, int layer) {
  return layer < 0 ? llama_model_tensors(family) : with_experts(family, layer, kMlpExperts);
}

FamilyConfig read_gpt_oss(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.vocab_size = 201088,
                                                 .d_model = 2880,
                                                 .n_layers = 36,
                                                 .n_heads = 64,
                                                 .intermediate_size = 2880,
                                                 .max_position_embeddings = 131072,
                                                 .num_key_value_heads = 8,
                                                 .head_dim = 64,
                                                 .eos_token = 200002,
                                                 .norm_eps = 1e-5,
                                                 .rope_theta = 150000.0});
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", true);
  family.mxfp4 = reader.object("quantization_config").has_value();
  const LayerConfig experts = read_experts(reader, {.experts_key = "num_local_experts",
                                                    .experts = 128,
                                                    .chosen = 4,
                                                    .neurons = 2880,
                                                    .weights = ExpertWeights::chosen});
  const bool own_rope = reader.object("rope_scaling") || reader.object("rope_parameters");
  for (LayerConfig& layer : family.model.layers) {
    use_experts(experts, layer);
    layer.activation = Activation::clamped_swiglu;
    layer.sinks = true;
    if (!own_rope && !reader.has("rope_scaling")) {
      layer.rope.scaling = RopeScaling::yarn;
      layer.rope.factor = 32;
      layer.rope.original_context = 4096;
      layer.rope.truncate = false;
      layer.rope.amplitude = 0.1 * std::log(layer.rope.factor) + 1.0;
    }
  }
  set_windows(reader, family, 128, [](int layer) { return layer % 2 == 0; });
  return family;
}

// One tensor holds all experts, gate and up in alternate columns.
std::vector<TensorRow> gpt_oss_tensors(const FamilyConfig& family, int layer) {
  if (layer < 0) return llama_model_tensors(family);
  const ModelConfig& c = family.model;
  const LayerConfig& l = c.layer(layer);
  const Index D = c.d_model, N = l.n_neurons, experts = l.n_experts;
  std::vector<TensorRow> rows;
  add_norm(rows, family, "model.layers.{}.input_layernorm.weight", Role::attn_norm_w, D);
  add_attention(rows, family, layer);
  rows.push_back(vector_row("model.layers.{}.self_attn.sinks", Role::sinks, c.n_heads));
  add_norm(rows, family, "model.layers.{}.post_attention_layernorm.weight", Role::mlp_norm_w, D);
  rows.push_back(linear_row("model.layers.{}.mlp.router.weight", Role::w_r, D, experts));
  rows.push_back(vector_row("model.layers.{}.mlp.router.bias", Role::b_r, experts));

  const std::string mlp = "model.layers.{}.mlp.experts.";
  TensorRow in{mlp + "gate_up_proj", {experts, D, 2 * N}, {}, {}, true};
  TensorRow in_bias{mlp + "gate_up_proj_bias", {experts, 2 * N}, {}};
  TensorRow out{mlp + "down_proj", {experts, N, D}, {}, {}, true};
  TensorRow out_bias{mlp + "down_proj_bias", {experts, D}, {}};
  const auto view = [](Index n_in, Index n_out, Index in_stride, Index out_stride) {
    WeightView w;
    w.in = n_in;
    w.out = w.block = n_out;
    w.in_stride = in_stride;
    w.out_stride = out_stride;
    return w;
  };
  for (int e = 0; e < l.n_experts; ++e) {
    for (const auto& [offset, weight, bias] :
         {std::tuple{0, Role::w_in, Role::b_in}, std::tuple{1, Role::w_up, Role::b_up}}) {
      in.parts.push_back({weight, e * D * 2 * N + offset, view(D, N, 2 * N, 2), e});
      in_bias.parts.push_back({bias, e * 2 * N + offset, view(1, N, 2 * N, 2), e});
    }
    out.parts.push_back({Role::w_out, e * N * D, view(N, D, D, 1), e});
    out_bias.parts.push_back({Role::b_out, e * D, view(1, D, D, 1), e});
  }
  for (TensorRow* row : {&in, &in_bias, &out, &out_bias}) rows.push_back(std::move(*row));
  return rows;
}

}  // namespace

extern const Family kMixtral, kOlmoe, kGptOss;
const Family kMixtral = {"mixtral", "model.", read_mixtral, mixtral_tensors, llama_head};
const Family kOlmoe = {"olmoe", "model.", read_olmoe, olmoe_tensors, llama_head};
const Family kGptOss = {"gpt_oss", "model.", read_gpt_oss, gpt_oss_tensors, llama_head};

}  // namespace unpack::model
