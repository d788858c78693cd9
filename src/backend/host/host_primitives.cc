// The primitives of host memory: kernels and products with weights by their name.
#include <algorithm>
#include <cstring>

#include "backend/host/host_base.h"
#include "backend/host/kernels.h"

namespace unpack::backend {

// Kernels
// -------------------------------------------------------------------------------------------------

namespace {

constexpr Index kTaskElements = 16384;  // of a kernel that are worth a task of their own

// Elements that one unit of a kernel goes over.
template <typename Kernel>
Index width_of(const Kernel& kernel) {
  if constexpr (requires { kernel.cols; }) {
    return kernel.cols;
  } else if constexpr (requires { kernel.e; }) {
    return kernel.e;
  } else if constexpr (requires { kernel.keys; }) {
    return kernel.keys;
  } else if constexpr (requires { kernel.experts; }) {
    return kernel.experts;
  } else {
    return 1;
  }
}

// Runs of indices or rows, one after the other.
template <typename Kernel>
void run_part(const Kernel& kernel, Index begin, Index end) {
  if constexpr (requires { kernel.at(begin, end); }) {  // a map over rows
    const Index width = width_of(kernel);
    for (Index row = begin; row < end; ++row) {
      for (Index i = 0; i < width; ++i) kernel.at(row, i);
    }
  } else if constexpr (requires { kernel(begin); }) {
    for (Index i = begin; i < end; ++i) kernel(i);
  } else {
    kernels::HostGroup group;
    for (Index row = begin; row < end; ++row) kernel(group, row);
  }
}

// Kernels that have vector instructions of their own in kernels.h. The plain body of an activation
// takes about ten times as long, that of a dot product, whose sum is taken in order, about six
// times.
template <typename T>
void run_part(const kernels::AddScaled<T>& k, Index begin, Index end) {
  axpy(end - begin, static_cast<T>(k.scale), k.x + begin, k.y + begin);
}

template <typename T>
void run_part(const kernels::Activate<T>& k, Index begin, Index end) {
  if (k.kind == Activation::clamped_swiglu) {
    for (Index i = begin; i < end; ++i)
      k.act[i] = base::clamped_swiglu(static_cast<double>(k.pre[i]), static_cast<double>(k.up[i]));
  } else {
    activate_run(k.kind, k.pre + begin, k.act + begin, end - begin);
    for (Index i = begin; k.up != nullptr && i < end; ++i) k.act[i] *= k.up[i];
  }
  for (Index i = begin; k.weight != nullptr && i < end; ++i) k.act[i] *= k.weight[i / k.neurons];
}

template <typename T>
void run_part(const kernels::WriterDots<T>& k, Index begin, Index end) {
  for (Index at = begin; at < end; ++at) {
    const Index i = at / k.visible, j = at % k.visible;
    const Index q = k.queries != nullptr ? k.queries[i] : k.query0 + i;
    const T product =
        dot(k.cols, k.writers + (q * k.n_writers + j) * k.cols, k.vectors + i * k.vector_stride);
    k.out[at] = product * static_cast<T>(k.dev != nullptr ? k.scale / k.dev[q] : k.scale);
  }
}

template <typename Kernel>
void run_kernel_on(base::ThreadPool& pool, const void* parameters, std::size_t bytes, Index count) {
  Kernel kernel;
  if (bytes != sizeof kernel) throw InternalError("a kernel's parameters have another size");
  std::memcpy(&kernel, parameters, sizeof kernel);
  const Index width = std::max<Index>(1, width_of(kernel));
  if constexpr (requires { kernel.at(count, count); }) count /= width;
  constexpr bool kOneByOne = requires { kernel(count); }
  &&!requires { kernel.at(count, count); };
  const Index each = kOneByOne ? kTaskElements : std::max<Index>(1, kTaskElements / width);
  if (count <= each) return run_part(kernel, 0, count);
  pool.parallel_for((count + each - 1) / each, [&](Index task) {
    run_part(kernel, task * each, std::min(count, (task + 1) * each));
  });
}

}  // namespace

template <typename T>
void HostPrimitives<T>::run_kernel(kernels::Name name, const void* parameters, std::size_t bytes,
                                   Index count) {
  switch (name) {
#define UNPACK_RUN_SHARED(kernel) \
  case kernels::Name::k##kernel:  \
    return run_kernel_on<kernels::kernel<T>>(pool_, parameters, bytes, count);
    UNPACK_SHARED_KERNELS(UNPACK_RUN_SHARED)
#undef UNPACK_RUN_SHARED
  }
}

template <typename T>
std::shared_ptr<const void> HostPrimitives<T>::upload_bytes(std::span<const std::byte> from) {
  const auto list = std::make_shared<std::vector<std::byte>>(from.begin(), from.end());
  return {list, list->data()};
}

// Products
// -------------------------------------------------------------------------------------------------

template <typename T>
typename HostPrimitives<T>::Weight HostPrimitives<T>::weight(const WeightName& name) {
  const auto w = name.expert < 0 ? layer(name.layer) : expert(name.layer, name.expert);
  if (model::kept_as_vector(name.role)) return {w, nullptr, &w->vector(name.role)};
  if (model::facts_of(name.role).kind != model::RoleKind::matrix)
    throw InternalError("a layer keeps no weight of this role");
  return {w, &w->matrix(name.role), nullptr};
}

template <typename T>
Array HostPrimitives<T>::vector(const WeightName& name) {
  const Weight w = weight(name);
  T* values = const_cast<T*>(w.vector->data());  // which nobody writes
  return Array(std::shared_ptr<void>(std::const_pointer_cast<void>(w.keep), values),
               w.vector->size());
}

template <typename T>
void HostPrimitives<T>::multiply(std::span<const Primitives::Product> products, const View& a) {
  static const std::vector<T> kNone;
  std::vector<Weight> keep;
  std::vector<typename HostBase<T>::PanelProduct> all;
  for (const Primitives::Product& product : products) {
    const Panels<T>* w = keep.emplace_back(weight(product.weight)).matrix;
    check_shape(a.cols == w->in && product.out.cols == w->out && product.out.rows == a.rows,
                "rows, a matrix and their product");
    const std::vector<T>* bias = &kNone;
    if (product.bias)
      bias = keep.emplace_back(weight({product.weight.layer, *product.bias, product.weight.expert}))
                 .vector;
    all.push_back({w, bias, ptr(product.out.data)});
  }
  HostBase<T>::multiply(all, ptr(a.data), a.rows);
}

template <typename T>
void HostPrimitives<T>::multiply_turned(const WeightName& name, const View& a, const View& c) {
  const Weight w = weight(name);
  check_shape(a.cols == w.matrix->out && c.cols == w.matrix->in && c.rows == a.rows,
              "rows, a turned matrix and their product");
  multiply_transposed(*w.matrix, ptr(a.data), a.rows, ptr(c.data));
}

template <typename T>
void HostPrimitives<T>::heads_to_model(const WeightName& name, Index heads, const View& a,
                                       const View& c) {
  constexpr Index kRows = 64;
  const Weight w = weight(name);
  const Index e = config_.d_head, d = w.matrix->in, group = heads * e / w.matrix->out;
  check_shape(a.cols == heads * e && c.cols == heads * d && c.rows == a.rows,
              "heads and what they make of a matrix");
  const Index blocks = (a.rows + kRows - 1) / kRows;
  pool_.parallel_for(heads * blocks, [&](Index task) {
    const Index h = task / blocks, first = task % blocks * kRows;
    head_to_model(*w.matrix, h / group, ptr(a.data) + (first * heads + h) * e, heads * e,
                  std::min(kRows, a.rows - first), ptr(c.data) + (first * heads + h) * d,
                  heads * d);
  });
}

template <typename T>
void HostPrimitives<T>::heads_out(const WeightName& name, Index heads, const View& a, const Tail& c,
                                  Index row) {
  const Weight w = weight(name);
  const Panels<T>& o = *w.matrix;
  const Index e = a.cols / heads;
  check_shape(a.cols == o.in && (a.rows - 1) * row + heads * o.out <= c.size,
              "heads, a matrix and what each head makes of it");
  pool_.parallel_for(heads, [&](Index h) {
    for (Index p = 0; p < o.count(); ++p)
      gemm(false, a.rows, o.columns(p), e, ptr(a.data) + h * e, a.cols, o.rows(p, h * e, e),
           o.columns(p), false, ptr(c.data) + h * o.out + o.begin(p), row);
  });
}

template <typename T>
void HostPrimitives<T>::multiply_batch(const BatchedProduct& p) {
  check_batch(p);
  pool_.parallel_for(p.batch, [&](Index i) {
    const Index b = p.which_b.empty() ? i : p.which_b[i];
    gemm(p.b_turned, p.m, p.n, p.k, ptr(p.a.data) + i * p.stride_a, p.lda,
         ptr(p.b.data) + b * p.stride_b, p.ldb, false, ptr(p.c.data) + i * p.stride_c, p.ldc);
  });
}

// The vocabulary
// -------------------------------------------------------------------------------------------------

template <typename T>
void HostPrimitives<T>::vocabulary_product(const View& x, std::span<double> out) {
  const Index n = x.rows, d = x.cols, vocabulary = config_.vocab_size;
  check_shape(d == config_.d_model && std::ssize(out) == n * vocabulary, "rows and their logits");
  if (this->vocabulary_halves(ptr(x.data), n, out)) return;
  const model::WeightView& w = (*weights_)[model::Role::unembed];
  const bool direct = sizeof(T) == 4 && w.plain() && w.dtype == DType::f32 && w.out_stride == 1 &&
                      w.in_stride == d &&
                      reinterpret_cast<std::uintptr_t>(w.data) % alignof(T) == 0;
  pool_.parallel_for((vocabulary + kVocabularyBlock - 1) / kVocabularyBlock, [&](Index part) {
    const Index first = part * kVocabularyBlock;
    const Index count = std::min(kVocabularyBlock, vocabulary - first);
    std::vector<T> converted(direct ? 0 : count * d), tile(n * count);
    if (!direct) model::read_rows(w, first, count, converted.data());
    const T* table = direct ? reinterpret_cast<const T*>(w.data) + first * d : converted.data();
    gemm(true, n, count, d, ptr(x.data), d, table, d, false, tile.data(), count);
    for (Index i = 0; i < n; ++i)
      std::copy_n(tile.data() + i * count, count, out.data() + i * vocabulary + first);
  });
}

template <typename T>
std::vector<double> HostPrimitives<T>::vocabulary_sum() {
  const base::ThreadPool::Apart apart;  // once for all who ask
  constexpr Index kRows = 16;
  const Index d = config_.d_model, vocabulary = config_.vocab_size;
  const Index blocks = (vocabulary + kVocabularyBlock - 1) / kVocabularyBlock;
  std::vector<double> partial(blocks * d, 0.0), total(d, 0.0);
  pool_.parallel_for(blocks, [&](Index part) {
    const Index first = part * kVocabularyBlock;
    const Index last = std::min(vocabulary, first + kVocabularyBlock);
    std::vector<T> rows(kRows * d), group(d);
    double* sum = partial.data() + part * d;
    for (Index r = first; r < last; r += kRows) {
      const Index n = std::min(kRows, last - r);
      model::read_rows((*weights_)[model::Role::unembed], r, n, rows.data());
      std::fill(group.begin(), group.end(), T(0));
      for (Index i = 0; i < n; ++i) axpy(d, T(1), rows.data() + i * d, group.data());
      for (Index j = 0; j < d; ++j) sum[j] += group[j];
    }
  });
  for (Index b = 0; b < blocks; ++b) {
    for (Index j = 0; j < d; ++j) total[j] += partial[b * d + j];
  }
  return total;
}

template class HostPrimitives<float>;
template class HostPrimitives<double>;

}  // namespace unpack::backend
