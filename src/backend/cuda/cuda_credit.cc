// Edges of heads and neurons that stay on a device.
#include <algorithm>
#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "base/index.h"

namespace unpack::backend::cuda {

void CudaBackend::head_edges(const AttentionView& view, const AttentionSums& sums,
                             std::span<const int> queries, const Array& numerators,
                             const Options& options, HeadEdges& out) {
  const Index heads = config_.n_heads, cl = view.visible, length = view.length;
  const Rows rows = rows_of(queries);
  Array query_coef = device_->floats(heads * rows.total);
  HeadShares shares{};
  shares.numerators = ptr(numerators);
  shares.queries = rows.queries.get();
  shares.begin = rows.begin.get();
  shares.k_sum = ptr(sums.k_sum);
  shares.k_abs = ptr(sums.k_abs);
  const bool queries_too = !sums.q_sum.empty();
  shares.q_sum = ptr(queries_too ? sums.q_sum : sums.k_sum);
  shares.q_abs = ptr(queries_too ? sums.q_abs : sums.k_abs);
  shares.v_sum = ptr(sums.v_sum);
  shares.v_abs = ptr(sums.v_abs);
  shares.entry = ptr(out.entry);
  shares.key_coef = ptr(out.key_coef);
  shares.query_coef = ptr(query_coef);
  shares.doubt = out.doubt.empty() ? nullptr : ptr(out.doubt);
  shares.pairs = tri(length);
  shares.rows = rows.count;
  shares.length = length;
  shares.group = config_.group_size();
  shares.window = config_.layer(view.layer).window;
  shares.beta = options.beta;
  shares.weight_k = options.weights[0];
  shares.weight_q = options.weights[1];
  shares.weight_v = options.weights[2];
  shares.gate = options.dispatch == Dispatch::gate ? 1 : 0;
  shares.centered = options.scores == Scores::centered ? 1 : 0;
  device_->launch(shares, heads * rows.count);
  if (!out.query_edge.empty() && queries_too && cl == 1 && shares.centered == 0) {
    device_->launch(QueriesOfOne{ptr(query_coef), ptr(sums.q_sum), rows.queries.get(),
                                 rows.begin.get(), ptr(out.query_edge), rows.count, tri(length)},
                    heads * rows.count);
  } else if (!out.query_edge.empty()) {
    fold_to_writers(view, rows, query_coef, out.query_edge);
  }
  if (!out.value_edge.empty()) {
    device_->launch(ValueEdges{ptr(sums.v_scores), ptr(sums.v_sum), ptr(sums.v_abs),
                               ptr(out.value_edge), cl, options.beta, options.weights[2]},
                    out.value_edge.size());
  }
}

void CudaBackend::neuron_edges(const MlpView& view, MlpSide side, const MlpSums* sums,
                               const Array& pre, std::span<const int> queries,
                               const Array& numerators, double weight, const Options& options,
                               NeuronEdges& out) {
  const LayerConfig& shape = config_.layer(view.layer);
  const Index entries = shape.entries(), n = reader_entries(shape, side), cm = view.visible;
  const Rows rows = rows_of(queries);
  const bool l2 = options.mlp == MlpRule::l2, linearized = options.mlp == MlpRule::linearized;
  Array coef;
  if (!numerators.empty()) {
    coef = device_->floats(rows.count * n);
    Array own = numerators;
    if (side == MlpSide::router) {
      own = device_->floats(rows.count * n);
      device_->launch(SlotSums{ptr(numerators), ptr(own), shape.n_neurons}, rows.count * n);
    }
    NeuronShares shares{};
    shares.numerators = ptr(numerators);
    shares.own = ptr(own);
    shares.queries = rows.queries.get();
    shares.sum = sums && !l2 && !linearized ? ptr(sums->sum) : nullptr;
    shares.abs = sums && !l2 && !linearized ? ptr(sums->abs) : nullptr;
    shares.pre = ptr(pre);
    shares.coef = ptr(coef);
    shares.shares = out.shares.empty() ? nullptr : ptr(out.shares);
    shares.doubt = out.doubt.empty() ? nullptr : ptr(out.doubt);
    shares.entries = entries;
    shares.neurons = n;
    shares.beta = options.beta;
    shares.weight = weight;
    device_->launch(shares, rows.count);
  }
  if (l2) {
    device_->launch(TakeRows{ptr(sums->l2), rows.queries.get(), ptr(out.edge), cm, cm},
                    rows.count * cm);
  } else {
    fold_neurons(view, side, options.scores, rows, coef, linearized ? 1.0 : weight, out.edge);
  }
  if (l2 || linearized)
    device_->launch(ShareRows{ptr(out.edge), cm, options.beta, weight}, rows.count);
}

}  // namespace unpack::backend::cuda
