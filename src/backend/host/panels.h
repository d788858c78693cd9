// Weights in the form a host GEMM likes: column panels, the norm's weight folded into the rows of
// every matrix that reads the stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/weights.h"

namespace unpack {

// Packed weights up to this size stay for good; a larger model packs a layer at a time, and keeps
// so many of them.
constexpr std::size_t kKeepBytes = std::size_t{4} << 30;
constexpr std::size_t kKeepLayers = 2;

// A matrix [in, out] cut into panels of `width` columns; panel p is stored row-major [in,
// columns(p)].
template <typename T>
struct Panels {
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t width = 256;
  std::vector<T> data;

  std::int64_t count() const { return (out + width - 1) / width; }
  std::int64_t begin(std::int64_t p) const { return p * width; }
  std::int64_t columns(std::int64_t p) const { return std::min(width, out - p * width); }
  const T* panel(std::int64_t p) const { return data.data() + in * begin(p); }
};

// Panels of a view; row i is scaled by row_scale[i] where given.
template <typename T>
Panels<T> make_panels(const WeightView& w, std::int64_t width, const std::vector<T>* row_scale);

template <typename T>
std::vector<T> read_vector(const WeightView& w);

// An MLP, or one expert of a mixture.
template <typename T>
struct MlpPanels {
  Panels<T> in, up, out;
  std::vector<T> b_in, b_up, b_out;

  std::size_t bytes() const {
    return sizeof(T) * (in.data.size() + up.data.size() + out.data.size());
  }
};

template <typename T>
struct LayerPanels {
  Panels<T> q, k, v, o;
  std::vector<T> b_q, b_k, b_v, b_o;   // norm biases folded in; empty: none
  std::vector<T> q_norm, k_norm;       // [H, E], [G, E] or empty
  std::vector<T> attn_post, mlp_post;  // [D] of the norms behind, or empty
  std::vector<T> sinks;                // [H] or empty
  MlpPanels<T> mlp;                    // of a dense layer
  Panels<T> router;                    // [D, experts] of a mixture
  std::vector<T> b_router;
};

template <typename T>
LayerPanels<T> make_layer_panels(const ModelConfig& config, const LayerWeights& w);
template <typename T>
MlpPanels<T> make_expert_panels(const LayerWeights& w, int expert);

extern template struct Panels<float>;
extern template struct Panels<double>;

}  // namespace unpack
