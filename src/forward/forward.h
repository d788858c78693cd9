// The forward pass and what it keeps of it, with places where a reader's input may be changed.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "unpack/run_context.h"

namespace unpack {

struct LayerTrace {
  Array x_pre;              // [T, D] stream before the layer
  Array x_mid;              // [T, D] what the MLP's norm reads (parallel blocks: x_pre)
  Array dev_attn, dev_mlp;  // [T] deviations of the two norms
  Array q, k, v;            // [T, H, E], [T, G, E] as the attention used them
  Array q_dev, k_dev;       // [T, H], [T, G]; Qwen3 only
  Array pattern;            // [H, tri] per prompt
  Array z;                  // [T, H, E]
  Array attn_out;           // [T, D] without bias
  Array pre, up, act;       // [T, N]; up only for gated MLPs
  Array mlp_out;            // [T, D] without bias
};

struct ForwardTrace {
  std::vector<TokenId> ids;  // of all prompts, one after the other
  std::vector<Segment> segments;
  Array emb, pos;  // [T, D]; pos only where positions are learned
  std::vector<LayerTrace> layers;
  Array x_final;  // [T, D] before the final norm

  std::int64_t rows() const { return static_cast<std::int64_t>(ids.size()); }
};

// Where the pass may be changed. A hook that returns true has filled `changed` (rows of the same
// shape), which that reader sees in place of x; the residual stream itself stays as it is.
struct ForwardHooks {
  std::function<void(Array& emb)> embeddings;  // may change W_E rows in place
  std::function<void(Array& pos)> positions;   // the same for learned positions
  std::function<bool(int layer, Sublayer sublayer, const Array& x, Array& changed)> norm_input;
  std::function<void(int layer, Array& q, Array& k, Array& v)>
      heads;  // after biases, norms and rotary
  // What single heads and neurons made of the norm's input x may be replaced: z before W_O,
  // pre-activations before the activation.
  std::function<void(int layer, const Array& x, const Array& q, const Array& k, const Array& v,
                     Array& z)>
      mixed;
  std::function<void(int layer, const Array& x, Array& pre, Array& up)> neurons;
  std::function<void(int layer, Array& mlp_out)> mlp_written;  // before it is added to the stream
};

struct ForwardOptions {
  bool keep = true;  // false: only x_final, as little memory as possible
  const ForwardHooks* hooks = nullptr;
  // Start at a layer with a given stream [T, D] instead of the embeddings (what lies before is not
  // recomputed).
  int first_layer = 0;
  const Array* start = nullptr;
};

// Throws InputError for empty prompts, ids outside the vocabulary, prompts past the context or a
// sliding window.
void check_prompt(const ModelConfig& config, std::span<const TokenId> ids);

ForwardTrace forward(Backend& backend, const std::vector<std::vector<TokenId>>& prompts,
                     const ForwardOptions& options = {}, const RunContext& context = {});

// The part of a batch that belongs to one prompt; shares its memory.
ForwardTrace slice_prompt(Backend& backend, const ForwardTrace& batch, std::size_t index);

// Keys and values of the positions seen so far, for generation.
class KeyValueCache {
 public:
  KeyValueCache(Backend& backend, int capacity);
  // Runs the new ids and returns the logits after the last one.
  std::vector<double> step(std::span<const TokenId> ids);
  int length() const { return length_; }

 private:
  Backend& backend_;
  int capacity_;
  int length_ = 0;
  std::vector<Array> k_, v_;  // [capacity, G, E] per layer
};

}  // namespace unpack
