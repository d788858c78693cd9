// Kernels that take numbers apart for tensor cores: x = high + low, each exact as a factor there.
#pragma once

#include "backend/cuda/kernel_base.h"

namespace unpack::backend::cuda {

// Numbers next to each other that are read or written at once, where their number and place allow
// it.
template <typename T>
struct alignas(4 * sizeof(T)) Quad {
  T x[4];
};
inline constexpr Index kLanes = 4;
// Whether all of these are whole quads.
template <typename... Sizes>
inline bool in_quads(Sizes... sizes) {
  return ((sizes % kLanes == 0) && ...);
}

// high[i] and low[i]: halves of x in a unit of its own, which leave 22 bits; bf16 numbers, which
// leave 16, or 24 with a third; or numbers of four bytes with their last bits at zero.
struct Halves {
  void* high;
  void* low;          // null: not wanted
  void* rest;         // null: not wanted; of bf16 alone
  const float* unit;  // what x is multiplied by first, with halves; null: none
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
    if (unit != nullptr) {
      const float y = x * *unit;
      const std::uint16_t first = f16_bits(y);
      static_cast<std::uint16_t*>(high)[i] = first;
      if (low != nullptr)
        static_cast<std::uint16_t*>(low)[i] = f16_bits(y - base::f16_value(first));
      return;
    }
    const float first = tf32_rounded(x);
    static_cast<float*>(high)[i] = first;
    if (low != nullptr) static_cast<float*>(low)[i] = tf32_rounded(x - first);
  }
  // Four from i on, a whole quad.
  UNPACK_BODY void put(Index i, const Quad<float>& x) const {
    if (bf16) {
      Quad<std::uint16_t> first, second, third;
      for (int k = 0; k < 4; ++k) {
        first.x[k] = bf16_bits(x.x[k]);
        const float behind = x.x[k] - base::bf16_value(first.x[k]);
        second.x[k] = bf16_bits(behind);
        third.x[k] = bf16_bits(behind - base::bf16_value(second.x[k]));
      }
      put_quad(high, i, first);
      if (low != nullptr) put_quad(low, i, second);
      if (rest != nullptr) put_quad(rest, i, third);
      return;
    }
    if (unit != nullptr) {
      const float by = *unit;
      Quad<std::uint16_t> first, second;
      for (int k = 0; k < 4; ++k) {
        const float y = x.x[k] * by;
        first.x[k] = f16_bits(y);
        second.x[k] = f16_bits(y - base::f16_value(first.x[k]));
      }
      put_quad(high, i, first);
      if (low != nullptr) put_quad(low, i, second);
      return;
    }
    Quad<float> first, second;
    for (int k = 0; k < 4; ++k) {
      first.x[k] = tf32_rounded(x.x[k]);
      second.x[k] = tf32_rounded(x.x[k] - first.x[k]);
    }
    put_quad(high, i, first);
    if (low != nullptr) put_quad(low, i, second);
  }
  template <typename T>
  UNPACK_BODY static void put_quad(void* to, Index i, const Quad<T>& x) {
    static_cast<Quad<T>*>(to)[i / kLanes] = x;
  }
};

UNPACK_BODY Quad<float> quad_at(const float* from) {
  return *reinterpret_cast<const Quad<float>*>(from);
}

// Runs of `run` numbers, whole rows of `cols`, times the scale of their column.
struct ScaledRuns {
  const float* from;
  Index stride;      // from one run to the next
  const int* rows;   // which runs; null: the first ones
  Index per, outer;  // where not 0: all `per` of them again and again, `outer` further on
  Index run, cols;
  const float* scale;  // [cols]; null: 1
  float factor;
  // Number i, or the quad from it on.
  UNPACK_BODY const float* place(Index i, Index& column) const {
    const auto [r, x] = divided(i, run);
    const auto [again, which] = per > 0 ? divided(r, per) : Divided{0, r};
    column = scale != nullptr ? divided(x, cols).rest : 0;
    return from + again * outer + (rows != nullptr ? rows[which] : which) * stride + x;
  }
  UNPACK_BODY float value(Index i) const {
    Index column = 0;
    const float y = *place(i, column) * factor;
    return scale != nullptr ? y * scale[column] : y;
  }
  UNPACK_BODY Quad<float> quad(Index i) const {
    Index column = 0;
    Quad<float> y = quad_at(place(i, column));
    for (int k = 0; k < 4; ++k) {
      y.x[k] *= factor;
      if (scale != nullptr) y.x[k] *= scale[column + k];
    }
    return y;
  }
};

struct SplitRows {
  ScaledRuns runs;
  Halves to;
  int quads;  // an index is four numbers
  UNPACK_BODY void operator()(Index index) const {
    if (quads) {
      to.put(index * kLanes, runs.quad(index * kLanes));
    } else {
      to.put(index, runs.value(index));
    }
  }
};

struct PlaceRows {  // out[i, columns[j], :] = rows[i, j, :]
  const float* rows;
  const int* columns;
  float* out;
  Index listed, visible, cols;
  UNPACK_BODY void operator()(Index index) const {
    const auto [row, x] = divided(index, cols);
    const auto [i, j] = divided(row, listed);
    out[(i * visible + columns[j]) * cols + x] = rows[index];
  }
};

// Weights [in, cols] as they are stored, times the scale of their columns. Turned ones stay so.
struct ScaledWeights {
  const void* data;
  int type;
  float stored_factor;
  int turned;
  Index in, cols;
  const float* scale;  // [cols]; null: 1
  float factor;
  UNPACK_BODY Index column(Index i) const {
    return turned ? divided(i, in).quotient : divided(i, cols).rest;
  }
  UNPACK_BODY float scaled(float stored, Index column) const {
    const float y = stored_factor * stored * factor;
    return scale != nullptr ? y * scale[column] : y;
  }
  UNPACK_BODY float value(Index i) const {
    return scaled(stored_value(data, type, i), scale != nullptr ? column(i) : 0);
  }
  UNPACK_BODY Quad<float> quad(Index i) const {
    const Index first = scale != nullptr ? column(i) : 0;
    Quad<float> y;
    Quad<std::uint16_t> halves{};
    if (type == kBf16) halves = static_cast<const Quad<std::uint16_t>*>(data)[i / kLanes];
    for (int k = 0; k < 4; ++k)
      y.x[k] =
          scaled(type == kBf16 ? base::bf16_value(halves.x[k]) : stored_value(data, type, i + k),
                 turned ? first : first + k);
    return y;
  }
};

struct SplitScaled {
  ScaledWeights weights;
  Halves to;
  int quads;  // an index is four numbers
  UNPACK_BODY void operator()(Index index) const {
    if (quads) {
      to.put(index * kLanes, weights.quad(index * kLanes));
    } else {
      to.put(index, weights.value(index));
    }
  }
};

// The largest size in every kPart numbers, and of them all.
inline constexpr Index kLargestPart = Index{1} << 15;
template <typename Group, typename From>
UNPACK_BODY void put_largest(Group& group, Index part, Index count, const From& from, int quads,
                             float* out) {
  const Index first = part * kLargestPart;
  const Index n = count - first < kLargestPart ? count - first : kLargestPart;
  const double most = quads
                          ? group.largest(n / kLanes,
                                          [&](Index i) {
                                            const Quad<float> x = from.quad(first + i * kLanes);
                                            return fmaxf(fmaxf(fabsf(x.x[0]), fabsf(x.x[1])),
                                                         fmaxf(fabsf(x.x[2]), fabsf(x.x[3])));
                                          })
                          : group.largest(n, [&](Index i) { return fabsf(from.value(first + i)); });
  group.each(1, [&](Index) { out[part] = most; });
}
struct LargestOfRuns {
  ScaledRuns runs;
  Index count;
  int quads;
  float* out;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index part) const {
    put_largest(group, part, count, runs, quads, out);
  }
};
struct LargestOfWeights {
  ScaledWeights weights;
  Index count;
  int quads;
  float* out;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index part) const {
    put_largest(group, part, count, weights, quads, out);
  }
};
struct UnitOfParts {  // one row
  const float* parts;
  Index count;
  const float* other;  // unit of the other factor; null: 1
  float* unit;         // and behind it what a product of both is multiplied by
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index) const {
    const double most = group.largest(count, [&](Index i) { return parts[i]; });
    group.each(1, [&](Index) {
      unit[0] = unit_of(most);
      unit[1] = 1.0F / unit[0] / (other != nullptr ? *other : 1.0F);
    });
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
  const float* unit;  // halves in this unit; null: no halves
  int bf16;           // else single precision
  int quads;          // an index is four numbers
  UNPACK_BODY void operator()(Index index) const {
    const Index size = e * inner, i = quads ? index * kLanes : index;
    const auto [head, x] = divided(i, size);
    const auto [row, h] = divided(head, taken);
    const float* value_at = from + (row * own + first + h) * size + x;
    Index place = head;
    if (groups > 1) {
      const Index each = taken / groups;
      const auto [g, member] = divided(h, each);
      place = (g * rows + row) * each + member;
    }
    place = place * 3 * size + x;
    Quad<float> value{};
    if (quads) {
      value = quad_at(value_at);
    } else {
      value.x[0] = *value_at;
    }
    if (bf16) {
      Quad<std::uint16_t> high{}, low{};
      for (int k = 0; k < kLanes; ++k) {
        high.x[k] = bf16_bits(value.x[k]);
        low.x[k] = bf16_bits(value.x[k] - base::bf16_value(high.x[k]));
      }
      put(static_cast<std::uint16_t*>(to) + place, size, high, low);
    } else if (unit != nullptr) {
      Quad<std::uint16_t> high{}, low{};
      for (int k = 0; k < kLanes; ++k) {
        const float y = value.x[k] * *unit;
        high.x[k] = f16_bits(y);
        low.x[k] = f16_bits(y - base::f16_value(high.x[k]));
      }
      put(static_cast<std::uint16_t*>(to) + place, size, high, low);
    } else {
      Quad<float> high{}, low{};
      for (int k = 0; k < kLanes; ++k) {
        high.x[k] = tf32_rounded(value.x[k]);
        low.x[k] = tf32_rounded(value.x[k] - high.x[k]);
      }
      put(static_cast<float*>(to) + place, size, high, low);
    }
  }
  template <typename T>
  UNPACK_BODY void put(T* out, Index size, const Quad<T>& high, const Quad<T>& low) const {
    for (Index k = 0; k < 3; ++k) {
      const Quad<T>& part = k == low_at ? low : high;
      if (quads) {
        *reinterpret_cast<Quad<T>*>(out + k * size) = part;
      } else {
        out[k * size] = part.x[0];
      }
    }
  }
};

// The same of whole heads, weights [heads, E, inner]: to[heads, 3, E, inner] of two bytes, the low
// part in the middle. One row per kStackRun numbers of a head; `size`, a whole number of eights, is
// a head's.
inline constexpr Index kStackRun = 8192;
// Eight numbers of two bytes, two in a word, which a GPU writes at once.
struct alignas(16) Words {
  std::uint32_t x[4];
};
struct StackHeads {
  const float* from;
  std::uint16_t* to;
  Index size;
  Index runs;         // of a head
  const float* unit;  // halves in this unit; null: bf16
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const Index head = row / runs, first = row % runs * kStackRun;
    const Index n = size - first < kStackRun ? size - first : kStackRun;
    const float* const source = from + head * size + first;
    std::uint16_t* const out = to + head * 3 * size + first;
    const float by = unit != nullptr ? *unit : 1.0F;
    group.each(n / 8, [&](Index i) {
      Words high, low;
      for (int half = 0; half < 2; ++half) {
        const Quad<float> value = quad_at(source + i * 8 + half * 4);
        for (int k = 0; k < 4; k += 2) {
          std::uint32_t large[2], small[2];
          for (int x = 0; x < 2; ++x) {
            const float y = value.x[k + x] * by;
            large[x] = unit == nullptr ? bf16_bits(y) : f16_bits(y);
            small[x] = unit == nullptr ? bf16_bits(y - base::bf16_value(large[x]))
                                       : f16_bits(y - base::f16_value(large[x]));
          }
          high.x[half * 2 + k / 2] = large[0] | large[1] << 16;
          low.x[half * 2 + k / 2] = small[0] | small[1] << 16;
        }
      }
      put(out + i * 8, high);
      put(out + size + i * 8, low);
      put(out + 2 * size + i * 8, high);
    });
  }
  UNPACK_BODY static void put(std::uint16_t* at, const Words& x) {
#ifdef __CUDA_ARCH__
    // nvcc makes four writes of a plain copy.
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"l"(__cvta_generic_to_global(at)),
                 "r"(x.x[0]), "r"(x.x[1]), "r"(x.x[2]), "r"(x.x[3])
                 : "memory");
#else
    *reinterpret_cast<Words*>(at) = x;
#endif
  }
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
    for (Index j = 0; j < visible; ++j) total += column[j * cols];
    out[i] = total;
  }
};

// The same for some queries from products [H, nq, pitch] of theirs with all sources, or with a
// pattern [H, tri] these times the pattern.
struct PairDots {
  const float* dots;
  Index q0, nq, pitch;
  const float* pattern;  // null: none
  const float* dev;
  int dev_of_source;
  float scale;
  float* out;  // [H, tri]
  Index pairs, window;
  int centers;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index h = index / nq, q = q0 + index % nq;
    const float* row = dots + index * pitch;
    const Index at = h * pairs + pairs_before(q);
    float* to = out + at;
    if (pattern != nullptr) {
      g.each(q + 1, [&](Index s) { to[s] = pattern[at + s] * row[s]; });
      return;
    }
    const Index from = base::first_in_window(q, window);
    g.each(q + 1, [&](Index s) {
      to[s] = s < from ? 0.0F : row[s] * (scale / dev[dev_of_source ? s : q]);
    });
    if (!centers) return;
    const double mean = g.sum(q + 1, [&](Index s) { return to[s]; }) / (q + 1 - from);
    g.each(q + 1 - from, [&](Index i) { to[from + i] = to[from + i] - mean; });
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
      for (Index x = 0; x < e; ++x) dot += static_cast<double>(own[x]) * other[x];
      out[s] = s < from ? 0.0F : dot * scale / dev[dev_of_source ? s : q];
    });
    if (!centers) return;
    const double mean = g.sum(q + 1, [&](Index s) { return out[s]; }) / (q + 1 - from);
    g.each(q + 1 - from, [&](Index i) { out[from + i] = out[from + i] - mean; });
  }
};

}  // namespace unpack::backend::cuda
