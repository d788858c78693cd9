// What Llama, Mistral and Qwen share: RMSNorm, gated MLP, grouped key/value heads, rotary on the
// whole head.
#pragma once

#include <optional>

#include "model/family.h"

namespace unpack {

// Defaults of config.json that differ between these families.
struct LlamaDefaults {
  int vocab_size;
  int intermediate_size;
  int max_position_embeddings;
  std::optional<int> num_key_value_heads;  // empty: as many as query heads
  std::optional<int> head_dim;             // empty: hidden_size / num_attention_heads
  TokenId bos_token;                       // -1: none
};

FamilyConfig read_llama_like(const ConfigReader& reader, const LlamaDefaults& defaults);
std::vector<TensorRow> llama_tensors(const FamilyConfig& family);
TensorRow llama_head(const FamilyConfig& family);

}  // namespace unpack
