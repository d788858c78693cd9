// Kernels of the forward pass and of moving data about.
#pragma once

#include "backend/kernels/base.h"
#include "unpack/config.h"

namespace unpack::backend::kernels {

template <typename T>
struct AddScaled {  // y += scale x
  const T* x;
  T* y;
  double scale;
  UNPACK_BODY void operator()(Index i) const { y[i] += static_cast<T>(scale) * x[i]; }
};

template <typename T>
struct AddBias {  // x[rows, cols] += bias[cols], through the norm behind where there is one
  const T* bias;
  T* x;
  Index cols;
  const T* post;  // [cols]; null: none
  const T* dev;   // [rows]
  UNPACK_BODY void at(Index row, Index i) const {
    const T factor = post != nullptr ? post[i] / dev[row] : T(1);
    x[row * cols + i] += bias[i] * factor;
  }
  UNPACK_BODY void operator()(Index index) const {
    const auto [row, i] = divided(index, cols);
    at(row, i);
  }
};

template <typename T>
struct Activate {  // act = phi(pre) (* up) (* the weight of its expert)
  const T* pre;
  const T* up;  // null: plain
  T* act;
  Activation kind;
  const T* weight;  // [rows, k]; null: none
  Index neurons;    // of an expert
  UNPACK_BODY T value(Index i) const {
    const T x = pre[i];
    if (kind == Activation::clamped_swiglu) return base::clamped_swiglu(x, up[i]);
    const T y = kind == Activation::gelu_erf    ? base::gelu_erf(x)
                : kind == Activation::gelu_tanh ? base::gelu_tanh(x)
                : kind == Activation::relu      ? base::relu(x)
                                                : base::silu(x);
    return up != nullptr ? y * up[i] : y;
  }
  UNPACK_BODY void operator()(Index i) const {
    act[i] = value(i) * (weight != nullptr ? weight[i / neurons] : T(1));
  }
};

template <typename T>
struct ScaleShift {  // x[rows, cols] = x * w (+ b)
  T* x;
  const T* w;
  const T* b;  // null: none
  Index cols;
  UNPACK_BODY void at(Index row, Index i) const {
    T& y = x[row * cols + i];
    y = y * w[i] + (b != nullptr ? b[i] : T(0));
  }
  UNPACK_BODY void operator()(Index i) const { at(i / cols, i % cols); }
};

template <typename T>
struct Normalize {  // out = (x - mean) / dev; without a norm x itself and 1
  const T* x;
  T* out;
  T* dev;
  Index cols;
  Norm kind;
  double eps;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const T* in = x + row * cols;
    if (kind == Norm::none) {
      group.each(cols, [&](Index i) { out[row * cols + i] = in[i]; });
      group.each(1, [&](Index) { dev[row] = T(1); });
      return;
    }
    double mean = 0;
    if (kind == Norm::layer) mean = group.sum(cols, [&](Index i) { return in[i]; }) / cols;
    const double square = group.sum(cols, [&](Index i) {
      const double shifted = in[i] - mean;
      return shifted * shifted;
    });
    const double deviation = sqrt(square / cols + eps);
    group.each(cols, [&](Index i) { out[row * cols + i] = (in[i] - mean) / deviation; });
    group.each(1, [&](Index) { dev[row] = deviation; });
  }
};

// to[outer, inner, cols] = from less its mean over cols; from == to is allowed.
template <typename T>
struct CenterRows {
  const T* from;
  Index from_outer, from_inner;
  T* to;
  Index to_outer, to_inner;
  Index inner, cols;
  int centers;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const T* in = from + row / inner * from_outer + row % inner * from_inner;
    T* out = to + row / inner * to_outer + row % inner * to_inner;
    T shift = 0;
    if (centers) shift = group.sum(cols, [&](Index i) { return in[i]; }) / cols;
    group.each(cols, [&](Index i) { out[i] = in[i] - shift; });
  }
};

// dev[row] of x + bias, the root of the mean square, `copies` times; with `adds` the bias stays in
// x.
template <typename T>
struct Deviation {
  T* x;
  const T* bias;  // [cols] or null
  int adds;
  T* dev;  // [rows, copies]
  Index copies, cols;
  double eps;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    T* v = x + row * cols;
    const double square = group.sum(cols, [&](Index i) {
      const T y = bias != nullptr ? v[i] + bias[i] : v[i];
      if (adds) v[i] = y;
      return static_cast<double>(y) * y;
    });
    const T deviation = sqrt(square / cols + eps);
    group.each(copies, [&](Index i) { dev[row * copies + i] = deviation; });
  }
};

// The norm behind a sublayer with its deviation held fixed: x[outer, inner, cols] *= w /
// dev(outer).
template <typename T>
struct ThroughNorm {
  T* x;
  Index outer_stride, inner_stride, inner, cols;
  const T* w;
  const T* dev;
  const int* rows;  // of dev; null: the outer index itself
  UNPACK_BODY void at(Index row, Index i) const {
    const Index outer = row / inner;
    T* v = x + outer * outer_stride + row % inner * inner_stride;
    v[i] *= w[i] * (T(1) / dev[rows != nullptr ? rows[outer] : outer]);
  }
  UNPACK_BODY void operator()(Index i) const { at(i / cols, i % cols); }
};

// out[r, :] = (out +) sum over a row's k slots of weight[r, i] from[index[r, i], :].
template <typename T>
struct SumSlots {
  const T* from;
  const int* index;  // [rows, k]
  const T* weight;   // null: 1
  T* out;
  Index cols, k;
  int adds;
  UNPACK_BODY void at(Index row, Index column) const {
    T total = 0;
    for (Index i = row * k; i < (row + 1) * k; ++i) {
      const T x = from[index[i] * cols + column];
      total += weight != nullptr ? weight[i] * x : x;
    }
    T& y = out[row * cols + column];
    y = adds ? y + total : total;
  }
  UNPACK_BODY void operator()(Index i) const { at(i / cols, i % cols); }
};

// Bias, norm and rotary of one head vector of x[rows, heads, E].
template <typename T>
struct FinishHead {
  T* x;
  const T* bias;  // [heads, E] or null
  const T* norm;  // [heads, E] or null
  T* dev;         // [rows, heads] where norm is
  int dev_known;  // it is of the whole projection, and there already
  const int* positions;
  Rotary<T> rotary;
  Index heads, e;
  double eps;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    T* v = x + row * e;
    const Index head = row % heads;
    if (bias != nullptr) group.each(e, [&](Index i) { v[i] += bias[head * e + i]; });
    if (norm != nullptr) {
      double deviation = 0;
      if (dev_known) {
        deviation = dev[row];
      } else {
        const double square =
            group.sum(e, [&](Index i) { return static_cast<double>(v[i]) * v[i]; });
        deviation = sqrt(square / e + eps);
        group.each(1, [&](Index) { dev[row] = deviation; });
      }
      group.each(e, [&](Index i) { v[i] = static_cast<T>(v[i] / deviation) * norm[head * e + i]; });
    }
    rotary.turn(group, v, positions[row / heads]);
  }
};

// logits[heads, queries, keys] -> causal softmax in place, of the sources inside the window, and
// into pattern[H, tri] where it is kept.
template <typename T>
struct CausalSoftmax {
  T* logits;
  Index queries, keys;  // keys: row length in memory
  Index first, reach;   // first: keys that query 0 sees before itself; reach: columns to fill
  double scale;
  T* pattern;           // null: not kept
  Index pattern_pairs;  // tri of the prompt's length
  Index pattern_first;  // position of query 0 in the prompt
  Index window;         // 0: none
  double cap;           // 0: none
  const T* sinks;       // [heads] one more logit, whose weight is dropped; null: none
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const Index head = row / queries;
    const Index query = row % queries;
    T* v = logits + row * keys;
    const Index seen = first + query + 1;
    const Index from = base::first_in_window(seen - 1, window);
    if (cap > 0)
      group.each(seen - from, [&](Index i) {
        v[from + i] = base::soft_cap(v[from + i] * static_cast<T>(scale), static_cast<T>(cap));
      });
    const T factor = cap > 0 ? T(1) : static_cast<T>(scale);
    T most = group.largest(seen - from, [&](Index i) { return v[from + i]; });
    if (sinks != nullptr && sinks[head] / factor > most) most = sinks[head] / factor;
    double total =
        group.sum(seen - from, [&](Index i) { return std::exp((v[from + i] - most) * factor); });
    if (sinks != nullptr) total += std::exp(sinks[head] - most * factor);
    const T inverse = 1.0 / total;
    T* kept = pattern != nullptr
                  ? pattern + head * pattern_pairs + pairs_before(pattern_first + query)
                  : nullptr;
    group.each(reach, [&](Index i) {
      const T x = i >= from && i < seen ? std::exp((v[i] - most) * factor) * inverse : T(0);
      v[i] = x;
      if (kept != nullptr && i < seen) kept[i] = x;
    });
  }
};

template <typename T>
struct TakeRows {  // to[i, :] = from[rows[i], :]
  const T* from;
  const int* rows;
  T* to;
  Index cols;
  Index stride;  // from one row to the next
  UNPACK_BODY void at(Index row, Index i) const {
    to[row * cols + i] = from[rows[row] * stride + i];
  }
  UNPACK_BODY void operator()(Index i) const { at(i / cols, i % cols); }
};

}  // namespace unpack::backend::kernels
