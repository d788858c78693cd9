// GPT-2 of any size: learned positions, LayerNorm, sequential blocks, plain MLP, Conv1D weights.

#include "base/index.h"
#include "model/family.h"

namespace unpack::model {
namespace {

FamilyConfig read_gpt2(const ConfigReader& reader) {
  FamilyConfig family;
  ModelConfig& c = family.model;
  c.n_layers = reader.layers({"n_layer", "num_hidden_layers"}, 12);
  c.n_heads = reader.size({"n_head", "num_attention_heads"}, 12);
  c.n_kv_heads = c.n_heads;
  c.d_model = reader.size({"n_embd", "hidden_size"}, 768);
  c.d_head = derived_d_head(reader, c.d_model, c.n_heads);
  c.vocab_size = reader.size("vocab_size", 50257);
  c.n_ctx = reader.size({"n_positions", "max_position_embeddings"}, 1024);
  if (!reader.optional_size("n_inner") && c.d_model > ConfigReader::kMaxSize / 4)
    reader.fail("n_embd is too large");
  LayerConfig layer;
  layer.n_neurons = reader.size("n_inner", 4 * c.d_model);
  layer.activation = read_activation(reader, "activation_function", "gelu_new");
  layer.attention_scale = usual_attention_scale(c);
  c.layers.assign(c.n_layers, layer);
  c.norm_eps = reader.positive("layer_norm_epsilon", 1e-5);
  c.tied_head = reader.flag("tie_word_embeddings", true);
  c.bos_token = read_bos(reader, c.vocab_size, 50256);
  c.end_tokens = read_end(reader, c.vocab_size, 50256);
  if (c.bos_token) c.end_tokens.push_back(*c.bos_token);  // it stands between documents
  c.prepend_bos = true;

  if (!reader.flag("scale_attn_weights", true))
    reader.fail(
        "scale_attn_weights false is not supported (attention without its 1/sqrt(d_head) scale)");
  if (reader.flag("scale_attn_by_inverse_layer_idx", false))
    reader.fail("scale_attn_by_inverse_layer_idx true is not supported");
  if (reader.flag("add_cross_attention", false))
    reader.fail("add_cross_attention true is not supported (decoder-only models are)");
  reader.flag("reorder_and_upcast_attn", false);  // changes the order of rounding, not the maths
  return family;
}

std::vector<TensorRow> gpt2_tensors(const FamilyConfig& family, int layer) {
  const ModelConfig& c = family.model;
  const Index D = c.d_model, V = c.vocab_size;
  if (layer < 0) {
    return {token_rows("transformer.wte.weight", Role::embed, V, D),
            token_rows("transformer.wpe.weight", Role::pos, c.n_ctx, D),
            vector_row("transformer.ln_f.weight", Role::final_norm_w, D),
            vector_row("transformer.ln_f.bias", Role::final_norm_b, D)};
  }
  const Index N = c.layer(layer).n_neurons;
  return {
      vector_row("transformer.h.{}.ln_1.weight", Role::attn_norm_w, D),
      vector_row("transformer.h.{}.ln_1.bias", Role::attn_norm_b, D),
      conv1d_columns("transformer.h.{}.attn.c_attn.weight", {Role::w_q, Role::w_k, Role::w_v}, D,
                     D),
      vector_columns("transformer.h.{}.attn.c_attn.bias", {Role::b_q, Role::b_k, Role::b_v}, D),
      conv1d_row("transformer.h.{}.attn.c_proj.weight", Role::w_o, D, D),
      vector_row("transformer.h.{}.attn.c_proj.bias", Role::b_o, D),
      vector_row("transformer.h.{}.ln_2.weight", Role::mlp_norm_w, D),
      vector_row("transformer.h.{}.ln_2.bias", Role::mlp_norm_b, D),
      conv1d_row("transformer.h.{}.mlp.c_fc.weight", Role::w_in, D, N),
      vector_row("transformer.h.{}.mlp.c_fc.bias", Role::b_in, N),
      conv1d_row("transformer.h.{}.mlp.c_proj.weight", Role::w_out, N, D),
      vector_row("transformer.h.{}.mlp.c_proj.bias", Role::b_out, D),
  };
}

TensorRow gpt2_head(const FamilyConfig& family) {
  return token_rows("lm_head.weight", Role::unembed, family.model.vocab_size, family.model.d_model);
}

}  // namespace

extern const Family kGpt2;
const Family kGpt2 = {"gpt2", "transformer.", read_gpt2, gpt2_tensors, gpt2_head};

}  // namespace unpack::model
