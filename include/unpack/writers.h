// Writers of the residual stream in canonical order: emb, pos (GPT-2 only), then per layer its
// heads and its MLP.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/config.h"

namespace unpack {

enum class WriterKind { emb, pos, head, mlp };

struct Writer {
  WriterKind kind = WriterKind::emb;
  int layer = -1;  // -1 for emb and pos
  int head = -1;   // -1 except for heads
  bool terminal() const { return kind == WriterKind::emb || kind == WriterKind::pos; }
  bool operator==(const Writer&) const = default;
};

class Writers {
 public:
  explicit Writers(const ModelConfig& config);

  int count() const { return list_.size(); }
  const Writer& operator[](int index) const { return list_[index]; }
  std::string name(int index) const;  // "emb", "pos", "A8.H6", "MLP3"

  int first_of_layer(int layer) const { return base_ + layer * (heads_ + 1); }
  int head(int layer, int head) const { return first_of_layer(layer) + head; }
  int mlp(int layer) const { return first_of_layer(layer) + heads_; }
  int terminals() const { return base_; }  // 1 or 2

  // What a reader sees is always a prefix of the canonical order.
  int visible_to_attention(int layer) const { return first_of_layer(layer); }
  int visible_to_mlp(int layer) const { return first_of_layer(layer) + (parallel_ ? 0 : heads_); }

  // "A8.H6", "MLP3", "emb", "pos"; also attn_8_head_6, mlp_3, L8H6, 8.6. Throws InputError that
  // names what exists.
  int parse(std::string_view text) const;

 private:
  std::vector<Writer> list_;
  int base_, heads_, layers_;
  bool parallel_;
};

struct Node {
  int writer = 0;
  int position = 0;
  bool operator==(const Node&) const = default;
};

// "A8.H6@13", "MLP3@-1". Negative positions count from the end of a prompt of `length` tokens.
Node parse_node(const Writers& writers, std::string_view text, int length);
std::string to_string(const Writers& writers, const Node& node);
// -1 -> length - 1; throws InputError when outside the prompt.
int resolve_position(int position, int length);

}  // namespace unpack
