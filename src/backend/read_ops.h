// The operations of direction `read` (docs/method.md, section 5) on a layer. Where the memory of a
// device is far from the host, some of it (the last part below) is done there without the edges
// ever coming up.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "backend/views.h"
#include "base/index.h"
#include "unpack/options.h"

namespace unpack::backend {

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
    // [H] positions between which a head passes anything on; a device may leave it empty.
    struct Positions {
      int first = 0, end = 0;
    };
    std::vector<Positions> active;
    Array query_edges;  // [S, H, Cl] and
    Array values;       // [S, Cl, G, E] of every writer: see writer_values and keep_for_edges
    Array keys;         // the same of what queries meet, see writer_keys
  };
  virtual HeadReads head_reads(const AttentionView& view, const AttentionSums& sums,
                               const Options& options, std::span<const double> directions) = 0;

  // [S, Cl, G, E] what the heads' values see of every writer, which all questions about edges
  // share; empty where a device keeps it by itself.
  virtual Array writer_values(const AttentionView&) { return {}; }
  // The same of keys as queries meet them, through the norm of keys, rotary and the attention's
  // scale.
  virtual Array writer_keys(const AttentionView&) { return {}; }
  // What the passes over the edges of one question would compute over and over, where a device
  // keeps it.
  virtual void keep_for_edges(const AttentionView&, HeadReads&) {}

  // [rows, k] sums over the neurons of every slot of a mixture.
  virtual Array slot_sums(const Array& entries, Index neurons) = 0;
  // coef[rows, n] = weight own / SafeDenom of the sums, or own / pre where pre is given.
  struct NeuronCredit {
    Array coef;
    std::vector<double> credit;    // [rows] sums of own
    double passed = 0, doubt = 0;  // of |own|; the second what met ill-conditioned denominators
  };
  virtual NeuronCredit neuron_credit(const Array& own, Index rows, const Array* pre,
                                     const MlpSums* sums, double beta, double weight) = 0;
  // out[S, D]: coef[S, entries] times the weights by which a side's neurons read.
  virtual void neuron_reads(const MlpView& view, MlpSide side, Scores scores, const Array& coef,
                            std::vector<double>& out) = 0;

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

  // Calls visit(edges) with what a head at some queries, from the source on, passes to every writer
  // at the source by K and V, and by Q what the head at the source itself passes to the writers
  // there; queries that pass nothing on may be left out. From several threads, all calls of a
  // source from one.
  struct Edges {
    int source, head;
    Branch branch;
    int first, queries;  // first, first + 1, ..
    const void* credit;  // [queries, Cl]
  };
  using EdgeVisitor = std::function<void(const Edges&)>;
  virtual void visit_edges(const AttentionView& view, const HeadReads& reads,
                           const KeyOffsets& offsets, const EdgeVisitor& visit) = 0;
  // What the head at a query passes to every writer at every source, by K, Q and V: [S, Cl].
  struct EdgesFrom {
    std::vector<double> k, q, v;
  };
  virtual EdgesFrom edges_from(const AttentionView& view, const HeadReads& reads,
                               const KeyOffsets& offsets, int head, int query) = 0;
  // What heads pass to one writer at a source, in several layers: k, v [H, last + 1 - source], q
  // [H].
  struct LayerReads {
    AttentionView view;
    const HeadReads* reads = nullptr;
    const KeyOffsets* offsets = nullptr;
  };
  struct EdgesInto {
    std::vector<double> k, q, v;
    int queries = 0;
  };
  virtual std::vector<EdgesInto> edges_into(std::span<const LayerReads> layers, int writer,
                                            int source) = 0;

  // Sums over all edges of a layer's heads, where a device can take them by itself; false: it
  // cannot, and visit_edges is the way. Branches in the order K, Q, V.
  //
  // Ways from above that reach the heads, [3, slots, H, S]: the largest, and the sum of all.
  struct WaysAbove {
    int slots = 1;
    std::vector<double> bound, mass;
    int terminals = 0;
    std::array<int, 2> end_slot{};  // which of them count at emb and pos
    bool filtered = false;          // otherwise nobody asks for masses, or for ends by their sign
  };
  // The same over the edges into every writer: sum [S, Cl] of |credit|; bound, mass [slots, S, Cl];
  // those of paths that end, by sign [2, S, terminals].
  struct WaysBelow {
    std::vector<double> sum, bound, mass, end_bound, end_mass;
  };
  virtual bool pass_ways(const AttentionView&, const HeadReads&, const KeyOffsets&,
                         const WaysAbove&, WaysBelow&) {
    return false;
  }
  // out[H, S] = sum over edges of |credit| below[S, C].
  virtual bool edge_masses(const AttentionView&, const HeadReads&, const KeyOffsets&,
                           std::span<const double>, std::vector<double>&) {
    return false;
  }
  // out[3, H, Cl]: credit over all positions; with positions [S, 3, H, Cl], over the readers'.
  virtual bool edge_totals(const AttentionView&, const HeadReads&, const KeyOffsets&, bool,
                           std::vector<double>&) {
    return false;
  }
};

}  // namespace unpack::backend
