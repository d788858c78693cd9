// Weights in the form a host GEMM likes: column panels, the norm's weight folded into the rows of
// every matrix that reads the stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/scratch.h"
#include "model/weight_block.h"

namespace unpack::backend {

// Packed weights up to this size stay for good; a larger model packs a layer at a time, and keeps
// so many of them.
constexpr std::size_t kKeepBytes = std::size_t{4} << 30;
constexpr std::size_t kKeepLayers = 2;

// Half-precision weights whose packed form takes more than this are never packed: their panels are
// made from what is stored wherever one is used.
constexpr std::size_t kPackHalves = std::size_t{1} << 30;

// What a matrix takes once it is packed. A quantised one never is: it stays as it is stored, and is
// widened a panel at a time.
template <typename T>
std::size_t packed_bytes(const model::WeightView& w) {
  return model::is_quantised(w) ? 0 : sizeof(T) * static_cast<std::size_t>(w.in * w.out);
}

// A panel, or a part of it, where it lies or made for as long as this lives.
template <typename T>
class Panel {
 public:
  explicit Panel(const T* data) : data_(data) {}
  // Columns [part.column, ..) of the view from part.row on, rows `ld` apart, the first `skip`
  // places behind where a row begins; row i of the view times row_scale[i].
  Panel(const model::WeightView& w, const model::WeightBlock& part, std::int64_t ld,
        std::int64_t skip, const std::vector<T>& row_scale);
  operator const T*() const { return data_; }

 private:
  base::Scratch made_;
  const T* data_;
};

// A matrix [in, out] cut into panels of `width` columns; panel p is row-major [in, columns(p)].
template <typename T>
struct Panels {
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t width = 256;
  std::vector<T> data;       // all of them, one after the other; or nothing, and
  model::WeightView stored;  // what they are made from
  std::vector<T> row_scale;  // and how its rows are scaled, or empty

  std::int64_t count() const { return (out + width - 1) / width; }
  std::int64_t begin(std::int64_t p) const { return p * width; }
  std::int64_t columns(std::int64_t p) const { return std::min(width, out - p * width); }
  bool packed() const { return !data.empty(); }
  // Rows of whatever is asked for are columns(p) apart.
  Panel<T> panel(std::int64_t p) const { return part(p, {0, in, 0, columns(p)}); }
  Panel<T> rows(std::int64_t p, std::int64_t row, std::int64_t n) const {
    return part(p, {row, n, 0, columns(p)});
  }
  Panel<T> some_columns(std::int64_t p, std::int64_t column, std::int64_t n) const {
    return part(p, {0, in, column, n});
  }

 private:
  Panel<T> part(std::int64_t p, const model::WeightBlock& of) const {
    const std::int64_t ld = columns(p);
    if (packed()) return Panel<T>(data.data() + in * begin(p) + of.row * ld + of.column);
    return Panel<T>(stored, {of.row, of.rows, begin(p) + of.column, of.columns}, ld, of.column,
                    row_scale);
  }
};

// Panels of a view; row i is scaled by row_scale[i] where given. Quantised ones are made where they
// are used in any case.
enum class Pack { now, never };
template <typename T>
Panels<T> make_panels(const model::WeightView& w, std::int64_t width,
                      const std::vector<T>* row_scale, Pack pack);

template <typename T>
std::vector<T> read_vector(const model::WeightView& w);

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
LayerPanels<T> make_layer_panels(const ModelConfig& config, const model::LayerWeights& w,
                                 Pack pack);
template <typename T>
MlpPanels<T> make_expert_panels(const model::LayerWeights& w, int expert);

extern template class Panel<float>;
extern template class Panel<double>;
extern template struct Panels<float>;
extern template struct Panels<double>;

}  // namespace unpack::backend
