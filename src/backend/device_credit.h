// What backends have whose memory is far from the host (Backend::device_credit): what passing
// credit on needs, without a round trip for every array. The code above uses it where it is there,
// and the host otherwise.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "backend/mlp_readers.h"
#include "backend/views.h"
#include "unpack/options.h"

namespace unpack::backend {

class DeviceCredit {
 public:
  virtual ~DeviceCredit() = default;

  // For rows of queries q_i, with sources counted over all of them: entry, key_coef [H, sum of (q_i
  // + 1)], query_edge [H, rows, Cl] as credit/edges.h has them. Empty arrays are not wanted; the
  // others have their size. Sums of queries may be missing where neither their edges nor doubt are
  // wanted.
  struct HeadEdges {
    Array entry, key_coef, query_edge;
    Array value_edge;  // [G, S, Cl]
    Array doubt;       // [H, rows]
  };
  virtual void head_edges(const AttentionView& view, const AttentionSums& sums,
                          std::span<const int> queries, const Array& numerators,
                          const Options& options, HeadEdges& out) = 0;

  // edge[rows, Cm] for one side, times its weight; shares[rows, N] of the numerators; doubt[rows]
  // is added to.
  struct NeuronEdges {
    Array edge, shares, doubt;
  };
  virtual void neuron_edges(const MlpView& view, MlpSide side, const MlpSums* sums,
                            const Array& pre, std::span<const int> queries, const Array& numerators,
                            double weight, const Options& options, NeuronEdges& out) = 0;

  // A layer with its edges, all on the device.
  struct Layer {
    AttentionView attention;
    MlpView mlp;
    const AttentionSums* sums = nullptr;
    HeadEdges heads;
    std::array<Array, kMostReaders> neurons;  // [S, Cm] per reader; empty: none
    int first_head = 0;                       // writer of the layer's first head
    int mlp_writer = 0;
  };
  // Edges of nodes that hold direct credit.
  struct Direct {
    int layer = 0;
    std::span<const double> entry, key_coef, query_edge;
    std::array<std::span<const double>, kMostReaders> mlp_edge;
  };
  // Passes credit[S, C] down through all layers, with `first`[C] of direct credit at `position`.
  virtual void sweep(std::span<const Layer> layers, Scores scores, int position,
                     std::span<const double> first, std::span<const Direct> direct,
                     std::vector<double>& credit) = 0;
  // Absolute path mass below every node and the largest product of a path, [S, C]. `begun`: they
  // are there for all below these layers.
  virtual void suffix(std::span<const Layer> layers, Scores scores, int terminals, bool begun,
                      std::vector<double>& mass, std::vector<double>& bound) = 0;
};

}  // namespace unpack::backend
