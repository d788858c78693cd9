// Kernels of the forward pass: those of all devices, and those of stored weights.
#pragma once

#include "backend/cuda/kernel_base.h"
#include "backend/kernels/forward.h"

namespace unpack::backend::cuda {

using AddScaled = kernels::AddScaled<float>;
using AddBias = kernels::AddBias<float>;
using Activate = kernels::Activate<float>;
using ScaleShift = kernels::ScaleShift<float>;
using Normalize = kernels::Normalize<float>;
using CenterRows = kernels::CenterRows<float>;
using Deviation = kernels::Deviation<float>;
using ThroughNorm = kernels::ThroughNorm<float>;
using SumSlots = kernels::SumSlots<float>;
using FinishHead = kernels::FinishHead<float>;
using CausalSoftmax = kernels::CausalSoftmax<float>;
using TakeRows = kernels::TakeRows<float>;

// A stored matrix [rows, cols] as single precision, each element times the scale of its row or
// column.
struct Widen {
  const void* from;
  int type;
  float factor;        // of all
  const float* scale;  // null: none
  int scale_columns;
  Index cols;
  float* to;
  UNPACK_BODY void operator()(Index i) const {
    const float x = stored_value(from, type, i) * factor;
    if (scale == nullptr) {
      to[i] = x;
      return;
    }
    const auto [row, column] = divided(i, cols);
    to[i] = x * scale[scale_columns ? column : row];
  }
};

// How many numbers of every kFinitePart are none, one row per part.
inline constexpr Index kFinitePart = Index{1} << 14;
struct NonFinite {
  const float* x;
  Index count;
  float* out;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index part) const {
    const Index first = part * kFinitePart;
    const Index n = count - first < kFinitePart ? count - first : kFinitePart;
    const double found = group.sum(n, [&](Index i) {
      constexpr std::uint32_t kExponent = 0x7F800000U;
      return (base::bits_of_float(x[first + i]) & kExponent) == kExponent ? 1.0 : 0.0;
    });
    group.each(1, [&](Index) { out[part] = found; });
  }
};

// out[rows, vocabulary] = x[rows, D] . stored row of the vocabulary.
struct StoredDots {
  const void* table;
  int type;
  const float* x;
  float* out;
  Index cols, vocabulary;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index at) const {
    const float* v = x + at / vocabulary * cols;
    const Index begin = at % vocabulary * cols;
    const double dot =
        group.sum(cols, [&](Index i) { return stored_value(table, type, begin + i) * v[i]; });
    group.each(1, [&](Index) { out[at] = dot; });
  }
};

// partial[chunk, D]: sums over rows of the stored table, kRows at a time, in double.
struct ColumnSums {
  static constexpr Index kRows = 256;
  const void* table;
  int type;
  Index rows, cols;
  double* partial;
  UNPACK_BODY void operator()(Index i) const {
    const Index first = i / cols * kRows;
    const Index last = first + kRows < rows ? first + kRows : rows;
    double total = 0;
    for (Index r = first; r < last; ++r) total += stored_value(table, type, r * cols + i % cols);
    partial[i] = total;
  }
};

}  // namespace unpack::backend::cuda
