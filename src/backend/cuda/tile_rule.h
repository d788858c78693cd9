// How much of a layer's scores exists at a time where writers are projected.
#pragma once

#include <algorithm>

#include "base/index.h"
#include "unpack/config.h"

namespace unpack::backend::cuda {

// More queries at once compute more pairs s > q for nothing, fewer keep the device waiting.
inline constexpr Index kProjectedQueries = 64;

// Projected queries, and what is stacked for tensor cores, stay below so many tiles.
inline constexpr Index kProjectedTiles = 3;

// Widths of heads whose scores a GPU adds up without a tile of them in memory.
inline bool on_chip_depth(Index e) { return e == 64 || e == 80 || e == 96 || e == 128; }

struct ProjectedTile {
  Index heads = 0, queries = 0;
  Index stacked = 0;  // bytes of its factors in parts
};

// As many heads as leave room for enough queries, for products of few rows are slow, and for what
// is stacked of theirs: keys of all sources, or the tile's own queries. Of grouped keys one
// group's, whose queries are rows of one product. `width`: numbers of every writer that a tile
// projects itself.
inline ProjectedTile tile_of_projected(const ModelConfig& c, bool keys, Index length, Index visible,
                                       Index width, Index tile_bytes) {
  const Index group = c.n_heads / c.n_kv_heads, heads = c.n_heads, factor = 3 * 4 * c.d_head;
  const Index most = std::min(length, kProjectedQueries);
  const Index per_head = length * 4 * ((visible + 3) / 4 * 4);
  const Index own = keys ? length * visible * factor / group : most * visible * factor;
  const Index some = std::min(tile_bytes / (most * per_head),
                              kProjectedTiles * tile_bytes / std::max<Index>(own, 1));
  ProjectedTile out;
  out.heads = keys && group > 1 ? group : std::clamp(some / group * group, group, heads);
  out.queries =
      std::clamp<Index>(tile_bytes / (out.heads * per_head + 4 * visible * width), 1, most);
  out.stacked = visible * factor * (keys ? length * out.heads / group : out.queries * out.heads);
  return out;
}

}  // namespace unpack::backend::cuda
