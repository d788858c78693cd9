// What differs between model families, as data.
//
// Size letters used everywhere: S positions, C writers, H heads, G key/value heads, D d_model, E
// d_head, N neurons (d_mlp), L layers, V vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace unpack {

using TokenId = std::int32_t;

enum class Norm { layer, rms };
enum class Block { sequential, parallel };
enum class MlpKind { plain, gated };
enum class Positions { learned, rotary };
enum class Activation { gelu_erf, gelu_tanh, relu, silu };
enum class DType { f32, f16, bf16, f64 };
enum class RopeScaling { none, linear, llama3 };

struct Rope {
  int dims = 0;  // how many of the first dims of a head are rotated
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  double original_context = 8192;
};

struct ModelConfig {
  std::string family;  // "gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"
  std::string name;    // what the user called it
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int d_model = 0;
  int d_head = 0;
  int d_mlp = 0;
  int vocab_size = 0;
  int n_ctx = 0;
  Norm norm = Norm::layer;
  Block block = Block::sequential;
  MlpKind mlp = MlpKind::plain;
  Positions positions = Positions::learned;
  Activation activation = Activation::gelu_tanh;
  Rope rope;
  double norm_eps = 1e-5;
  bool tied_head = false;
  bool qk_norm = false;               // RMSNorm per head on q and k before rotary (Qwen3)
  std::optional<int> sliding_window;  // in force on some layer
  std::optional<TokenId> bos_token;   // as config.json names it
  bool prepend_bos = false;  // the family puts BOS in front although its tokenizer file adds none
  DType dtype = DType::f32;  // of the stored weights

  bool has_pos_writer() const { return positions == Positions::learned; }
  bool gated() const { return mlp == MlpKind::gated; }
  int group_size() const { return n_heads / n_kv_heads; }  // query heads per key/value head
};

const char* to_string(DType dtype);

}  // namespace unpack
