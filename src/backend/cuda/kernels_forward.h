// Kernels of the forward pass and of moving data about.
#pragma once

#include "backend/cuda/kernel_base.h"
#include "unpack/config.h"

namespace unpack::backend::cuda {

struct AddScaled {  // y += scale x
  const float* x;
  float* y;
  float scale;
  UNPACK_BODY void operator()(Index i) const { y[i] += scale * x[i]; }
};

struct AddBias {  // x[rows, cols] += bias[cols], through the norm behind where there is one
  const float* bias;
  float* x;
  Index cols;
  const float* post;  // [cols]; null: none
  const float* dev;   // [rows]
  UNPACK_BODY void operator()(Index i) const {
    const float factor = post != nullptr ? post[i % cols] / dev[i / cols] : 1.0F;
    x[i] += bias[i % cols] * factor;
  }
};

struct Activate {  // act = phi(pre) (* up) (* the weight of its expert)
  const float* pre;
  const float* up;  // null: plain
  float* act;
  Activation kind;
  const float* weight;  // [rows, k]; null: none
  Index neurons;        // of an expert
  UNPACK_BODY float value(Index i) const {
    const float x = pre[i];
    if (kind == Activation::clamped_swiglu) return base::clamped_swiglu(x, up[i]);
    const float y = kind == Activation::gelu_erf    ? base::gelu_erf(x)
                    : kind == Activation::gelu_tanh ? base::gelu_tanh(x)
                    : kind == Activation::relu      ? base::relu(x)
                                                    : base::silu(x);
    return up != nullptr ? y * up[i] : y;
  }
  UNPACK_BODY void operator()(Index i) const {
    act[i] = value(i) * (weight != nullptr ? weight[i / neurons] : 1.0F);
  }
};

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

struct ScaleShift {  // x[rows, cols] = x * w (+ b)
  float* x;
  const float* w;
  const float* b;  // null: none
  Index cols;
  UNPACK_BODY void operator()(Index i) const {
    x[i] = x[i] * w[i % cols] + (b != nullptr ? b[i % cols] : 0.0F);
  }
};

struct Normalize {  // out = (x - mean) / dev; without a norm x itself and 1
  const float* x;
  float* out;
  float* dev;
  Index cols;
  Norm kind;
  double eps;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const float* in = x + row * cols;
    if (kind == Norm::none) {
      group.each(cols, [&](Index i) { out[row * cols + i] = in[i]; });
      group.each(1, [&](Index) { dev[row] = 1.0F; });
      return;
    }
    double mean = 0;
    if (kind == Norm::layer)
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

// dev[row] of x + bias, the root of the mean square, `copies` times; with `adds` the bias stays in
// x.
struct Deviation {
  float* x;
  const float* bias;  // [cols] or null
  int adds;
  float* dev;  // [rows, copies]
  Index copies, cols;
  double eps;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    float* v = x + row * cols;
    const double square = group.sum(cols, [&](Index i) {
      const float y = bias != nullptr ? v[i] + bias[i] : v[i];
      if (adds) v[i] = y;
      return static_cast<double>(y) * static_cast<double>(y);
    });
    const auto deviation = static_cast<float>(sqrt(square / static_cast<double>(cols) + eps));
    group.each(copies, [&](Index i) { dev[row * copies + i] = deviation; });
  }
};

// The norm behind a sublayer with its deviation held fixed: x[outer, inner, cols] *= w /
// dev(outer).
struct ThroughNorm {
  float* x;
  Index outer_stride, inner_stride, inner, cols;
  const float* w;
  const float* dev;
  const int* rows;  // of dev; null: the outer index itself
  UNPACK_BODY void operator()(Index i) const {
    const Index outer = i / cols / inner;
    float* v = x + outer * outer_stride + i / cols % inner * inner_stride;
    v[i % cols] *= w[i % cols] * (1.0F / dev[rows != nullptr ? rows[outer] : outer]);
  }
};

// out[r, :] = (out +) sum over a row's k slots of weight[r, i] from[index[r, i], :].
struct SumSlots {
  const float* from;
  const int* index;     // [rows, k]
  const float* weight;  // null: 1
  float* out;
  Index cols, k;
  int adds;
  UNPACK_BODY void operator()(Index at) const {
    const Index row = at / cols;
    float total = 0;
    for (Index i = row * k; i < (row + 1) * k; ++i) {
      const float x = from[static_cast<Index>(index[i]) * cols + at % cols];
      total += weight != nullptr ? weight[i] * x : x;
    }
    out[at] = adds ? out[at] + total : total;
  }
};

// Bias, norm and rotary of one head vector of x[rows, heads, E].
struct FinishHead {
  float* x;
  const float* bias;  // [heads, E] or null
  const float* norm;  // [heads, E] or null
  float* dev;         // [rows, heads] where norm is
  int dev_known;      // it is of the whole projection, and there already
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
      double deviation = 0;
      if (dev_known) {
        deviation = static_cast<double>(dev[row]);
      } else {
        const double square = group.sum(
            e, [&](Index i) { return static_cast<double>(v[i]) * static_cast<double>(v[i]); });
        deviation = sqrt(square / static_cast<double>(e) + eps);
        group.each(1, [&](Index) { dev[row] = static_cast<float>(deviation); });
      }
      group.each(e, [&](Index i) {
        v[i] = static_cast<float>(static_cast<double>(v[i]) / deviation) * norm[head * e + i];
      });
    }
    rotary.turn(group, v, positions[row / heads]);
  }
};

// logits[heads, queries, keys] -> causal softmax in place, of the sources inside the window, and
// into pattern[H, tri] where it is kept.
struct CausalSoftmax {
  float* logits;
  Index queries, keys;  // keys: row length in memory
  Index first, reach;   // first: keys that query 0 sees before itself; reach: columns to fill
  float scale;
  float* pattern;       // null: not kept
  Index pattern_pairs;  // tri of the prompt's length
  Index pattern_first;  // position of query 0 in the prompt
  Index window;         // 0: none
  float cap;            // 0: none
  const float* sinks;   // [heads] one more logit, whose weight is dropped; null: none
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const Index head = row / queries;
    const Index query = row % queries;
    float* v = logits + row * keys;
    const Index seen = first + query + 1;
    const Index from = base::first_in_window(seen - 1, window);
    if (cap > 0)
      group.each(seen - from,
                 [&](Index i) { v[from + i] = base::soft_cap(v[from + i] * scale, cap); });
    const float factor = cap > 0 ? 1.0F : scale;
    float most = static_cast<float>(
        group.largest(seen - from, [&](Index i) { return static_cast<double>(v[from + i]); }));
    if (sinks != nullptr) most = fmaxf(most, sinks[head] / factor);
    double total = group.sum(seen - from, [&](Index i) {
      return static_cast<double>(expf((v[from + i] - most) * factor));
    });
    if (sinks != nullptr) total += static_cast<double>(expf(sinks[head] - most * factor));
    const float inverse = static_cast<float>(1.0 / total);
    float* kept = pattern != nullptr
                      ? pattern + head * pattern_pairs + pairs_before(pattern_first + query)
                      : nullptr;
    group.each(reach, [&](Index i) {
      const float x = i >= from && i < seen ? expf((v[i] - most) * factor) * inverse : 0.0F;
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

}  // namespace unpack::backend::cuda
