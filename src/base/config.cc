#include "unpack/config.h"

#include <algorithm>

namespace unpack {

bool ModelConfig::mixture() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerConfig& layer) { return layer.mixture(); });
}

int ModelConfig::most_entries() const {
  int most = 0;
  for (const LayerConfig& layer : layers) most = std::max(most, layer.entries());
  return most;
}

}  // namespace unpack
