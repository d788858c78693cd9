#include "model/families/llama_like.h"

#include "base/index.h"

namespace unpack::model {

FamilyConfig read_llama_like(const ConfigReader& reader, const LlamaDefaults& defaults) {
  FamilyConfig family;
  ModelConfig& c = family.model;
  c.n_layers = reader.layers({"num_hidden_layers"}, defaults.n_layers);
  c.n_heads = reader.size("num_attention_heads", defaults.n_heads);
  // A null means "as many as query heads", whatever the family's default is.
  const int kv_default = reader.is_null("num_key_value_heads")
                             ? c.n_heads
                             : defaults.num_key_value_heads.value_or(c.n_heads);
  c.n_kv_heads = reader.size("num_key_value_heads", kv_default);
  c.d_model = reader.size("hidden_size", defaults.d_model);
  const std::optional<int> head_dim =
      reader.has("head_dim") ? reader.optional_size("head_dim") : defaults.head_dim;
  c.d_head = head_dim ? *head_dim : derived_d_head(reader, c.d_model, c.n_heads);
  c.vocab_size = reader.size("vocab_size", defaults.vocab_size);
  c.n_ctx = reader.size("max_position_embeddings", defaults.max_position_embeddings);
  c.norm = Norm::rms;
  c.positions = Positions::rotary;
  c.norm_eps = reader.positive("rms_norm_eps", defaults.norm_eps);
  c.tied_head = reader.flag("tie_word_embeddings", defaults.tied);
  c.bos_token = read_bos(reader, c.vocab_size, defaults.bos_token);
  c.end_tokens = read_end(reader, c.vocab_size, defaults.eos_token);
  if (reader.flag("use_bidirectional_attention", false))
    reader.fail("use_bidirectional_attention true is not supported (attention looks back only)");

  LayerConfig layer;
  layer.attn_norm = layer.mlp_norm = Norm::rms;
  layer.mlp = MlpKind::gated;
  layer.n_neurons = reader.size("intermediate_size", defaults.intermediate_size);
  layer.activation = read_activation(reader, defaults.activation_key, defaults.activation);
  layer.attention_scale = usual_attention_scale(c);
  const auto rope = reader.object("rope_parameters");
  const bool by_type = rope && (rope->has("full_attention") || rope->has("sliding_attention"));
  if (by_type && !defaults.rope_by_type)
    reader.fail("rope_parameters by layer type are not supported in this family");
  if (!by_type) {
    layer.rope = read_rope(reader, {.d_head = c.d_head,
                                    .context = c.n_ctx,
                                    .base = defaults.rope_theta,
                                    .old_names = defaults.rope_old_names,
                                    .original = defaults.rope_original});
  }
  c.layers.assign(c.n_layers, layer);
  read_sliding(reader, c.n_layers, [](int) { return false; });  // checks layer_types
  return family;
}

void set_windows(const ConfigReader& reader, FamilyConfig& family, int fallback,
                 const std::function<bool(int)>& otherwise) {
  const std::vector<bool> sliding = read_sliding(reader, family.model.n_layers, otherwise);
  if (reader.is_null("sliding_window")) return;
  const int window = reader.size("sliding_window", fallback);
  for (std::size_t l = 0; l < sliding.size(); ++l)
    family.model.layers[l].window = sliding[l] ? window : 0;
}

void add_norm(std::vector<TensorRow>& rows, const FamilyConfig& family, const std::string& name,
              Role role, Index n) {
  rows.push_back(shifted(vector_row(name, role, n), family.norm_shift));
}

void add_attention_norms(std::vector<TensorRow>& rows, const FamilyConfig& family, int layer) {
  const ModelConfig& c = family.model;
  const QkNorm kind = c.layer(layer).qk_norm;
  if (kind == QkNorm::none) return;
  const bool whole = kind == QkNorm::projection;
  add_norm(rows, family, "model.layers.{}.self_attn.q_norm.weight", Role::q_norm,
           Index{c.d_head} * (whole ? c.n_heads : 1));
  add_norm(rows, family, "model.layers.{}.self_attn.k_norm.weight", Role::k_norm,
           Index{c.d_head} * (whole ? c.n_kv_heads : 1));
}

void add_attention(std::vector<TensorRow>& rows, const FamilyConfig& family, int layer) {
  const ModelConfig& c = family.model;
  const Index D = c.d_model, HE = Index{c.n_heads} * c.d_head, GE = Index{c.n_kv_heads} * c.d_head;
  const auto add = [&](TensorRow row) { rows.push_back(std::move(row)); };
  add(linear_row("model.layers.{}.self_attn.q_proj.weight", Role::w_q, D, HE));
  add(linear_row("model.layers.{}.self_attn.k_proj.weight", Role::w_k, D, GE));
  add(linear_row("model.layers.{}.self_attn.v_proj.weight", Role::w_v, D, GE));
  add(scaled(linear_row("model.layers.{}.self_attn.o_proj.weight", Role::w_o, HE, D),
             family.residual_scale));
  if (family.qkv_bias) {
    add(vector_row("model.layers.{}.self_attn.q_proj.bias", Role::b_q, HE));
    add(vector_row("model.layers.{}.self_attn.k_proj.bias", Role::b_k, GE));
    add(vector_row("model.layers.{}.self_attn.v_proj.bias", Role::b_v, GE));
  }
  if (family.o_bias) {
    add(scaled(vector_row("model.layers.{}.self_attn.o_proj.bias", Role::b_o, D),
               family.residual_scale));
  }
  add_attention_norms(rows, family, layer);
}

void add_gated_mlp(std::vector<TensorRow>& rows, const FamilyConfig& family, int layer) {
  const Index D = family.model.d_model, N = family.model.layer(layer).n_neurons;
  const auto add = [&](TensorRow row) { rows.push_back(std::move(row)); };
  add(linear_row("model.layers.{}.mlp.gate_proj.weight", Role::w_in, D, N));
  add(linear_row("model.layers.{}.mlp.up_proj.weight", Role::w_up, D, N));
  add(scaled(linear_row("model.layers.{}.mlp.down_proj.weight", Role::w_out, N, D),
             family.residual_scale));
  if (!family.mlp_bias) return;
  add(vector_row("model.layers.{}.mlp.gate_proj.bias", Role::b_in, N));
  add(vector_row("model.layers.{}.mlp.up_proj.bias", Role::b_up, N));
  add(scaled(vector_row("model.layers.{}.mlp.down_proj.bias", Role::b_out, D),
             family.residual_scale));
}

void add_experts(std::vector<TensorRow>& rows, const FamilyConfig& family, int layer,
                 const ExpertNames& names) {
  const LayerConfig& l = family.model.layer(layer);
  const Index D = family.model.d_model, N = l.n_neurons;
  rows.push_back(linear_row(names.router, Role::w_r, D, l.n_experts));
  for (int e = 0; e < l.n_experts; ++e) {
    const auto named = [&](std::string pattern) {
      return pattern.replace(pattern.find("{e}"), 3, std::to_string(e));
    };
    rows.push_back(of_expert(linear_row(named(names.gate), Role::w_in, D, N), e));
    rows.push_back(of_expert(linear_row(named(names.up), Role::w_up, D, N), e));
    rows.push_back(of_expert(linear_row(named(names.down), Role::w_out, N, D), e));
  }
}

std::vector<TensorRow> llama_model_tensors(const FamilyConfig& family) {
  const ModelConfig& c = family.model;
  std::vector<TensorRow> rows = {
      scaled(token_rows("model.embed_tokens.weight", Role::embed, c.vocab_size, c.d_model),
             family.embedding_scale)};
  add_norm(rows, family, "model.norm.weight", Role::final_norm_w, c.d_model);
  return rows;
}

std::vector<TensorRow> llama_tensors(const FamilyConfig& family, int layer) {
  if (layer < 0) return llama_model_tensors(family);
  const Index D = family.model.d_model;
  std::vector<TensorRow> rows;
  add_norm(rows, family, "model.layers.{}.input_layernorm.weight", Role::attn_norm_w, D);
  add_attention(rows, family, layer);
  add_norm(rows, family, "model.layers.{}.post_attention_layernorm.weight", Role::mlp_norm_w, D);
  add_gated_mlp(rows, family, layer);
  return rows;
}

TensorRow llama_head(const FamilyConfig& family) {
  return token_rows("lm_head.weight", Role::unembed, family.model.vocab_size, family.model.d_model);
}

}  // namespace unpack::model
