// Memory, weights and products with them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "backend/host/host_backend.h"
#include "backend/host/host_memory.h"
#include "backend/host/kernels.h"
#include "backend/question_tables.h"
#include "backend/rotary.h"
#include "base/index.h"
#include "base/system.h"

namespace unpack::backend {

template <typename T>
Array HostBase<T>::passing(Index size, Index most) {
  const auto bytes = [](Index n) { return n * sizeof(T); };
  if (bytes(size) < kMapped) return uninitialized(size);  // which the heap keeps
  return Array(PassingMemory::take(passing_, bytes(size), bytes(std::max(size, most))), size);
}

template <typename T>
HostBase<T>::HostBase(std::shared_ptr<const model::ModelWeights> weights,
                      const BackendOptions& options)
    : Backend(std::move(weights)),
      pool_(options.threads),
      making_(weights_->layers.size()),
      passing_(std::make_shared<PassingMemory>()) {
  layers_.resize(weights_->layers.size());
  std::size_t per_layer = 1;
  for (const model::LayerWeights& w : weights_->layers) {
    std::size_t bytes = 0;
    for (const model::Role role : model::kMatrices) bytes += packed_bytes<T>(w[role]);
    per_layer = std::max(per_layer, bytes);
  }
  keep_layers_ = std::min(std::max(kKeepLayers, kKeepBytes / per_layer), layers_.size());
  // A model that does not fit is walked in layer order over and over: keeping few layers loses
  // nothing.
  if (keep_layers_ < layers_.size()) keep_layers_ = kKeepLayers;
}

template <typename T>
void HostBase<T>::read_as_stored(std::size_t halves, Index few) {
  std::size_t bytes = 0;
  bool dense = true, single = false;
  for (const model::LayerWeights& w : weights_->layers) {
    dense = dense && w.experts.empty();
    for (const model::Role role : model::kMatrices) {
      const std::size_t packed = packed_bytes<T>(w[role]);
      single = single || (packed > 0 && tensor::dtype_size(w[role].dtype) > 2);
      bytes += packed;
    }
  }
  if (!dense || bytes <= (single ? kKeepBytes : halves)) return;
  pack_ = Pack::never;
  keep_layers_ = layers_.size();
  few_halves_ = few;
}

template <typename T>
std::shared_ptr<const RolePanels<T>> HostBase<T>::layer(int index) {
  const std::size_t i = index;
  const auto known = [&]() -> std::shared_ptr<const RolePanels<T>> {
    const std::lock_guard lock(mutex_);
    if (layers_[i] && keep_layers_ < layers_.size()) {
      recent_.remove(index);
      recent_.push_front(index);
    }
    return layers_[i];
  };
  if (auto there = known()) return there;
  const std::lock_guard mine(making_[i]);
  if (auto there = known()) return there;
  const base::ThreadPool::Apart apart;
  const model::LayerWeights& w = weights_->layers[i];
  auto made = std::make_shared<const RolePanels<T>>(
      make_panels<T>(config_, w, w, {pack_, &panel_memory(), &pool_}));
  // Only single precision is let go: half-precision pages are read again when the layer is
  // converted anew, and cost little.
  if (weights_->release && config_.dtype == DType::f32 && pack_ == Pack::now &&
      keep_layers_ == layers_.size()) {
    for (const model::Role role : model::kMatrices) {
      const model::WeightView& v = w[role];
      if (v.data == nullptr) continue;
      const Index last = v.offset(v.in - 1, v.out - 1) + 1;
      weights_->release(weights_->storage.get(), v.data, last * tensor::dtype_size(v.dtype));
    }
  }
  const std::lock_guard lock(mutex_);
  layers_[i] = made;
  if (keep_layers_ < layers_.size()) {
    recent_.push_front(index);
    while (recent_.size() > keep_layers_) {
      layers_[recent_.back()].reset();
      recent_.pop_back();
    }
  }
  return made;
}

template <typename T>
std::shared_ptr<const RolePanels<T>> HostBase<T>::expert(int layer, int index) {
  const std::pair<int, int> key = {layer, index};
  const auto find = [&]() -> std::shared_ptr<const RolePanels<T>> {
    for (auto it = experts_.begin(); it != experts_.end(); ++it) {
      if (it->key != key) continue;
      experts_.splice(experts_.begin(), experts_, it);
      return experts_.front().panels;
    }
    return nullptr;
  };
  {
    std::lock_guard lock(mutex_);
    if (auto known = find()) return known;
  }
  const model::LayerWeights& whole = weights_->layers[layer];
  auto made = std::make_shared<const RolePanels<T>>(
      make_panels<T>(config_, whole.experts[index], whole, {Pack::now, nullptr, &pool_}));
  // Loading looks at no expert, so that the unused ones are never read.
  const auto check = [&](const T* values, Index n) {
    if (!std::all_of(values, values + n, [](T x) { return std::isfinite(x); }))
      throw InputError(fmt::format(
          "expert {} of layer {} holds values that are no finite numbers; the file is damaged or "
          "its training diverged, use another checkpoint",
          index, layer));
  };
  for (const Panels<T>& w : made->matrices())
    pool_.parallel_for(w.count(), [&](Index p) { check(w.panel(p), w.in * w.columns(p)); });
  for (const std::vector<T>& values : made->vectors()) check(values.data(), values.size());
  std::lock_guard lock(mutex_);
  if (auto known = find()) return known;
  experts_.push_front({key, made});
  expert_bytes_ += made->bytes();
  while (expert_bytes_ > kKeepBytes && experts_.size() > 1) {
    expert_bytes_ -= experts_.back().panels->bytes();
    experts_.pop_back();
  }
  return made;
}

template <typename T>
void HostBase<T>::widen(const Panels<T>& w, T* to) {
  constexpr Index kRows = 256;  // of a task
  const Index blocks = (w.in + kRows - 1) / kRows;
  pool_.parallel_for(w.count() * blocks, [&](Index task) {
    const Index p = task / blocks, row = task % blocks * kRows, columns = w.columns(p);
    model::read_block(w.stored, {row, std::min(kRows, w.in - row), w.begin(p), columns},
                      w.row_scale.empty() ? nullptr : w.row_scale.data(),
                      to + w.in * w.begin(p) + row * columns, columns);
  });
}

template <typename T>
std::shared_ptr<const Panels<T>> HostBase<T>::widened(const Panels<T>& w) {
  if (w.packed()) return {std::shared_ptr<const void>(), &w};
  const auto out = std::make_shared<Panels<T>>();
  out->in = w.in;
  out->out = w.out;
  out->width = w.width;
  PanelMemory memory;
  out->data = PanelValues<T>(memory, w.in * w.out);
  widen(w, out->data.data());
  return out;
}

// Memory
// -------------------------------------------------------------------------------------------------

template <typename T>
Array HostBase<T>::uninitialized(Index size) {
  return Array(aligned_block(size * sizeof(T)), size);
}

template <typename T>
Array HostBase<T>::zeros(Index size) {
  Array a = uninitialized(size);
  const std::size_t bytes = size * sizeof(T);
  if (bytes < kMapped) std::memset(a.raw(), 0, bytes);  // fresh pages are zero
  return a;
}

template <typename T>
void HostBase<T>::upload(Array& to, Index offset, std::span<const double> from) {
  constexpr std::size_t kEach = 1 << 16;
  T* out = ptr(to) + offset;
  if (from.size() <= kEach) {
    std::copy(from.begin(), from.end(), out);
    return;
  }
  pool_.parallel_for((from.size() + kEach - 1) / kEach, [&](Index part) {
    const auto some = from.subspan(part * kEach, std::min(kEach, from.size() - part * kEach));
    std::copy(some.begin(), some.end(), out + part * kEach);
  });
}

template <typename T>
void HostBase<T>::download(const Array& from, Index offset, std::span<double> to) {
  const T* p = ptr(from) + offset;
  std::copy(p, p + to.size(), to.begin());
}

template <typename T>
void HostBase<T>::copy(const Array& from, Index from_offset, Array& to, Index to_offset,
                       Index size) {
  std::copy_n(ptr(from) + from_offset, size, ptr(to) + to_offset);
}

template <typename T>
std::shared_ptr<const void> HostBase<T>::host(const Array& from) {
  return std::shared_ptr<const void>(std::make_shared<Array>(from), from.raw());
}

// Products with weights
// -------------------------------------------------------------------------------------------------

template <typename T>
typename HostBase<T>::RowGroups HostBase<T>::row_groups(const Panels<T>& w, Index m,
                                                        Index parts) const {
  constexpr Index kMost = 8, kTasks = 4;  // blocks of rows; tasks a thread
  const Index blocks = (m + kRowBlock - 1) / kRowBlock;
  const Index together =
      w.packed() ? 1 : std::clamp<Index>(parts * blocks / (kTasks * pool_.threads()), 1, kMost);
  return {together * kRowBlock, (blocks + together - 1) / together};
}

template <typename T>
void HostBase<T>::multiply(std::span<const PanelProduct> products, const T* a, Index m) {
  if (multiply_halves(products, a, m)) return;
  if (pack_ == Pack::never) Backend::check_values();  // and their pages are mapped
  // Few rows make few tasks: half a panel each, so that no thread waits long for another's last
  // one. The cut never depends on the number of threads.
  constexpr Index kFewRows = 64;
  // What has to be made first should stay in the cache until it is used.
  constexpr Index kMade = 4;
  const auto parts_of = [&](const Panels<T>& w) -> Index {
    return m > kFewRows ? 1 : w.packed() ? 2 : kMade;
  };
  const auto groups = [&](const Panels<T>& w) { return row_groups(w, m, w.count() * parts_of(w)); };
  std::vector<Index> first(products.size() + 1, 0);
  for (std::size_t i = 0; i < products.size(); ++i)
    first[i + 1] =
        first[i] + products[i].w->count() * parts_of(*products[i].w) * groups(*products[i].w).count;
  pool_.parallel_for(first.back(), [&](Index task) {
    const auto i = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), task) -
                                            first.begin()) -
                   1;
    const Panels<T>& w = *products[i].w;
    const Index at = task - first[i], parts = parts_of(w);
    const auto [rows_each, count] = groups(w);
    const Index p = at / count / parts;
    const Index half = (w.columns(p) + parts - 1) / parts;
    const Index column = at / count % parts * half;
    const Index columns = std::min(half, w.columns(p) - column);
    if (columns <= 0) return;
    const Panel<T> panel = w.some_columns(p, column, columns);
    const Index begin = at % count * rows_each, end = std::min(m, begin + rows_each);
    for (Index row = begin; row < end; row += kRowBlock) {
      const Index rows = std::min(kRowBlock, end - row);
      T* to = products[i].c + row * w.out + w.begin(p) + column;
      gemm(false, rows, columns, w.in, a + row * w.in, w.in, panel, panel.ld(), false, to, w.out);
      if (products[i].bias->empty()) continue;
      const T* b = products[i].bias->data() + w.begin(p) + column;
      for (Index r = 0; r < rows; ++r) {
        for (Index j = 0; j < columns; ++j) to[r * w.out + j] += b[j];
      }
    }
  });
}

template <typename T>
void HostBase<T>::multiply(const Panels<T>& w, const T* a, Index m, const std::vector<T>& bias,
                           T* c) {
  const PanelProduct product = {&w, &bias, c};
  multiply(std::span(&product, 1), a, m);
}

template <typename T>
void HostBase<T>::multiply_transposed(const Panels<T>& w, const T* a, Index m, T* c) {
  if constexpr (std::is_same_v<T, float>) {
    constexpr Index kFewRows = 24;
    if (m <= kFewRows) {
      // What has to be made first is made in larger pieces; the bits are the same.
      const Index each = w.packed() ? 48 : 128;
      pool_.parallel_for((w.in + each - 1) / each, [&](Index task) {
        const Index row = task * each, n = std::min(each, w.in - row);
        const Index full = w.out / w.width, done = full * w.width, rest = w.out - done;
        base::Scratch scratch;
        const float* of = w.data.data();
        Index rows = w.in, first = row;  // that lie in a panel there, and where ours begin
        if (!w.packed()) {
          float* made = scratch.of<float>(n * w.out);
          for (Index p = 0; p < w.count(); ++p)
            model::read_block(w.stored, {row, n, w.begin(p), w.columns(p)},
                              w.row_scale.empty() ? nullptr : w.row_scale.data(),
                              made + n * w.begin(p), w.columns(p));
          of = made;
          rows = n;
          first = 0;
        }
        if (full > 0)
          turned_product({m, n, w.width, a, w.out, of + first * w.width, w.width, false, c + row,
                          w.in, full, rows * w.width});
        if (rest > 0)
          turned_product({m, n, rest, a + done, w.out, of + rows * done + first * rest, rest,
                          full > 0, c + row, w.in});
      });
      return;
    }
  }
  constexpr Index kColumns = 128;
  const Index columns = (w.in + kColumns - 1) / kColumns;
  const auto [rows_each, count] = row_groups(w, m, columns);
  pool_.parallel_for(columns * count, [&, each = rows_each, groups = count](Index task) {
    const Index col = task / groups * kColumns;
    const Index begin = task % groups * each, end = std::min(m, begin + each);
    const Index n = std::min(kColumns, w.in - col);
    for (Index p = 0; p < w.count(); ++p) {
      const Panel<T> part = w.rows(p, col, n);
      for (Index row = begin; row < end; row += kRowBlock)
        gemm(true, std::min(kRowBlock, end - row), n, w.columns(p), a + row * w.out + w.begin(p),
             w.out, part, w.columns(p), p > 0, c + row * w.in + col, w.in);
    }
  });
}

template <typename T>
void HostBase<T>::head_to_model(const Panels<T>& w, int head, const T* a, Index lda, Index m, T* c,
                                Index ldc) {
  const Panel<T> columns = head_columns(w, head);
  gemm(true, m, w.in, config_.d_head, a, lda, columns, columns.ld(), false, c, ldc);
}

// The inverse is the adjoint: turned back, and as long as forth.
template <typename T>
void HostBase<T>::rotate(const RotaryTable& table, Index position, T* x, bool inverse) {
  const int half = table.rope.dims / 2;
  const T* cos = ptr(table.cos) + position * half;
  const T* sin = ptr(table.sin) + position * half;
  const T sign = inverse ? T(-1) : T(1);
  for (int i = 0; i < half; ++i) kernels::turn_pair(x[i], x[i + half], cos[i], sign * sin[i]);
}

template <typename T>
typename Backend::Peaks HostBase<T>::measure_peaks() {
  using Clock = std::chrono::steady_clock;
  const auto fastest = [](int repeat, const auto& work) {
    double best = 1e30;
    for (int i = 0; i < repeat; ++i) {
      const auto begin = Clock::now();
      work();
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return best;
  };
  const Index m = 1024, k = 1024, n = 2048;
  Panels<T> w;
  w.in = k;
  w.out = n;
  PanelMemory block;
  w.data = PanelValues<T>(block, k * n);
  std::vector<T> a(m * k), c(m * n);
  for (std::size_t i = 0; i < w.data.size(); ++i)
    w.data.data()[i] = static_cast<double>(i * 7 % 13) / 13 - 0.5;
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i * 11 % 17) / 17 - 0.5;
  Peaks peaks;
  peaks.flops = 2.0 * m * k * n / fastest(25, [&] { multiply(w, a.data(), m, {}, c.data()); });
  constexpr Index kBlock = Index{1} << 18, kBlocks = 256;  // far past every cache
  std::vector<T> memory(kBlock * kBlocks, T(1));
  std::vector<double> sums(kBlocks);
  const double read = fastest(12, [&] {
    pool_.parallel_for(kBlocks, [&](Index b) {
      double sum = 0;
      double abs = 0;
      row_sums(memory.data() + b * kBlock, kBlock, sum, abs);
      sums[b] = sum;
    });
  });
  peaks.bytes = (memory.size() * sizeof(T)) / read;
  return peaks;
}

template class HostBase<float>;
template class HostBase<double>;

}  // namespace unpack::backend
