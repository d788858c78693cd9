// Weights in the form a host GEMM likes: column panels, the norm's weight folded into the rows of
// every matrix that reads the stream.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "base/index.h"
#include "base/scratch.h"
#include "base/thread_pool.h"
#include "model/weight_block.h"

namespace unpack::backend {

// Packed weights up to this size stay for good; a larger model packs a layer at a time, and keeps
// so many of them.
constexpr std::size_t kKeepBytes = std::size_t{4} << 30;
constexpr std::size_t kKeepLayers = 2;

// Half-precision weights whose packed form takes more than this are never packed: their panels are
// made from what is stored wherever one is used.
constexpr std::size_t kPackHalves = std::size_t{1} << 30;

// Products of no more rows than this are made with halves as they are stored.
constexpr Index kFewHalves = 128;

// What a matrix takes once it is packed. A quantised one never is: it stays as it is stored, and is
// widened a panel at a time.
template <typename T>
std::size_t packed_bytes(const model::WeightView& w) {
  return model::is_quantised(w) ? 0 : sizeof(T) * (w.in * w.out);
}

// Where packed weights lie: memory that nobody clears first, in large pages, one piece behind the
// other. Pieces keep it alive.
class PanelMemory {
 public:
  // So many bytes are asked for together; 0: each piece by itself.
  explicit PanelMemory(std::size_t together = 0) : together_(together) {}
  std::shared_ptr<void> take(std::size_t bytes);  // throws std::bad_alloc

 private:
  std::mutex mutex_;
  std::size_t together_;
  std::shared_ptr<void> from_;  // what is left of the last of them
  std::size_t left_ = 0;
};

// Values in such memory.
template <typename T>
class PanelValues {
 public:
  PanelValues() = default;
  PanelValues(PanelMemory& memory, Index size)
      : place_(memory.take(size * sizeof(T))), size_(size) {}
  T* data() { return static_cast<T*>(place_.get()); }
  const T* data() const { return static_cast<const T*>(place_.get()); }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::shared_ptr<void> place_;
  Index size_ = 0;
};

// A panel, or a part of it, where it lies or made for as long as this lives.
template <typename T>
class Panel {
 public:
  Panel(const T* data, Index ld) : data_(data), ld_(ld) {}
  // A part of the view, its rows one after the other; row i of the view times row_scale[i].
  Panel(const model::WeightView& w, const model::WeightBlock& part,
        const std::vector<T>& row_scale);
  operator const T*() const { return data_; }
  Index ld() const { return ld_; }  // how far apart its rows are

 private:
  base::Scratch made_;
  const T* data_;
  Index ld_;
};

// A matrix [in, out] cut into panels of `width` columns; panel p is row-major [in, columns(p)].
template <typename T>
struct Panels {
  Index in = 0;
  Index out = 0;
  Index width = 256;
  PanelValues<T> data;       // all of them, one after the other; or nothing, and
  model::WeightView stored;  // what they are made from
  std::vector<T> row_scale;  // and how its rows are scaled, or empty

  Index count() const { return (out + width - 1) / width; }
  Index begin(Index p) const { return p * width; }
  Index columns(Index p) const { return std::min(width, out - p * width); }
  bool packed() const { return !data.empty(); }
  // Panel p as the right side of a product of ours (kernels.h): panels of kPanelColumns columns,
  // one behind the other, zeros behind the last column; to[in * padded_columns(columns(p))].
  void in_narrow_panels(Index p, T* to) const;
  // Rows of these are columns(p) apart,
  Panel<T> panel(Index p) const { return part(p, {0, in, 0, columns(p)}); }
  Panel<T> rows(Index p, Index row, Index n) const { return part(p, {row, n, 0, columns(p)}); }
  // of this as far as it says.
  Panel<T> some_columns(Index p, Index column, Index n) const {
    return part(p, {0, in, column, n});
  }

 private:
  Panel<T> part(Index p, const model::WeightBlock& of) const {
    const Index ld = columns(p);
    if (packed()) return Panel<T>(data.data() + in * begin(p) + of.row * ld + of.column, ld);
    return Panel<T>(stored, {of.row, of.rows, begin(p) + of.column, of.columns}, row_scale);
  }
};

enum class Pack { now, never };

// Whether matrices are packed, where to and by whom. Quantised ones are made where they are used in
// any case.
struct Packing {
  Pack pack = Pack::now;
  PanelMemory* memory = nullptr;     // null: each by itself
  base::ThreadPool* pool = nullptr;  // null: the caller alone
};

template <typename T>
std::vector<T> read_vector(const model::WeightView& w);

// The weights of a layer or of one expert by role; empty where it has none. The norm in front is
// folded into matrices and biases; q_norm is [H, E] and k_norm [G, E].
template <typename T>
class RolePanels {
 public:
  const Panels<T>& matrix(model::Role role) const {
    return matrices_.at(model::matrix_index(role));
  }
  Panels<T>& matrix(model::Role role) { return matrices_.at(model::matrix_index(role)); }
  const std::vector<T>& vector(model::Role role) const {
    return vectors_.at(static_cast<std::size_t>(role));
  }
  std::vector<T>& vector(model::Role role) { return vectors_.at(static_cast<std::size_t>(role)); }
  const auto& matrices() const { return matrices_; }
  const auto& vectors() const { return vectors_; }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const Panels<T>& m : matrices_) sum += sizeof(T) * m.data.size();
    return sum;
  }

 private:
  std::array<Panels<T>, model::kMatrices.size()> matrices_;
  std::array<std::vector<T>, model::kRoles> vectors_;
};

// `norms` has those in front: the layer, whose expert `w` may be.
template <typename T>
RolePanels<T> make_panels(const ModelConfig& config, const model::RoleViews& w,
                          const model::RoleViews& norms, const Packing& packing);

extern template class Panel<float>;
extern template class Panel<double>;
extern template struct Panels<float>;
extern template struct Panels<double>;

}  // namespace unpack::backend
