// Products of few rows with weights in half precision as they are stored. The values of a large
// tensor are looked at on the way: what is no finite number makes none.
#include <algorithm>
#include <atomic>
#include <vector>

#include "backend/host/half_products.h"
#include "backend/host/host_base.h"
#include "base/index.h"
#include "model/value_checks.h"
#include "tensor/convert.h"

namespace unpack::backend {

namespace {

// Columns that a task has: of 2,048 rows a quarter of a MiB, which lie one after the other; and
// where rows do.
constexpr Index kTaskColumns = 64;
constexpr Index kTaskAcross = 256;

const HalfKernels& half_kernel() {
  static const HalfKernels& kernels = *half_kernels().front().second;
  return kernels;
}

bool is_half(const model::WeightView& w) {
  return (w.dtype == DType::bf16 || w.dtype == DType::f16) && w.in > 0 && w.out > 0;
}
std::size_t stored_bytes(const model::WeightView& w) { return 2 * w.in * w.out; }

// How a matrix lies: its columns one after the other, or its rows.
enum class Lies { otherwise, columns, rows };
Lies how_it_lies(const model::WeightView& w) {
  if (!is_half(w)) return Lies::otherwise;
  if (model::stored_column(w, 0) != nullptr) return Lies::columns;
  return w.encoded == nullptr && model::stored_row(w, 0) != nullptr ? Lies::rows : Lies::otherwise;
}
const std::byte* first_byte(const model::WeightView& w, Lies lies) {
  return lies == Lies::columns ? model::stored_column(w, 0) : model::stored_row(w, 0);
}

bool is_finite(const float* c, Index rows, Index columns, Index ld) {
  for (Index r = 0; r < rows; ++r) {
    if (tensor::find_non_finite(reinterpret_cast<const std::byte*>(c + r * ld), DType::f32,
                                columns) >= 0)
      return false;
  }
  return true;
}

// A product with columns that `column` finds.
template <typename Column>
void multiply_columns(const HalfProduct& product, const Column& column) {
  const std::byte* places[kTaskColumns];
  for (Index j = 0; j < product.n; ++j) places[j] = column(j);
  half_kernel().along(product, places);
}

}  // namespace

template <>
bool HostBase<double>::multiply_halves(std::span<const PanelProduct>, const double*, Index) {
  return false;
}
template <>
bool HostBase<double>::vocabulary_halves(const double*, Index, std::span<double>) {
  return false;
}

// After a product with all of a matrix, whether all that came out is finite or not.
template <typename T>
void HostBase<T>::looked_at(const std::byte* matrix, std::size_t bytes, bool finite) {
  if (!finite) return Backend::check_values();
  weights_->unseen->seen(matrix, bytes);
}
template void HostBase<float>::looked_at(const std::byte*, std::size_t, bool);

template <>
bool HostBase<float>::multiply_halves(std::span<const PanelProduct> products, const float* a,
                                      Index m) {
  if (m == 0 || m > few_halves_) return false;
  struct Job {
    const model::WeightView* w;
    Lies lies;
    const float* rows;
    Index columns, tasks;  // of each; all of this job
    bool wanted;
  };
  std::vector<Job> jobs;
  Index tasks = 0;
  for (const PanelProduct& product : products) {
    const model::WeightView& w = product.w->stored;
    if (product.w->packed()) return false;
    const Lies lies = how_it_lies(w);
    if (lies == Lies::otherwise) return false;
    const Index each = lies == Lies::columns ? kTaskColumns : kTaskAcross;
    jobs.push_back({&w, lies, nullptr, each, (w.out + each - 1) / each,
                    weights_->unseen && weights_->unseen->wanted(first_byte(w, lies))});
    tasks += jobs.back().tasks;
  }
  // Most read the same rows in the same order.
  std::vector<Array> packed;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    Job& job = jobs[i];
    for (std::size_t other = 0; other < i && job.rows == nullptr; ++other) {
      if (jobs[other].lies == job.lies && jobs[other].w->dtype == job.w->dtype &&
          products[other].w->row_scale == products[i].w->row_scale)
        job.rows = jobs[other].rows;
    }
    if (job.rows != nullptr) continue;
    const Index k = job.w->in;
    const std::vector<float>& scale = products[i].w->row_scale;
    float* rows = ptr(packed.emplace_back(uninitialized(half_kernel().packed_size(m, k))));
    const HalfRows from{m, k, a, k, scale.empty() ? nullptr : scale.data()};
    if (job.lies == Lies::columns) {
      half_kernel().pack_along(job.w->dtype, from, rows);
    } else {
      half_kernel().pack_across(from, rows);
    }
    job.rows = rows;
  }
  std::atomic<bool> finite = true;
  pool_.parallel_for(tasks, [&](Index task) {
    std::size_t i = 0;
    for (; task >= jobs[i].tasks; ++i) task -= jobs[i].tasks;
    const Job& job = jobs[i];
    const model::WeightView& w = *job.w;
    const Index first = task * job.columns, n = std::min(job.columns, w.out - first);
    float* c = products[i].c + first;
    const HalfProduct product{w.dtype, m, n, w.in, job.rows, c, w.out};
    if (job.lies == Lies::columns) {
      multiply_columns(product, [&](Index j) { return model::stored_column(w, first + j); });
    } else {
      half_kernel().across(product, first_byte(w, job.lies) + 2 * first, 2 * w.in_stride);
    }
    if (job.wanted && !is_finite(c, m, n, w.out)) finite = false;
    if (products[i].bias->empty()) return;
    const float* bias = products[i].bias->data() + first;
    for (Index r = 0; r < m; ++r) {
      for (Index j = 0; j < n; ++j) c[r * w.out + j] += bias[j];
    }
  });
  for (const Job& job : jobs) {
    if (job.wanted) looked_at(first_byte(*job.w, job.lies), stored_bytes(*job.w), finite);
  }
  return true;
}

// Of the table of output embeddings a row is a token's.
template <>
bool HostBase<float>::vocabulary_halves(const float* x, Index n, std::span<double> out) {
  const model::WeightView& w = (*weights_)[model::Role::unembed];
  if (n == 0 || n > few_halves_ || !is_half(w) || model::stored_row(w, 0) == nullptr) return false;
  const Index d = w.out, vocabulary = w.in;
  const bool wanted = weights_->unseen && weights_->unseen->wanted(model::stored_row(w, 0));
  const Array packed = uninitialized(half_kernel().packed_size(n, d));
  half_kernel().pack_along(w.dtype, {n, d, x, d, nullptr}, ptr(packed));
  std::atomic<bool> finite = true;
  pool_.parallel_for((vocabulary + kTaskColumns - 1) / kTaskColumns, [&](Index task) {
    const Index first = task * kTaskColumns;
    const Index count = std::min(kTaskColumns, vocabulary - first);
    base::Scratch scratch;
    auto* tile = scratch.of<float>(n * count);
    multiply_columns({w.dtype, n, count, d, ptr(packed), tile, count},
                     [&](Index j) { return model::stored_row(w, first + j); });
    if (wanted && !is_finite(tile, 1, n * count, 0)) finite = false;
    for (Index i = 0; i < n; ++i)
      std::copy_n(tile + i * count, count, out.data() + i * vocabulary + first);
  });
  if (wanted) looked_at(model::stored_row(w, 0), stored_bytes(w), finite);
  return true;
}

}  // namespace unpack::backend
