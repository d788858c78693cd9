// Kernels of mixtures of experts: their routers, and what is spread over the slots of a row.
#pragma once

#include "backend/cuda/kernel_base.h"

namespace unpack::backend::cuda {

// The router's scores of the chosen experts: out[r, j, i] = scores[r, j, expert[r, i]], with
// `centers` less the mean over all experts. One row per (r, j).
struct PickExperts {
  const float* scores;  // [rows, Cl, experts]
  const int* expert;    // [rows, k]
  float* out;           // [rows, Cl, k]
  Index visible, experts, k;
  int centers;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index row) const {
    const float* v = scores + row * experts;
    double mean = 0;
    if (centers) mean = g.sum(experts, [&](Index e) { return v[e]; }) / experts;
    g.each(k, [&](Index i) {
      const int e = expert[row / visible * k + i];
      out[row * k + i] = v[e] - mean;
    });
  }
};

struct SlotNorms {  // l2[S, Cl] = root of the squares of norms[S, k, Cl]
  const float* norms;
  float* l2;
  Index visible, k;
  UNPACK_BODY void operator()(Index at) const {
    double square = 0;
    for (Index i = at / visible * k; i < (at / visible + 1) * k; ++i) {
      const double x = norms[i * visible + at % visible];
      square += x * x;
    }
    l2[at] = sqrt(square);
  }
};

}  // namespace unpack::backend::cuda
