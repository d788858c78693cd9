// GPT-NeoX and Pythia: rotary on part of a head, LayerNorm, parallel or sequential blocks, plain
// MLP, query/key/value rows interleaved per head.

#include "base/index.h"
#include "model/family.h"

namespace unpack::model {
namespace {

FamilyConfig read_neox(const ConfigReader& reader) {
  FamilyConfig family;
  ModelConfig& c = family.model;
  c.n_layers = reader.layers({"num_hidden_layers"}, 44);
  c.n_heads = reader.size("num_attention_heads", 64);
  c.n_kv_heads = c.n_heads;
  c.d_model = reader.size("hidden_size", 6144);
  c.d_head = derived_d_head(reader, c.d_model, c.n_heads);
  c.vocab_size = reader.size("vocab_size", 50432);
  c.n_ctx = reader.size("max_position_embeddings", 2048);
  c.positions = Positions::rotary;
  LayerConfig layer;
  layer.n_neurons = reader.size("intermediate_size", 24576);
  layer.rope = read_rope(reader, {.d_head = c.d_head,
                                  .context = c.n_ctx,
                                  .theta_key = "rotary_emb_base",
                                  .share_key = "rotary_pct",
                                  .share = 0.25});
  layer.attention_scale = usual_attention_scale(c);
  layer.activation = read_activation(reader, "hidden_act", "gelu");
  c.layers.assign(c.n_layers, layer);
  c.block = reader.flag("use_parallel_residual", true) ? Block::parallel : Block::sequential;
  c.norm_eps = reader.positive("layer_norm_eps", 1e-5);
  c.tied_head = reader.flag("tie_word_embeddings", false);
  c.bos_token = read_bos(reader, c.vocab_size, 0);
  c.end_tokens = read_end(reader, c.vocab_size, 2);
  if (c.bos_token) c.end_tokens.push_back(*c.bos_token);  // it stands between documents
  c.prepend_bos = true;
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", true);
  return family;
}

std::vector<TensorRow> neox_tensors(const FamilyConfig& family, int layer) {
  const ModelConfig& c = family.model;
  const Index D = c.d_model, V = c.vocab_size;
  if (layer < 0) {
    return {token_rows("gpt_neox.embed_in.weight", Role::embed, V, D),
            vector_row("gpt_neox.final_layer_norm.weight", Role::final_norm_w, D),
            vector_row("gpt_neox.final_layer_norm.bias", Role::final_norm_b, D)};
  }
  const Index N = c.layer(layer).n_neurons;
  std::vector<TensorRow> rows = {
      vector_row("gpt_neox.layers.{}.input_layernorm.weight", Role::attn_norm_w, D),
      vector_row("gpt_neox.layers.{}.input_layernorm.bias", Role::attn_norm_b, D),
      linear_heads("gpt_neox.layers.{}.attention.query_key_value.weight",
                   {Role::w_q, Role::w_k, Role::w_v}, D, c.n_heads, c.d_head),
      linear_row("gpt_neox.layers.{}.attention.dense.weight", Role::w_o, D, D),
      vector_row("gpt_neox.layers.{}.post_attention_layernorm.weight", Role::mlp_norm_w, D),
      vector_row("gpt_neox.layers.{}.post_attention_layernorm.bias", Role::mlp_norm_b, D),
      linear_row("gpt_neox.layers.{}.mlp.dense_h_to_4h.weight", Role::w_in, D, N),
      vector_row("gpt_neox.layers.{}.mlp.dense_h_to_4h.bias", Role::b_in, N),
      linear_row("gpt_neox.layers.{}.mlp.dense_4h_to_h.weight", Role::w_out, N, D),
      vector_row("gpt_neox.layers.{}.mlp.dense_4h_to_h.bias", Role::b_out, D),
  };
  if (family.qkv_bias) {
    rows.push_back(vector_heads("gpt_neox.layers.{}.attention.query_key_value.bias",
                                {Role::b_q, Role::b_k, Role::b_v}, c.n_heads, c.d_head));
    rows.push_back(vector_row("gpt_neox.layers.{}.attention.dense.bias", Role::b_o, D));
  }
  return rows;
}

TensorRow neox_head(const FamilyConfig& family) {
  TensorRow row =
      token_rows("embed_out.weight", Role::unembed, family.model.vocab_size, family.model.d_model);
  row.other_name = "lm_head.weight";
  return row;
}

}  // namespace

extern const Family kGptNeox;
const Family kGptNeox = {"gpt_neox", "gpt_neox.", read_neox, neox_tensors, neox_head};

}  // namespace unpack::model
