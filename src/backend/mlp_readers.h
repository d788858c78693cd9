// The ways an MLP reads the stream: the only one of a plain MLP, gate and up of a gated one, and
// the router of a mixture before them. The one home of their order, names and weights.
#pragma once

#include <vector>

#include "backend/views.h"
#include "unpack/options.h"

namespace unpack::backend {

inline constexpr std::size_t kMostReaders = 3;

struct MlpReader {
  MlpSide side = MlpSide::gate;
  Branch branch = Branch::mlp;
};

inline std::vector<MlpReader> mlp_readers(const LayerConfig& layer) {
  if (!layer.gated()) return {{MlpSide::gate, Branch::mlp}};
  const MlpReader gate{MlpSide::gate, Branch::G}, up{MlpSide::up, Branch::U};
  if (!layer.mixture()) return {gate, up};
  return {{MlpSide::router, Branch::R}, gate, up};
}

// Where the gate of a gated MLP, or the only reader of a plain one, stands in that list.
inline std::size_t gate_index(const LayerConfig& layer) { return layer.mixture() ? 1 : 0; }

// The share of an MLP's credit that the reader at `index` of that list passes on.
inline double reader_weight(const Options& options, const LayerConfig& layer, std::size_t index) {
  if (!layer.gated()) return 1.0;
  return layer.mixture() ? options.expert_weights[index] : options.mlp_weights[index];
}

// Its scores at a position: one a neuron, or one a chosen expert.
inline int reader_entries(const LayerConfig& layer, MlpSide side) {
  return side == MlpSide::router ? layer.experts_per_token : layer.entries();
}

// Gate and up by number, where something is kept of each of them.
inline std::size_t neuron_side(MlpSide side) { return side == MlpSide::up ? 1 : 0; }
// How many of them there are.
inline int neuron_sides(const LayerConfig& layer) { return layer.gated() ? 2 : 1; }
inline int neuron_sides(const ModelConfig& config) { return config.gated() ? 2 : 1; }

// The branches of an MLP, or of a model's MLPs, in words.
template <class Config>
const char* branch_words(const Config& config) {
  return config.mixture() ? "the branches R, G and U"
         : config.gated() ? "the branches G and U"
                          : "no branches";
}

// Where a branch of an MLP reads.
inline MlpSide side_of(Branch branch) {
  return branch == Branch::R ? MlpSide::router : branch == Branch::U ? MlpSide::up : MlpSide::gate;
}

inline bool has_branch(const LayerConfig& layer, Branch branch) {
  for (const MlpReader& reader : mlp_readers(layer)) {
    if (reader.branch == branch) return true;
  }
  return false;
}

}  // namespace unpack::backend
