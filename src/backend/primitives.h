// What a device can do: memory, products with weights, products of arrays, and kernels over
// elements and rows. Nothing here knows the method; what the method needs is written once over it
// (ops/).
//
// Primitives never see a prompt, a writer or a score. Whatever is faster on a device when it is
// done in one go is an operation that the device overrides (backend.h).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/array.h"
#include "backend/kernels/list.h"
#include "model/weights.h"

namespace unpack::backend {

// A matrix or a vector of a layer, or of one expert of it.
struct WeightName {
  int layer = 0;
  model::Role role = model::Role::count;
  int expert = -1;
};

// `batch` products C[m, n] = A[m, k] op(B), row-major, each its strides behind the one before; B is
// [k, n], or [n, k] where b_turned.
struct BatchedProduct {
  bool b_turned = false;
  Index m = 0, n = 0, k = 0;
  Tail a;
  Index lda = 0, stride_a = 0;
  Tail b;
  Index ldb = 0, stride_b = 0;
  Tail c;
  Index ldc = 0, stride_c = 0;
  Index batch = 1;
  std::span<const int> which_b = {};  // product i takes the B that comes so many strides behind
};

// Whether all of them lie in their arrays.
inline void check_batch(const BatchedProduct& p) {
  if (!kShapesChecked || p.batch == 0 || p.m == 0 || p.n == 0) return;
  const auto lies = [](const Tail& in, Index last, Index stride, Index rows, Index ld, Index cols) {
    return rows == 0 || last * stride + (rows - 1) * ld + cols <= in.size;
  };
  const Index last_b = p.which_b.empty() ? p.batch - 1 : *std::ranges::max_element(p.which_b);
  check_shape(
      std::ssize(p.which_b) == (p.which_b.empty() ? 0 : p.batch) &&
          lies(p.a, p.batch - 1, p.stride_a, p.m, p.lda, p.k) &&
          lies(p.b, last_b, p.stride_b, p.b_turned ? p.n : p.k, p.ldb, p.b_turned ? p.k : p.n) &&
          lies(p.c, p.batch - 1, p.stride_c, p.m, p.ldc, p.n),
      "products of arrays and where these end");
}

class Primitives {
 public:
  virtual ~Primitives() = default;

  virtual bool is_double() const = 0;  // the scalar: double or float
  Index scalar_bytes() const { return is_double() ? 8 : 4; }

  // Memory
  // -----------------------------------------------------------------------------------------------
  virtual Array uninitialized(Index size) = 0;
  virtual Array zeros(Index size) = 0;
  virtual void upload(Array& to, Index offset, std::span<const double> from) = 0;
  virtual void download(const Array& from, Index offset, std::span<double> to) = 0;
  virtual void copy(const Array& from, Index from_offset, Array& to, Index to_offset,
                    Index size) = 0;
  // The array as host memory of the backend's scalar; host backends give their own memory, others a
  // copy.
  virtual std::shared_ptr<const void> host(const Array& from) = 0;
  // Whether all of its numbers are finite; nothing where that is no quicker than looking at them.
  virtual std::optional<bool> all_finite(const Array&) { return std::nullopt; }
  // A part of the array, which shares its memory.
  Array slice(const Array& from, Index offset, Index size) const {
    check_shape(offset >= 0 && size >= 0 && offset + size <= from.size(), "a slice of an array");
    return Array(std::shared_ptr<void>(std::make_shared<Array>(from), data(from, offset)), size);
  }

  // Kernels
  // -----------------------------------------------------------------------------------------------
  // A kernel of kernels/list.h over `count` indices or rows, its parameters filled in with the
  // addresses that `data` gives.
  template <typename Kernel>
  void launch(const Kernel& kernel, Index count) {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    if (count > 0) run_kernel(kernels::NameOf<Kernel>::kName, &kernel, sizeof kernel, count);
  }

  // Weights
  // -----------------------------------------------------------------------------------------------
  // A bias with that of the norm in front folded in, the weight of a norm (of keys and queries: one
  // for every head) or the sinks; empty where the layer has none.
  virtual Array vector(const WeightName& name) = 0;
  // C[m, out] = A W (+ bias), of all weights that read the rows A[m, in].
  struct Product {
    WeightName weight;
    View out;
    std::optional<model::Role> bias = std::nullopt;
  };
  virtual void multiply(std::span<const Product> products, const View& a) = 0;
  void multiply(const Product& product, const View& a) { multiply(std::span(&product, 1), a); }
  // C[m, in] = A[m, out] W^T.
  virtual void multiply_turned(const WeightName& weight, const View& a, const View& c) = 0;
  // For every head by itself. c[m, heads, D] = a[m, heads, E] W^T with the columns of its key/value
  // head or its own, whichever the matrix has.
  virtual void heads_to_model(const WeightName& weight, Index heads, const View& a,
                              const View& c) = 0;
  // c[i * row + h * D + :] = a[i, h, :] W with the rows of head h.
  virtual void heads_out(const WeightName& weight, Index heads, const View& a, const Tail& c,
                         Index row) = 0;
  // x[n, D] times the table of output embeddings: out[n, V].
  virtual void vocabulary_product(const View& x, std::span<double> out) = 0;
  virtual std::vector<double> vocabulary_sum() = 0;  // [D] over the rows of that table

  // Products of arrays
  // -----------------------------------------------------------------------------------------------
  virtual void multiply_batch(const BatchedProduct& product) = 0;

 protected:
  virtual void run_kernel(kernels::Name name, const void* parameters, std::size_t bytes,
                          Index count) = 0;
  virtual std::shared_ptr<const void> upload_bytes(std::span<const std::byte> from) = 0;

  // A small list of plain numbers on the device.
  template <typename T>
  std::shared_ptr<const T> upload_list(std::span<const T> list) {
    auto memory = upload_bytes(std::as_bytes(list));
    return {memory, static_cast<const T*>(memory.get())};
  }
  Array upload_array(std::span<const double> from) {
    Array out = uninitialized(from.size());
    upload(out, 0, from);
    return out;
  }

  // Addresses in arrays; null in an empty one.
  Any* data(const Array& a, Index offset = 0) const {
    return a.empty() ? nullptr : moved(static_cast<Any*>(a.raw()), offset);
  }
  Any* moved(Any* p, Index offset) const {
    return reinterpret_cast<Any*>(reinterpret_cast<std::byte*>(p) + offset * scalar_bytes());
  }
  Tail tail(const Array& a, Index offset = 0) const {
    check_shape(offset >= 0 && offset <= a.size(), "an element of an array");
    return {data(a, offset), a.size() - offset};
  }
  // Rows [row, row + rows) of an array [.., cols].
  View block(const Array& a, Index rows, Index cols, Index row = 0) const {
    check_shape(row >= 0 && rows >= 0 && (row + rows) * cols <= a.size(), "rows of an array");
    return {data(a, row * cols), rows, cols};
  }
};

}  // namespace unpack::backend
