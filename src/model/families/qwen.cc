// Qwen2 (bias on q, k, v), Qwen3 (RMSNorm on q and k, a head size of its own) and its mixtures;
// SmolLM3, some of whose layers have no rotary.
#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "base/message.h"
#include "model/families/llama_like.h"
#include "model/families/mixture.h"

namespace unpack::model {
namespace {

LlamaDefaults defaults(std::optional<int> head_dim) {
  return {.vocab_size = 151936,
          .intermediate_size = 22016,
          .max_position_embeddings = 32768,
          .num_key_value_heads = 32,
          .head_dim = head_dim};
}

// In force only when switched on, and then on the layers from max_window_layers on or those that
// layer_types names.
void read_window(const ConfigReader& reader, FamilyConfig& family) {
  const Index first = reader.integer("max_window_layers").value_or(28);
  if (first < 0)
    reader.fail(fmt::format("max_window_layers is {}, expected a number from 0", first));
  if (reader.flag("use_sliding_window", false))
    set_windows(reader, family, 4096, [&](int layer) { return layer >= first; });
}

FamilyConfig read_qwen2(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, defaults(std::nullopt));
  family.qkv_bias = true;
  read_window(reader, family);
  return family;
}

FamilyConfig read_qwen3(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, defaults(128));
  for (LayerConfig& layer : family.model.layers) layer.qk_norm = QkNorm::head;
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  read_window(reader, family);
  return family;
}

FamilyConfig read_qwen3_moe(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.vocab_size = 151936,
                                                 .d_model = 2048,
                                                 .n_layers = 24,
                                                 .intermediate_size = 6144,
                                                 .max_position_embeddings = 32768,
                                                 .num_key_value_heads = 4});
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  const LayerConfig experts = read_experts(reader, {.experts_key = "num_experts",
                                                    .experts = 128,
                                                    .chosen = 8,
                                                    .neurons_key = "moe_intermediate_size",
                                                    .neurons = 768});
  const int step = reader.size("decoder_sparse_step", 1);
  const std::vector<Index> dense = reader.integers("mlp_only_layers");
  for (const Index l : dense) {
    if (l < 0 || l >= family.model.n_layers) {
      reader.fail(fmt::format("mlp_only_layers names layer {}, but the model has layers 0 to {}", l,
                              family.model.n_layers - 1));
    }
  }
  for (int l = 0; l < family.model.n_layers; ++l) {
    LayerConfig& layer = family.model.layers[l];
    layer.qk_norm = QkNorm::head;
    const bool sparse =
        (l + 1) % step == 0 && std::find(dense.begin(), dense.end(), l) == dense.end();
    if (sparse) use_experts(experts, layer);
  }
  if (reader.flag("use_sliding_window", false))
    set_windows(reader, family, 4096, [](int) { return true; });
  return family;
}

std::vector<TensorRow> qwen3_moe_tensors(const FamilyConfig& family, int layer) {
  if (layer < 0) return llama_model_tensors(family);
  const Index D = family.model.d_model;
  std::vector<TensorRow> rows;
  add_norm(rows, family, "model.layers.{}.input_layernorm.weight", Role::attn_norm_w, D);
  add_attention(rows, family, layer);
  add_norm(rows, family, "model.layers.{}.post_attention_layernorm.weight", Role::mlp_norm_w, D);
  if (family.model.layer(layer).mixture()) {
    add_experts(rows, family, layer, kMlpExperts);
  } else {
    add_gated_mlp(rows, family, layer);
  }
  return rows;
}

FamilyConfig read_smollm3(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.vocab_size = 128256,
                                                 .d_model = 2048,
                                                 .n_layers = 36,
                                                 .n_heads = 16,
                                                 .max_position_embeddings = 32768,
                                                 .num_key_value_heads = 4,
                                                 .bos_token = 128000,
                                                 .eos_token = 128001,
                                                 .rope_theta = 2e6,
                                                 .tied = true});
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  family.mlp_bias = reader.flag("mlp_bias", false);
  const int layers = family.model.n_layers;
  const int interval = reader.size("no_rope_layer_interval", 4);
  std::vector<Index> rotated = reader.integers("no_rope_layers");
  if (!rotated.empty() && rotated.size() != static_cast<std::size_t>(layers)) {
    reader.fail(fmt::format("no_rope_layers names {} layers, but the model has {}", rotated.size(),
                            layers));
  }
  for (int l = 0; rotated.size() < static_cast<std::size_t>(layers); ++l)
    rotated.push_back((l + 1) % interval == 0 ? 0 : 1);
  for (std::size_t l = 0; l < rotated.size(); ++l) {
    if (rotated[l] != 0 && rotated[l] != 1)
      reader.fail(fmt::format("no_rope_layers holds {}, expected 0 or 1 a layer", rotated[l]));
    if (rotated[l] == 0) family.model.layers[l].rope = Rope{};
  }
  if (reader.flag("use_sliding_window", false)) {
    set_windows(reader, family, 4096, [&](int l) { return rotated[l] == 0; });
  }
  return family;
}

}  // namespace

extern const Family kQwen2, kQwen3, kQwen3Moe, kSmolLm3;
const Family kQwen2 = {"qwen2", "model.", read_qwen2, llama_tensors, llama_head};
const Family kQwen3 = {"qwen3", "model.", read_qwen3, llama_tensors, llama_head};
const Family kQwen3Moe = {"qwen3_moe", "model.", read_qwen3_moe, qwen3_moe_tensors, llama_head};
const Family kSmolLm3 = {"smollm3", "model.", read_smollm3, llama_tensors, llama_head};

}  // namespace unpack::model
