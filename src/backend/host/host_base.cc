// Memory, weights and products with them.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/question_tables.h"
#include "backend/rotary.h"
#include "base/system.h"

namespace unpack {

namespace {

constexpr Role kMatrices[] = {Role::w_q, Role::w_k,  Role::w_v,  Role::w_o,
                              Role::w_r, Role::w_in, Role::w_up, Role::w_out};

// From here on a block is mapped by itself, in large pages: of a heap's small ones, clearing takes
// a tenth of a long prompt's time and the faults as much again.
constexpr std::size_t kMapped = std::size_t{4} << 20;

std::shared_ptr<void> aligned_block(std::size_t bytes) {
  constexpr std::size_t kAlign = 64;
  const std::size_t padded = (std::max<std::size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  const bool mapped = padded >= kMapped;
  void* p = mapped ? map_memory(padded) : std::aligned_alloc(kAlign, padded);
  if (!p) {
    // So little is lacking to the machine, not because of the prompt.
    constexpr std::size_t kLittle = std::size_t{16} << 20;
    if (bytes < kLittle) throw std::bad_alloc();
    throw InputError("not enough memory for " + std::to_string(bytes >> 20) +
                     " MiB; use a shorter prompt or a smaller model");
  }
  if (mapped) return {p, [padded](void* q) { unmap_memory(q, padded); }};
  return {p, [](void* q) { std::free(q); }};
}

}  // namespace

template <typename T>
HostBase<T>::HostBase(std::shared_ptr<const ModelWeights> weights, const BackendOptions& options)
    : weights_(std::move(weights)), writers_(weights_->config), pool_(options.threads) {
  config_ = weights_->config;
  layers_.resize(weights_->layers.size());
  std::size_t per_layer = 1;
  for (const LayerWeights& w : weights_->layers) {
    std::size_t bytes = 0;
    for (const Role role : kMatrices) bytes += packed_bytes<T>(w[role]);
    per_layer = std::max(per_layer, bytes);
  }
  keep_layers_ = std::min(std::max(kKeepLayers, kKeepBytes / per_layer), layers_.size());
  // A model that does not fit is walked in layer order over and over: keeping few layers loses
  // nothing.
  if (keep_layers_ < layers_.size()) keep_layers_ = kKeepLayers;
}

template <typename T>
void HostBase<T>::read_as_stored(std::size_t halves) {
  std::size_t bytes = 0;
  bool dense = true, single = false;
  for (const LayerWeights& w : weights_->layers) {
    dense = dense && w.experts.empty();
    for (const Role role : kMatrices) {
      const std::size_t packed = packed_bytes<T>(w[role]);
      single = single || (packed > 0 && dtype_size(w[role].dtype) > 2);
      bytes += packed;
    }
  }
  if (!dense || bytes <= (single ? kKeepBytes : halves)) return;
  pack_ = Pack::never;
  keep_layers_ = layers_.size();
}

template <typename T>
std::shared_ptr<const LayerPanels<T>> HostBase<T>::layer(int index) {
  const auto i = static_cast<std::size_t>(index);
  std::unique_lock lock(mutex_);
  if (layers_[i]) {
    if (keep_layers_ < layers_.size()) {
      recent_.remove(index);
      recent_.push_front(index);
    }
    return layers_[i];
  }
  lock.unlock();
  const LayerWeights& w = weights_->layers[i];
  auto made = std::make_shared<const LayerPanels<T>>(make_layer_panels<T>(config_, w, pack_));
  // Only single precision is let go: half-precision pages are read again when the layer is
  // converted anew, and cost little.
  if (weights_->release && config_.dtype == DType::f32 && pack_ == Pack::now &&
      keep_layers_ == layers_.size()) {
    for (const Role role : kMatrices) {
      const WeightView& v = w[role];
      if (v.data == nullptr) continue;
      const std::int64_t last = v.offset(v.in - 1, v.out - 1) + 1;
      weights_->release(weights_->storage.get(), v.data,
                        static_cast<std::size_t>(last) * dtype_size(v.dtype));
    }
  }
  lock.lock();
  if (!layers_[i]) {
    layers_[i] = made;
    if (keep_layers_ < layers_.size()) {
      recent_.push_front(index);
      while (recent_.size() > keep_layers_) {
        layers_[static_cast<std::size_t>(recent_.back())].reset();
        recent_.pop_back();
      }
    }
  }
  return made;
}

template <typename T>
std::shared_ptr<const MlpPanels<T>> HostBase<T>::expert(int layer, int index) {
  const std::pair<int, int> key = {layer, index};
  const auto find = [&]() -> std::shared_ptr<const MlpPanels<T>> {
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
  auto made = std::make_shared<const MlpPanels<T>>(
      make_expert_panels<T>(weights_->layers[static_cast<std::size_t>(layer)], index));
  // Loading looks at no expert, so that the unused ones are never read.
  const auto check = [&](const T* values, std::int64_t n) {
    if (!std::all_of(values, values + n, [](T x) { return std::isfinite(x); }))
      throw InputError(fmt::format(
          "expert {} of layer {} holds values that are no finite numbers; the file is damaged or "
          "its training diverged, use another checkpoint",
          index, layer));
  };
  for (const Panels<T>* w : {&made->in, &made->up, &made->out}) {
    pool_.parallel_for(w->count(),
                       [&](std::int64_t p) { check(w->panel(p), w->in * w->columns(p)); });
  }
  for (const std::vector<T>* bias : {&made->b_in, &made->b_up, &made->b_out})
    check(bias->data(), static_cast<std::int64_t>(bias->size()));
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
std::shared_ptr<const Panels<T>> HostBase<T>::widened(const Panels<T>& w) {
  if (w.packed()) return {std::shared_ptr<const void>(), &w};
  const auto out = std::make_shared<Panels<T>>();
  out->in = w.in;
  out->out = w.out;
  out->width = w.width;
  out->data.resize(static_cast<std::size_t>(w.in * w.out));
  pool_.parallel_for(w.count(), [&](std::int64_t p) {
    read_block(w.stored, {0, w.in, w.begin(p), w.columns(p)},
               w.row_scale.empty() ? nullptr : w.row_scale.data(),
               out->data.data() + w.in * w.begin(p), w.columns(p));
  });
  return out;
}

// Memory
// --------------------------------------------------------------------------------------------------------------------------

template <typename T>
Array HostBase<T>::uninitialized(std::int64_t size) {
  return Array(aligned_block(static_cast<std::size_t>(size) * sizeof(T)), size);
}

template <typename T>
Array HostBase<T>::zeros(std::int64_t size) {
  Array a = uninitialized(size);
  const std::size_t bytes = static_cast<std::size_t>(size) * sizeof(T);
  if (bytes < kMapped) std::memset(a.raw(), 0, bytes);  // fresh pages are zero
  return a;
}

template <typename T>
Array HostBase<T>::slice(const Array& from, std::int64_t offset, std::int64_t size) {
  return Array(std::shared_ptr<void>(std::make_shared<Array>(from), ptr(from) + offset), size);
}

template <typename T>
void HostBase<T>::upload(Array& to, std::int64_t offset, std::span<const double> from) {
  std::copy(from.begin(), from.end(), ptr(to) + offset);
}

template <typename T>
void HostBase<T>::download(const Array& from, std::int64_t offset, std::span<double> to) {
  const T* p = ptr(from) + offset;
  std::copy(p, p + to.size(), to.begin());
}

template <typename T>
void HostBase<T>::copy(const Array& from, std::int64_t from_offset, Array& to,
                       std::int64_t to_offset, std::int64_t size) {
  std::copy_n(ptr(from) + from_offset, size, ptr(to) + to_offset);
}

template <typename T>
std::shared_ptr<const void> HostBase<T>::host(const Array& from) {
  return std::shared_ptr<const void>(std::make_shared<Array>(from), from.raw());
}

// Products with weights
// -----------------------------------------------------------------------------------------------------------

template <typename T>
typename HostBase<T>::RowGroups HostBase<T>::row_groups(const Panels<T>& w, std::int64_t m,
                                                        std::int64_t parts) const {
  constexpr std::int64_t kMost = 8, kTasks = 4;  // blocks of rows; tasks a thread
  const std::int64_t blocks = (m + kRowBlock - 1) / kRowBlock;
  const std::int64_t together =
      w.packed() ? 1
                 : std::clamp<std::int64_t>(parts * blocks / (kTasks * pool_.threads()), 1, kMost);
  return {together * kRowBlock, (blocks + together - 1) / together};
}

template <typename T>
void HostBase<T>::multiply(std::span<const Product> products, const T* a, std::int64_t m) {
  // Few rows make few tasks: half a panel each, so that no thread waits long for another's last
  // one. The cut never depends on the number of threads.
  constexpr std::int64_t kFewRows = 64;
  const std::int64_t parts = m <= kFewRows ? 2 : 1;
  const auto groups = [&](const Panels<T>& w) { return row_groups(w, m, w.count() * parts); };
  std::vector<std::int64_t> first(products.size() + 1, 0);
  for (std::size_t i = 0; i < products.size(); ++i)
    first[i + 1] = first[i] + products[i].w->count() * parts * groups(*products[i].w).count;
  pool_.parallel_for(first.back(), [&](std::int64_t task) {
    const auto i = static_cast<std::size_t>(std::upper_bound(first.begin(), first.end(), task) -
                                            first.begin()) -
                   1;
    const Panels<T>& w = *products[i].w;
    const std::int64_t at = task - first[i];
    const auto [rows_each, count] = groups(w);
    const std::int64_t p = at / count / parts;
    const std::int64_t half = (w.columns(p) + parts - 1) / parts;
    const std::int64_t column = at / count % parts * half;
    const std::int64_t columns = std::min(half, w.columns(p) - column);
    if (columns <= 0) return;
    const Panel<T> panel = w.some_columns(p, column, columns);
    const std::int64_t begin = at % count * rows_each, end = std::min(m, begin + rows_each);
    for (std::int64_t row = begin; row < end; row += kRowBlock) {
      const std::int64_t rows = std::min(kRowBlock, end - row);
      T* to = products[i].c + row * w.out + w.begin(p) + column;
      gemm(false, rows, columns, w.in, a + row * w.in, w.in, panel, w.columns(p), false, to, w.out);
      if (products[i].bias->empty()) continue;
      const T* b = products[i].bias->data() + w.begin(p) + column;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t j = 0; j < columns; ++j) to[r * w.out + j] += b[j];
      }
    }
  });
}

template <typename T>
void HostBase<T>::multiply(const Panels<T>& w, const T* a, std::int64_t m,
                           const std::vector<T>& bias, T* c) {
  const Product product = {&w, &bias, c};
  multiply(std::span(&product, 1), a, m);
}

template <typename T>
void HostBase<T>::multiply_transposed(const Panels<T>& w, const T* a, std::int64_t m, T* c) {
  constexpr std::int64_t kColumns = 128;
  const std::int64_t columns = (w.in + kColumns - 1) / kColumns;
  const auto [rows_each, count] = row_groups(w, m, columns);
  pool_.parallel_for(columns * count, [&, each = rows_each, groups = count](std::int64_t task) {
    const std::int64_t col = task / groups * kColumns;
    const std::int64_t begin = task % groups * each, end = std::min(m, begin + each);
    const std::int64_t n = std::min(kColumns, w.in - col);
    for (std::int64_t p = 0; p < w.count(); ++p) {
      const Panel<T> part = w.rows(p, col, n);
      for (std::int64_t row = begin; row < end; row += kRowBlock)
        gemm(true, std::min(kRowBlock, end - row), n, w.columns(p), a + row * w.out + w.begin(p),
             w.out, part, w.columns(p), p > 0, c + row * w.in + col, w.in);
    }
  });
}

template <typename T>
void HostBase<T>::head_to_model(const Panels<T>& w, int head, const T* a, std::int64_t lda,
                                std::int64_t m, T* c, std::int64_t ldc) {
  const std::int64_t panel = static_cast<std::int64_t>(head) * config_.d_head / w.width;
  gemm(true, m, w.in, config_.d_head, a, lda, head_columns(w, head), w.columns(panel), false, c,
       ldc);
}

template <typename T>
void HostBase<T>::center_row(T* row) const {
  if (config_.norm == Norm::rms) return;
  const std::int64_t d = config_.d_model;
  double mean = 0;
  for (std::int64_t i = 0; i < d; ++i) mean += static_cast<double>(row[i]);
  const T shift = static_cast<T>(mean / static_cast<double>(d));
  for (std::int64_t i = 0; i < d; ++i) row[i] -= shift;
}

template <typename T>
std::shared_ptr<const typename HostBase<T>::RotaryTable> HostBase<T>::rotary(int index,
                                                                             std::int64_t positions,
                                                                             int context) {
  const Rope& rope = config_.layer(index).rope;
  if (rope.dims == 0) return nullptr;
  const bool long_prompt = is_long_prompt(rope, context);
  std::lock_guard lock(mutex_);
  std::shared_ptr<const RotaryTable>* slot = nullptr;
  for (auto& known : rotary_) {
    if (known->long_prompt == long_prompt && known->rope == rope) slot = &known;
  }
  if (slot != nullptr && (*slot)->positions >= positions) return *slot;
  if (slot == nullptr) slot = &rotary_.emplace_back();
  const int half = rope.dims / 2;
  auto table = std::make_shared<RotaryTable>();
  table->rope = rope;
  table->long_prompt = long_prompt;
  table->positions = std::max<std::int64_t>(positions, 64);
  table->cos.resize(static_cast<std::size_t>(table->positions * half));
  table->sin.resize(table->cos.size());
  const std::vector<double> frequencies = rotary_frequencies(rope, context);
  for (int i = 0; i < half; ++i) {
    const double frequency = frequencies[static_cast<std::size_t>(i)];
    for (std::int64_t s = 0; s < table->positions; ++s) {
      const auto at = static_cast<std::size_t>(s * half + i);
      const double angle = static_cast<double>(s) * frequency;
      table->cos[at] = static_cast<T>(rope.amplitude * std::cos(angle));
      table->sin[at] = static_cast<T>(rope.amplitude * std::sin(angle));
    }
  }
  *slot = table;
  return table;
}

// The inverse is the adjoint: turned back, and as long as forth.
template <typename T>
void HostBase<T>::rotate(const RotaryTable& table, std::int64_t position, T* x, bool inverse) {
  const int half = table.rope.dims / 2;
  const T* cos = table.cos.data() + position * half;
  const T* sin = table.sin.data() + position * half;
  const T sign = inverse ? T(-1) : T(1);
  for (int i = 0; i < half; ++i) {
    const T a = x[i];
    const T b = x[i + half];
    x[i] = a * cos[i] - sign * b * sin[i];
    x[i + half] = b * cos[i] + sign * a * sin[i];
  }
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
  const std::int64_t m = 1024, k = 1024, n = 2048;
  Panels<T> w;
  w.in = k;
  w.out = n;
  w.data.resize(static_cast<std::size_t>(k * n));
  std::vector<T> a(static_cast<std::size_t>(m * k)), c(static_cast<std::size_t>(m * n));
  for (std::size_t i = 0; i < w.data.size(); ++i)
    w.data[i] = static_cast<T>(static_cast<double>(i * 7 % 13) / 13 - 0.5);
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<T>(static_cast<double>(i * 11 % 17) / 17 - 0.5);
  Peaks peaks;
  peaks.flops = 2.0 * m * k * n / fastest(25, [&] { multiply(w, a.data(), m, {}, c.data()); });
  constexpr std::int64_t kBlock = std::int64_t{1} << 18, kBlocks = 256;  // far past every cache
  std::vector<T> memory(static_cast<std::size_t>(kBlock * kBlocks), T(1));
  std::vector<double> sums(kBlocks);
  const double read = fastest(12, [&] {
    pool_.parallel_for(kBlocks, [&](std::int64_t b) {
      double sum = 0;
      double abs = 0;
      row_sums(memory.data() + b * kBlock, kBlock, sum, abs);
      sums[static_cast<std::size_t>(b)] = sum;
    });
  });
  peaks.bytes = static_cast<double>(memory.size() * sizeof(T)) / read;
  return peaks;
}

template class HostBase<float>;
template class HostBase<double>;

}  // namespace unpack
