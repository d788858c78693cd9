// Kernels of the forward pass and of moving data about.
#pragma once

#include "backend/cuda/kernel_base.h"

namespace unpack::cuda {

struct AddScaled {  // y += scale x
  const float* x;
  float* y;
  float scale;
  UNPACK_BODY void operator()(Index i) const { y[i] += scale * x[i]; }
};

struct AddBias {  // x[rows, cols] += bias[cols]
  const float* bias;
  float* x;
  Index cols;
  UNPACK_BODY void operator()(Index i) const { x[i] += bias[i % cols]; }
};

struct Activate {  // act = phi(pre) (* up)
  const float* pre;
  const float* up;  // null: plain
  float* act;
  int kind;  // of Activation, in its order: gelu_erf, gelu_tanh, relu, silu
  UNPACK_BODY void operator()(Index i) const {
    const float x = pre[i];
    float y = 0;
    if (kind == 0) {
      y = 0.5F * x * (1.0F + erff(x * 0.70710678118654752440F));
    } else if (kind == 1) {
      y = 0.5F * x * (1.0F + tanhf(0.79788456080286535588F * (x + 0.044715F * x * x * x)));
    } else if (kind == 2) {
      y = x > 0 ? x : 0.0F;
    } else {
      y = x / (1.0F + expf(-x));
    }
    act[i] = up != nullptr ? y * up[i] : y;
  }
};

// A stored matrix [rows, cols] as single precision, each element times the scale of its row or
// column.
struct Widen {
  const void* from;
  int type;
  const float* scale;  // null: none
  int scale_columns;
  Index cols;
  float* to;
  UNPACK_BODY void operator()(Index i) const {
    const float x = stored_value(from, type, i);
    to[i] = scale != nullptr ? x * scale[scale_columns ? i % cols : i / cols] : x;
  }
};

struct ScaleShift {  // x[rows, cols] = x * w (+ b)
  float* x;
  const float* w;
  const float* b;  // null: none
  Index cols;
  UNPACK_BODY void operator()(Index i) const {
    x[i] = x[i] * w[i % cols] + (b != nullptr ? b[i % cols] : 0.0F);
  }
};

struct Normalize {  // out = (x - mean) / dev
  const float* x;
  float* out;
  float* dev;
  Index cols;
  int centers;
  double eps;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const float* in = x + row * cols;
    double mean = 0;
    if (centers)
      mean = group.sum(cols, [&](Index i) { return static_cast<double>(in[i]); }) /
             static_cast<double>(cols);
    const double square = group.sum(cols, [&](Index i) {
      const double shifted = static_cast<double>(in[i]) - mean;
      return shifted * shifted;
    });
    const double deviation = sqrt(square / static_cast<double>(cols) + eps);
    group.each(cols, [&](Index i) {
      out[row * cols + i] = static_cast<float>((static_cast<double>(in[i]) - mean) / deviation);
    });
    group.each(1, [&](Index) { dev[row] = static_cast<float>(deviation); });
  }
};

// to[outer, inner, cols] = from less its mean over cols; from == to is allowed.
struct CenterRows {
  const float* from;
  Index from_outer, from_inner;
  float* to;
  Index to_outer, to_inner;
  Index inner, cols;
  int centers;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const float* in = from + row / inner * from_outer + row % inner * from_inner;
    float* out = to + row / inner * to_outer + row % inner * to_inner;
    float shift = 0;
    if (centers)
      shift = static_cast<float>(group.sum(cols, [&](Index i) {
        return static_cast<double>(in[i]);
      }) / static_cast<double>(cols));
    group.each(cols, [&](Index i) { out[i] = in[i] - shift; });
  }
};

// Bias, per-head norm and rotary of one head vector of x[rows, heads, E].
struct FinishHead {
  float* x;
  const float* bias;  // [heads, E] or null
  const float* norm;  // [E] or null
  float* dev;         // [rows, heads] where norm is
  const int* positions;
  Rotary rotary;
  Index heads, e;
  double eps;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    float* v = x + row * e;
    const Index head = row % heads;
    if (bias != nullptr) group.each(e, [&](Index i) { v[i] += bias[head * e + i]; });
    if (norm != nullptr) {
      const double square = group.sum(
          e, [&](Index i) { return static_cast<double>(v[i]) * static_cast<double>(v[i]); });
      const double deviation = sqrt(square / static_cast<double>(e) + eps);
      group.each(e, [&](Index i) {
        v[i] = static_cast<float>(static_cast<double>(v[i]) / deviation) * norm[i];
      });
      group.each(1, [&](Index) { dev[row] = static_cast<float>(deviation); });
    }
    rotary.turn(group, v, positions[row / heads]);
  }
};

// logits[heads, queries, keys] -> causal softmax in place, and into pattern[H, tri] where it is
// kept.
struct CausalSoftmax {
  float* logits;
  Index queries, keys;  // keys: row length in memory
  Index first, reach;   // first: keys that query 0 sees before itself; reach: columns to fill
  float scale;
  float* pattern;       // null: not kept
  Index pattern_pairs;  // tri of the prompt's length
  Index pattern_first;  // position of query 0 in the prompt
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const Index head = row / queries;
    const Index query = row % queries;
    float* v = logits + row * keys;
    const Index seen = first + query + 1;
    const float most =
        static_cast<float>(group.largest(seen, [&](Index i) { return static_cast<double>(v[i]); }));
    const double total =
        group.sum(seen, [&](Index i) { return static_cast<double>(expf((v[i] - most) * scale)); });
    const float inverse = static_cast<float>(1.0 / total);
    float* kept = pattern != nullptr
                      ? pattern + head * pattern_pairs + pairs_before(pattern_first + query)
                      : nullptr;
    group.each(reach, [&](Index i) {
      const float x = i < seen ? expf((v[i] - most) * scale) * inverse : 0.0F;
      v[i] = x;
      if (kept != nullptr && i < seen) kept[i] = x;
    });
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
    group.each(1, [&](Index) { out[at] = static_cast<float>(dot); });
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
    for (Index r = first; r < last; ++r)
      total += static_cast<double>(stored_value(table, type, r * cols + i % cols));
    partial[i] = total;
  }
};

}  // namespace unpack::cuda
