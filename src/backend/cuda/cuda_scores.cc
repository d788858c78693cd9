// Writers, scores and the sums behind every denominator, on a device.
#include <algorithm>
#include <cmath>

#include "backend/cuda/cuda_backend.h"

namespace unpack::backend::cuda {

// Writers
// -------------------------------------------------------------------------------------------------------------------------

void CudaBackend::put_writer(const Array& rows, std::int64_t row, int length, Array& writers,
                             int n_writers, int index) {
  const std::int64_t d = config_.d_model;
  device_->launch(CenterRows{ptr(rows) + row * d, d, 0, ptr(writers) + index * d, n_writers * d, 0,
                             1, d, config_.norm == Norm::layer ? 1 : 0},
                  length);
}

void CudaBackend::put_head_writers(int index, const Array& z, const Array& out_dev,
                                   std::int64_t row, int length, Array& writers, int n_writers,
                                   int first) {
  const auto w = on_device_.layer(index);
  const std::int64_t d = config_.d_model, e = config_.d_head, heads = config_.n_heads;
  const Operand o = on_device_.operand(w->matrix(model::Role::w_o));
  float* to = ptr(writers) + first * d;
  device_->gemm({o.turned ? 1 : 0, 0, length, d, e, ptr(z) + row * heads * e, heads * e, e, o.data,
                 o.ld(), o.row(e) - o.data, to, n_writers * d, d, heads});
  if (config_.norm == Norm::layer)
    device_->launch(CenterRows{to, n_writers * d, d, to, n_writers * d, d, heads, d, 1},
                    length * heads);
  const Array& post = w->vector(model::Role::attn_post_w);
  if (!post.empty())
    device_->launch(
        ThroughNorm{to, n_writers * d, d, heads, d, ptr(post), ptr(out_dev) + row, nullptr},
        length * heads * d);
}

// Keys and queries
// ----------------------------------------------------------------------------------------------------------------

// Sums over the writers of every pair from what all of them together project to.
void CudaBackend::pair_read(Side side, const AttentionView& view, Scores scores, Array& sum) {
  const auto layer = on_device_.layer(view.layer);
  const bool key = side == Side::key;
  const std::int64_t heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
                     own = key ? groups : heads, length = view.length;
  const Array all = summed_writers(*view.writers, view.n_writers, view.visible, view.length);
  Array read = device_->floats(length * own * e);
  multiply(layer->matrix(key ? model::Role::w_k : model::Role::w_q), ptr(all), length, ptr(read));
  finish_projected(side, view, *layer, 0, 1, length, read);
  ReadSums sums{};
  sums.a = key ? ptr(*view.q) : ptr(read);
  sums.b = key ? ptr(read) : ptr(*view.k);
  sums.dev = ptr(*view.dev);
  sums.dev_of_source = key ? 1 : 0;
  sums.scale = head_scale(view.layer);
  sums.sum = ptr(sum);
  sums.length = length;
  sums.heads = heads;
  sums.group = config_.group_size();
  sums.groups = groups;
  sums.e = e;
  sums.pairs = tri(view.length);
  sums.window = config_.layer(view.layer).window;
  sums.centers = scores == Scores::centered ? 1 : 0;
  device_->launch(sums, heads * length);
}

// sV_j(s) = < norm(c_j)(s), W_V v(s) >: the value folded back into the stream, a vector per
// key/value head.
void CudaBackend::value_sums(const AttentionView& view, const DeviceRoles& layer,
                             AttentionSums& sums) {
  const std::int64_t groups = config_.n_kv_heads, d = config_.d_model, cl = view.visible,
                     length = view.length;
  sums.v_scores = device_->floats(groups * length * cl);
  sums.v_sum = device_->floats(groups * length);
  sums.v_abs = device_->floats(groups * length);
  Array vectors = device_->floats(length * groups * d),
        scores = device_->floats(length * groups * cl);
  heads_to_model(on_device_.operand(layer.matrix(model::Role::w_v)), config_.n_kv_heads,
                 ptr(*view.v), length, ptr(vectors));
  device_->gemm({1, 0, groups, cl, d, ptr(vectors), d, groups * d, ptr(*view.writers), d,
                 static_cast<std::int64_t>(view.n_writers) * d, ptr(scores), cl, groups * cl,
                 length});
  device_->launch(ValueSums{ptr(scores), ptr(*view.dev), ptr(sums.v_scores), ptr(sums.v_sum),
                            ptr(sums.v_abs), length, groups, cl},
                  length * groups);
}

AttentionSums CudaBackend::attention_sums(const AttentionView& view, Scores scores,
                                          bool keep_key_scores) {
  const std::int64_t pairs = tri(view.length), heads = config_.n_heads, length = view.length,
                     cl = view.visible;
  const bool centered = scores == Scores::centered;
  AttentionSums sums;
  // Tiles leave out what no query of theirs sees.
  const std::int64_t window = config_.layer(view.layer).window;
  const auto of_pairs = [&](std::int64_t size) {
    return window > 0 && window < length ? device_->zeros(size) : device_->floats(size);
  };
  for (Array* a : {&sums.k_sum, &sums.k_abs, &sums.q_sum, &sums.q_abs})
    *a = of_pairs(heads * pairs);
  sums.k_std = device_->floats(heads * length * cl);
  sums.k_mean = device_->floats(heads * length * cl);
  if (keep_key_scores) sums.k_scores = of_pairs(heads * pairs * cl);
  const bool keys = reads_sums(Side::key, view), queries = reads_sums(Side::query, view);
  score_tiles(Side::key, view, [&](const Tile& tile) {
    device_->launch(TileMoments{tile, ptr(sums.k_mean), ptr(sums.k_std), length, centered ? 1 : 0},
                    tile.nq * tile.heads * cl);
    device_->launch(
        TileSums{tile, keys ? nullptr : ptr(sums.k_sum), ptr(sums.k_abs),
                 keep_key_scores ? ptr(sums.k_scores) : nullptr, pairs, 0, centered ? 1 : 0},
        tile.ns * tile.nq * tile.heads);
  });
  score_tiles(Side::query, view, [&](const Tile& tile) {
    if (centered)
      device_->launch(TileMoments{tile, nullptr, nullptr, length, 1}, tile.nq * tile.heads * cl);
    device_->launch(TileSums{tile, queries ? nullptr : ptr(sums.q_sum), ptr(sums.q_abs), nullptr,
                             pairs, 0, centered ? 1 : 0},
                    tile.ns * tile.nq * tile.heads);
  });
  if (keys) pair_read(Side::key, view, scores, sums.k_sum);
  if (queries) pair_read(Side::query, view, scores, sums.q_sum);
  value_sums(view, *on_device_.layer(view.layer), sums);
  return sums;
}

void CudaBackend::visit_key_scores(const AttentionView& view, Scores scores,
                                   const KeyVisitor& visit) {
  const std::int64_t cl = view.visible;
  const bool centered = scores == Scores::centered;
  score_tiles(Side::key, view, [&](const Tile& tile) {
    const std::int64_t first = tri(tile.q0), pairs = tri(tile.q0 + tile.nq) - first;
    Array rows = device_->zeros(tile.heads * pairs * cl);  // a tile lacks what no query of it sees
    if (centered)
      device_->launch(TileMoments{tile, nullptr, nullptr, view.length, 1},
                      tile.nq * tile.heads * cl);
    device_->launch(TileSums{tile, nullptr, nullptr, ptr(rows), pairs, first + tile.head0 * pairs,
                             centered ? 1 : 0},
                    tile.ns * tile.nq * tile.heads);
    const std::vector<float> values = device_->download(rows);
    pool_.parallel_for(tile.heads * tile.nq, [&](std::int64_t task) {
      const std::int64_t h = task / tile.nq, q = tile.q0 + task % tile.nq;
      visit(static_cast<int>(tile.head0 + h), static_cast<int>(q),
            values.data() + (h * pairs + tri(q) - first) * cl);
    });
  });
}

// Sources outside the window have no scores; centred ones are less the mean over the others.
void CudaBackend::hide_and_center(const AttentionView& view, Scores scores, int query, Array& out) {
  const std::int64_t from = config_.layer(view.layer).first_source(query), cl = view.visible;
  const bool centered = scores == Scores::centered;
  if (from > 0 || centered)
    device_->launch(CenterColumns{ptr(out), from, query + 1, cl, centered ? 1 : 0}, cl);
}

void CudaBackend::key_scores(const AttentionView& view, Scores scores, int head, int query,
                             Array& out) {
  const auto layer = on_device_.keys(view.layer);
  const std::int64_t e = config_.d_head, d = config_.d_model, cl = view.visible,
                     sources = query + 1;
  const std::int64_t g = head / config_.group_size();
  PullBack pull = pull_back(Side::key, view, *layer);
  const bool shared = !pull.changes();
  const std::int64_t copies = shared ? 1 : sources;
  pull.from = ptr(*view.q) + (static_cast<std::int64_t>(query) * config_.n_heads + head) * e;
  pull.heads = 1;
  pull.position_a = 1;
  pull.dev_first = g;
  Array pulled;
  if (!shared) pulled = pulled_back(pull, copies * e);
  const float* from = shared ? pull.from : ptr(pulled);
  const Operand w = on_device_.operand(layer->matrix(model::Role::w_k));
  Array vectors = device_->floats(copies * d);
  device_->gemm({w.turned ? 0 : 1, 0, copies, d, e, from, e, 0, w.column(g * e), w.ld(), 0,
                 ptr(vectors), d, 0, 1});
  device_->launch(
      WriterDots{ptr(*view.writers), view.n_writers, d, cl, ptr(vectors), shared ? 0 : d, nullptr,
                 0, ptr(*view.dev), head_scale(view.layer), ptr(out)},
      sources * cl);
  hide_and_center(view, scores, query, out);
}

void CudaBackend::query_scores(const AttentionView& view, Scores scores, int head, int query,
                               Array& out) {
  const auto layer = on_device_.layer(view.layer);
  const std::int64_t e = config_.d_head, d = config_.d_model, cl = view.visible,
                     sources = query + 1;
  const std::int64_t g = head / config_.group_size();
  PullBack pull = pull_back(Side::query, view, *layer);
  pull.from = ptr(*view.k) + g * e;
  pull.from_b = static_cast<std::int64_t>(config_.n_kv_heads) * e;
  pull.nb = sources;
  pull.heads = 1;
  pull.position0 = query;
  pull.dev_first = head;
  const Array pulled = pulled_back(pull, sources * e);
  Array vectors = device_->floats(sources * d);
  const Operand w = on_device_.operand(layer->matrix(model::Role::w_q));
  device_->gemm({w.turned ? 0 : 1, 0, sources, d, e, ptr(pulled), e, 0, w.column(head * e), w.ld(),
                 0, ptr(vectors), d, 0, 1});
  device_->gemm({1, 0, sources, cl, d, ptr(vectors), d, 0,
                 ptr(*view.writers) + static_cast<std::int64_t>(query) * view.n_writers * d, d, 0,
                 ptr(out), cl, 0, 1});
  device_->launch(ScaleByRow{ptr(out), ptr(*view.dev), query, 0, cl, head_scale(view.layer)},
                  sources * cl);
  hide_and_center(view, scores, query, out);
}

}  // namespace unpack::backend::cuda
