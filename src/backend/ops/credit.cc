// Writers, entries, folding and targets: what passing credit on needs, written once for all
// devices.
#include <algorithm>

#include "backend/backend.h"

namespace unpack::backend {

// Writers
// -------------------------------------------------------------------------------------------------

void Backend::put_writer(const Array& rows, Index row, int length, Array& writers, int n_writers,
                         int index) {
  const Index d = config_.d_model;
  launch(kernels::CenterRows<Any>{block(rows, length, d, row).data, d, 0, data(writers, index * d),
                                  n_writers * d, 0, 1, d, config_.norm == Norm::layer ? 1 : 0},
         length);
}

void Backend::put_head_writers(int layer, const Array& z, const Array& out_dev, Index row,
                               int length, Array& writers, int n_writers, int first) {
  const Index d = config_.d_model, heads = config_.n_heads, each = n_writers * d;
  Any* to = data(writers, first * d);
  heads_out({layer, model::Role::w_o}, heads, block(z, length, heads * config_.d_head, row),
            tail(writers, first * d), each);
  if (config_.norm == Norm::layer)
    launch(kernels::CenterRows<Any>{to, each, d, to, each, d, heads, d, 1}, length * heads);
  const Array post = vector({layer, model::Role::attn_post_w});
  if (!post.empty())
    launch(
        kernels::ThroughNorm<Any>{to, each, d, heads, d, data(post), data(out_dev, row), nullptr},
        length * heads * d);
}

Array Backend::make_writers(const WriterParts& parts, Index position, Index count, int first,
                            int end) {
  const int width = end - first, length = count, heads = config_.n_heads;
  Array out = uninitialized(count * width * config_.d_model);
  int at = 0;
  const auto put = [&](const Array& rows) {
    if (at >= first && at < end) put_writer(rows, position, length, out, width, at - first);
    ++at;
  };
  put(*parts.emb);
  if (config_.has_pos_writer()) put(*parts.pos);
  for (std::size_t l = 0; l < parts.layers.size() && at < end; ++l) {
    const WriterParts::Layer& layer = parts.layers[l];
    if (at >= first)
      put_head_writers(l, *layer.z, *layer.out_dev, position, length, out, width, at - first);
    at += heads;
    put(*layer.mlp_out);
  }
  return out;
}

Index Backend::positions_within(Index bytes_each, Index positions) const {
  return std::clamp<Index>(block_bytes() / std::max<Index>(bytes_each, 1), 1,
                           std::max<Index>(positions, 1));
}

// Entries
// -------------------------------------------------------------------------------------------------

Backend::Rows Backend::rows_of(std::span<const int> queries) {
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
  rows.count = queries.size();
  rows.first = queries.empty() ? 0 : queries[0];
  rows.consecutive = true;
  rows.host_begin.assign(queries.size() + 1, 0);
  for (Index i = 0; i < rows.count; ++i) {
    rows.host_begin[i + 1] = rows.host_begin[i] + queries[i] + 1;
    rows.consecutive = rows.consecutive && queries[i] == rows.first + i;
  }
  rows.total = rows.host_begin.back();
  rows.host.assign(queries.begin(), queries.end());
  rows.queries = upload_list(queries);
  rows.begin = upload_list(std::span<const Index>(rows.host_begin));
  std::lock_guard lock(mutex_);
  if (recent_rows_.size() >= kKept) recent_rows_.erase(recent_rows_.begin());
  recent_rows_.push_back(rows);
  return rows;
}

Array Backend::directions_for(const WeightName& post_name, const Array* out_dev, const Rows& rows,
                              const Array& directions) {
  const Array post = vector(post_name);
  const Index d = config_.d_model;
  const bool centers = config_.norm == Norm::layer;
  if (!centers && post.empty()) return directions;
  Array out = uninitialized(rows.count * d);
  launch(kernels::CenterRows<Any>{block(directions, rows.count, d).data, d, 0, data(out), d, 0, 1,
                                  d, centers ? 1 : 0},
         rows.count);
  if (!post.empty())
    launch(kernels::ThroughNorm<Any>{data(out), d, 0, 1, d, data(post), data(*out_dev),
                                     rows.queries.get()},
           rows.count * d);
  return out;
}

void Backend::head_numerators(const AttentionView& view, std::span<const int> queries,
                              const Array& directions, Array& out) {
  // alpha[h, q, s] < v[s], W_O[h] center(d) >
  const Index width = Index{config_.n_heads} * config_.d_head;
  const Rows rows = rows_of(queries);
  const Array centered =
      directions_for({view.layer, model::Role::attn_post_w}, view.out_dev, rows, directions);
  Array pulled = uninitialized(rows.count * width);
  multiply_turned({view.layer, model::Role::w_o}, block(centered, rows.count, config_.d_model),
                  block(pulled, rows.count, width));
  sum_values(view, rows, pulled, out);
}

void Backend::sum_values(const AttentionView& view, const Rows& rows, const Array& pulled,
                         Array& out) {
  launch(kernels::HeadNumerators<Any>{data(*view.pattern), data(*view.v), data(pulled),
                                      rows.queries.get(), rows.begin.get(), data(out),
                                      tri(view.length), rows.count, config_.n_heads,
                                      config_.group_size(), config_.n_kv_heads, config_.d_head},
         config_.n_heads * rows.total);
}

void Backend::head_numerators_at(const AttentionView& view, int query, const Array& direction,
                                 Array& out, Array& pattern) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, group = config_.group_size(),
              e = config_.d_head, width = heads * e, kv = groups * e, n = Index{query} + 1;
  const LayerConfig& shape = config_.layer(view.layer);
  const Rows rows = rows_of(std::span(&query, 1));
  const Array centered =
      directions_for({view.layer, model::Role::attn_post_w}, view.out_dev, rows, direction);
  Array pulled = uninitialized(width);
  multiply_turned({view.layer, model::Role::w_o}, block(centered, 1, config_.d_model),
                  block(pulled, 1, width));
  pattern = uninitialized(heads * n);
  out = uninitialized(heads * n);
  const auto meet = [&](const Tail& own, const Array& keys, Array& to) {
    multiply_batch(
        {true, group, n, e, own, e, group * e, tail(keys), kv, e, tail(to), n, group * n, groups});
  };
  meet(tail(*view.q, query * width), *view.k, pattern);
  meet(tail(pulled), *view.v, out);
  const Array sinks = vector({view.layer, model::Role::sinks});
  launch(kernels::CausalSoftmax<Any>{data(pattern), 1, n, query, n, shape.attention_scale, nullptr,
                                     0, 0, shape.window, shape.attention_cap, data(sinks)},
         heads);
  const int first = 0;
  const auto none = upload_list(std::span(&first, 1));
  launch(kernels::TimesRows<Any>{data(out), data(pattern), none.get(), heads * n}, heads * n);
}

void Backend::mlp_numerators(const MlpView& view, std::span<const int> queries,
                             const Array& directions, Array& out) {
  const Rows rows = rows_of(queries);
  const Array centered =
      directions_for({view.layer, model::Role::mlp_post_w}, view.out_dev, rows, directions);
  const Index d = config_.d_model, n = config_.layer(view.layer).n_neurons,
              width = config_.layer(view.layer).entries();
  if (view.routing == nullptr) {
    multiply_turned({view.layer, model::Role::w_out}, block(centered, rows.count, d),
                    block(out, rows.count, n));
  } else {
    const Spread s = spread(*view.routing, rows.positions());
    Array from = uninitialized(s.total * d), to = uninitialized(s.total * n);
    launch(kernels::TakeRows<Any>{data(centered), s.rows, data(from), d, d}, s.total * d);
    expert_products_turned(view.layer, s, model::Role::w_out, block(from, s.total, d),
                           block(to, s.total, n));
    launch(kernels::TakeRows<Any>{data(to), s.where, data(out), n, n}, s.total * n);
  }
  launch(kernels::TimesRows<Any>{data(out), data(*view.act), rows.queries.get(), width},
         rows.count * width);
}

// Folding
// -------------------------------------------------------------------------------------------------

Array Backend::before_norm(const AttentionView& view, bool key, const Rows* rows,
                           const Array& folded) {
  const Array norm = vector({view.layer, key ? model::Role::k_norm : model::Role::q_norm});
  const auto table = rotary(view.layer, view.length, view.length);
  if (norm.empty() && !table) return folded;
  Array out = uninitialized(folded.size());
  kernels::PullBack<Any> pull{};
  pull.from = data(folded);
  pull.from_group = 1;
  pull.nb = 1;
  pull.heads = key ? config_.n_kv_heads : config_.n_heads;
  pull.e = config_.d_head;
  pull.from_a = pull.heads * pull.e;
  pull.out = data(out);
  pull.position_a = 1;
  if (rows != nullptr) pull.positions = rows->queries.get();
  if (table) pull.rotary = {data(table->cos), data(table->sin), table->rope.dims / 2};
  if (!norm.empty()) {
    pull.norm = data(norm);
    pull.dev = data(key ? *view.k_dev : *view.q_dev);
    pull.dev_heads = pull.heads;
    pull.dev_group = 1;
  }
  launch(pull, folded.size());
  return out;
}

Array Backend::sum_keys(const AttentionView& view, const Rows& rows, const Array& coef) {
  const Index heads = config_.n_heads, e = config_.d_head;
  Array out = uninitialized(rows.count * heads * e);
  launch(kernels::FoldSources<Any>{data(coef), data(*view.k), rows.queries.get(), rows.begin.get(),
                                   data(out), rows.count, heads, config_.group_size(),
                                   config_.n_kv_heads, e},
         rows.count * heads);
  return out;
}

Array Backend::sum_queries(const AttentionView& view, const Array& coef) {
  const Index groups = config_.n_kv_heads, e = config_.d_head, length = view.length;
  Array out = uninitialized(length * groups * e);
  launch(kernels::FoldQueries<Any>{data(coef), data(*view.q), data(out), length, tri(length),
                                   config_.n_heads, config_.group_size(), groups, e},
         length * groups);
  return out;
}

// Rows of positions that follow each other, with the index of the first.
void Backend::each_run(const Rows& rows,
                       const std::function<void(Index first, Index count, Index row)>& use) {
  for (std::size_t i = 0, end = 0; i < rows.host.size(); i = end) {
    end = i + 1;
    while (end < rows.host.size() && rows.host[end] == rows.host[end - 1] + 1) ++end;
    use(rows.host[i], end - i, i);
  }
}

void Backend::fold_to_writers(const AttentionView& view, const Rows& rows, const Array& coef,
                              Array& out) {
  const Index heads = config_.n_heads, e = config_.d_head, d = config_.d_model, cl = view.visible,
              stride = view.n_writers * d, width = heads * e;
  const Array folded = before_norm(view, false, &rows, sum_keys(view, rows, coef));
  Array scores = uninitialized(rows.count * heads * cl);
  if (view.parts == nullptr) {
    Array vectors = uninitialized(rows.count * heads * d);
    heads_to_model({view.layer, model::Role::w_q}, heads, block(folded, rows.count, width),
                   block(vectors, rows.count, heads * d));
    multiply_batch({true, heads, cl, d, tail(vectors), d, heads * d, tail(*view.writers), d, stride,
                    tail(scores), cl, heads * cl, rows.count, rows.host});
  } else {
    each_run(rows, [&](Index first, Index count, Index row) {
      with_writers(view, first, count, [&](Index begin, Index n, Any* writers, Index n_writers) {
        const Index at = row + begin - first;
        Array vectors = uninitialized(n * heads * d);
        heads_to_model({view.layer, model::Role::w_q}, heads, block(folded, n, width, at),
                       block(vectors, n, heads * d));
        multiply_batch({true,
                        heads,
                        cl,
                        d,
                        tail(vectors),
                        d,
                        heads * d,
                        {writers, n * n_writers * d},
                        d,
                        n_writers * d,
                        tail(scores, at * heads * cl),
                        cl,
                        heads * cl,
                        n});
      });
    });
  }
  launch(kernels::QueryEdges<Any>{data(scores), data(*view.dev), rows.queries.get(), data(out),
                                  rows.count, heads, cl, config_.layer(view.layer).attention_scale},
         scores.size());
}

void Backend::query_fold(const AttentionView& view, std::span<const int> queries,
                         std::span<const double> coef, std::vector<double>& out) {
  const Rows rows = rows_of(queries);
  Array folded = uninitialized(config_.n_heads * rows.count * view.visible);
  fold_to_writers(view, rows, upload_array(coef), folded);
  out.resize(folded.size());
  download(folded, 0, out);
}

Array Backend::fold_keys(const AttentionView& view, const Array& coef) {
  const Index width = Index{config_.n_kv_heads} * config_.d_head, d = config_.d_model,
              cl = view.visible, length = view.length;
  const Array folded = before_norm(view, true, nullptr, sum_queries(view, coef));
  Array vectors = uninitialized(length * d), dots = uninitialized(length * cl);
  multiply_turned({view.layer, model::Role::w_k}, block(folded, length, width),
                  block(vectors, length, d));
  with_writers(view, 0, length, [&](Index begin, Index n, Any* writers, Index n_writers) {
    launch(
        kernels::WriterDots<Any>{writers, n_writers, d, cl, data(vectors, begin * d), d, nullptr, 0,
                                 data(*view.dev, begin), config_.layer(view.layer).attention_scale,
                                 data(dots, begin * cl)},
        n * cl);
  });
  return dots;
}

void Backend::key_fold(const AttentionView& view, std::span<const double> coef,
                       std::vector<double>& out) {
  const Array dots = fold_keys(view, upload_array(coef));
  out.resize(dots.size());
  download(dots, 0, out);
}

Array Backend::neurons_to_model(const MlpView& view, MlpSide side, Scores scores, const Rows& rows,
                                const Array& coef) {
  const Index d = config_.d_model, n = config_.layer(view.layer).n_neurons;
  Array vectors = uninitialized(rows.count * d);
  const View to = block(vectors, rows.count, d);
  if (view.routing == nullptr) {
    multiply_turned({view.layer, matrix_of(side)}, block(coef, rows.count, n), to);
    return vectors;
  }
  const Spread s = spread(*view.routing, rows.positions());
  if (side == MlpSide::router) {
    const Index experts = view.routing->experts;
    Array all = uninitialized(rows.count * experts);
    launch(kernels::SpreadExperts<Any>{data(coef), s.expert, data(all), experts, s.k,
                                       scores == Scores::centered ? 1 : 0},
           rows.count);
    multiply_turned({view.layer, model::Role::w_r}, block(all, rows.count, experts), to);
    return vectors;
  }
  Array from = uninitialized(s.total * n), made = uninitialized(s.total * d);
  launch(kernels::TakeRows<Any>{data(coef), s.slots, data(from), n, n}, s.total * n);
  expert_products_turned(view.layer, s, matrix_of(side), block(from, s.total, n),
                         block(made, s.total, d));
  launch(kernels::SumSlots<Any>{data(made), s.where, nullptr, data(vectors), d, s.k, 0},
         rows.count * d);
  return vectors;
}

void Backend::fold_neurons(const MlpView& view, MlpSide side, Scores scores, const Rows& rows,
                           const Array& coef, double weight, Array& out) {
  const Index d = config_.d_model, cl = view.visible;
  const Array vectors = neurons_to_model(view, side, scores, rows, coef);
  if (view.parts == nullptr) {
    launch(kernels::WriterDots<Any>{data(*view.writers), view.n_writers, d, cl, data(vectors), d,
                                    rows.queries.get(), 0, data(*view.dev), weight, data(out)},
           rows.count * cl);
    return;
  }
  each_run(rows, [&](Index first, Index count, Index row) {
    with_writers(view, first, count, [&](Index begin, Index n, Any* writers, Index n_writers) {
      const Index at = row + begin - first;
      launch(kernels::WriterDots<Any>{writers, n_writers, d, cl, data(vectors, at * d), d, nullptr,
                                      0, data(*view.dev, begin), weight, data(out, at * cl)},
             n * cl);
    });
  });
}

void Backend::mlp_fold(const MlpView& view, MlpSide side, Scores scores,
                       std::span<const int> queries, std::span<const double> coef,
                       std::vector<double>& out) {
  const Rows rows = rows_of(queries);
  Array folded = uninitialized(rows.count * view.visible);
  fold_neurons(view, side, scores, rows, upload_array(coef), 1.0, folded);
  out.resize(folded.size());
  download(folded, 0, out);
}

// Targets
// -------------------------------------------------------------------------------------------------

const std::vector<double>& Backend::vocabulary_mean() {
  mean_once_([&] {
    std::vector<double> mean = vocabulary_sum();
    for (double& x : mean) x /= config_.vocab_size;
    vocabulary_mean_ = std::move(mean);
  });
  return vocabulary_mean_;
}

void Backend::target_direction(const Array& x, Index row, std::span<const TokenId> target,
                               const std::vector<TokenId>* versus, bool raw, Array& out) {
  const Index d = config_.d_model;
  std::vector<double> direction(d, 0.0), w_row(d);
  const auto add_mean = [&](std::span<const TokenId> ids, double sign) {
    for (const TokenId id : ids) {
      model::read_rows((*weights_)[model::Role::unembed], id, 1, w_row.data());
      for (Index j = 0; j < d; ++j) direction[j] += sign * w_row[j] / ids.size();
    }
  };
  add_mean(target, 1.0);
  if (!raw && versus) add_mean(*versus, -1.0);
  if (!raw && !versus) {
    const std::vector<double>& mean = vocabulary_mean();
    for (Index j = 0; j < d; ++j) direction[j] -= mean[j];
  }
  const FinalNorm& norm = final_norm();
  for (Index j = 0; j < d; ++j) direction[j] *= config_.logit_scale * norm.w[j];
  upload(out, 0, direction);
  Array normalized = uninitialized(d), dev = uninitialized(1);
  normalize(config_.norm, slice(x, row * d, d), 1, normalized, dev);
  launch(kernels::ScaleByRow<Any>{data(out), data(dev), 0, 0, d, 1.0}, d);
}

void Backend::writer_dots(const Array& writers, int n_writers, int position, const Array& direction,
                          std::vector<double>& out) {
  Array dots = uninitialized(n_writers);
  launch(kernels::WriterDots<Any>{data(writers), n_writers, config_.d_model, n_writers,
                                  data(direction), 0, nullptr, position, nullptr, 1.0, data(dots)},
         n_writers);
  out.resize(n_writers);
  download(dots, 0, out);
}

}  // namespace unpack::backend
