// What differs between model families, as data.
//
// Size letters used everywhere: S positions, C writers, H heads, G key/value heads, D d_model, E
// d_head, N neurons, L layers, V vocabulary.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unpack {

using TokenId = std::int32_t;

enum class Norm { none, layer, rms };  // none: the stream is read as it is
enum class Block { sequential, parallel };
enum class MlpKind { plain, gated };
enum class Positions { learned, rotary };
enum class Activation { gelu_erf, gelu_tanh, relu, silu, clamped_swiglu };
enum class DType { f32, f16, bf16, f64 };
enum class RopeScaling { none, linear, llama3, yarn, longrope };
enum class QkNorm { none, head, projection };  // over d_head, or over all heads at once
// How router logits become the weights of the chosen experts: softmax over all, divided by the sum
// over the chosen or not, or softmax over the chosen alone.
enum class ExpertWeights { all_divided, all, chosen };

struct Rope {
  int dims = 0;  // how many of the first dims of a head are rotated; 0: none
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_context = 8192;
  double beta_fast = 32, beta_slow = 1;  // yarn
  bool truncate = true;
  std::vector<double> short_factor, long_factor;  // longrope, [dims / 2]
  double amplitude = 1.0;                         // cos and sin are multiplied by it

  bool operator==(const Rope&) const = default;
};

// Everything in which a layer may differ from the layer before it.
struct LayerConfig {
  Norm attn_norm = Norm::layer, mlp_norm = Norm::layer;  // before the sublayer
  bool attn_post_norm = false, mlp_post_norm = false;    // RMSNorm behind it
  double attention_scale = 1.0;
  double attention_cap = 0;  // logits are cap * tanh(logit / cap); 0: none
  int window = 0;            // sources q - window < s <= q are seen; 0: all
  Rope rope;
  QkNorm qk_norm = QkNorm::none;
  bool sinks = false;  // one more logit a head in the softmax, whose weight is dropped
  MlpKind mlp = MlpKind::plain;
  Activation activation = Activation::gelu_tanh;
  int n_neurons = 0;  // N, of the MLP or of each expert
  int n_experts = 0;  // 0: a dense MLP
  int experts_per_token = 0;
  ExpertWeights expert_weights = ExpertWeights::all_divided;

  bool gated() const { return mlp == MlpKind::gated; }
  bool mixture() const { return n_experts > 0; }
  bool post_norm() const { return attn_post_norm || mlp_post_norm; }
  // Neurons with a value at one position: those of the chosen experts, slot after slot.
  int entries() const { return mixture() ? experts_per_token * n_neurons : n_neurons; }
  // The first source that a query sees.
  int first_source(int query) const;
};

struct ModelConfig {
  std::string family;  // model_type of config.json
  std::string name;    // what the user called it
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int d_model = 0;
  int d_head = 0;
  int vocab_size = 0;
  int n_ctx = 0;
  Norm norm = Norm::layer;  // of the final norm, and how writers are centred
  Block block = Block::sequential;
  Positions positions = Positions::learned;
  double norm_eps = 1e-5;
  double logit_scale = 1.0;  // logits are x W_U times this
  double logit_cap = 0;      // then cap * tanh(logit / cap); 0: none
  bool tied_head = false;
  std::optional<TokenId> bos_token;  // as config.json names it
  std::vector<TokenId> end_tokens;   // generation ends at any of these
  bool prepend_bos = false;  // the family puts BOS in front although its tokenizer file adds none
  DType dtype = DType::f32;  // of the stored weights
  std::vector<LayerConfig> layers;  // [L]

  const LayerConfig& layer(int l) const { return layers[l]; }
  bool has_pos_writer() const { return positions == Positions::learned; }
  int group_size() const { return n_heads / n_kv_heads; }  // query heads per key/value head
  bool gated() const;                                      // some layer is
  bool mixture() const;                                    // some layer is one
  int most_entries() const;                                // of all layers
};

const char* to_string(DType dtype);

}  // namespace unpack
