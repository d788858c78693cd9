// A block: the order of its steps, the block itself, and single steps of it for those who let one
// reader see rows of its own.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/index.h"
#include "forward/forward.h"

namespace unpack::forward {

// What happens in a sublayer, one after the other.
enum class Step {
  norm,         // the stream as it stands, through the norm before the sublayer
  read,         // into queries, keys and values; into experts and neurons
  mix,          // values by attention; activations
  write,        // through W_O or W_out
  norm_behind,  // where there is one
  add,          // to the stream
};

struct BlockStep {
  backend::Sublayer sublayer;
  Step step;
};

// The order of a block's operations, which stands here alone: run_block takes it from the first to
// the last, whatever goes back through a model from the last to the first.
std::span<const BlockStep> block_steps(Block block);

// Whether both sublayers' outputs are added before anything reads the stream again.
bool added_together(Block block);

// One layer: adds to x[T, D] what its sublayers write and fills `keep`. With `patterns` the
// attention patterns are kept.
void run_block(backend::Backend& backend, int layer, const Batch& batch, const ForwardHooks* hooks,
               bool patterns, backend::Array& x, LayerPass& keep);

// Pattern, pre, up and act of a layer that a lean pass over one prompt kept.
void bring_back(backend::Backend& backend, int layer, LayerPass& keep);

// Which experts the rows use, from router logits [T, E].
std::shared_ptr<const backend::Routing> choose_experts(const LayerConfig& layer,
                                                       std::vector<double> logits);

// q, k and v (with q_dev, k_dev, dev_attn) of rows x[n, D] of a stream at such positions of a
// prompt of `context` tokens.
void read_heads(backend::Backend& backend, int layer, const backend::Array& x,
                std::span<const int> positions, int context, LayerPass& out);
// z of queries over such keys and values (Backend::attention), without the pattern.
void mix_heads(backend::Backend& backend, int layer, const backend::Array& q,
               const backend::Array& keys, const backend::Array& values,
               std::span<const backend::Segment> segments, std::span<const Index> key_begin,
               backend::Array& z);
// What one head wrote, [T, D]: its part of z through W_O and the norm behind, of deviation dev.
backend::Array write_head(backend::Backend& backend, int layer, const backend::Array& z,
                          const backend::Array& dev, int head, Index rows);
// What one side of an MLP makes of rows x[n, D]: router logits, or pre-activations [n, entries].
void read_neurons(backend::Backend& backend, int layer, backend::MlpSide side,
                  const backend::Array& x, Index rows, const backend::Routing* routing,
                  backend::Array& out);

}  // namespace unpack::forward
