// How the scores of keys and queries are made: the one rule that all devices and plans follow.
#pragma once

#include <cstdint>

#include "unpack/config.h"

namespace unpack::backend {

// Multiplications per writer, key and query side together: a vector in D per pair, against a
// projection per head and a short dot product per pair. `gain`: how many times faster projections
// run than the rest.
inline bool fold_is_cheaper(const ModelConfig& c, int length, double gain = 1.0) {
  const double s = length;
  const double pairs = s * (s + 1) / 2 * c.n_heads;
  const double fold = 2 * pairs * c.d_model;
  const double project =
      s * c.d_model * (c.n_heads + c.n_kv_heads) * c.d_head / gain + 2 * pairs * c.d_head;
  return fold <= project;
}

}  // namespace unpack::backend
