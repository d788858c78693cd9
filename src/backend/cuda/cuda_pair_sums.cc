// Sums over the writers of sizes of scores that are made and added up on the chip.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/tile_rule.h"
#include "base/index.h"

namespace unpack::backend::cuda {

bool CudaBackend::sums_on_chip(Side side, const AttentionView& view) {
  return device_->pair_sums_fit(config_.d_head) && projects_in_parts(side, view) &&
         !folds(side, view);
}

void CudaBackend::pair_sums(Side side, const AttentionView& view, const ReachUnits& reach,
                            Array& sum, float* most) {
  const auto layer = reader(side, view.layer);
  const Projection way = projection(side, view, *layer);
  const bool key = side == Side::key;
  const Index length = view.length;
  UnpackPairSums call{};
  call.keys = key ? 1 : 0;
  call.rows = ptr(key ? *view.q : *view.k);
  call.row_heads = key ? config_.n_heads : config_.n_kv_heads;
  call.visible = view.visible;
  call.heads = config_.n_heads;
  call.own_groups = config_.n_kv_heads;
  call.e = config_.d_head;
  call.length = length;
  call.pairs = tri(view.length);
  call.window = config_.layer(view.layer).window;
  call.dev = ptr(*view.dev);
  call.scale = head_scale(view.layer);
  call.mass = reach.mass;
  call.bound = reach.bound;
  call.reach_writers = view.n_writers;
  call.sum = ptr(sum);
  call.most = most;
  const Array& rows = key ? *view.q : *view.k;
  const Array row_unit = split_.unit_of_rows(ptr(rows), rows.size());
  call.row_unit = ptr(row_unit);
  // Products of weights for keys are made for all positions at once.
  const Index fit = kProjectedTiles * tile_bytes_ / (call.visible * way.width * 4);
  const Index at_once =
      key && way.low_rank && view.parts == nullptr ? length : std::clamp<Index>(fit, 1, length);
  for (call.first = 0; call.first < length; call.first += at_once) {
    call.count = std::min(at_once, length - call.first);
    const Array columns = project(side, view, *layer, way, call.first, call.count);
    call.columns = ptr(columns);
    const Array unit = split_.unit_of_rows(ptr(columns), columns.size());
    call.column_unit = ptr(unit);
    device_->pair_sums(call);
  }
}

void CudaBackend::pair_dots(const float* a, const float* b, Index length, PairDots way) {
  constexpr Index kQueries = 256;  // more compute more pairs s > q for nothing
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, group = config_.group_size(),
              e = config_.d_head;
  const Index fit = tile_bytes_ / (heads * length * 4),
              at_once = std::clamp<Index>(fit, 1, std::min(length, kQueries));
  Array dots = device_->floats(heads * at_once * length);
  way.dots = ptr(dots);
  way.pairs = tri(length);
  for (way.q0 = 0; way.q0 < length; way.q0 += at_once) {
    way.nq = std::min(at_once, length - way.q0);
    way.pitch = way.q0 + way.nq;
    const Index each = way.nq * way.pitch;
    for (Index r = 0; r < group; ++r)
      device_->gemm({UNPACK_B_TRANSPOSED, 0, way.nq, way.pitch, e, a + (way.q0 * heads + r) * e,
                     heads * e, group * e, b, groups * e, e, ptr(dots) + r * each, way.pitch,
                     group * each, groups});
    device_->launch(way, heads * way.nq);
  }
}

// At 1,024 tokens of GPT-2 small 47 ms by a kernel that makes the products itself, 4 ms this way.
void CudaBackend::sum_values(const AttentionView& view, const Rows& rows, const Array& pulled,
                             Array& out) {
  if (rows.count != view.length || !rows.consecutive || view.length < kManyPositions)
    return Backend::sum_values(view, rows, pulled, out);
  PairDots dots{};
  dots.pattern = ptr(*view.pattern);
  dots.out = ptr(out);
  pair_dots(ptr(pulled), ptr(*view.v), view.length, dots);
}

// What the keys of a layer's heads lead to, [H, S, parts], from scores in a table or in tiles.
void CudaBackend::key_reach(const Layer& layer, Scores scores, const Reach& reach, Index parts,
                            double* mass, double* bound) {
  const AttentionView& view = layer.attention;
  const Index heads = config_.n_heads, length = view.length, pairs = tri(view.length),
              cl = view.visible, window = config_.layer(view.layer).window;
  const bool centered = scores == Scores::centered;
  KeyReach keys{};
  keys.key_coef = ptr(layer.heads.key_coef);
  keys.reach = reach;
  keys.out_mass = mass;
  keys.out_bound = bound;
  keys.length = length;
  keys.pairs = pairs;
  keys.visible = cl;
  keys.window = window;
  keys.parts = parts;
  if (!layer.sums->k_scores.empty()) {
    keys.table = ptr(layer.sums->k_scores);
    keys.scaled = 1;
    keys.tile.nq = length;
    keys.tile.heads = heads;
    device_->launch(keys, heads * length * parts);
    return;
  }
  score_tiles(Side::key, view, [&](const Tile& tile) {
    if (centered)
      device_->launch(TileMoments{tile, nullptr, nullptr, length, 1}, tile.nq * tile.heads * cl);
    keys.tile = tile;
    keys.scaled = centered ? 1 : 0;
    device_->launch(keys, tile.heads * tile.nq * parts);
  });
}

}  // namespace unpack::backend::cuda
