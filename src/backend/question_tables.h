// Scores that host backends keep beside the sums because they make the next question cheaper, while
// a model's take little memory.
#pragma once

#include "backend/backend.h"
#include "backend/mlp_readers.h"
#include "base/index.h"
#include "unpack/writers.h"

namespace unpack::backend {

inline constexpr Index kQuestionBytes = Index{256} << 20;

// Query scores [H, tri, Cl] of every layer.
inline bool keeps_query_scores(const ModelConfig& c, const Writers& writers, int length,
                               int scalar) {
  return c.n_heads * tri(length) * writers.count() / 2 * c.n_layers * scalar <= kQuestionBytes;
}

// The neurons' scores at the last position, [Cl, N] a side of every layer.
inline bool keeps_last_scores(const ModelConfig& c, const Writers& writers, int scalar) {
  return !c.mixture() && static_cast<Index>(writers.count()) / 2 * c.most_entries() * c.n_layers *
                                 scalar * neuron_sides(c) <=
                             kQuestionBytes;
}

}  // namespace unpack::backend
