// Llama 1, 2 and 3, and the table that Mistral and Qwen share with it.
#include "model/families/llama_like.h"

namespace unpack {

FamilyConfig read_llama_like(const ConfigReader& reader, const LlamaDefaults& defaults) {
  FamilyConfig family;
  ModelConfig& c = family.model;
  c.n_layers = reader.size("num_hidden_layers", 32);
  c.n_heads = reader.size("num_attention_heads", 32);
  // A null means "as many as query heads", whatever the family's default is.
  const int kv_default = reader.is_null("num_key_value_heads")
                             ? c.n_heads
                             : defaults.num_key_value_heads.value_or(c.n_heads);
  c.n_kv_heads = reader.size("num_key_value_heads", kv_default);
  c.d_model = reader.size("hidden_size", 4096);
  const std::optional<int> head_dim =
      reader.has("head_dim") ? reader.optional_size("head_dim") : defaults.head_dim;
  c.d_head = head_dim ? *head_dim : derived_d_head(reader, c.d_model, c.n_heads);
  c.d_mlp = reader.size("intermediate_size", defaults.intermediate_size);
  c.vocab_size = reader.size("vocab_size", defaults.vocab_size);
  c.n_ctx = reader.size("max_position_embeddings", defaults.max_position_embeddings);
  c.norm = Norm::rms;
  c.mlp = MlpKind::gated;
  c.positions = Positions::rotary;
  c.rope = read_rope(reader, c.d_head, "rope_theta", "partial_rotary_factor", 1.0);
  if (c.rope.dims != c.d_head)
    reader.fail("partial_rotary_factor below 1 is not supported for this family");
  c.activation = read_activation(reader, "hidden_act", "silu");
  c.norm_eps = reader.positive("rms_norm_eps", 1e-6);
  c.tied_head = reader.flag("tie_word_embeddings", false);
  c.bos_token = read_bos(reader, c.vocab_size, defaults.bos_token);
  return family;
}

std::vector<TensorRow> llama_tensors(const FamilyConfig& family) {
  const ModelConfig& c = family.model;
  const std::int64_t D = c.d_model, N = c.d_mlp, E = c.d_head, HE = std::int64_t{c.n_heads} * E,
                     GE = std::int64_t{c.n_kv_heads} * E;
  std::vector<TensorRow> rows = {
      token_rows("model.embed_tokens.weight", Role::embed, c.vocab_size, D),
      vector_row("model.layers.{}.input_layernorm.weight", Role::attn_norm_w, D),
      linear_row("model.layers.{}.self_attn.q_proj.weight", Role::w_q, D, HE),
      linear_row("model.layers.{}.self_attn.k_proj.weight", Role::w_k, D, GE),
      linear_row("model.layers.{}.self_attn.v_proj.weight", Role::w_v, D, GE),
      linear_row("model.layers.{}.self_attn.o_proj.weight", Role::w_o, HE, D),
      vector_row("model.layers.{}.post_attention_layernorm.weight", Role::mlp_norm_w, D),
      linear_row("model.layers.{}.mlp.gate_proj.weight", Role::w_in, D, N),
      linear_row("model.layers.{}.mlp.up_proj.weight", Role::w_up, D, N),
      linear_row("model.layers.{}.mlp.down_proj.weight", Role::w_out, N, D),
      vector_row("model.norm.weight", Role::final_norm_w, D),
  };
  const auto add = [&](TensorRow row) { rows.push_back(std::move(row)); };
  if (family.qkv_bias) {
    add(vector_row("model.layers.{}.self_attn.q_proj.bias", Role::b_q, HE));
    add(vector_row("model.layers.{}.self_attn.k_proj.bias", Role::b_k, GE));
    add(vector_row("model.layers.{}.self_attn.v_proj.bias", Role::b_v, GE));
  }
  if (family.o_bias) add(vector_row("model.layers.{}.self_attn.o_proj.bias", Role::b_o, D));
  if (c.qk_norm) {
    add(vector_row("model.layers.{}.self_attn.q_norm.weight", Role::q_norm, E));
    add(vector_row("model.layers.{}.self_attn.k_norm.weight", Role::k_norm, E));
  }
  if (family.mlp_bias) {
    add(vector_row("model.layers.{}.mlp.gate_proj.bias", Role::b_in, N));
    add(vector_row("model.layers.{}.mlp.up_proj.bias", Role::b_up, N));
    add(vector_row("model.layers.{}.mlp.down_proj.bias", Role::b_out, D));
  }
  return rows;
}

TensorRow llama_head(const FamilyConfig& family) {
  return token_rows("lm_head.weight", Role::unembed, family.model.vocab_size, family.model.d_model);
}

namespace {

FamilyConfig read(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.vocab_size = 32000,
                                                 .intermediate_size = 11008,
                                                 .max_position_embeddings = 2048,
                                                 .num_key_value_heads = {},
                                                 .head_dim = {},
                                                 .bos_token = 1});
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  family.mlp_bias = reader.flag("mlp_bias", false);
  return family;
}

}  // namespace

extern const Family kLlama;
const Family kLlama = {"llama", "model.", read, llama_tensors, llama_head};

}  // namespace unpack
