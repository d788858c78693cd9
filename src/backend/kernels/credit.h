// Kernels of entries and folding.
#pragma once

#include "backend/kernels/base.h"

namespace unpack::backend::kernels {

// out[h, begin(i) + s] = pattern[h, q_i, s] < v[s, g], pulled[i, h] >, one row per element.
template <typename T>
struct HeadNumerators {
  const T* pattern;
  const T* v;
  const T* pulled;
  const int* queries;
  const Index* begin;  // [rows + 1]
  T* out;
  Index pairs, rows, heads, group, kv_heads, e;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index h = index / begin[rows];
    const Index at = index % begin[rows];
    Index i = 0;  // the last row that begins at or before it
    for (Index end = rows; end - i > 1;) {
      const Index middle = (i + end) / 2;
      if (begin[middle] <= at) {
        i = middle;
      } else {
        end = middle;
      }
    }
    const Index s = at - begin[i];
    const T* u = pulled + (i * heads + h) * e;
    const T* value = v + (s * kv_heads + h / group) * e;
    const double dot = g.sum(e, [&](Index x) { return value[x] * u[x]; });
    g.each(1, [&](Index) {
      out[index] = pattern[h * pairs + pairs_before(queries[i]) + s] * static_cast<T>(dot);
    });
  }
};

template <typename T>
struct TimesRows {  // x[i, :] *= y[queries[i], :]
  T* x;
  const T* y;
  const int* queries;
  Index cols;
  UNPACK_BODY void at(Index row, Index i) const { x[row * cols + i] *= y[queries[row] * cols + i]; }
  UNPACK_BODY void operator()(Index i) const { at(i / cols, i % cols); }
};

// out[i, h, :] = sum over s of coef[h, begin(i) + s] k[s, g, :], one row per (i, h).
template <typename T>
struct FoldSources {
  const T* coef;
  const T* k;
  const int* queries;
  const Index* begin;
  T* out;
  Index rows, heads, group, kv_heads, e;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index i = index / heads;
    const Index h = index % heads;
    const T* c = coef + h * begin[rows] + begin[i];
    const Index sources = queries[i] + 1;
    g.each(e, [&](Index x) {
      T total = 0;
      for (Index s = 0; s < sources; ++s) total += c[s] * k[(s * kv_heads + h / group) * e + x];
      out[index * e + x] = total;
    });
  }
};

// out[s, g, :] = sum over the group's heads and q >= s of coef[h, q, s] q[q, h, :], one row per (s,
// g).
template <typename T>
struct FoldQueries {
  const T* coef;  // [H, tri]
  const T* q;
  T* out;
  Index length, pairs, heads, group, kv_heads, e;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index s = index / kv_heads;
    const Index kv = index % kv_heads;
    g.each(e, [&](Index x) {
      double total = 0;
      for (Index h = kv * group; h < (kv + 1) * group; ++h) {
        T part = 0;
        for (Index at = s; at < length; ++at)
          part += coef[h * pairs + pairs_before(at) + s] * q[(at * heads + h) * e + x];
        total += part;
      }
      out[index * e + x] = total;
    });
  }
};

// scores[rows, H, Cl] -> out[H, rows, Cl], times scale / dev(q_i).
template <typename T>
struct QueryEdges {
  const T* scores;
  const T* dev;
  const int* queries;
  T* out;
  Index rows, heads, visible;
  double scale;
  UNPACK_BODY void operator()(Index index) const {
    const Index j = index % visible;
    const Index i = index / visible % rows;
    const Index h = index / visible / rows;
    out[index] = scores[(i * heads + h) * visible + j] * (static_cast<T>(scale) / dev[queries[i]]);
  }
};

// What acts on the scores of the chosen experts, as it acts on those of all: with `centers`
// sum_i coef_i (s(e_i) - mean s) = sum_e (coef_e - (sum coef) / E) s(e). One row per row.
template <typename T>
struct SpreadExperts {
  const T* coef;      // [rows, k]
  const int* expert;  // [rows, k]
  T* out;             // [rows, experts]
  Index experts, k;
  int centers;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index row) const {
    double total = 0;
    for (Index i = 0; centers && i < k; ++i) total += coef[row * k + i];
    g.each(experts, [&](Index e) {
      double x = -total / experts;
      for (Index i = 0; i < k; ++i) {
        if (expert[row * k + i] == e) x += coef[row * k + i];
      }
      out[row * experts + e] = x;
    });
  }
};

template <typename T>
struct SlotSums {  // out[r] = sum of x[r, n], one row per slot of an expert
  const T* x;
  T* out;
  Index neurons;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index row) const {
    const double total = g.sum(neurons, [&](Index n) { return x[row * neurons + n]; });
    g.each(1, [&](Index) { out[row] = total; });
  }
};

// Head vectors seen from before rotary and the per-head norm: out[a, b, h, :] = norm / dev *
// R^-1(position) from(a, b, h).
template <typename T>
struct PullBack {
  const T* from;
  Index from_a, from_b, from_group;  // offsets of a and b; heads h / from_group are E apart
  T* out;
  Index nb, heads, e;
  Index position0, position_a, position_b;
  const int* positions;  // of a, in place of the above; null: not given
  const T* dev;          // [position, heads / dev_group]; null: no norm of keys or queries
  Index dev_heads, dev_group, dev_first;
  const T* norm;  // [heads / dev_group, E]
  Rotary<T> rotary;
  // Whether the values differ from those it is given, and with the position.
  bool changes() const { return rotary.cos != nullptr || norm != nullptr; }
  UNPACK_BODY void at(Index row, Index x) const {
    const Index h = row % heads;
    const Index b = row / heads % nb;
    const Index a = row / heads / nb;
    const Index position =
        positions != nullptr ? positions[a] : position0 + a * position_a + b * position_b;
    T y = rotary.element(from + a * from_a + b * from_b + h / from_group * e, x, position, true);
    if (norm != nullptr)
      y *= norm[(dev_first + h / dev_group) * e + x] *
           (T(1) / dev[position * dev_heads + dev_first + h / dev_group]);
    out[row * e + x] = y;
  }
  UNPACK_BODY void operator()(Index i) const { at(i / e, i % e); }
};

template <typename T>
struct ScaleByRow {  // x[rows, cols] *= scale / dev[first + row * step]
  T* x;
  const T* dev;
  Index first, step, cols;
  double scale;
  UNPACK_BODY void at(Index row, Index i) const {
    x[row * cols + i] *= static_cast<T>(scale) / dev[first + row * step];
  }
  UNPACK_BODY void operator()(Index i) const { at(i / cols, i % cols); }
};

// out[i, j] = scale / dev(q_i) < writers[q_i, j, :], vectors[i] >
template <typename T>
struct WriterDots {
  const T* writers;
  Index n_writers, cols, visible;
  const T* vectors;
  Index vector_stride;
  const int* queries;  // null: i itself
  Index query0;
  const T* dev;  // null: no division
  double scale;
  T* out;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index index) const {
    const Index i = index / visible;
    const Index j = index % visible;
    const Index q = queries != nullptr ? queries[i] : query0 + i;
    const T* w = writers + (q * n_writers + j) * cols;
    const T* v = vectors + i * vector_stride;
    const double dot = group.sum(cols, [&](Index x) { return w[x] * v[x]; });
    group.each(1, [&](Index) {
      out[index] = static_cast<T>(dot) *
                   (dev != nullptr ? static_cast<T>(scale) / dev[q] : static_cast<T>(scale));
    });
  }
};

}  // namespace unpack::backend::kernels
