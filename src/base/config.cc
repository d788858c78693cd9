#include "unpack/config.h"

#include <algorithm>

#include "base/formulas.h"

namespace unpack {

int LayerConfig::first_source(int query) const { return base::first_in_window(query, window); }

bool ModelConfig::gated() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerConfig& layer) { return layer.gated(); });
}

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
