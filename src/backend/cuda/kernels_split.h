// Kernels that take numbers apart for tensor cores: x = high + low, each exact as a factor there.
#pragma once

#include "backend/cuda/kernel_base.h"

namespace unpack::backend::cuda {

// high[i], low[i] and rest[i] of two bytes each; or the first two of four bytes with their last
// bits at zero.
struct Halves {
  void* high;
  void* low;   // null: not wanted
  void* rest;  // null: not wanted; of two bytes alone
  int bf16;
  UNPACK_BODY void put(Index i, float x) const {
    if (bf16) {
      const std::uint16_t first = bf16_bits(x);
      static_cast<std::uint16_t*>(high)[i] = first;
      if (low == nullptr) return;
      const float behind = x - base::bf16_value(first);
      const std::uint16_t second = bf16_bits(behind);
      static_cast<std::uint16_t*>(low)[i] = second;
      if (rest != nullptr)
        static_cast<std::uint16_t*>(rest)[i] = bf16_bits(behind - base::bf16_value(second));
      return;
    }
    const float first = tf32_rounded(x);
    static_cast<float*>(high)[i] = first;
    if (low != nullptr) static_cast<float*>(low)[i] = tf32_rounded(x - first);
  }
};

// Runs of `run` numbers, whole rows of `cols`, times the scale of their column.
struct SplitRows {
  const float* from;
  Index stride;     // from one run to the next
  const int* rows;  // which runs; null: the first ones
  Index run, cols;
  const float* scale;  // [cols]; null: 1
  float factor;
  Halves to;
  UNPACK_BODY void operator()(Index i) const {
    const auto [r, x] = divided(i, run);
    const float y = from[(rows != nullptr ? static_cast<Index>(rows[r]) : r) * stride + x] * factor;
    to.put(i, scale != nullptr ? y * scale[divided(x, cols).rest] : y);
  }
};

// Parts one behind the other, so that one product of three times the depth adds up three of them:
// of every E numbers of a head, or rows of `inner`, a low part (at low_at) and the high one twice.
// to[.., 3, E, inner], of two bytes each or of four; of the `own` heads of a row those from `first`
// on are taken. With `groups` the heads of a group stand together: to[groups, rows, taken / groups,
// 3, E, inner].
struct StackParts {
  const float* from;
  void* to;
  Index e, inner;
  Index own, first, taken;
  Index low_at;
  Index rows, groups;
  int bf16;
  UNPACK_BODY void operator()(Index i) const {
    const Index size = e * inner;
    const auto [head, x] = divided(i, size);
    const auto [row, h] = divided(head, taken);
    const float value = from[(row * own + first + h) * size + x];
    Index place = head;
    if (groups > 1) {
      const Index each = taken / groups;
      const auto [g, member] = divided(h, each);
      place = (g * rows + row) * each + member;
    }
    place = place * 3 * size + x;
    if (bf16) {
      const std::uint16_t high = bf16_bits(value), low = bf16_bits(value - base::bf16_value(high));
      put(static_cast<std::uint16_t*>(to) + place, size, high, low);
    } else {
      const float high = tf32_rounded(value);
      put(static_cast<float*>(to) + place, size, high, tf32_rounded(value - high));
    }
  }
  template <typename T>
  UNPACK_BODY void put(T* out, Index size, T high, T low) const {
    for (Index k = 0; k < 3; ++k) out[k * size] = k == low_at ? low : high;
  }
};

struct SplitStored {  // weights, without their scale
  const void* data;
  int type;
  Halves to;
  UNPACK_BODY void operator()(Index i) const { to.put(i, stored_value(data, type, i)); }
};

// out[in, cols]: weights [in, cols], however they are stored, times their factor.
struct StoredRows {
  const void* data;
  int type;
  float factor;
  int turned;
  Index in, cols;
  float* out;
  UNPACK_BODY void operator()(Index i) const {
    out[i] = factor * stored_value(data, type, turned ? turned_place(i) : i);
  }
  UNPACK_BODY Index turned_place(Index i) const {
    const auto [row, column] = divided(i, cols);
    return column * in + row;
  }
};

// out[S, cols] = the sum of a position's first `visible` writers.
struct SumWriters {
  const float* writers;  // [S, n_writers, cols]
  Index n_writers, visible, cols;
  float* out;
  UNPACK_BODY void operator()(Index i) const {
    const float* column = writers + i / cols * n_writers * cols + i % cols;
    double total = 0;
    for (Index j = 0; j < visible; ++j) total += static_cast<double>(column[j * cols]);
    out[i] = static_cast<float>(total);
  }
};

// sum[H, tri] of a query with all that its sources hold, or the other way round: scale / dev <
// a[q, h], b[s, h / group] >, 0 outside of the window; with `centers` less the mean over those
// inside. One row per (h, q).
struct ReadSums {
  const float* a;  // [S, H, E]
  const float* b;  // [S, G, E]
  const float* dev;
  int dev_of_source;
  float scale;
  float* sum;
  Index length, heads, group, groups, e, pairs, window;
  int centers;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index h = index / length;
    const Index q = index % length;
    const float* own = a + (q * heads + h) * e;
    float* out = sum + h * pairs + pairs_before(q);
    const Index from = base::first_in_window(q, window);
    g.each(q + 1, [&](Index s) {
      const float* other = b + (s * groups + h / group) * e;
      double dot = 0;
      for (Index x = 0; x < e; ++x)
        dot += static_cast<double>(own[x]) * static_cast<double>(other[x]);
      out[s] = s < from ? 0.0F
                        : static_cast<float>(dot * static_cast<double>(scale) /
                                             static_cast<double>(dev[dev_of_source ? s : q]));
    });
    if (!centers) return;
    const double mean = g.sum(q + 1, [&](Index s) { return static_cast<double>(out[s]); }) /
                        static_cast<double>(q + 1 - from);
    g.each(q + 1 - from, [&](Index i) {
      out[from + i] = static_cast<float>(static_cast<double>(out[from + i]) - mean);
    });
  }
};

}  // namespace unpack::backend::cuda
