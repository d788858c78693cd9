// The factors by which a node passes credit on, for one set of options. They do not depend on the
// path, the target or the root.
//
// Head (l,h)@q -> writer j@s by K: key_coef[h,q,s] * sK_j(q,s); by V: entry[h,q,s] *
// value_edge[g,s,j]; -> j@q by Q: query_edge[h,q,j]. MLP l@q -> j@q: mlp_edge[side][q,j]. Branch
// weights are inside. Readers of an MLP stand in the order of backend/mlp_readers.h.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/device_credit.h"
#include "backend/mlp_readers.h"
#include "base/index.h"
#include "decompose/decomposition.h"
#include "unpack/options.h"

namespace unpack::credit {

template <typename T>
struct LayerEdges {
  std::vector<T> entry;                                        // [H, tri] Stage 1 shares
  std::vector<T> key_coef;                                     // [H, tri]
  std::vector<T> query_edge;                                   // [H, S, Cl]
  std::vector<T> value_edge;                                   // [G, S, Cl]
  std::array<std::vector<T>, backend::kMostReaders> mlp_edge;  // [S, Cm] per reader; empty: none
  std::vector<double>
      head_doubt;  // [H, S] part of a node's credit that passes ill-conditioned denominators
  std::vector<double> mlp_doubt;  // [S]
};

// The same for heads and the MLP of one layer at one query, in the direction of a target.
struct DirectEdges {
  int layer = 0;
  int query = 0;
  std::vector<double> entry;                                        // [H, q + 1]
  std::vector<double> key_coef;                                     // [H, q + 1]
  std::vector<double> query_edge;                                   // [H, Cl]
  std::array<std::vector<double>, backend::kMostReaders> mlp_edge;  // [Cm]
  std::vector<double> neuron_share;                                 // [entries]
};

// What the entries of a layer's nodes are shared out by: their numerators, or with dispatch gate
// the patterns [H, tri] and activations [S, entries] alone.
backend::Array head_entries(const decompose::Decomposition& d, const Options& options, int layer);
backend::Array neuron_entries(const decompose::Decomposition& d, const Options& options, int layer);

// A target whose direct edges are wanted for all layers.
struct EdgesTarget {
  int query = 0;
  backend::Array direction;  // [D]
};

// Entries and key coefficients of one node, [q + 1].
template <typename T>
struct HeadRow {
  std::shared_ptr<const T> entry, key_coef;
};

// A layer with the sums that belong to it.
struct DeviceLayer {
  std::shared_ptr<const backend::AttentionSums> sums;
  backend::DeviceCredit::Layer layer;
};

template <typename T>
class Edges;

// Who goes along while the edges of a long prompt are built, from the lowest layer up: it makes the
// sums of a layer's heads, from what it knows of the layers below, and then sees its edges.
template <typename T>
class EdgesCompanion {
 public:
  virtual ~EdgesCompanion() = default;
  virtual backend::AttentionSums sums(int layer) = 0;
  virtual void built(const Edges<T>& edges, int layer) = 0;
  // A layer of a prompt that a device traces layer by layer, in place of both.
  virtual void built(backend::DeviceCredit& device, const backend::DeviceCredit::Layer& layer,
                     Scores scores) = 0;
};

template <typename T>
class Edges {
 public:
  // `target`: the first that direct() will be asked for, all layers. A device makes those edges on
  // the way, so that it walks over the layers once. Unless `whole`, an MLP that nobody but a target
  // reads (Decomposition::neurons_when_asked) may have no edges but those of direct(). The
  // companion is asked where there are no sums yet and no table of scores.
  Edges(std::shared_ptr<const decompose::Decomposition> decomposition, const Options& options,
        const RunContext& context, const EdgesTarget* target = nullptr, bool whole = true,
        EdgesCompanion<T>* companion = nullptr);

  const decompose::Decomposition& decomposition() const { return *decomposition_; }
  const Options& options() const { return options_; }
  const LayerEdges<T>& layer(int l) const;
  // The same, but what heads have of long prompts may still be on the device and missing here;
  // head_row, query_row and value_rows have those of a node. `keys`: its key_rows.
  const LayerEdges<T>& light(int l) const { return layers_[l]; }
  HeadRow<T> head_row(int layer, int head, int query, const std::shared_ptr<const T>& keys) const;
  std::shared_ptr<const T> query_row(int layer, int head, int query) const;    // [Cl]
  std::shared_ptr<const T> value_rows(int layer, int group, int query) const;  // [q + 1, Cl]
  // The edges where the backend's arrays are, if it can pass credit on there; null otherwise.
  backend::DeviceCredit* device() const { return device_; }
  // All of them, or nothing where the prompt is traced layer by layer.
  const std::vector<backend::DeviceCredit::Layer>& device_layers() const { return device_layers_; }
  bool by_layer() const { return device_ != nullptr && decomposition_->by_layer(); }
  // One layer, whose entries and key coefficients are made again.
  DeviceLayer device_layer(int l) const;
  std::vector<DirectEdges> direct(std::span<const int> layers, int query,
                                  const backend::Array& direction) const;
  // Stage 1 shares over the neurons of an MLP in the direction of its own output.
  std::vector<double> neuron_shares(int layer, int query) const;

  // Key scores [(q + 1), Cl] of one node, from the table or computed now.
  std::shared_ptr<const T> key_rows(int layer, int head, int query) const;
  // The same of all heads at a query, [H, (q + 1), Cl], where there is no table.
  std::shared_ptr<const T> key_rows_of_heads(int layer, int query) const;
  // Calls visit(head, query, rows) for every node of the layer, from several threads.
  void visit_keys(int layer,
                  const std::function<void(int head, int query, const T* rows)>& visit) const;
  bool has_table() const { return decomposition_->keeps_key_scores(options_.scores); }

 private:
  DirectEdges direct(int layer, int query, const backend::Array& direction) const;
  void each_layer(int tasks, bool small, const std::function<void(Index)>& task) const;
  HeadRow<T> row_made_again(int layer, int head, int query, const T* keys) const;
  void build_attention(int l, const backend::AttentionSums& sums, LayerEdges<T>& out) const;
  void build_mlp(int l, LayerEdges<T>& out, const RunContext& context) const;
  // Sums of a side's neurons, and the row of theirs where those of the query begin.
  struct SideSums {
    backend::MlpSums sums;
    bool one = false;  // of the only query
  };
  SideSums side_sums(int l, backend::MlpSide side, std::span<const int> queries) const;
  // numerators[rows, entries] in the given direction -> edges[rows, Cm] per reader.
  std::array<std::vector<double>, backend::kMostReaders> mlp_edges(
      int l, std::span<const int> queries, std::vector<double> numerators,
      std::vector<double>* doubt) const;

  std::shared_ptr<const decompose::Decomposition> decomposition_;
  Options options_;
  mutable std::mutex mutex_;
  mutable std::vector<LayerEdges<T>> layers_;
  std::vector<std::shared_ptr<const void>>
      tables_;  // key scores of every layer in host memory, unless they stay on the device
  backend::DeviceCredit* device_ = nullptr;
  EdgesTarget target_;
  std::vector<DirectEdges> towards_target_;
  std::vector<backend::DeviceCredit::Layer> device_layers_;
  mutable int whole_layer_ = -1;  // which layer() made last of a prompt traced layer by layer
};

extern template class Edges<float>;
extern template class Edges<double>;

}  // namespace unpack::credit
