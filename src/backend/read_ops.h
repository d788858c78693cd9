// A second face of backends that work in host memory: what direction `read` (docs/method.md,
// section 5) needs of a layer. The code above finds it by dynamic_cast; for a device without it a
// host backend does this work on a copy.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "unpack/options.h"

namespace unpack {

class ReadOps {
 public:
  virtual ~ReadOps() = default;

  // out[rows, H, E] = W_O center(d): directions of the stream [rows, D], those of queries[i], as
  // the heads' values meet them, through the norm behind.
  virtual void head_directions(const AttentionView& view, std::span<const int> queries,
                               std::span<const double> directions, std::vector<double>& out) = 0;

  // What the heads of a layer read when they pass credit on along directions[S, H, E].
  struct HeadReads {
    Array key_coef;                     // [H, tri] cK_s(q), in the order of patterns
    Array query;                        // [S, H, E] folded keys, before rotary and the norm
    Array value;                        // [S, H, E] the directions, times their branch's weight
    std::vector<double> linear, keyed;  // [S, D] reads by V and Q, and by K
    int last = -1;                      // no head passes anything on after this position
  };
  virtual HeadReads head_reads(const AttentionView& view, const AttentionSums& sums,
                               const Options& options, std::span<const double> directions) = 0;

  // out[S, D]: coef[S, entries] times the weights by which a side's neurons read.
  virtual void neuron_reads(const MlpView& view, MlpSide side, Scores scores,
                            std::span<const double> coef, std::vector<double>& out) = 0;

  // [H, S, Cl] the lower median over the sources of a query of centred key scores, whose sums are
  // given.
  virtual Array key_medians(const AttentionView& view, const AttentionSums& sums) = 0;

  // What is taken from key scores before they become credit, [H, S, Cl], or nothing.
  struct KeyOffsets {
    Array raw;     // from raw scores
    Array kept;    // from those of the table
    Array scores;  // [H, tri, Cl] the table, where it is kept
  };
  // out[S, Cl] = sum over heads and queries of coef[h, tri(q) + s] offset[h, q, j].
  virtual void offset_fold(const AttentionView& view, const HeadReads& reads, const Array& offsets,
                           std::vector<double>& out) = 0;

  // out[S, end - first] = < writers[s, j], vectors[s] >, vectors[S, D].
  virtual void position_dots(const Array& writers, int n_writers, int first, int end,
                             std::span<const double> vectors, std::vector<double>& out) = 0;

  // Calls visit(source, head, branch, queries, credit[queries, Cl]) with what a head at source,
  // source + 1, .. passes to every writer at the source by K and V, and by Q what the head at the
  // source itself passes to the writers there (one query); from several threads, all calls of a
  // source from one.
  using EdgeVisitor =
      std::function<void(int source, int head, Branch branch, int queries, const void* credit)>;
  virtual void visit_edges(const AttentionView& view, const HeadReads& reads,
                           const KeyOffsets& offsets, const EdgeVisitor& visit) = 0;
  // The same for one writer at a source, on the calling thread: k, v [H, last + 1 - source], q [H].
  struct EdgesInto {
    std::vector<double> k, q, v;
    int queries = 0;
  };
  virtual EdgesInto edges_into(const AttentionView& view, const HeadReads& reads,
                               const KeyOffsets& offsets, int writer, int source) = 0;
};

}  // namespace unpack
