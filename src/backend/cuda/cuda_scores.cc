// Writers, scores and the sums behind every denominator, on a device.
#include <algorithm>
#include <cmath>

#include "backend/cuda/cuda_backend.h"
#include "base/index.h"

namespace unpack::backend::cuda {

// Keys and queries
// -------------------------------------------------------------------------------------------------

// Sums over the writers of every pair from what all of them together project to.
void CudaBackend::pair_read(Side side, const AttentionView& view, Scores scores, const Array& all,
                            Array& sum) {
  const auto layer = on_device_.layer(view.layer);
  const bool key = side == Side::key;
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              own = key ? groups : heads, length = view.length;
  Array read = device_->floats(length * own * e);
  multiply(layer->matrix(key ? model::Role::w_k : model::Role::w_q), ptr(all), length, ptr(read));
  finish_projected(side, view, *layer, 0, 1, length, read);
  if (length >= kManyPositions) {
    PairDots dots{};
    dots.dev = ptr(*view.dev);
    dots.dev_of_source = key ? 1 : 0;
    dots.scale = head_scale(view.layer);
    dots.out = ptr(sum);
    dots.window = config_.layer(view.layer).window;
    dots.centers = scores == Scores::centered ? 1 : 0;
    return pair_dots(key ? ptr(*view.q) : ptr(read), key ? ptr(read) : ptr(*view.k), length, dots);
  }
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
  const Index groups = config_.n_kv_heads, d = config_.d_model, cl = view.visible,
              length = view.length;
  sums.v_scores = device_->floats(groups * length * cl);
  sums.v_sum = device_->floats(groups * length);
  sums.v_abs = device_->floats(groups * length);
  Array vectors = device_->floats(length * groups * d),
        scores = device_->floats(length * groups * cl);
  heads_to_model(operand(layer.matrix(model::Role::w_v)), config_.n_kv_heads, ptr(*view.v), length,
                 ptr(vectors));
  with_writers(view, 0, length, [&](Index begin, Index n, Any* writers, Index n_writers) {
    device_->gemm({1, 0, groups, cl, d, ptr(vectors) + begin * groups * d, d, groups * d, writers,
                   d, n_writers * d, ptr(scores) + begin * groups * cl, cl, groups * cl, n});
  });
  device_->launch(ValueSums{ptr(scores), ptr(*view.dev), ptr(sums.v_scores), ptr(sums.v_sum),
                            ptr(sums.v_abs), length, groups, cl},
                  length * groups);
}

Array CudaBackend::of_pairs(const AttentionView& view, Index each) {
  const Index window = config_.layer(view.layer).window,
              size = Index{config_.n_heads} * tri(view.length) * each;
  // Tiles leave out what no query of theirs sees.
  return window > 0 && window < view.length ? device_->zeros(size) : device_->floats(size);
}

// Those of one side, but for what is read off the sum of all writers.
void CudaBackend::sum_pairs(Side side, const AttentionView& view, Scores scores, bool keep_scores,
                            AttentionSums& sums) {
  const Index pairs = tri(view.length), heads = config_.n_heads, length = view.length,
              cl = view.visible;
  const bool centered = scores == Scores::centered, key = side == Side::key,
             reads = reads_sums(side, view);
  Array &sum = key ? sums.k_sum : sums.q_sum, &abs = key ? sums.k_abs : sums.q_abs;
  sum = of_pairs(view, 1);
  abs = of_pairs(view, 1);
  if (keep_scores) sums.k_scores = of_pairs(view, cl);
  if (!centered && !keep_scores && reads && sums_on_chip(side, view))
    return pair_sums(side, view, {}, abs, nullptr);
  if (key) {
    sums.k_std = device_->floats(heads * length * cl);
    sums.k_mean = device_->floats(heads * length * cl);
  }
  score_tiles(side, view, [&](const Tile& tile) {
    if (key || centered)
      device_->launch(TileMoments{tile, key ? ptr(sums.k_mean) : nullptr,
                                  key ? ptr(sums.k_std) : nullptr, length, centered ? 1 : 0},
                      tile.nq * tile.heads * cl);
    device_->launch(
        TileSums{tile, reads ? nullptr : ptr(sum), ptr(abs),
                 keep_scores ? ptr(sums.k_scores) : nullptr, pairs, 0, centered ? 1 : 0},
        tile.ns * tile.nq * tile.heads);
  });
}

AttentionSums CudaBackend::attention_sums(const AttentionView& view, Scores scores,
                                          bool keep_key_scores) {
  AttentionSums sums;
  sum_pairs(Side::key, view, scores, keep_key_scores, sums);
  sum_pairs(Side::query, view, scores, false, sums);
  const bool keys = reads_sums(Side::key, view), queries = reads_sums(Side::query, view);
  if (keys || queries) {
    const Array all = summed_writers(view);
    if (keys) pair_read(Side::key, view, scores, all, sums.k_sum);
    if (queries) pair_read(Side::query, view, scores, all, sums.q_sum);
  }
  value_sums(view, *on_device_.layer(view.layer), sums);
  return sums;
}

AttentionSums CudaBackend::key_sums(const AttentionView& view, Scores scores) {
  AttentionSums sums;
  sum_pairs(Side::key, view, scores, false, sums);
  if (reads_sums(Side::key, view))
    pair_read(Side::key, view, scores, summed_writers(view), sums.k_sum);
  value_sums(view, *on_device_.layer(view.layer), sums);
  return sums;
}

AttentionSums CudaBackend::key_moments(const AttentionView& view) {
  const Index cl = view.visible, size = Index{config_.n_heads} * view.length * cl;
  AttentionSums sums;
  sums.k_std = device_->floats(size);
  sums.k_mean = device_->floats(size);
  score_tiles(Side::key, view, [&](const Tile& tile) {
    device_->launch(TileMoments{tile, ptr(sums.k_mean), ptr(sums.k_std), view.length, 0},
                    tile.nq * tile.heads * cl);
  });
  return sums;
}

void CudaBackend::visit_key_scores(const AttentionView& view, Scores scores,
                                   const KeyVisitor& visit) {
  const Index cl = view.visible;
  const bool centered = scores == Scores::centered;
  score_tiles(Side::key, view, [&](const Tile& tile) {
    const Index first = tri(tile.q0), pairs = tri(tile.q0 + tile.nq) - first;
    Array rows = device_->zeros(tile.heads * pairs * cl);  // a tile lacks what no query of it sees
    if (centered)
      device_->launch(TileMoments{tile, nullptr, nullptr, view.length, 1},
                      tile.nq * tile.heads * cl);
    device_->launch(TileSums{tile, nullptr, nullptr, ptr(rows), pairs, first + tile.head0 * pairs,
                             centered ? 1 : 0},
                    tile.ns * tile.nq * tile.heads);
    const std::vector<float> values = device_->download(rows);
    pool_.parallel_for(tile.heads * tile.nq, [&](Index task) {
      const Index h = task / tile.nq, q = tile.q0 + task % tile.nq;
      visit(tile.head0 + h, q, values.data() + (h * pairs + tri(q) - first) * cl);
    });
  });
}

// Sources outside the window have no scores; centred ones are less the mean over the others.
void CudaBackend::hide_and_center(const AttentionView& view, Scores scores, int query, Array& out) {
  const Index from = config_.layer(view.layer).first_source(query), cl = view.visible;
  const bool centered = scores == Scores::centered;
  if (from > 0 || centered)
    device_->launch(CenterColumns{ptr(out), from, query + 1, cl, centered ? 1 : 0}, cl);
}

// Every writer is read once for all heads, not once for each.
void CudaBackend::key_scores_of_heads(const AttentionView& view, Scores scores, int query,
                                      Array& out) {
  const auto layer = on_device_.keys(view.layer);
  const Index heads = config_.n_heads, cl = view.visible, pitch = (cl + 3) / 4 * 4,
              sources = query + 1;
  const Operand w = operand(layer->matrix(model::Role::w_k));
  const Index at_once =
      positions_at_once(sources, heads * (pitch + config_.d_model + config_.d_head));
  Array memory = device_->floats(at_once * heads * pitch);
  for (Index s0 = 0; s0 < sources; s0 += at_once) {
    Tile tile{};
    tile.data = ptr(memory);
    tile.q0 = query;
    tile.nq = 1;
    tile.s0 = s0;
    tile.ns = std::min(at_once, sources - s0);
    tile.heads = heads;
    tile.q_stride = tile.s_stride = heads * pitch;
    tile.visible = cl;
    tile.pitch = pitch;
    tile.dev = ptr(*view.dev);
    tile.dev_of_source = 1;
    tile.scale = head_scale(view.layer);
    folded_tile(Side::key, view, *layer, w, tile);
    device_->launch(TileSums{tile, nullptr, nullptr, ptr(out), sources, tri(query), 0},
                    tile.ns * heads);
  }
  for (Index h = 0; h < heads; ++h) {
    Array own = slice(out, h * sources * cl, sources * cl);
    hide_and_center(view, scores, query, own);
  }
}

void CudaBackend::key_scores(const AttentionView& view, Scores scores, int head, int query,
                             Array& out) {
  const auto layer = on_device_.keys(view.layer);
  const Index e = config_.d_head, d = config_.d_model, cl = view.visible, sources = query + 1;
  const Index g = head / config_.group_size();
  PullBack pull = pull_back(Side::key, view, *layer);
  const bool shared = !pull.changes();
  const Index copies = shared ? 1 : sources;
  pull.from = ptr(*view.q) + (static_cast<Index>(query) * config_.n_heads + head) * e;
  pull.heads = 1;
  pull.position_a = 1;
  pull.dev_first = g;
  Array pulled;
  if (!shared) pulled = pulled_back(pull, copies * e);
  const float* from = shared ? pull.from : ptr(pulled);
  const Operand w = operand(layer->matrix(model::Role::w_k));
  Array vectors = device_->floats(copies * d);
  device_->gemm({w.turned ? 0 : 1, 0, copies, d, e, from, e, 0, w.column(g * e), w.ld(), 0,
                 ptr(vectors), d, 0, 1});
  with_writers(view, 0, sources, [&](Index begin, Index n, Any* writers, Index n_writers) {
    device_->launch(
        WriterDots{floats_at(writers), n_writers, d, cl, ptr(vectors) + (shared ? 0 : begin * d),
                   shared ? 0 : d, nullptr, 0, ptr(*view.dev) + begin, head_scale(view.layer),
                   ptr(out) + begin * cl},
        n * cl);
  });
  hide_and_center(view, scores, query, out);
}

void CudaBackend::query_scores(const AttentionView& view, Scores scores, int head, int query,
                               Array& out) {
  const auto layer = on_device_.layer(view.layer);
  const Index e = config_.d_head, d = config_.d_model, cl = view.visible, sources = query + 1;
  const Index g = head / config_.group_size();
  PullBack pull = pull_back(Side::query, view, *layer);
  pull.from = ptr(*view.k) + g * e;
  pull.from_b = config_.n_kv_heads * e;
  pull.nb = sources;
  pull.heads = 1;
  pull.position0 = query;
  pull.dev_first = head;
  const Array pulled = pulled_back(pull, sources * e);
  Array vectors = device_->floats(sources * d);
  const Operand w = operand(layer->matrix(model::Role::w_q));
  device_->gemm({w.turned ? 0 : 1, 0, sources, d, e, ptr(pulled), e, 0, w.column(head * e), w.ld(),
                 0, ptr(vectors), d, 0, 1});
  with_writers(view, query, 1, [&](Index, Index, Any* writers, Index) {
    device_->gemm({1, 0, sources, cl, d, ptr(vectors), d, 0, writers, d, 0, ptr(out), cl, 0, 1});
  });
  device_->launch(ScaleByRow{ptr(out), ptr(*view.dev), query, 0, cl, head_scale(view.layer)},
                  sources * cl);
  hide_and_center(view, scores, query, out);
}

}  // namespace unpack::backend::cuda
