// OLMo-2: no norms before the sublayers but behind them, and RMSNorm over all queries and all keys;
// Phi-3: fused query/key/value and gate/up matrices.
#include "base/index.h"
#include "model/families/llama_like.h"

namespace unpack::model {
namespace {

FamilyConfig read_olmo2(const ConfigReader& reader) {
  FamilyConfig family =
      read_llama_like(reader, {.vocab_size = 50304, .eos_token = 50279, .norm_eps = 1e-5});
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  for (LayerConfig& layer : family.model.layers) {
    layer.attn_norm = layer.mlp_norm = Norm::none;
    layer.attn_post_norm = layer.mlp_post_norm = true;
    layer.qk_norm = QkNorm::projection;
  }
  return family;
}

std::vector<TensorRow> olmo2_tensors(const FamilyConfig& family, int layer) {
  if (layer < 0) return llama_model_tensors(family);
  const Index D = family.model.d_model;
  std::vector<TensorRow> rows;
  add_attention(rows, family, layer);
  add_norm(rows, family, "model.layers.{}.post_attention_layernorm.weight", Role::attn_post_w, D);
  add_gated_mlp(rows, family, layer);
  add_norm(rows, family, "model.layers.{}.post_feedforward_layernorm.weight", Role::mlp_post_w, D);
  return rows;
}

FamilyConfig read_phi3(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.vocab_size = 32064,
                                                 .d_model = 3072,
                                                 .intermediate_size = 8192,
                                                 .max_position_embeddings = 4096,
                                                 .bos_token = 1,
                                                 .eos_token = 32000,
                                                 .norm_eps = 1e-5,
                                                 .rope_old_names = true,
                                                 .rope_original = 4096});
  if (reader.has("sliding_window")) set_windows(reader, family, 4096, [](int) { return true; });
  return family;
}

// Rows of a Linear one role after the other.
TensorRow linear_parts(std::string name, Index in,
                       const std::vector<std::pair<Role, Index>>& parts) {
  TensorRow row{std::move(name), {0, in}, {}};
  for (const auto& [role, n] : parts) {
    TensorPart part = linear_row("", role, in, n).parts.front();
    part.start = row.shape[0] * in;
    row.parts.push_back(part);
    row.shape[0] += n;
  }
  return row;
}

std::vector<TensorRow> phi3_tensors(const FamilyConfig& family, int layer) {
  if (layer < 0) return llama_model_tensors(family);
  const ModelConfig& c = family.model;
  const Index D = c.d_model, N = c.layer(layer).n_neurons, HE = Index{c.n_heads} * c.d_head,
              GE = Index{c.n_kv_heads} * c.d_head;
  std::vector<TensorRow> rows;
  add_norm(rows, family, "model.layers.{}.input_layernorm.weight", Role::attn_norm_w, D);
  rows.push_back(linear_parts("model.layers.{}.self_attn.qkv_proj.weight", D,
                              {{Role::w_q, HE}, {Role::w_k, GE}, {Role::w_v, GE}}));
  rows.push_back(linear_row("model.layers.{}.self_attn.o_proj.weight", Role::w_o, HE, D));
  add_norm(rows, family, "model.layers.{}.post_attention_layernorm.weight", Role::mlp_norm_w, D);
  rows.push_back(linear_parts("model.layers.{}.mlp.gate_up_proj.weight", D,
                              {{Role::w_in, N}, {Role::w_up, N}}));
  rows.push_back(linear_row("model.layers.{}.mlp.down_proj.weight", Role::w_out, N, D));
  return rows;
}

}  // namespace

extern const Family kOlmo2, kPhi3;
const Family kOlmo2 = {"olmo2", "model.", read_olmo2, olmo2_tensors, llama_head};
const Family kPhi3 = {"phi3", "model.", read_phi3, phi3_tensors, llama_head};

}  // namespace unpack::model
