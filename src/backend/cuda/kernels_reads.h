// Kernels of direction `read` (docs/method.md, section 5).
#pragma once

#include "backend/cuda/kernel_base.h"
#include "backend/cuda/kernels_scores.h"

namespace unpack::backend::cuda {

// credit[H, tri] of a head's entries -> coefficients of keys and queries, one row per (h, q).
struct ReadShares {
  const float* credit;
  const float* k_sum;  // [H, tri]
  const float* k_abs;
  const float* q_sum;
  const float* q_abs;
  float* key;
  float* query;
  Index pairs, length, window;
  double beta, floor, weight_k, weight_q;
  float query_scale;
  int spread, centered;  // less their means over the sources: keys, queries
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index q = index % length;
    const Index at = index / length * pairs + pairs_before(q);
    const Index from = base::first_in_window(q, window);
    const auto k = [&](Index s) {
      return base::coefficient(weight_k, credit[s],
                               base::floored_inverse(k_sum[s], k_abs[s], beta, floor));
    };
    const auto x = [&](Index s) {
      return base::coefficient(weight_q, credit[s],
                               base::floored_inverse(q_sum[s], q_abs[s], beta, floor));
    };
    double keys = 0, queries = 0;
    g.sums(
        q + 1 - from,
        [&](Index i, double& a, double& b) {
          a += k(at + from + i);
          b += x(at + from + i);
        },
        keys, queries);
    const double sources = q + 1 - from;
    keys = spread ? keys / sources : 0.0;
    queries = centered ? queries / sources : 0.0;
    g.each(q + 1, [&](Index s) {
      const bool seen = s >= from;
      key[at + s] = seen ? k(at + s) - keys : 0.0F;
      query[at + s] = seen ? static_cast<float>(x(at + s) - queries) * query_scale : 0.0F;
    });
  }
};

// Credit of neurons -> coefficients of what they read, one row per position; out[rows, 3]: sum,
// sum of sizes, and what of these met ill-conditioned denominators.
struct ReadNeurons {
  const float* own;
  const float* sum;
  const float* abs;
  const float* pre;  // in place of the two
  float* coef;
  double* out;
  Index n;
  double beta, weight;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index row) const {
    const Index at = row * n;
    double credit = 0, size = 0;
    sum_and_size(g, own + at, n, credit, size);
    const double doubt = g.sum(n, [&](Index i) {
      return pre != nullptr ? 0.0 : base::doubtful(1.0, own[at + i], sum[at + i], abs[at + i]);
    });
    g.each(n, [&](Index i) {
      const double x = own[at + i];
      coef[at + i] =
          pre != nullptr
              ? base::linear_coefficient(x, pre[at + i])
              : base::coefficient(weight, x, base::inverse_denom(sum[at + i], abs[at + i], beta));
    });
    g.each(1, [&](Index) {
      out[row * 3] = credit;
      out[row * 3 + 1] = pre == nullptr ? size : 0.0;
      out[row * 3 + 2] = doubt;
    });
  }
};

struct ScaleAll {
  float* x;
  float by;
  UNPACK_BODY void operator()(Index i) const { x[i] *= by; }
};

// Bits in the order of the numbers.
UNPACK_BODY std::uint32_t ordered_bits(float x) {
  const std::uint32_t bits = base::bits_of_float(x);
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFU : 0x80000000U);
}

// The element of that rank, the smallest's being 0: three bits at a time from the top, until one is
// left.
UNPACK_BODY float of_rank(const float* x, Index stride, Index n, Index rank) {
  constexpr int kDigits = 8;
  std::uint32_t prefix = 0, mask = 0;
  Index left = n;
  for (int shift = 30; shift > -3 && left > 1; shift -= 3) {
    const int at = shift < 0 ? 0 : shift;  // the last digit overlaps the one before
    Index count[kDigits] = {};
    for (Index i = 0; i < n; ++i) {
      const std::uint32_t u = ordered_bits(x[i * stride]);
      const std::uint32_t digit = (u & mask) == prefix ? (u >> at) & 7U : 8U;
      for (std::uint32_t d = 0; d < kDigits; ++d) count[d] += digit == d ? 1 : 0;
    }
    std::uint32_t found = kDigits;
    for (std::uint32_t d = 0; d < kDigits; ++d) {
      if (found < kDigits) continue;
      if (rank < count[d]) {
        found = d;
        left = count[d];
      } else {
        rank -= count[d];
      }
    }
    prefix |= found << at;
    mask |= 7U << at;
  }
  for (Index i = 0; i < n; ++i) {
    if ((ordered_bits(x[i * stride]) & mask) == prefix) return x[i * stride];
  }
  return 0.0F;
}

// Lower medians over the seen sources of final scores, out[H, S, Cl], for every (q, h, j).
struct ColumnMedians {
  Tile tile;           // with table: only q0, heads and visible count
  const float* table;  // [H, tri, Cl] or null
  float* out;
  Index length, pairs, window;
  UNPACK_BODY void operator()(Index i) const {
    const Index j = i % tile.visible;
    const Index h = i / tile.visible % tile.heads;
    const Index q = tile.q0 + i / tile.visible / tile.heads;
    const Index from = base::first_in_window(q, window);
    const float* column = table != nullptr
                              ? table + (h * pairs + pairs_before(q) + from) * tile.visible + j
                              : tile.row(q, from, h) + j;
    const Index n = q + 1 - from;
    out[((tile.head0 + h) * length + q) * tile.visible + j] =
        of_rank(column, table != nullptr ? tile.visible : tile.s_stride, n, (n - 1) / 2);
  }
};

// Edges
// ------------------------------------------------------------------------------------------------

// What heads pass to the writers at sources [s0, s0 + ns) by one branch, at queries [q0, q0 + nq);
// by Q the queries are the sources themselves.
struct EdgeRows {
  const float* table;  // [H, tri, Cl] final key scores; null: the tile
  const float* tile;   // [ns, nq (by Q: 1), H, pitch] products
  int own;             // by Q
  Index s0, ns, q0, nq;
  Index pitch, visible, heads, length, pairs;
  const float* coef;    // [H, tri] credit per score; null: 1
  const float* offset;  // [H, S, Cl] taken from scores; null: nothing
  const float* dev;     // of the sources
  float scale;          // of products

  // Some of the sources, from the first on.
  EdgeRows sources(Index first, Index count) const {
    EdgeRows part = *this;
    part.s0 += first;
    part.ns = count;
    if (tile != nullptr) part.tile += first * (own ? 1 : nq) * heads * pitch;
    return part;
  }

  UNPACK_BODY Index first_query(Index s) const { return own || s > q0 ? s : q0; }
  UNPACK_BODY Index end_query(Index s) const { return own ? s + 1 : q0 + nq; }
  UNPACK_BODY float credit(Index h, Index q, Index s, Index j) const {
    if (own) return tile[((s - s0) * heads + h) * pitch + j] * (scale / dev[s]);
    const Index pair = h * pairs + pairs_before(q) + s;
    const float by = coef[pair];
    if (by == 0) return 0.0F;
    float x = table != nullptr
                  ? table[pair * visible + j]
                  : tile[(((s - s0) * nq + q - q0) * heads + h) * pitch + j] * (scale / dev[s]);
    if (offset != nullptr) x -= offset[(h * length + q) * visible + j];
    return by * x;
  }
};

// Ways down to the writers (ReadOps::pass_ways) from one head each, for every (source, h, writer):
// [ns, H, Cl] of the sum of |credit|, then bound and mass of every slot; those of paths that end
// here [ns, H, terminals]: bound and mass of either sign.
struct HeadWays {
  EdgeRows rows;
  const double* bound;  // [slots, H, S] of the readers, by this branch
  const double* mass;
  int slots;
  Index terminals;
  int end_slot[2];
  double* parts;
  double* ends;
  UNPACK_BODY void operator()(Index i) const {
    const Index j = i % rows.visible;
    const Index h = i / rows.visible % rows.heads;
    const Index s = rows.s0 + i / rows.visible / rows.heads;
    const Index slot_size = rows.heads * rows.length;
    const bool is_end = j < terminals;
    const Index at_end = is_end ? end_slot[j] * slot_size : 0;
    double total = 0;
    double most[2] = {0, 0}, all[2] = {0, 0}, end_most[2] = {0, 0}, end_all[2] = {0, 0};
    for (Index q = rows.first_query(s); q < rows.end_query(s); ++q) {
      const double c = rows.credit(h, q, s, j);
      const double size = fabs(c);
      const Index reader = h * rows.length + q;
      total += size;
      most[0] = fmax(most[0], size * bound[reader]);
      all[0] += size * mass[reader];
      if (slots > 1) {
        most[1] = fmax(most[1], size * bound[slot_size + reader]);
        all[1] += size * mass[slot_size + reader];
      }
      if (is_end) {
        const double reach = size * bound[at_end + reader], part = size * mass[at_end + reader];
        end_most[0] = fmax(end_most[0], c < 0 ? 0.0 : reach);
        end_most[1] = fmax(end_most[1], c < 0 ? reach : 0.0);
        end_all[0] += c < 0 ? 0.0 : part;
        end_all[1] += c < 0 ? part : 0.0;
      }
    }
    const Index n = rows.ns * rows.heads * rows.visible;
    parts[i] = total;
    parts[n + i] = most[0];
    parts[2 * n + i] = all[0];
    if (slots > 1) {
      parts[3 * n + i] = most[1];
      parts[4 * n + i] = all[1];
    }
    if (is_end) {
      const Index end = (i / rows.visible) * terminals + j, m = rows.ns * rows.heads * terminals;
      ends[end] = end_most[0];
      ends[m + end] = end_all[0];
      ends[2 * m + end] = end_most[1];
      ends[3 * m + end] = end_all[1];
    }
  }
};

// The heads' together, added to what is there: to[kinds][S, n] from parts[kinds][ns, H, n], kinds
// by turns sums and largest.
struct AddWays {
  const double* parts;
  double* to;
  Index s0, ns, heads, n, length;
  int first_is_sum;
  UNPACK_BODY void operator()(Index i) const {
    const Index kind = i / (ns * n), at = i % (ns * n), s = at / n, j = at % n;
    const double* from = parts + (kind * ns + s) * heads * n + j;
    double& out = to[(kind * length + s0 + s) * n + j];
    const bool adds = kind % 2 == (first_is_sum ? 0 : 1);
    for (Index h = 0; h < heads; ++h) out = adds ? out + from[h * n] : fmax(out, from[h * n]);
  }
};

struct EdgeMasses {  // out[H, S] += sum of |credit| below[S, C], one row per (query, h)
  EdgeRows rows;
  const double* below;
  Index writers;
  double* out;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index h = index % rows.heads;
    const Index q = (rows.own ? rows.s0 : rows.q0) + index / rows.heads;
    const Index first = rows.own ? q : rows.s0;
    const Index end = rows.own || q + 1 < rows.s0 + rows.ns ? q + 1 : rows.s0 + rows.ns;
    const Index n = end > first ? (end - first) * rows.visible : 0;
    const double total = g.sum(n, [&](Index i) {
      const Index s = first + i / rows.visible, j = i % rows.visible;
      return fabs(static_cast<double>(rows.credit(h, q, s, j))) * below[s * writers + j];
    });
    g.each(1, [&](Index) { out[h * rows.length + q] += total; });
  }
};

struct EdgeTotals {  // parts[ns, H, Cl]: credit over the queries, for every (source, h, j)
  EdgeRows rows;
  double* parts;
  Index stride;  // from source to source
  UNPACK_BODY void operator()(Index i) const {
    const Index j = i % rows.visible;
    const Index h = i / rows.visible % rows.heads;
    const Index s = rows.s0 + i / rows.visible / rows.heads;
    double total = 0;
    for (Index q = rows.first_query(s); q < rows.end_query(s); ++q)
      total += rows.credit(h, q, s, j);
    parts[(s - rows.s0) * stride + h * rows.visible + j] = total;
  }
};

struct AddRows {  // to[n] += sum over rows of parts[rows, n]
  const double* parts;
  double* to;
  Index rows, n;
  UNPACK_BODY void operator()(Index i) const {
    double total = 0;
    for (Index r = 0; r < rows; ++r) total += parts[r * n + i];
    to[i] += total;
  }
};

struct EdgesFrom {  // out[S, Cl]: what a head at a query passes on, for every (source of rows, j)
  EdgeRows rows;
  Index head, query;
  float* out;
  UNPACK_BODY void operator()(Index i) const {
    const Index j = i % rows.visible;
    const Index s = rows.s0 + i / rows.visible;
    if (query < rows.first_query(s) || query >= rows.end_query(s)) return;
    out[s * rows.visible + j] = rows.credit(head, query, s, j);
  }
};

// Edges into one writer at a source, one row per (h, query from the source on):
// k[H, n], v[H, n], q[H].
struct EdgesIn {
  const float* q;            // [S, H, E]
  const float* key;          // [G, E] the writer's key; null: the table has its scores
  const float* table;        // [H, tri, Cl]
  const float* key_coef;     // [H, tri]
  const float* offset;       // [H, S, Cl] or null
  const float* directions;   // [S, H, E] of values
  const float* value;        // [G, E] the writer's
  const float* pattern;      // [H, tri]
  const float* query_edges;  // [S, H, Cl]
  const float* dev;
  float scale;
  float* out;
  Index writer, source, n, heads, group, e, visible, length, pairs;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index h = index / n;
    const Index at = source + index % n;
    const Index pair = h * pairs + pairs_before(at) + source;
    const Index own = (at * heads + h) * e;
    const double v =
        g.sum(e, [&](Index i) { return directions[own + i] * value[h / group * e + i]; });
    double k = 0;
    if (key != nullptr) {
      k = g.sum(e, [&](Index i) { return q[own + i] * key[h / group * e + i]; });
      k *= scale / dev[source];
    } else {
      k = table[pair * visible + writer];
    }
    if (offset != nullptr) k -= offset[(h * length + at) * visible + writer];
    g.each(1, [&](Index) {
      out[index] = key_coef[pair] * k;
      out[heads * n + index] = pattern[pair] * v / dev[source];
      if (at == source)
        out[2 * heads * n + h] = query_edges[(source * heads + h) * visible + writer] / dev[source];
    });
  }
};

}  // namespace unpack::backend::cuda
