// The backends that work in host memory, templated on the scalar, over a tile GEMM that the
// device-specific class provides. One class a file, each on top of the one before: weights and
// memory, the forward pass, products of weights, raw scores of keys and queries and their sums, the
// scores of heads, the scores of neurons, credit.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/credit_on_queries.h"
#include "backend/expert_rows.h"
#include "backend/host/host_base.h"
#include "backend/host/kernels.h"
#include "backend/score_plan.h"
#include "base/index.h"
#include "base/once.h"
#include "base/scratch.h"
#include "base/thread_pool.h"
#include "unpack/writers.h"

namespace unpack::backend {

// Weight products: what heads write is z W_O, so that z (W_O C W) needs d_model / d_head times
// fewer operations than the writer itself, once the product is there. It depends on the weights
// alone.
template <typename T>
class HostProducts : public HostForward<T> {
 protected:
  UNPACK_HOST_NAMES;

 public:
  HostProducts(std::shared_ptr<const model::ModelWeights> weights, const BackendOptions& options);
  std::vector<DevicePlan::Part> plan(const Writers& writers, int tokens, bool by_layer) override;

 protected:
  LayerPlan plan_of(int layer, int length) const;

  // Those of all heads of the first layers with panels of w, [panel][source, head][E, columns], the
  // columns in panels as kernels.h has them.
  Index product_size(const Panels<T>& w, int sources) const;  // of one panel
  void make_products(const Panels<T>& w, int sources, Index first, Index count, T* out);
  // All panels of a layer's neurons where the model keeps them.
  std::shared_ptr<const PanelValues<T>> kept_products(int index, MlpSide side);
  void add_with_products(const MlpView& view, const T* products, const Panels<T>& in, Index p,
                         Index begin, Index positions, double* sum, double* square, T* last);
  // b[depth, n], whose rows lie one after the other, as the right side of a product.
  static InPanels<T> in_panels(const T* b, Index depth, Index n, base::Scratch& packed);
  // A product of what a head wrote becomes one of its z with a product of weights; of other writers
  // it stays.
  template <typename Product>
  void through_weights(const std::vector<const Array*>& z, const Writer& writer, Index position,
                       const T* products, Index columns, Product& product) const {
    if (writer.kind != WriterKind::head) return;
    const Index e = config_.d_head, row = config_.n_heads * e, head = writer.head * e;
    product.depth = e;
    product.a = ptr(*z[writer.layer]) + position * row + head;
    product.lda = row;
    product.b = InPanels<T>::packed(products + (writer.layer * row + head) * columns, e);
  }

 private:
  struct Kept {
    base::Once once;
    std::shared_ptr<const PanelValues<T>> data;
  };
  std::vector<Kept> kept_;  // two sides a layer, or empty
};

// Raw scores of keys and queries.
template <typename T>
class HostPairs : public HostProducts<T> {
 protected:
  UNPACK_HOST_NAMES;

 public:
  using HostProducts<T>::HostProducts;

 protected:
  using typename HostBase<T>::RotaryTable;
  using Rows = std::function<void(int head, int query, T* rows)>;  // rows[(q + 1), Cl]

  // The adjoint of n_K (n_Q) and R at a position: what a query (key) looks like from before rotary
  // and the norm. `head` is the key's (query's) own; dev is [S, heads].
  struct PullBack {
    const RotaryTable* table;
    const std::vector<T>& norm;  // [heads, E]
    const T* dev;
    int heads;
    Index e;
    bool changes() const { return table != nullptr || !norm.empty(); }
    void operator()(Index position, Index head, T* u) const;
  };
  PullBack key_pull(const AttentionView& view, const RolePanels<T>& w, const RotaryTable* table);
  PullBack query_pull(const AttentionView& view, const RolePanels<T>& w, const RotaryTable* table);

  bool folds(const AttentionView& view) const;
  void key_pass(const AttentionView& view, T* table, const Rows& rows);
  void query_pass(const AttentionView& view, const Rows& rows);
  void hide(const AttentionView& view, int query, T* rows) const;
  // Every writer as a key (query) of the heads of one panel, scaled, normed and turned:
  // out[head, S, Cl, E], which one panel leaves to the next.
  void projected(const AttentionView& view, const Panels<T>& w, Index p, bool low_rank,
                 const PullBack& forth, Array& out);

 private:
  void folded_keys(const AttentionView& view, const RolePanels<T>& w, T* table);
  void folded_queries(const AttentionView& view, const RolePanels<T>& w, const Rows& rows);
  void projected_keys(const AttentionView& view, const RolePanels<T>& w, const Rows& rows);
  void projected_queries(const AttentionView& view, const RolePanels<T>& w, const Rows& rows);
};

// Sums over projected keys and queries.
template <typename T>
class HostPairSums : public HostPairs<T> {
 protected:
  UNPACK_HOST_NAMES;

 public:
  using HostPairs<T>::HostPairs;
  bool visit_key_reach(const AttentionView& view, std::span<const double> mass,
                       std::span<const double> bound, const Backend::ReachVisitor& visit) override;

 protected:
  // Masses and bounds of writers at a source over the largest of them, so that none is too large
  // for single precision.
  struct Weighed {
    std::vector<T> scaled;     // [S, {mass, bound}, Cl]
    std::vector<double> unit;  // [S, {mass, bound}]
  };
  static Weighed weighed(const AttentionView& view, std::span<const double> mass,
                         std::span<const double> bound);
  // What goes with the sums of keys: the scores themselves, or what they lead to.
  struct KeyExtras {
    T* table = nullptr;
    const Weighed* below = nullptr;
    Backend::PairReach* reach = nullptr;
  };
  // Sums of raw scores that are projected, and the moments of those of keys.
  void key_sums(const AttentionView& view, AttentionSums& sums, const KeyExtras& extras);
  void query_sums(const AttentionView& view, AttentionSums& sums);

 private:
  // Sums of one head's queries [begin, begin + n), of all sources.
  struct KeyBlock {
    Index head, begin, n;
    const T* keys;  // [S, Cl, E]
  };
  void tabled_block(const AttentionView& view, const KeyBlock& block, AttentionSums& sums,
                    T* table);
  void summed_block(const AttentionView& view, const KeyBlock& block, AttentionSums& sums,
                    const KeyExtras& extras);
  using KeyBlocks = std::function<void(const KeyBlock& block)>;
  void each_key_block(const AttentionView& view, const KeyBlocks& task);
};

template <typename T>
class HostHeads : public HostPairSums<T> {
 protected:
  UNPACK_HOST_NAMES;

 public:
  using HostPairSums<T>::HostPairSums;
  AttentionSums attention_sums(const AttentionView& view, Scores scores,
                               bool keep_key_scores) override;
  bool sums_with_reach(const AttentionView& view, std::span<const double> mass,
                       std::span<const double> bound, AttentionSums& sums,
                       Backend::PairReach& reach) override;
  bool adds_keys_up(int length) const override;
  void key_scores(const AttentionView& view, Scores scores, int head, int query,
                  Array& out) override;
  void key_scores_of_heads(const AttentionView& view, Scores scores, int query,
                           Array& out) override;
  void query_scores(const AttentionView& view, Scores scores, int head, int query,
                    Array& out) override;
  void visit_key_scores(const AttentionView& view, Scores scores,
                        const Backend::KeyVisitor& visit) override;

 private:
  // Sums of keys and queries, and moments, with nothing in them yet.
  AttentionSums empty_sums(const AttentionView& view);
  struct HeadRange {
    int first, count;
  };
  void key_scores_of(const AttentionView& view, Scores scores, HeadRange heads, int query, T* out);
  void value_scores(const AttentionView& view, const RolePanels<T>& w, AttentionSums& sums);
};

template <typename T>
class HostNeurons : public HostHeads<T> {
 protected:
  UNPACK_HOST_NAMES;

 public:
  using HostHeads<T>::HostHeads;
  MlpSums mlp_sums(const MlpView& view, MlpSide side, Scores scores) override;
  void mlp_scores(const MlpView& view, MlpSide side, Scores scores, int query, Array& out) override;

 protected:
  static const Panels<T>& panels(const RolePanels<T>& w, MlpSide side) {
    return w.matrix(Backend::matrix_of(side));
  }

 private:
  struct NeuronPanels {
    Index first, count;
    const T* products;  // of the heads, or null: every writer is multiplied as it is
  };
  void neuron_panels(const MlpView& view, const Panels<T>& in, const NeuronPanels& some,
                     MlpSums& sums, std::vector<double>& squares);
  MlpSums router_sums(const MlpView& view, Scores scores);
  MlpSums expert_sums(const MlpView& view, MlpSide side);
  // [Cl, k]
  void router_scores(const MlpView& view, Scores scores, int query, T* out);
  Index positions_together(const Panels<T>& in, Index writers, Index length) const;
};

template <typename T>
class HostBackend : public HostNeurons<T>, public CreditOnQueries {
 protected:
  UNPACK_HOST_NAMES;

 public:
  using HostNeurons<T>::HostNeurons;
  using typename CreditOnQueries::Credit;
  CreditOnQueries* credit_on_queries() override { return this; }
  void fold_keys_with(const AttentionView& view, const Credit& of,
                      std::span<double> folded) override;
  void read_folded(const Array& writers, int n_writers, int first, int end,
                   std::span<const double> folded, std::vector<double>& out) override;
  void query_fold(const AttentionView& view, std::span<const int> queries,
                  std::span<const double> coef, std::vector<double>& out) override;
  void mlp_fold(const MlpView& view, MlpSide side, Scores scores, std::span<const int> queries,
                std::span<const double> coef, std::vector<double>& out) override;

 protected:
  using typename Backend::Rows;
  void sum_values(const AttentionView& view, const Rows& rows, const Array& pulled,
                  Array& out) override;
  Array sum_keys(const AttentionView& view, const Rows& rows, const Array& coef) override;
  Array sum_queries(const AttentionView& view, const Array& coef) override;

 private:
  Array weighed_queries(const AttentionView& view, const T* coef, const Credit* credit,
                        double unit);
};

template <typename T>
class HostReads : public HostBackend<T> {
 protected:
  using HostBase<T>::config_, HostBase<T>::pool_, HostBase<T>::ptr, HostBase<T>::uninitialized,
      HostBase<T>::gemm, HostBase<T>::layer, HostBase<T>::multiply_transposed, HostBase<T>::rotary;

 public:
  using HostBackend<T>::HostBackend;
  using typename ReadOps::HeadReads, typename ReadOps::NeuronCredit;
  HeadReads head_reads(const AttentionView& view, const AttentionSums& sums, const Options& options,
                       std::span<const double> directions) override;
  NeuronCredit neuron_credit(const Array& own, Index rows, const Array* pre, const MlpSums* sums,
                             double beta, double weight) override;
  void neuron_reads(const MlpView& view, MlpSide side, Scores scores, const Array& coef,
                    std::vector<double>& out) override;
  Array key_medians(const AttentionView& view, const AttentionSums& sums) override;
  void offset_fold(const AttentionView& view, const HeadReads& reads, const Array& offsets,
                   std::vector<double>& out) override;
};

// Its edges, one by one.
template <typename T>
class HostEdges : public HostReads<T> {
 protected:
  using HostBase<T>::config_, HostBase<T>::pool_, HostBase<T>::ptr, HostBase<T>::uninitialized,
      HostBase<T>::gemm, HostBase<T>::layer, HostBase<T>::rotary;

 public:
  using HostReads<T>::HostReads;
  using typename ReadOps::EdgesFrom, typename ReadOps::EdgesInto, typename ReadOps::EdgeVisitor,
      typename ReadOps::HeadReads, typename ReadOps::KeyOffsets, typename ReadOps::LayerReads;
  Array writer_values(const AttentionView& view) override;
  Array writer_keys(const AttentionView& view) override;
  void keep_for_edges(const AttentionView& view, HeadReads& reads) override;
  void visit_edges(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                   const EdgeVisitor& visit) override;
  EdgesFrom edges_from(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                       int head, int query) override;
  std::vector<EdgesInto> edges_into(std::span<const LayerReads> layers, int writer,
                                    int source) override;

 protected:
  using typename HostBase<T>::RotaryTable;
  // Which writers at which position, as keys or values.
  struct Sources {
    Index position;
    int first, count;
  };
  // Queries that read them.
  struct Queries {
    Index first, count;
  };
  // Those of a head from a source on that pass anything on.
  static Queries queries_from(const HeadReads& reads, Index head, Index source) {
    const auto& active = reads.active[head];
    const Index first = std::max<Index>(active.first, source);
    return {first, std::max<Index>(0, active.end - first)};
  }
  void project_writers(const AttentionView& view, const Panels<T>& w, const Sources& of, T* out);
  void project_keys(const AttentionView& view, const RolePanels<T>& w, const Panels<T>& k,
                    const RotaryTable* rope, const Sources& of, T* out);

 private:
  EdgesInto edges_into(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                       int writer, int source);
  std::vector<T> to_model(const Panels<T>& w, bool grouped, const T* rows, Index begin, Index n);
  void key_rows(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                Index head, const Queries& queries, const Sources& of, const T* projected, T* tile);
  void value_rows(const AttentionView& view, const HeadReads& reads, Index head,
                  const Queries& queries, const Sources& of, const T* projected, T* tile);
  void products_with(const T* from, Index head, const Queries& queries, const Sources& of,
                     const T* projected, T* tile);
  // Of [S, Cl, G, E] what belongs to a writer at a source, where it is kept.
  const T* kept_of(const Array& kept, int visible, Index source, int writer) const {
    const Index row = config_.n_kv_heads * config_.d_head;
    return kept.empty() ? nullptr : ptr(kept) + (source * visible + writer) * row;
  }
};

// Sums over them.
template <typename T>
class HostWays : public HostEdges<T> {
 protected:
  using HostBase<T>::config_, HostBase<T>::pool_, HostBase<T>::ptr, HostBase<T>::layer,
      HostBase<T>::rotary;
  using typename HostEdges<T>::Sources;
  using HostEdges<T>::queries_from;

 public:
  using HostEdges<T>::HostEdges;
  using typename ReadOps::HeadReads, typename ReadOps::KeyOffsets, typename ReadOps::WaysAbove,
      typename ReadOps::WaysBelow;
  bool pass_ways(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                 const WaysAbove& above, WaysBelow& below) override;

 private:
  struct Shared;
  Shared shared_by_sources(const AttentionView& view, const HeadReads& reads,
                           const KeyOffsets& offsets, const WaysAbove& above);
};

// A row of scores, over the norm's deviation.
template <typename T>
void keep_row(const T* from, Index n, T deviation, T* to) {
  const T inverse = T(1) / deviation;
  for (Index c = 0; c < n; ++c) to[c] = from[c] * inverse;
}

// Mean and population standard deviation from sums over n values and over their squares.
template <typename T>
void finish_moments(const double* sum, const double* square, Index n, Index c, T* mean_out,
                    T* out) {
  for (Index j = 0; j < c; ++j) {
    const double mean = sum[j] / n;
    mean_out[j] = mean;
    // Rounded by itself: within a multiply-add, which 64-bit ARM has, the difference of two equal
    // squares would be the product's rounding error, and the root of that is no small number.
    const volatile double mean_square = mean * mean;
    out[j] = std::sqrt(std::max(0.0, square[j] / n - mean_square));
  }
}

extern template class HostProducts<float>;
extern template class HostPairs<float>;
extern template class HostPairSums<float>;
extern template class HostHeads<float>;
extern template class HostNeurons<float>;
extern template class HostBackend<float>;
extern template class HostReads<float>;
extern template class HostEdges<float>;
extern template class HostWays<float>;

}  // namespace unpack::backend
