// The forward pass and what is kept of it, with places where a reader's input may be changed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "base/index.h"
#include "unpack/run_context.h"

namespace unpack::forward {

struct LayerPass {
  backend::Array x_pre;              // [T, D] stream before the layer
  backend::Array x_mid;              // [T, D] what the MLP's norm reads (parallel blocks: x_pre)
  backend::Array dev_attn, dev_mlp;  // [T] deviations of the two norms
  backend::Array q, k, v;            // [T, H, E], [T, G, E] as the attention used them
  backend::Array q_dev, k_dev;       // [T, H], [T, G] where queries and keys are normed
  backend::Array pattern;            // [H, tri] per prompt
  backend::Array z;                  // [T, H, E]
  backend::Array attn_out;           // [T, D] as it is added to the stream, without bias
  backend::Array pre, up, act;       // [T, entries]; up only for gated MLPs
  backend::Array mlp_out;            // [T, D] as it is added to the stream, without bias
  backend::Array attn_out_dev, mlp_out_dev;         // [T] of the norms behind, where there are
  std::shared_ptr<const backend::Routing> routing;  // of a mixture
};

struct ForwardPass {
  std::vector<TokenId> ids;  // of all prompts, one after the other
  std::vector<backend::Segment> segments;
  backend::Array emb, pos;  // [T, D]; pos only where positions are learned
  std::vector<LayerPass> layers;
  backend::Array x_final;  // [T, D] before the final norm

  Index rows() const { return ids.size(); }
};

// Where the pass may be changed. A hook that returns true has filled `changed` (rows of the same
// shape), which that reader sees in place of x; the residual stream itself stays as it is.
struct ForwardHooks {
  std::function<void(backend::Array& emb)> embeddings;  // may change W_E rows in place
  std::function<void(backend::Array& pos)> positions;   // the same for learned positions
  std::function<bool(int layer, backend::Sublayer sublayer, const backend::Array& x,
                     backend::Array& changed)>
      norm_input;
  std::function<void(int layer, backend::Array& q, backend::Array& k, backend::Array& v)>
      heads;  // after biases, norms and rotary
  // Other keys and values to attend to than the rows' own: those of a cache.
  std::function<void(int layer, const backend::Array& k, const backend::Array& v,
                     const backend::Array*& keys, const backend::Array*& values)>
      attended;
  // What single heads, routers and neurons made of the norm's input x may be replaced: z before
  // W_O, router logits before experts are chosen, pre-activations before the activation.
  std::function<void(int layer, const backend::Array& x, const backend::Array& q,
                     const backend::Array& k, const backend::Array& v, backend::Array& z)>
      mixed;
  std::function<void(int layer, const backend::Array& x, backend::Array& logits)> router;
  std::function<void(int layer, const backend::Array& x, const backend::Routing* routing,
                     backend::Array& pre, backend::Array& up)>
      neurons;
  // What every head mixed and the deviation of the norm behind, once both are settled: what a head
  // writes is its part of z through W_O and that norm.
  std::function<void(int layer, const backend::Array& z, const backend::Array& dev)> heads_written;
  // After attention only these rows go on; nothing: all.
  std::function<std::optional<std::vector<Index>>(int layer)> survivors;
  std::function<void(int layer, backend::Array& mlp_out)>
      mlp_written;  // before it is added to the stream
};

// Rows of one or several prompts that go through the layers together.
struct Batch {
  std::vector<backend::Segment> segments;
  std::vector<Index> key_begin;  // where a segment's keys start
  std::vector<int> positions;    // [T]
  int context = 0;               // tokens of the longest prompt

  Index rows() const { return positions.size(); }
};

struct ForwardOptions {
  bool keep = true;          // false: only x_final, as little memory as possible
  bool check_values = true;  // false: the caller does (Backend::check_values)
  // Without patterns and what neurons hold, which bring_back makes again.
  bool lean = false;
  const ForwardHooks* hooks = nullptr;
  // Start at a layer with a given stream [T, D] instead of the embeddings (what lies before is not
  // recomputed).
  int first_layer = 0;
  const backend::Array* start = nullptr;
};

// Throws InputError for empty prompts, ids outside the vocabulary and prompts past the context.
void check_prompt(const ModelConfig& config, std::span<const TokenId> ids);

// Prompts whose lengths call for different rotaries must not be in one batch (backend/rotary.h).
ForwardPass forward(backend::Backend& backend, const std::vector<std::vector<TokenId>>& prompts,
                    const ForwardOptions& options = {}, const RunContext& context = {});

// Token embeddings and, where the model has them, those of the positions.
struct Embedded {
  backend::Array emb, pos, x;  // x: their sum
};
Embedded embed_rows(backend::Backend& backend, std::span<const TokenId> ids,
                    std::span<const int> positions, const ForwardHooks* hooks);

// The part of a batch that belongs to one prompt; shares its memory.
ForwardPass slice_prompt(backend::Backend& backend, const ForwardPass& batch, std::size_t index);

// Keys and values of the positions seen so far, for generation.
class KeyValueCache {
 public:
  KeyValueCache(backend::Backend& backend, int capacity);
  // Runs the new ids and returns the logits after the last one, before a soft cap.
  std::vector<double> step(std::span<const TokenId> ids);
  int length() const { return length_; }

 private:
  backend::Backend& backend_;
  int capacity_;
  int length_ = 0;
  std::vector<TokenId> seen_;
  std::vector<backend::Array> k_, v_;  // [capacity, G, E] per layer
};

}  // namespace unpack::forward
