// Gemma 1, 2 and 3: norms that store their weight less 1, a scaled embedding, and from 2 on norms
// behind the sublayers, windows and soft caps.
#include <cmath>

#include "base/index.h"
#include "model/families/llama_like.h"

namespace unpack::model {
namespace {

// 0: none. A cap of 0 or below is an error.
double read_cap(const ConfigReader& reader, std::string_view key, double fallback) {
  return reader.is_null(key) ? 0.0 : reader.has(key) ? reader.positive(key, 0) : fallback;
}

FamilyConfig read_gemma_like(const ConfigReader& reader, const LlamaDefaults& defaults) {
  FamilyConfig family = read_llama_like(reader, defaults);
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  family.norm_shift = 1.0;
  family.embedding_scale = std::sqrt(family.model.d_model);
  family.model.prepend_bos = true;
  return family;
}

FamilyConfig read_gemma(const ConfigReader& reader) {
  // An old file's "gelu" under hidden_act means the tanh form where hidden_activation is absent.
  return read_gemma_like(reader, {.vocab_size = 256000,
                                  .d_model = 3072,
                                  .n_layers = 28,
                                  .n_heads = 16,
                                  .intermediate_size = 24576,
                                  .max_position_embeddings = 8192,
                                  .num_key_value_heads = 16,
                                  .head_dim = 256,
                                  .bos_token = 2,
                                  .eos_token = 1,
                                  .tied = true,
                                  .activation_key = reader.has("hidden_activation") &&
                                                            !reader.is_null("hidden_activation")
                                                        ? std::string_view("hidden_activation")
                                                        : std::string_view("hidden_act"),
                                  .activation = "gelu_pytorch_tanh"});
}

LlamaDefaults gemma2_defaults() {
  return {.vocab_size = 256000,
          .d_model = 2304,
          .n_layers = 26,
          .n_heads = 8,
          .intermediate_size = 9216,
          .max_position_embeddings = 8192,
          .num_key_value_heads = 4,
          .head_dim = 256,
          .bos_token = 2,
          .eos_token = 1,
          .tied = true,
          .activation_key = "hidden_activation",
          .activation = "gelu_pytorch_tanh"};
}

void add_post_norms(const ConfigReader& reader, FamilyConfig& family) {
  const double scale = 1.0 / std::sqrt(reader.positive("query_pre_attn_scalar", 256));
  for (LayerConfig& layer : family.model.layers) {
    layer.attn_post_norm = layer.mlp_post_norm = true;
    layer.attention_scale = scale;
  }
}

FamilyConfig read_gemma2(const ConfigReader& reader) {
  FamilyConfig family = read_gemma_like(reader, gemma2_defaults());
  add_post_norms(reader, family);
  const double cap = read_cap(reader, "attn_logit_softcapping", 50.0);
  for (LayerConfig& layer : family.model.layers) layer.attention_cap = cap;
  family.model.logit_cap = read_cap(reader, "final_logit_softcapping", 30.0);
  set_windows(reader, family, 4096, [](int layer) { return layer % 2 == 0; });
  return family;
}

FamilyConfig read_gemma3_text(const ConfigReader& reader) {
  LlamaDefaults defaults = gemma2_defaults();
  defaults.vocab_size = 262208;
  defaults.max_position_embeddings = 131072;
  defaults.rope_theta = 1e6;
  defaults.rope_by_type = true;
  FamilyConfig family = read_gemma_like(reader, defaults);
  add_post_norms(reader, family);
  family.model.logit_cap = read_cap(reader, "final_logit_softcapping", 0.0);
  const double cap = read_cap(reader, "attn_logit_softcapping", 0.0);
  const int pattern = reader.size({"sliding_window_pattern", "_sliding_window_pattern"}, 6);
  const auto slides = [&](int layer) { return (layer + 1) % pattern != 0; };
  set_windows(reader, family, 4096, slides);
  const std::vector<bool> sliding = read_sliding(reader, family.model.n_layers, slides);
  const RopeKeys keys = {.d_head = family.model.d_head, .context = family.model.n_ctx, .base = 1e6};
  Rope full = family.model.layers.front().rope, local;
  const auto both = reader.object("rope_parameters");
  if (both && both->has("full_attention")) {
    const auto part = [&](const char* name, double base) {
      const auto inner = both->object(name);
      if (!inner) reader.fail(both->name(name) + " is missing");
      RopeKeys own = keys;
      own.base = base;
      own.theta_key = "rope_theta";
      return read_rope_parameters(reader, *inner, own);
    };
    full = part("full_attention", 1e6);
    local = part("sliding_attention", 1e4);
  } else {
    local.dims = full.dims;
    local.base = reader.positive("rope_local_base_freq", 10000.0);
  }
  for (std::size_t l = 0; l < sliding.size(); ++l) {
    LayerConfig& layer = family.model.layers[l];
    layer.qk_norm = QkNorm::head;
    layer.attention_cap = cap;
    layer.rope = sliding[l] ? local : full;
  }
  return family;
}

FamilyConfig read_gemma3(const ConfigReader& reader) {
  const auto text = reader.object("text_config");
  if (!text) reader.fail("text_config is missing");
  return read_gemma3_text(*text);
}

std::vector<TensorRow> gemma2_tensors(const FamilyConfig& family, int layer) {
  if (layer < 0) return llama_model_tensors(family);
  const Index D = family.model.d_model;
  std::vector<TensorRow> rows;
  add_norm(rows, family, "model.layers.{}.input_layernorm.weight", Role::attn_norm_w, D);
  add_attention(rows, family, layer);
  add_norm(rows, family, "model.layers.{}.post_attention_layernorm.weight", Role::attn_post_w, D);
  add_norm(rows, family, "model.layers.{}.pre_feedforward_layernorm.weight", Role::mlp_norm_w, D);
  add_gated_mlp(rows, family, layer);
  add_norm(rows, family, "model.layers.{}.post_feedforward_layernorm.weight", Role::mlp_post_w, D);
  return rows;
}

TensorRow gemma3_head(const FamilyConfig& family) {
  TensorRow row = llama_head(family);
  row.other_name = "language_model.lm_head.weight";
  return row;
}

}  // namespace

extern const Family kGemma, kGemma2, kGemma3Text, kGemma3;
const Family kGemma = {"gemma", "model.", read_gemma, llama_tensors, llama_head};
const Family kGemma2 = {"gemma2", "model.", read_gemma2, gemma2_tensors, llama_head};
const Family kGemma3Text = {"gemma3_text",  "model.",    read_gemma3_text,
                            gemma2_tensors, gemma3_head, "language_model."};
const Family kGemma3 = {"gemma3",       "model.",    read_gemma3,
                        gemma2_tensors, gemma3_head, "language_model."};

}  // namespace unpack::model
