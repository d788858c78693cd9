// Kernels that pass credit down a layer, and masses and bounds of paths up. Credit, mass and bound
// are [S, C] in double.
#pragma once

#include "backend/cuda/kernel_base.h"
#include "backend/cuda/kernels_scores.h"

namespace unpack::backend::cuda {

// Edges towards a target or from a direct root, at one position; null pointers where a layer has
// none.
struct DirectPart {
  const double* credit;  // [C]
  Index position;
  const float* entry;  // [H, position + 1]
  const float* key_coef;
  const float* query_edge;  // [H, Cl]
  const float* mlp_edge[3];
};

struct PassNeurons {  // one row per position
  double* credit;
  const float* edge[3];  // [S, Cm] per reader; null: none
  DirectPart direct;
  Index writers, visible, writer;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index q) const {
    const double own = credit[q * writers + writer];
    const bool also = direct.mlp_edge[0] != nullptr && q == direct.position;
    const double extra = also ? direct.credit[writer] : 0.0;
    g.each(visible, [&](Index j) {
      double x = 0;
      for (int side = 0; side < 3; ++side) {
        if (edge[side] == nullptr) continue;
        x += own * edge[side][q * visible + j];
        if (also && direct.mlp_edge[side] != nullptr) x += extra * direct.mlp_edge[side][j];
      }
      credit[q * writers + j] += x;
    });
  }
};

struct KeyCredit {  // out[H, tri] = credit of (q, h) times its key coefficients, one row per (h, q)
  const double* credit;
  const float* key_coef;
  float* out;
  DirectPart direct;
  Index writers, first_head, length, pairs;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index h = index / length;
    const Index q = index % length;
    const double own = credit[q * writers + first_head + h];
    const bool also = direct.key_coef != nullptr && q == direct.position;
    const double extra = also ? direct.credit[first_head + h] : 0.0;
    const Index at = h * pairs + pairs_before(q);
    g.each(q + 1, [&](Index s) {
      double x = own * key_coef[at + s];
      if (also) x += extra * direct.key_coef[h * (q + 1) + s];
      out[at + s] = x;
    });
  }
};

struct KeysOfOne {    // out[S] of the one visible writer (QueriesOfOne), one row per source
  const float* coef;  // [H, tri]
  const float* sum;
  float* out;
  Index heads, length, pairs;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index s) const {
    const Index queries = length - s;
    const double total = g.sum(heads * queries, [&](Index i) {
      const Index at = i / queries * pairs + pairs_before(s + i % queries) + s;
      return static_cast<double>(coef[at]) * sum[at];
    });
    g.each(1, [&](Index) { out[s] = total; });
  }
};

struct ValueCredit {  // out[G, S] = what reaches the values of a source
  const double* credit;
  const float* entry;
  double* out;
  DirectPart direct;
  Index writers, first_head, length, pairs, group;
  UNPACK_BODY void operator()(Index i) const {
    const Index kv = i / length;
    const Index s = i % length;
    double total = 0;
    for (Index h = kv * group; h < (kv + 1) * group; ++h) {
      for (Index q = s; q < length; ++q)
        total += credit[q * writers + first_head + h] * entry[h * pairs + pairs_before(q) + s];
      if (direct.entry != nullptr && s <= direct.position)
        total += direct.credit[first_head + h] * direct.entry[h * (direct.position + 1) + s];
    }
    out[i] = total;
  }
};

struct CenteredKeys {  // dots[S, Cl] -= sum over heads and q >= s of coef[h, q, s] mean[h, q, j]
  const float* coef;
  const float* mean;
  float* dots;
  Index length, pairs, heads, visible;
  UNPACK_BODY void operator()(Index i) const {
    const Index s = i / visible;
    double total = 0;
    for (Index h = 0; h < heads; ++h) {
      for (Index q = s; q < length; ++q) {
        total += static_cast<double>(coef[h * pairs + pairs_before(q) + s]) *
                 mean[(h * length + q) * visible + i % visible];
      }
    }
    dots[i] = dots[i] - total;
  }
};

struct PassHeads {  // all branches of a layer's heads into what they read, one row per position
  double* credit;
  const float* keys;  // [S, Cl] folded
  const float* query_edge;
  const float* value_edge;
  const double* values;  // [G, S]
  DirectPart direct;
  Index writers, first_head, length, heads, groups, visible;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index s) const {
    g.each(visible, [&](Index j) {
      double x = keys[s * visible + j];
      for (Index h = 0; h < heads; ++h) {
        x += credit[s * writers + first_head + h] * query_edge[(h * length + s) * visible + j];
        if (direct.query_edge != nullptr && s == direct.position)
          x += direct.credit[first_head + h] * direct.query_edge[h * visible + j];
      }
      for (Index kv = 0; kv < groups; ++kv)
        x += values[kv * length + s] * value_edge[(kv * length + s) * visible + j];
      credit[s * writers + j] += x;
    });
  }
};

// Masses and bounds
// -------------------------------------------------------------------------------------------------

struct Reach {
  double* mass;   // [S, C]
  double* bound;  // [S, C]
  Index writers;
};

struct StartReach {  // emb and pos: the empty product
  Reach reach;
  Index terminals;
  UNPACK_BODY void operator()(Index i) const {
    const double one = i % reach.writers < terminals ? 1.0 : 0.0;
    reach.mass[i] = one;
    reach.bound[i] = one;
  }
};

struct RowReach {  // out_mass[r], out_bound[r] over the edges rows[r, Cl] to the writers of
                   // position r % length
  const float* rows;
  Reach reach;
  double* out_mass;
  double* out_bound;
  Index length, visible;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index r) const {
    const float* row = rows + r * visible;
    const double* mass = reach.mass + r % length * reach.writers;
    const double* bound = reach.bound + r % length * reach.writers;
    double total = 0, most = 0;
    g.sum_and_most(
        [&](Index first, Index step, double& a, double& b) {
          for (Index j = first; j < visible; j += step) {
            const double x = fabsf(row[j]);
            a += x * mass[j];
            b = fmax(b, x * bound[j]);
          }
        },
        total, most);
    g.each(1, [&](Index) {
      out_mass[r] = total;
      out_bound[r] = most;
    });
  }
};

// Keys of (h, q) and some sources: from the table of final scores, or from a tile that lacks its
// factors. A row for every part of the sources: one that goes over all of a long prompt's leaves
// most of the device idle.
struct KeyReach {
  static constexpr Index kSources = 16;
  Tile tile;           // with table: only q0, nq and the heads count
  const float* table;  // [H, tri, Cl] or null
  int scaled;
  const float* key_coef;  // [H, tri]
  Reach reach;
  double* out_mass;  // [H, S, parts]
  double* out_bound;
  Index length, pairs, visible, window, parts;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index part = index % parts;
    const Index h = tile.head0 + index / parts % tile.heads;
    const Index q = tile.q0 + index / parts / tile.heads;
    const Index at = h * pairs + pairs_before(q);
    const Index seen = base::first_in_window(q, window), own = part * kSources;
    const Index from = seen > own ? seen : own;
    const Index end = q + 1 < own + kSources ? q + 1 : own + kSources;
    double total = 0, most = 0;
    g.sum_and_most(
        [&](Index first, Index step, double& a, double& b) {
          for (Index s = from; s < end; ++s) {
            const float* row =
                table != nullptr ? table + (at + s) * visible : tile.row(q, s, h - tile.head0);
            const double coef = fabsf(key_coef[at + s]) * (scaled ? 1.0 : tile.factor(q, s));
            const double* mass = reach.mass + s * reach.writers;
            const double* bound = reach.bound + s * reach.writers;
            for (Index j = first; j < visible; j += step) {
              const double x = coef * fabsf(row[j]);
              a += x * mass[j];
              b = fmax(b, x * bound[j]);
            }
          }
        },
        total, most);
    g.each(1, [&](Index) {
      out_mass[(h * length + q) * parts + part] = total;
      out_bound[(h * length + q) * parts + part] = most;
    });
  }
};

// Masses and bounds of a position's writers in units of the largest, as floats. One row a position.
struct ReachInUnits {
  Reach reach;
  float* mass;   // [S, C]
  float* bound;  // [S, C]
  double* unit;  // [S, {mass, bound}]
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index s) const {
    const double* m = reach.mass + s * reach.writers;
    const double* b = reach.bound + s * reach.writers;
    const double mass_unit = g.largest(reach.writers, [&](Index j) { return m[j]; });
    const double bound_unit = g.largest(reach.writers, [&](Index j) { return b[j]; });
    const double by_mass = mass_unit > 0 ? 1.0 / mass_unit : 0.0;
    const double by_bound = bound_unit > 0 ? 1.0 / bound_unit : 0.0;
    g.each(reach.writers, [&](Index j) {
      mass[s * reach.writers + j] = m[j] * by_mass;
      bound[s * reach.writers + j] = b[j] * by_bound;
    });
    g.each(1, [&](Index) {
      unit[2 * s] = mass_unit;
      unit[2 * s + 1] = bound_unit;
    });
  }
};

// Keys of (h, q) from sums of all writers of every source; in one part. Scores had 22 bits there,
// and bounds are made larger by more than that.
struct KeyPairReach {
  const float* mass;  // [H, tri] in units
  const float* bound;
  const double* unit;
  const float* key_coef;  // [H, tri]
  double* out_mass;       // [H, S]
  double* out_bound;
  Index length, pairs, window;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    constexpr double kMore = 1.0 + 1.0 / 8192;
    const Index h = index / length;
    const Index q = index % length;
    const Index at = h * pairs + pairs_before(q);
    const Index from = base::first_in_window(q, window);
    double total = 0, most = 0;
    g.sum_and_most(
        [&](Index first, Index step, double& a, double& b) {
          for (Index s = from + first; s <= q; s += step) {
            const double coef = fabsf(key_coef[at + s]);
            a += coef * mass[at + s] * unit[2 * s];
            b = fmax(b, coef * bound[at + s] * unit[2 * s + 1]);
          }
        },
        total, most);
    g.each(1, [&](Index) {
      out_mass[index] = total;
      out_bound[index] = most * kMore;
    });
  }
};

struct HeadReach {  // all branches of (h, q), one row each
  Reach reach;
  const double* key_mass;  // [H, S, parts]
  const double* key_bound;
  const double* query_mass;  // [H, S]
  const double* query_bound;
  const double* value_mass;  // [G, S]
  const double* value_bound;
  const float* entry;  // [H, tri]
  Index first_head, length, pairs, group, parts;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index h = index / length;
    const Index q = index % length;
    const float* e = entry + h * pairs + pairs_before(q);
    const Index values = h / group * length;
    double total = 0, most = 0;
    g.sum_and_most(
        [&](Index first, Index step, double& a, double& b) {
          for (Index s = first; s <= q; s += step) {
            const double x = fabsf(e[s]);
            a += x * value_mass[values + s];
            b = fmax(b, x * value_bound[values + s]);
          }
          for (Index p = first; p < parts; p += step) {
            a += key_mass[index * parts + p];
            b = fmax(b, key_bound[index * parts + p]);
          }
        },
        total, most);
    g.each(1, [&](Index) {
      const Index to = q * reach.writers + first_head + h;
      reach.mass[to] = total + query_mass[index];
      reach.bound[to] = fmax(most, query_bound[index]);
    });
  }
};

struct NeuronReach {  // mass and bound of an MLP at every position, all readers
  Reach reach;
  const double* mass[3];  // [S]; null: no such reader
  const double* bound[3];
  Index writer;
  UNPACK_BODY void operator()(Index q) const {
    double total = 0, most = 0;
    for (int side = 0; side < 3; ++side) {
      if (mass[side] == nullptr) continue;
      total += mass[side][q];
      most = fmax(most, bound[side][q]);
    }
    reach.mass[q * reach.writers + writer] = total;
    reach.bound[q * reach.writers + writer] = most;
  }
};

}  // namespace unpack::backend::cuda
