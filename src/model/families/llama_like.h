// What Llama and the families after it share: RMSNorm, gated MLP, grouped key/value heads, rotary.
// Each is Llama's config and Llama's table, less and more some keys and rows.
#pragma once

#include <optional>

#include "base/index.h"
#include "model/family.h"

namespace unpack::model {

// Defaults of config.json that differ between these families.
struct LlamaDefaults {
  int vocab_size = 32000;
  int d_model = 4096;
  int n_layers = 32;
  int n_heads = 32;
  int intermediate_size = 11008;
  int max_position_embeddings = 2048;
  std::optional<int> num_key_value_heads = {};  // empty: as many as query heads
  std::optional<int> head_dim = {};             // empty: hidden_size / num_attention_heads
  TokenId bos_token = -1;                       // -1: none
  TokenId eos_token = -1;
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool tied = false;
  std::string_view activation_key = "hidden_act";
  std::string_view activation = "silu";
  bool rope_old_names = false;  // see RopeKeys
  int rope_original = 0;
  bool rope_by_type = false;  // the caller reads rope_parameters of every type of layer
};

FamilyConfig read_llama_like(const ConfigReader& reader, const LlamaDefaults& defaults);
// The window of `sliding_window` in the layers that slide.
void set_windows(const ConfigReader& reader, FamilyConfig& family, int fallback,
                 const std::function<bool(int)>& otherwise);

// Parts of the table of a layer.
void add_norm(std::vector<TensorRow>& rows, const FamilyConfig& family, const std::string& name,
              Role role, Index n);
void add_attention(std::vector<TensorRow>& rows, const FamilyConfig& family, int layer);
void add_attention_norms(std::vector<TensorRow>& rows, const FamilyConfig& family, int layer);
void add_gated_mlp(std::vector<TensorRow>& rows, const FamilyConfig& family, int layer);
// Experts with matrices of their own: names with {e} for the expert.
struct ExpertNames {
  std::string router, gate, up, down;
};
void add_experts(std::vector<TensorRow>& rows, const FamilyConfig& family, int layer,
                 const ExpertNames& names);

std::vector<TensorRow> llama_model_tensors(const FamilyConfig& family);
std::vector<TensorRow> llama_tensors(const FamilyConfig& family, int layer);
TensorRow llama_head(const FamilyConfig& family);

}  // namespace unpack::model
