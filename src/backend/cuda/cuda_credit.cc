// Entries, folding and targets on a device: what passing credit on needs.
#include <algorithm>
#include <cmath>

#include "backend/cuda/cuda_backend.h"

namespace unpack::backend::cuda {

namespace {

std::vector<std::int64_t> positions_of(const std::vector<int>& queries) {
  return {queries.begin(), queries.end()};
}

}  // namespace

CudaBackend::Rows CudaBackend::rows_of(std::span<const int> queries) {
  // The same few are asked for over and over: all queries of the prompt, or its last.
  constexpr std::size_t kKept = 4;
  {
    std::lock_guard lock(mutex_);
    for (const Rows& known : recent_rows_) {
      if (std::equal(queries.begin(), queries.end(), known.host.begin(), known.host.end()))
        return known;
    }
  }
  Rows rows;
  rows.count = static_cast<Index>(queries.size());
  rows.first = queries.empty() ? 0 : queries[0];
  rows.consecutive = true;
  std::vector<Index> begin(queries.size() + 1, 0);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    begin[i + 1] = begin[i] + queries[i] + 1;
    rows.consecutive = rows.consecutive && queries[i] == rows.first + static_cast<Index>(i);
  }
  rows.total = begin.back();
  rows.host.assign(queries.begin(), queries.end());
  rows.queries = device_->upload(queries);
  rows.begin = device_->upload(std::span<const Index>(begin));
  std::lock_guard lock(mutex_);
  if (recent_rows_.size() >= kKept) recent_rows_.erase(recent_rows_.begin());
  recent_rows_.push_back(rows);
  return rows;
}

Array CudaBackend::directions_for(const Array& post, const Array* out_dev, const Rows& rows,
                                  const Array& directions) {
  const std::int64_t d = config_.d_model;
  const bool centers = config_.norm == Norm::layer;
  if (!centers && post.empty()) return directions;
  Array out = device_->floats(rows.count * d);
  device_->launch(CenterRows{ptr(directions), d, 0, ptr(out), d, 0, 1, d, centers ? 1 : 0},
                  rows.count);
  if (!post.empty())
    device_->launch(ThroughNorm{ptr(out), d, 0, 1, d, ptr(post), ptr(*out_dev), rows.queries.get()},
                    rows.count * d);
  return out;
}

void CudaBackend::head_numerators(const AttentionView& view, std::span<const int> queries,
                                  const Array& directions, Array& out) {
  // alpha[h, q, s] < v[s], W_O[h] center(d) >
  const auto layer = on_device_.layer(view.layer);
  const std::int64_t heads = config_.n_heads, e = config_.d_head;
  const Rows rows = rows_of(queries);
  const Array centered =
      directions_for(layer->vector(model::Role::attn_post_w), view.out_dev, rows, directions);
  Array pulled = device_->floats(rows.count * heads * e);
  multiply_turned(layer->matrix(model::Role::w_o), ptr(centered), rows.count, ptr(pulled));
  device_->launch(HeadNumerators{ptr(*view.pattern), ptr(*view.v), ptr(pulled), rows.queries.get(),
                                 rows.begin.get(), ptr(out), tri(view.length), rows.count, heads,
                                 config_.group_size(), config_.n_kv_heads, e},
                  heads * rows.total);
}

void CudaBackend::mlp_numerators(const MlpView& view, std::span<const int> queries,
                                 const Array& directions, Array& out) {
  const auto layer = on_device_.layer(view.layer);
  const Rows rows = rows_of(queries);
  const Array centered =
      directions_for(layer->vector(model::Role::mlp_post_w), view.out_dev, rows, directions);
  const std::int64_t d = config_.d_model, n = config_.layer(view.layer).n_neurons,
                     width = config_.layer(view.layer).entries();
  if (view.routing == nullptr) {
    multiply_turned(layer->matrix(model::Role::w_out), ptr(centered), rows.count, ptr(out));
  } else {
    const Spread s = spread(*view.routing, positions_of(rows.host));
    Array from = device_->floats(s.total * d), to = device_->floats(s.total * n);
    device_->launch(TakeRows{ptr(centered), s.rows, ptr(from), d, d}, s.total * d);
    multiply_experts_turned(view.layer, s, model::Role::w_out, ptr(from), ptr(to));
    device_->launch(TakeRows{ptr(to), s.where, ptr(out), n, n}, s.total * n);
  }
  device_->launch(TimesRows{ptr(out), ptr(*view.act), rows.queries.get(), width},
                  rows.count * width);
}

// coef[H, sum of (q_i + 1)] -> [H, rows, Cl] on the device.
void CudaBackend::fold_to_writers(const AttentionView& view, const Rows& rows, const Array& coef,
                                  Array& out) {
  const auto layer = on_device_.layer(view.layer);
  const std::int64_t heads = config_.n_heads, e = config_.d_head, d = config_.d_model,
                     cl = view.visible, stride = static_cast<std::int64_t>(view.n_writers) * d;
  Array folded = device_->floats(rows.count * heads * e);
  device_->launch(
      FoldSources{ptr(coef), ptr(*view.k), rows.queries.get(), rows.begin.get(), ptr(folded),
                  rows.count, heads, config_.group_size(), config_.n_kv_heads, e},
      rows.count * heads);
  PullBack pull = pull_back(Side::query, view, *layer);
  if (pull.changes()) {
    pull.from = ptr(folded);
    pull.from_a = heads * e;
    pull.positions = rows.queries.get();
    folded = pulled_back(pull, folded.size());
  }
  Array vectors = device_->floats(rows.count * heads * d),
        scores = device_->floats(rows.count * heads * cl);
  heads_to_model(on_device_.operand(layer->matrix(model::Role::w_q)), config_.n_heads, ptr(folded),
                 rows.count, ptr(vectors));
  const auto score = [&](Index first, Index query, Index count) {
    device_->gemm({1, 0, heads, cl, d, ptr(vectors) + first * heads * d, d, heads * d,
                   ptr(*view.writers) + query * stride, d, stride, ptr(scores) + first * heads * cl,
                   cl, heads * cl, count});
  };
  if (rows.consecutive) {
    score(0, rows.first, rows.count);
  } else {
    for (Index i = 0; i < rows.count; ++i) score(i, rows.host[i], 1);
  }
  device_->launch(QueryEdges{ptr(scores), ptr(*view.dev), rows.queries.get(), ptr(out), rows.count,
                             heads, cl, head_scale(view.layer)},
                  scores.size());
}

void CudaBackend::query_fold(const AttentionView& view, std::span<const int> queries,
                             std::span<const double> coef, std::vector<double>& out) {
  const std::int64_t heads = config_.n_heads, cl = view.visible;
  const auto count = static_cast<std::int64_t>(queries.size());
  out.assign(heads * count * cl, 0.0);
  Array folded = device_->floats(heads * count * cl);
  fold_to_writers(view, rows_of(queries), device_->upload_floats(coef), folded);
  download(folded, 0, out);
}

Array CudaBackend::fold_keys(const AttentionView& view, const Array& coefficients) {
  const auto layer = on_device_.keys(view.layer);
  const std::int64_t groups = config_.n_kv_heads, e = config_.d_head, d = config_.d_model,
                     cl = view.visible, length = view.length;
  Array folded = device_->floats(length * groups * e);
  device_->launch(FoldQueries{ptr(coefficients), ptr(*view.q), ptr(folded), length, tri(length),
                              config_.n_heads, config_.group_size(), groups, e},
                  length * groups);
  PullBack pull = pull_back(Side::key, view, *layer);
  if (pull.changes()) {
    pull.from = ptr(folded);
    pull.from_a = groups * e;
    pull.position_a = 1;
    folded = pulled_back(pull, folded.size());
  }
  Array vectors = device_->floats(length * d), dots = device_->floats(length * cl);
  multiply_turned(layer->matrix(model::Role::w_k), ptr(folded), length, ptr(vectors));
  device_->launch(WriterDots{ptr(*view.writers), view.n_writers, d, cl, ptr(vectors), d, nullptr, 0,
                             ptr(*view.dev), head_scale(view.layer), ptr(dots)},
                  length * cl);
  return dots;
}

void CudaBackend::key_fold(const AttentionView& view, std::span<const double> coef,
                           std::vector<double>& out) {
  const Array dots = fold_keys(view, device_->upload_floats(coef));
  out.resize(dots.size());
  download(dots, 0, out);
}

Array CudaBackend::neurons_to_model(const MlpView& view, MlpSide side, Scores scores,
                                    const Rows& rows, const Array& coef) {
  const auto layer = on_device_.layer(view.layer);
  const std::int64_t d = config_.d_model, n = config_.layer(view.layer).n_neurons;
  Array vectors = device_->floats(rows.count * d);
  if (view.routing == nullptr) {
    multiply_turned(layer->matrix(matrix_of(side)), ptr(coef), rows.count, ptr(vectors));
  } else {
    const Spread s = spread(*view.routing, positions_of(rows.host));
    if (side == MlpSide::router) {
      const DeviceMatrix& router = layer->matrix(model::Role::w_r);
      Array all = device_->floats(rows.count * router.out);
      device_->launch(SpreadExperts{ptr(coef), s.expert, ptr(all), router.out, s.k,
                                    scores == Scores::centered ? 1 : 0},
                      rows.count);
      multiply_turned(router, ptr(all), rows.count, ptr(vectors));
    } else {
      Array from = device_->floats(s.total * n), to = device_->floats(s.total * d);
      device_->launch(TakeRows{ptr(coef), s.slots, ptr(from), n, n}, s.total * n);
      multiply_experts_turned(view.layer, s, matrix_of(side), ptr(from), ptr(to));
      device_->launch(SumSlots{ptr(to), s.where, nullptr, ptr(vectors), d, s.k, 0}, rows.count * d);
    }
  }
  return vectors;
}

void CudaBackend::fold_neurons(const MlpView& view, MlpSide side, Scores scores, const Rows& rows,
                               const Array& coef, double weight, Array& out) {
  const std::int64_t d = config_.d_model, cl = view.visible;
  const Array vectors = neurons_to_model(view, side, scores, rows, coef);
  device_->launch(
      WriterDots{ptr(*view.writers), view.n_writers, d, cl, ptr(vectors), d, rows.queries.get(), 0,
                 ptr(*view.dev), static_cast<float>(weight), ptr(out)},
      rows.count * cl);
}

void CudaBackend::mlp_fold(const MlpView& view, MlpSide side, Scores scores,
                           std::span<const int> queries, std::span<const double> coef,
                           std::vector<double>& out) {
  out.resize(queries.size() * static_cast<std::size_t>(view.visible));
  Array folded = device_->floats(static_cast<std::int64_t>(out.size()));
  fold_neurons(view, side, scores, rows_of(queries), device_->upload_floats(coef), 1.0, folded);
  download(folded, 0, out);
}

// Edges
// ---------------------------------------------------------------------------------------------------------------------------

void CudaBackend::head_edges(const AttentionView& view, const AttentionSums& sums,
                             std::span<const int> queries, const Array& numerators,
                             const Options& options, HeadEdges& out) {
  const std::int64_t heads = config_.n_heads, cl = view.visible, length = view.length;
  const Rows rows = rows_of(queries);
  Array query_coef = device_->floats(heads * rows.total);
  HeadShares shares{};
  shares.numerators = ptr(numerators);
  shares.queries = rows.queries.get();
  shares.begin = rows.begin.get();
  shares.k_sum = ptr(sums.k_sum);
  shares.k_abs = ptr(sums.k_abs);
  shares.q_sum = ptr(sums.q_sum);
  shares.q_abs = ptr(sums.q_abs);
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
  if (!out.query_edge.empty()) fold_to_writers(view, rows, query_coef, out.query_edge);
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
  const std::int64_t entries = shape.entries(), n = reader_entries(shape, side), cm = view.visible;
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

std::vector<double> CudaBackend::vocabulary_mean() {
  {
    std::lock_guard lock(mutex_);
    if (!vocabulary_mean_.empty()) return vocabulary_mean_;
  }
  const DeviceMatrix& table = on_device_.unembed();
  const std::int64_t d = config_.d_model, vocabulary = config_.vocab_size;
  const std::int64_t chunks = (vocabulary + ColumnSums::kRows - 1) / ColumnSums::kRows;
  const auto memory = device_->bytes(static_cast<std::size_t>(chunks * d) * sizeof(double));
  device_->launch(
      ColumnSums{table.data.get(), table.type, vocabulary, d, static_cast<double*>(memory.get())},
      chunks * d);
  std::vector<double> partial(static_cast<std::size_t>(chunks * d));
  device_->to_host(partial.data(), memory.get(), partial.size() * sizeof(double));
  std::vector<double> mean(static_cast<std::size_t>(d), 0.0);
  for (std::size_t i = 0; i < partial.size(); ++i)
    mean[i % static_cast<std::size_t>(d)] += partial[i] / static_cast<double>(vocabulary);
  std::lock_guard lock(mutex_);
  vocabulary_mean_ = mean;
  return mean;
}

void CudaBackend::target_direction(const Array& x, std::int64_t row,
                                   std::span<const TokenId> target,
                                   const std::vector<TokenId>* versus, bool raw, Array& out) {
  const std::int64_t d = config_.d_model;
  std::vector<double> direction(static_cast<std::size_t>(d), 0.0),
      w_row(static_cast<std::size_t>(d));
  const auto add_mean = [&](std::span<const TokenId> ids, double sign) {
    for (const TokenId id : ids) {
      model::read_rows((*weights_)[model::Role::unembed], id, 1, w_row.data());
      for (std::size_t j = 0; j < direction.size(); ++j)
        direction[j] += sign * w_row[j] / static_cast<double>(ids.size());
    }
  };
  add_mean(target, 1.0);
  if (!raw && versus) add_mean(*versus, -1.0);
  if (!raw && !versus) {
    const std::vector<double> mean = vocabulary_mean();
    for (std::size_t j = 0; j < direction.size(); ++j) direction[j] -= mean[j];
  }
  for (std::size_t j = 0; j < direction.size(); ++j)
    direction[j] *= config_.logit_scale * final_w_[j];
  upload(out, 0, direction);
  Array normalized = device_->floats(d), dev = device_->floats(1);
  normalize(config_.norm, slice(x, row * d, d), 1, normalized, dev);
  device_->launch(ScaleByRow{ptr(out), ptr(dev), 0, 0, d, 1.0F}, d);
}

void CudaBackend::writer_dots(const Array& writers, int n_writers, int position,
                              const Array& direction, std::vector<double>& out) {
  const std::int64_t d = config_.d_model;
  Array dots = device_->floats(n_writers);
  device_->launch(WriterDots{ptr(writers), n_writers, d, n_writers, ptr(direction), 0, nullptr,
                             position, nullptr, 1.0F, ptr(dots)},
                  n_writers);
  out.resize(n_writers);
  download(dots, 0, out);
}

}  // namespace unpack::backend::cuda
