// Weights as the maths wants them, as views on what is stored. Nothing here is converted.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/index.h"
#include "model/roles.h"
#include "tensor/convert.h"
#include "unpack/config.h"

namespace unpack::model {

// A tensor as a source holds it. `data` may be unaligned.
struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<Index> shape;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// A tensor whose elements are packed in blocks. Elements are counted as if it were stored plainly.
class Encoded {
 public:
  virtual ~Encoded() = default;
  virtual void decode(Index first, Index n, float* out) const = 0;
  // Whether it is MXFP4, which devices keep as it is; then copy_blocks gives n whole blocks as they
  // are stored, each with its scale behind it, and `first` is where one begins.
  virtual bool mxfp4() const { return false; }
  virtual void copy_blocks(Index first, Index n, std::byte* out) const {}
  // Where n elements from `first` on are stored plainly, one after the other; null: nowhere.
  virtual const std::byte* place(Index first, Index n) const { return nullptr; }
};

// A matrix [in, out] inside a stored tensor: element (i, o) is data[i * in_stride + (o / block) *
// block_stride + (o % block) * out_stride], counted in elements; what is read is scale * (that +
// shift). The block level expresses GPT-NeoX's [head, (q,k,v), d_head] rows.
struct WeightView {
  const std::byte* data = nullptr;
  DType dtype = DType::f32;
  Index in = 0;
  Index out = 0;
  Index in_stride = 0;
  Index block = 1;  // columns per block
  Index block_stride = 0;
  Index out_stride = 0;
  double scale = 1.0;
  double shift = 0.0;
  const Encoded* encoded = nullptr;  // where it is, `data` stays unused
  Index start = 0;                   // its first element there

  explicit operator bool() const { return data != nullptr || encoded != nullptr; }
  Index offset(Index i, Index o) const {
    return i * in_stride + (o / block) * block_stride + (o % block) * out_stride;
  }
  // What lies at `data` is what is read.
  bool plain() const { return encoded == nullptr && scale == 1.0 && shift == 0.0; }
  double at(Index i, Index o) const;  // slow; for tests and small vectors
};

// Rows [row, row + n) of the view as scalars, row-major [n, out]; fast where columns or rows are
// contiguous.
void read_rows(const WeightView& w, Index row, Index n, float* out);
void read_rows(const WeightView& w, Index row, Index n, double* out);

// Where the elements of a row or a column lie one after the other as they are read, but for their
// type; null where they do not.
const std::byte* stored_row(const WeightView& w, Index i);
const std::byte* stored_column(const WeightView& w, Index o);

// When values are looked at: all when they are loaded, or those of large tensors when they are used
// (value_checks.h).
enum class LookAt { loaded, used };
class ValueChecks;

// Views by role.
struct RoleViews {
  std::array<WeightView, kRoles> views;
  WeightView& operator[](Role role) { return views[static_cast<std::size_t>(role)]; }
  const WeightView& operator[](Role role) const { return views[static_cast<std::size_t>(role)]; }
};

struct LayerWeights : RoleViews {
  std::vector<RoleViews> experts;  // of a mixture: its MLP roles
};

struct ModelWeights : RoleViews {  // what belongs to no layer
  ModelConfig config;
  std::vector<LayerWeights> layers;
  std::string fingerprint;              // fast hash of headers and samples of every tensor
  std::shared_ptr<const void> storage;  // keeps the bytes alive
  std::vector<std::shared_ptr<const Encoded>> encoded;
  std::shared_ptr<ValueChecks> unseen;  // what is still to be looked at; null: nothing
  // Tells the source that the pages behind a view were copied elsewhere and may be dropped (files
  // only).
  void (*release)(const void* storage, const std::byte* data, std::size_t bytes) = nullptr;

  std::size_t parameter_count() const;
};

}  // namespace unpack::model
