// When products of weights are worth making for one prompt.
#pragma once

#include "base/index.h"
#include "unpack/config.h"

namespace unpack::backend::cuda {

// Three products of TF32 against single precision on an H200: the least that those of z with a
// product of weights gain, which are of halves or bf16.
inline constexpr double kThreeTf32 = 340.0 / 3 / 52;

// Multiplications per column of the matrix and source layer: every head's vector at every position,
// against the product of weights and a short product a position. `gain`: how many times faster than
// single precision products with the matrix are.
inline bool low_rank_is_cheaper(const ModelConfig& c, Index length, double gain) {
  const double s = length, rows = static_cast<double>(c.n_heads) * c.d_head;
  const double direct = s * c.n_heads * c.d_model / gain;
  return rows * c.d_model / gain + s * rows / kThreeTf32 < direct;
}

}  // namespace unpack::backend::cuda
