// Kernels of entries and folding.
#pragma once

#include "backend/cuda/kernel_base.h"

namespace unpack::backend::cuda {

// out[h, begin(i) + s] = pattern[h, q_i, s] < v[s, g], pulled[i, h] >, one row per element.
struct HeadNumerators {
  const float* pattern;
  const float* v;
  const float* pulled;
  const int* queries;
  const Index* begin;  // [rows + 1]
  float* out;
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
    const float* u = pulled + (i * heads + h) * e;
    const float* value = v + (s * kv_heads + h / group) * e;
    const double dot = g.sum(e, [&](Index x) { return value[x] * u[x]; });
    g.each(1, [&](Index) {
      out[index] = pattern[h * pairs + pairs_before(queries[i]) + s] * static_cast<float>(dot);
    });
  }
};

struct TimesRows {  // x[i, :] *= y[queries[i], :]
  float* x;
  const float* y;
  const int* queries;
  Index cols;
  UNPACK_BODY void operator()(Index i) const {
    x[i] *= y[static_cast<Index>(queries[i / cols]) * cols + i % cols];
  }
};

// out[i, h, :] = sum over s of coef[h, begin(i) + s] k[s, g, :], one row per (i, h).
struct FoldSources {
  const float* coef;
  const float* k;
  const int* queries;
  const Index* begin;
  float* out;
  Index rows, heads, group, kv_heads, e;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index i = index / heads;
    const Index h = index % heads;
    const float* c = coef + h * begin[rows] + begin[i];
    const Index sources = queries[i] + 1;
    g.each(e, [&](Index x) {
      float total = 0;
      for (Index s = 0; s < sources; ++s) total += c[s] * k[(s * kv_heads + h / group) * e + x];
      out[index * e + x] = total;
    });
  }
};

// out[s, g, :] = sum over the group's heads and q >= s of coef[h, q, s] q[q, h, :], one row per (s,
// g).
struct FoldQueries {
  const float* coef;  // [H, tri]
  const float* q;
  float* out;
  Index length, pairs, heads, group, kv_heads, e;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index s = index / kv_heads;
    const Index kv = index % kv_heads;
    g.each(e, [&](Index x) {
      double total = 0;
      for (Index h = kv * group; h < (kv + 1) * group; ++h) {
        float part = 0;
        for (Index at = s; at < length; ++at)
          part += coef[h * pairs + pairs_before(at) + s] * q[(at * heads + h) * e + x];
        total += static_cast<double>(part);
      }
      out[index * e + x] = static_cast<float>(total);
    });
  }
};

// scores[rows, H, Cl] -> out[H, rows, Cl], times scale / dev(q_i).
struct QueryEdges {
  const float* scores;
  const float* dev;
  const int* queries;
  float* out;
  Index rows, heads, visible;
  float scale;
  UNPACK_BODY void operator()(Index index) const {
    const Index j = index % visible;
    const Index i = index / visible % rows;
    const Index h = index / visible / rows;
    out[index] = scores[(i * heads + h) * visible + j] * (scale / dev[queries[i]]);
  }
};

}  // namespace unpack::backend::cuda
