// Kernels of scores and of the sums behind every denominator.
//
// A tile holds scores of some queries [q0, q0 + nq) and all sources s < ns that any of them sees:
// element (q, s, h, j) lies at (q - q0) * q_stride + s * s_stride + h * pitch + j. Scores in it
// lack their factor g / dev(s) for keys, g / dev(q) for queries, and are there for sources outside
// of a window too: every kernel leaves those out.
#pragma once

#include "backend/cuda/kernel_base.h"
#include "backend/kernels/credit.h"

namespace unpack::backend::cuda {

using PullBack = kernels::PullBack<float>;
using ScaleByRow = kernels::ScaleByRow<float>;
using WriterDots = kernels::WriterDots<float>;

struct Tile {
  float* data;
  Index q0, nq;
  Index s0, ns;  // the sources that some query of it sees
  Index q_stride, s_stride;
  Index head0, heads;  // those from head0 on
  Index visible;
  Index pitch;  // visible and a little more: products write aligned rows faster
  const float* dev;
  int dev_of_source;  // keys: dev(s); queries: dev(q)
  float scale;
  Index window;  // 0: none

  UNPACK_BODY float factor(Index q, Index s) const { return scale / dev[dev_of_source ? s : q]; }
  // Of the tile's own head h.
  UNPACK_BODY float* row(Index q, Index s, Index h) const {
    return data + (q - q0) * q_stride + (s - s0) * s_stride + h * pitch;
  }
};

// Every writer's own key or query in place: norm / dev R(position) x[a, j, h, :].
struct FinishProjected {
  float* x;
  Index visible, heads, e;
  Index position0;
  const float* dev;   // of the norm: [position, heads]
  const float* norm;  // [heads, E]
  Rotary rotary;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const Index h = row % heads;
    const Index position = position0 + row / heads / visible;
    float* v = x + row * e;
    if (norm != nullptr) {
      const float inverse = 1.0F / dev[position * heads + h];
      group.each(e, [&](Index i) { v[i] *= norm[h * e + i] * inverse; });
    }
    rotary.turn(group, v, position);
  }
};

// Mean and deviation over the seen sources of every column (q, h, j); with `centers` the column is
// scaled and centred in the tile.
struct TileMoments {
  Tile tile;
  float* mean;  // [H, S, Cl]; null: not kept
  float* std;
  Index length;
  int centers;
  UNPACK_BODY void operator()(Index i) const {
    const Index j = i % tile.visible;
    const Index h = i / tile.visible % tile.heads;
    const Index q = tile.q0 + i / tile.visible / tile.heads;
    const Index from = base::first_in_window(q, tile.window);
    float* column = tile.row(q, from, h) + j;
    const double n = q + 1 - from;
    const auto value = [&](Index s) {
      return static_cast<double>(column[(s - from) * tile.s_stride] * tile.factor(q, s));
    };
    double total = 0, square = 0, middle = 0;
    if (centers) {
      for (Index s = from; s <= q; ++s) total += value(s);
      middle = total / n;
      for (Index s = from; s <= q; ++s) {
        const double x = value(s) - middle;
        square += x * x;
        column[(s - from) * tile.s_stride] = x;
      }
    } else {
      // Around the first of them nothing cancels that matters, and a tile is read once.
      const double pivot = value(from);
      for (Index s = from; s <= q; ++s) {
        const double x = value(s) - pivot;
        total += x;
        square += x * x;
      }
      middle = pivot + total / n;
      square = fmax(square - total * total / n, 0.0);
    }
    if (mean != nullptr) {
      const Index to = ((tile.head0 + h) * length + q) * tile.visible + j;
      mean[to] = middle;
      std[to] = sqrt(square / n);
    }
  }
};

// Sums over the writers of every (s, q, h) of a tile with s <= q; the scaled rows go into
// table[H, tri, Cl] where it is kept.
struct TileSums {
  Tile tile;
  float* sum;  // [H, tri]; null: not wanted
  float* abs;  // null: rows alone are wanted
  float* table;
  Index pairs;
  Index first;  // pairs before the first that the outputs hold, of all heads
  int scaled;   // the tile holds final scores already
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index index) const {
    const Index h = index % tile.heads;
    const Index q = tile.q0 + index / tile.heads % tile.nq;
    const Index s = tile.s0 + index / tile.heads / tile.nq;
    if (s > q) return;
    const float factor = s < base::first_in_window(q, tile.window) ? 0.0F
                         : scaled                                  ? 1.0F
                                                                   : tile.factor(q, s);
    const float* row = tile.row(q, s, h);
    const Index at = (tile.head0 + h) * pairs + pairs_before(q) - first + s;
    if (abs != nullptr) {
      double total = 0, size = 0;
      group.sums(
          tile.visible,
          [&](Index j, double& a, double& b) {
            const double x = row[j] * factor;
            a += x;
            b += fabs(x);
          },
          total, size);
      group.each(1, [&](Index) {
        if (sum != nullptr) sum[at] = total;
        abs[at] = size;
      });
    }
    if (table != nullptr)
      group.each(tile.visible, [&](Index j) { table[at * tile.visible + j] = row[j] * factor; });
  }
};

// scores[S, G, Cl] -> v_scores[G, S, Cl] / dev(s) and their sums.
struct ValueSums {
  const float* scores;
  const float* dev;
  float* out;
  float* sum;
  float* abs;
  Index length, groups, visible;
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index index) const {
    const Index g = index % groups;
    const Index s = index / groups;
    const float inverse = 1.0F / dev[s];
    const float* row = scores + index * visible;
    const Index at = g * length + s;
    double total = 0, size = 0;
    group.sums(
        visible,
        [&](Index j, double& a, double& b) {
          const float x = row[j] * inverse;
          out[at * visible + j] = x;
          a += x;
          b += fabs(static_cast<double>(x));
        },
        total, size);
    group.each(1, [&](Index) {
      sum[at] = total;
      abs[at] = size;
    });
  }
};

// Where the rows of a tile of neuron scores belong: positions from q0 on, or, of an expert, listed
// ones, and the slot of each.
struct NeuronRows {
  Index q0;
  const int* positions;  // null: q0, q0 + 1, ...
  const int* slots;
  UNPACK_BODY Index position(Index i) const { return positions != nullptr ? positions[i] : q0 + i; }
  UNPACK_BODY Index slot(Index i) const { return slots != nullptr ? slots[i] : q0 + i; }
};

// tile[nq, Cl, N] of neuron scores -> sum (null: not wanted), abs [S or slots, N] over the writers.
// Eight writers are added in single precision, then in double.
struct NeuronSums {
  const float* tile;
  const float* dev;
  float* sum;
  float* abs;
  NeuronRows rows;
  Index visible, neurons;
  int adds;  // abs has those of other writers
  UNPACK_BODY void operator()(Index i) const {
    const Index q = rows.position(i / neurons);
    const Index to = rows.slot(i / neurons);
    const Index n = i % neurons;
    const float* column = tile + i / neurons * visible * neurons + n;
    double total = 0, size = 0;
    Index j = 0;
    for (; j + 8 <= visible; j += 8) {
      float part = 0, part_size = 0;
      for (Index x = 0; x < 8; ++x) {
        const float v = column[(j + x) * neurons];
        part += v;
        part_size += fabsf(v);
      }
      total += part;
      size += part_size;
    }
    for (; j < visible; ++j) {
      const float v = column[j * neurons];
      total += v;
      size += fabsf(v);
    }
    const double inverse = 1.0 / dev[q];
    if (sum != nullptr) sum[to * neurons + n] = total * inverse;
    float& all = abs[to * neurons + n];
    all = adds ? all + size * inverse : size * inverse;
  }
};

struct NeuronNorms {  // l2[S or slots, width] of the writers from `first` on
  const float* tile;
  const float* dev;
  float* l2;
  NeuronRows rows;
  Index visible, neurons;
  Index width, first;
  const int* columns;  // in place of first, first + 1, ...; null: none
  template <typename Group>
  UNPACK_BODY void operator()(Group& group, Index row) const {
    const Index q = rows.position(row / visible);
    const Index to = rows.slot(row / visible);
    const float* v = tile + row * neurons;
    const double square = group.sum(neurons, [&](Index n) { return v[n] * v[n]; });
    group.each(1, [&](Index) {
      const Index j = row % visible;
      l2[to * width + (columns != nullptr ? static_cast<Index>(columns[j]) : first + j)] =
          sqrt(square) / dev[q];
    });
  }
};

// rows[n, cols] with 0 before row `from`, and with `centers` the others less the mean of theirs in
// every column.
struct CenterColumns {
  float* rows;
  Index from, n, cols;
  int centers;
  UNPACK_BODY void operator()(Index j) const {
    for (Index s = 0; s < from; ++s) rows[s * cols + j] = 0;
    if (!centers) return;
    double total = 0;
    for (Index s = from; s < n; ++s) total += rows[s * cols + j];
    const double mean = total / (n - from);
    for (Index s = from; s < n; ++s) rows[s * cols + j] = rows[s * cols + j] - mean;
  }
};

}  // namespace unpack::backend::cuda
