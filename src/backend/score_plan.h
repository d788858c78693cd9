// How the scores of one layer's readers are made on the CPU: the way that takes the fewest
// operations, counted from shapes. The one function that the backend follows, the bench prints and
// the tests check.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "unpack/config.h"
#include "unpack/writers.h"

namespace unpack::backend {

enum class Products { none, as_needed, kept };

enum class Way {
  direct,  // every writer times the matrix
  folded,  // a vector in the stream for every reader, times every writer
  made,    // what a head wrote is z W_O: W_O C W is made for a pair of layers, used and dropped
  kept     // the same, made once a model
};
std::string way_name(Way way);

struct ReaderPlan {
  Way way = Way::direct;
  double flop = 0;
  double byte = 0;  // of fp32 weights and their products

  bool low_rank() const { return way == Way::made || way == Way::kept; }
};

struct LayerPlan {
  ReaderPlan keys, queries, values;
  std::array<ReaderPlan, 2> neurons;  // gate, or the only side; up
};

// Folded scores of a layer are held at once; past this many bytes they are projected.
inline constexpr double kFoldBytes = 96 << 20;

// Products of weights for neurons that are held at once; one panel of columns at the least.
inline constexpr double kProductBytes = 96 << 20;

LayerPlan plan_layer(const ModelConfig& config, const Writers& writers, int layer, int tokens,
                     Products products, int scalar = 4);

// Neurons that nobody but a target reads, at its own position, so that nothing is made of them
// before one is asked for: those of the last layer. Routers are left as they are.
bool asked_neurons(const ModelConfig& config, int layer);

// Whether all that a head writes is z W_O, so that products of W_O with other weights stand for it:
// a norm behind the attention would come between.
bool heads_write_products(const ModelConfig& config);

// Layers whose heads a reader that sees `visible` writers can read.
int source_layers(const Writers& writers, int visible);

}  // namespace unpack::backend
