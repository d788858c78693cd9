// Tiles of the scores of keys and queries, on a device: folded into the stream, or projected.
#include <algorithm>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/tile_rule.h"
#include "backend/fold_rule.h"
#include "backend/score_plan.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

// As kProjectedQueries, which are cheaper.
constexpr Index kFoldedQueries = 16;

}  // namespace

PullBack CudaBackend::pull_back(Side side, const AttentionView& view, const DeviceRoles& layer) {
  const bool key = side == Side::key;
  const Array& norm = layer.vector(key ? model::Role::k_norm : model::Role::q_norm);
  PullBack pull{};
  pull.from_group = 1;
  pull.nb = 1;
  pull.heads = key ? config_.n_kv_heads : config_.n_heads;
  pull.e = config_.d_head;
  pull.rotary = rotary(view.layer, view.length, view.length);
  if (!norm.empty()) {
    pull.norm = ptr(norm);
    pull.dev = ptr(key ? *view.k_dev : *view.q_dev);
    pull.dev_heads = pull.heads;
    pull.dev_group = 1;
  }
  return pull;
}

Array CudaBackend::pulled_back(PullBack pull, Index size) {
  Array out = device_->floats(size);
  pull.out = ptr(out);
  device_->launch(pull, size);
  return out;
}

void CudaBackend::folded_tile(Side side, const AttentionView& view, const DeviceRoles& layer,
                              const Operand& w, Tile& tile) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, group = config_.group_size(),
              e = config_.d_head, d = config_.d_model;
  const Index cl = view.visible;
  const bool key = side == Side::key;
  PullBack pull = pull_back(side, view, layer);
  // Where nothing depends on the position in between, one vector serves every source (keys) or
  // every query.
  const bool shared = !pull.changes();
  const Index others = key ? tile.ns : tile.nq;  // positions whose writers are scored
  const Index own = key ? tile.nq : tile.ns;
  const Index copies = shared ? 1 : others;
  const float* from =
      key ? ptr(*view.q) + tile.q0 * heads * e : ptr(*view.k) + tile.s0 * groups * e;
  Array pulled;
  if (!shared || !key) {
    pull.from = from;
    pull.from_b = (key ? heads : groups) * e;
    pull.from_group = key ? 1 : group;
    pull.nb = own;
    pull.heads = heads;
    pull.position0 = key ? tile.s0 : tile.q0;
    pull.position_a = 1;
    pull.dev_group = key ? group : 1;
    pulled = pulled_back(pull, copies * own * heads * e);
    from = ptr(pulled);
  }
  Array vectors = device_->floats(copies * own * heads * d);
  heads_to_model(w, heads, from, copies * own, ptr(vectors));
  const Index first = key ? tile.s0 : tile.q0;
  with_writers(view, first, others, [&](Index begin, Index n, Any* writers, Index n_writers) {
    const Index at = begin - first;
    device_->gemm({1, 0, own * heads, cl, d, ptr(vectors) + (shared ? 0 : at * own * heads * d), d,
                   shared ? 0 : own * heads * d, writers, d, n_writers * d,
                   tile.data + at * own * heads * tile.pitch, tile.pitch, own * heads * tile.pitch,
                   n});
  });
}

CudaBackend::Projection CudaBackend::projection(Side side, const AttentionView& view,
                                                const DeviceRoles& layer) {
  const DeviceMatrix& matrix =
      layer.matrix(side == Side::key ? model::Role::w_k : model::Role::w_q);
  Projection out;
  out.width = matrix.out;
  out.split = projects_in_parts(side, view);
  out.low_rank = out.split && low_rank(matrix, view.length);
  if (out.split) {
    out.parts = split_.weights(matrix);
  } else {
    out.matrix = operand(matrix);
  }
  // Keys of all positions are made at once, queries those of some at a time.
  if (out.low_rank && (side == Side::query || view.parts != nullptr)) {
    for (int source = 0; source < source_layers(writers_, view.visible); ++source)
      out.heads.push_back(head_product(source, out.parts));
  }
  return out;
}

// projected[positions, Cl, heads, E]: every writer's own key (query), as the attention would see
// it.
Array CudaBackend::project(Side side, const AttentionView& view, const DeviceRoles& layer,
                           const Projection& way, Index first, Index positions) {
  const Index d = config_.d_model, cl = view.visible, width = way.width;
  Array out = device_->floats(positions * cl * width);
  if (way.low_rank) {
    low_rank_project(view, way, first, positions, out);
  } else {
    with_writers(view, first, positions, [&](Index begin, Index n, Any* writers, Index n_writers) {
      const Index stride = n_writers * d;
      float* to = ptr(out) + (begin - first) * cl * width;
      if (!way.split) {
        const Operand& w = way.matrix;
        device_->gemm({w.turned ? 1 : 0, 0, cl, width, d, writers, d, stride, w.data, w.ld(), 0, to,
                       width, cl * width, n});
        return;
      }
      const Index at_once = positions_at_once(n, cl * 2 * d);
      for (Index p = 0; p < n; p += at_once)
        split_.multiply(
            {floats_at(writers) + p * stride, stride, nullptr, cl * d, std::min(at_once, n - p)},
            way.parts, to + p * cl * width);
    });
  }
  finish_projected(side, view, layer, first, cl, positions, out);
  return out;
}

// Norm and rotary of what the matrix gave, x[positions, count, heads, E].
void CudaBackend::finish_projected(Side side, const AttentionView& view, const DeviceRoles& layer,
                                   Index first, Index count, Index positions, Array& x) {
  const bool key = side == Side::key;
  const Index heads = key ? config_.n_kv_heads : config_.n_heads;
  const Array& norm = layer.vector(key ? model::Role::k_norm : model::Role::q_norm);
  const Rotary turn = rotary(view.layer, view.length, view.length);
  if (turn.cos == nullptr && norm.empty()) return;
  device_->launch(FinishProjected{ptr(x), count, heads, config_.d_head, first,
                                  norm.empty() ? nullptr : ptr(key ? *view.k_dev : *view.q_dev),
                                  maybe(norm), turn},
                  positions * count * heads);
}

std::shared_ptr<const DeviceRoles> CudaBackend::reader(Side side, int layer) {
  return side == Side::key ? on_device_.keys(layer) : on_device_.layer(layer);
}

bool CudaBackend::projects_in_parts(Side side, const AttentionView& view) {
  const auto layer = reader(side, view.layer);
  return split_.pays(layer->matrix(side == Side::key ? model::Role::w_k : model::Role::w_q),
                     static_cast<Index>(view.length) * view.visible);
}

bool CudaBackend::reads_sums(Side side, const AttentionView& view) {
  const auto layer = reader(side, view.layer);
  const DeviceMatrix& w = layer->matrix(side == Side::key ? model::Role::w_k : model::Role::w_q);
  return split_.large(w, static_cast<Index>(view.length) * view.visible) &&
         (view.parts != nullptr || !fold_is_cheaper(config_, view.length, split_.gain(w)));
}

// `projected`: every writer's keys (queries) at some positions, [positions, Cl, own heads, E];
// `others`: the queries (keys) that meet them, stacked where products are made in parts.
CudaBackend::TileFactors CudaBackend::tile_factors(Side side, const AttentionView& view,
                                                   const Projection& way, const float* projected,
                                                   Index positions, Index head0, Index heads,
                                                   const Array& others) {
  const bool key = side == Side::key;
  const Index group = config_.group_size(), e = config_.d_head,
              own = key ? config_.n_kv_heads : config_.n_heads;
  if (!way.split)
    return {UNPACK_FACTORS_SINGLE, e, {}, projected, own * e, 0, ptr(key ? *view.q : *view.k)};
  const Index first = key ? head0 / group : head0,
              taken = key ? (head0 + heads - 1) / group + 1 - first : heads;
  Array stacked = split_.stack({projected, e, own, first, taken, positions * view.visible * taken},
                               SplitProducts::Stacked::others);
  const float* from = ptr(stacked);
  return {UNPACK_FACTORS_TF32, 3 * e, std::move(stacked), from, taken * 3 * e, first, ptr(others)};
}

// `from` starts at source 0, or at the tile's first query.
void CudaBackend::projected_tile(Side side, const AttentionView& view, const TileFactors& from,
                                 Tile& tile) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, group = config_.group_size(),
              k = from.depth, cl = view.visible;
  if (side == Side::query) {
    for (Index i = 0; i < tile.heads; ++i) {
      const Index h = tile.head0 + i;
      device_->gemm(
          {1, 0, tile.ns, cl, k, from.others + (tile.s0 * groups + h / group) * k, groups * k, 0,
           from.projected + (h - from.first) * k, from.width, cl * from.width,
           tile.data + i * tile.pitch, tile.s_stride, tile.q_stride, tile.nq},
          from.factors);
    }
    return;
  }
  // Queries of one head against its keys at every source.
  const bool grouped = from.factors != UNPACK_FACTORS_SINGLE;
  const auto meet = [&](Index h, const float* queries, Index rows, Index apart, Index to_apart) {
    device_->gemm({1, 0, rows, cl, k, queries, apart, 0,
                   from.projected + tile.s0 * cl * from.width + (h / group - from.first) * k,
                   from.width, cl * from.width, tile.data + (h - tile.head0) * tile.pitch, to_apart,
                   tile.s_stride, tile.ns},
                  from.factors);
  };
  const auto of_group = [&](Index h) {
    return from.others + (h / group * view.length + tile.q0) * group * k;
  };
  if (grouped && tile.heads == group)  // all of its heads at once
    return meet(tile.head0, of_group(tile.head0), tile.nq * group, k, tile.pitch);
  for (Index h = tile.head0; h < tile.head0 + tile.heads; ++h) {
    if (grouped) {
      meet(h, of_group(h) + h % group * k, tile.nq, group * k, tile.q_stride);
    } else {
      meet(h, from.others + (tile.q0 * heads + h) * k, tile.nq, heads * k, tile.q_stride);
    }
  }
}

bool CudaBackend::folds(Side side, const AttentionView& view) {
  if (view.parts != nullptr) return false;  // whose writers would be made for every tile
  const auto layer = reader(side, view.layer);
  return folds(layer->matrix(side == Side::key ? model::Role::w_k : model::Role::w_q), view.length,
               view.visible);
}

bool CudaBackend::folds(const DeviceMatrix& w, Index length, Index visible) const {
  return fold_is_cheaper(config_, length, split_.pays(w, length * visible) ? split_.gain(w) : 1.0);
}

void CudaBackend::score_tiles(Side side, const AttentionView& view, const TileUse& use) {
  const auto layer = reader(side, view.layer);
  const Index heads = config_.n_heads, cl = view.visible, pitch = (cl + 3) / 4 * 4,
              length = view.length, e = config_.d_head;
  const bool key = side == Side::key;
  const bool fold = folds(side, view);
  Operand w;
  Projection way;
  Array others;
  if (fold) {
    w = operand(layer->matrix(key ? model::Role::w_k : model::Role::w_q));
  } else {
    way = projection(side, view, *layer);
    const Array& from = key ? *view.q : *view.k;
    // The queries of a group's heads meet the same keys: they are rows of one product.
    if (way.split)
      others =
          key ? split_.stack({ptr(from), e, heads, 0, heads, from.size() / e, config_.n_kv_heads},
                             SplitProducts::Stacked::rows)
              : split_.stack({ptr(from), e, 1, 0, 1, from.size() / e},
                             SplitProducts::Stacked::rows);
  }
  const Index folded = length * heads * (pitch + config_.d_model + e) * 4;
  const ProjectedTile shape =
      fold ? ProjectedTile{heads,
                           std::clamp<Index>(tile_bytes_ / folded, 1,
                                             std::min(length, kFoldedQueries)),
                           0}
           : tile_of_projected(config_, key, length, cl, key || way.low_rank ? 0 : way.width,
                               tile_bytes_);
  const Index at_once = shape.queries;
  Array memory = device_->floats(at_once * length * shape.heads * pitch);
  const auto make = [&](Index q0, Index h0, const TileFactors* from) {
    Tile tile{};
    tile.data = ptr(memory);
    tile.q0 = q0;
    tile.nq = std::min(at_once, length - q0);
    tile.window = config_.layer(view.layer).window;
    tile.s0 = base::first_in_window(q0, tile.window);
    tile.ns = q0 + tile.nq - tile.s0;
    tile.head0 = h0;
    tile.heads = std::min(shape.heads, heads - h0);
    tile.q_stride = (key ? 1 : tile.ns) * tile.heads * pitch;
    tile.s_stride = (key ? tile.nq : 1) * tile.heads * pitch;
    tile.visible = cl;
    tile.pitch = pitch;
    tile.dev = ptr(*view.dev);
    tile.dev_of_source = key ? 1 : 0;
    tile.scale = head_scale(view.layer);
    if (from == nullptr) {
      folded_tile(side, view, *layer, w, tile);
    } else {
      projected_tile(side, view, *from, tile);
    }
    use(tile);
  };
  if (fold) {
    for (Index q0 = 0; q0 < length; q0 += at_once) make(q0, 0, nullptr);
    return;
  }
  if (key) {
    const Array projected = project(side, view, *layer, way, 0, length);
    for (Index h0 = 0; h0 < heads; h0 += shape.heads) {
      const TileFactors from = tile_factors(side, view, way, ptr(projected), length, h0,
                                            std::min(shape.heads, heads - h0), others);
      for (Index q0 = 0; q0 < length; q0 += at_once) make(q0, h0, &from);
    }
    return;
  }
  // Products of weights serve the queries of several tiles at once.
  const Index fit = way.low_rank ? kProjectedTiles * tile_bytes_ / (cl * way.width * 4) : at_once;
  const Index together = std::max<Index>(1, fit / at_once) * at_once;
  Array projected;
  for (Index q0 = 0; q0 < length; q0 += at_once) {
    if (q0 % together == 0) {
      projected = {};
      projected = project(side, view, *layer, way, q0, std::min(together, length - q0));
    }
    for (Index h0 = 0; h0 < heads; h0 += shape.heads) {
      const TileFactors from = tile_factors(
          side, view, way, ptr(projected) + q0 % together * cl * way.width,
          std::min(at_once, length - q0), h0, std::min(shape.heads, heads - h0), others);
      make(q0, h0, &from);
    }
  }
}

}  // namespace unpack::backend::cuda
