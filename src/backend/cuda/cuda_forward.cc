// Memory, weights and the forward pass on a device.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/weight_copy.h"
#include "backend/rotary.h"
#include "base/index.h"
#include "unpack/error.h"

namespace unpack::backend::cuda {

CudaBackend::CudaBackend(std::shared_ptr<Device> device,
                         std::shared_ptr<const model::ModelWeights> weights,
                         const BackendOptions& options, std::string name)
    : Backend(std::move(weights)),
      device_(std::move(device)),
      kept_weights_(std::make_shared<DeviceWeights>(device_, weights_)),
      on_device_(*kept_weights_),
      split_(device_, options.tf32         ? SplitProducts::Mode::tf32
                      : options.exact_fp32 ? SplitProducts::Mode::single
                                           : SplitProducts::Mode::parts),
      pool_(options.threads),
      name_(std::move(name)) {
  const UnpackDeviceInfo info = device_->info();
  tile_bytes_ = info.tile_bytes;
  few_rows_ = info.few_rows;
  details_ =
      fmt::format("{}, {:.0f} GiB{}", info.name, static_cast<double>(info.memory_total) / (1 << 30),
                  on_device_.streams() ? ", layers uploaded as they are needed"
                  : config_.mixture()  ? ", experts uploaded as they are used"
                                       : "");
}

CudaBackend::CudaBackend(const CudaBackend& main, std::shared_ptr<Device> device)
    : Backend(main.weights_),
      device_(std::move(device)),
      kept_weights_(main.kept_weights_),
      on_device_(*kept_weights_),
      split_(device_, main.split_.mode()),
      pool_(1),
      name_(main.name_),
      details_(main.details_),
      few_rows_(main.few_rows_),
      tile_bytes_(main.tile_bytes_) {}

// A trace of a short prompt waits for the host, which queues some thousand small pieces of work: a
// few threads with a stream each keep the device busy. Only where nothing goes up any more.
std::vector<std::shared_ptr<Backend>> CudaBackend::lanes(int count) {
  if (on_device_.streams() || config_.mixture()) return {};
  for (int l = 0; l < config_.n_layers; ++l) (void)on_device_.layer(l);
  (void)on_device_.unembed();
  device_->wait();
  std::lock_guard lock(lanes_mutex_);
  while (static_cast<int>(lanes_.size()) < count) {
    try {
      lanes_.push_back(std::make_shared<CudaBackend>(*this, device_->another()));
    } catch (const InputError&) {  // no room for another: those that are open do the work
      if (lanes_.size() < 2) return {};
      return {lanes_.begin(), lanes_.end()};
    }
  }
  return {lanes_.begin(), lanes_.begin() + count};
}

DeviceMemory::Use CudaBackend::memory_use(bool start_again) {
  const UnpackDeviceMemory use = device_->memory_use(start_again);
  return {use.peak, use.held};
}

std::uint64_t CudaBackend::room_for_prompts() {
  const std::uint64_t free = device_->memory_free(), weights = on_device_.still_to_come();
  return free > weights ? free - weights : 0;
}

float CudaBackend::head_scale(int layer) const { return config_.layer(layer).attention_scale; }

// Memory
// -------------------------------------------------------------------------------------------------

void CudaBackend::upload(Array& to, Index offset, std::span<const double> from) {
  const std::vector<float> single(from.begin(), from.end());
  device_->to_device(ptr(to) + offset, single.data(), single.size() * sizeof(float));
}

void CudaBackend::download(const Array& from, Index offset, std::span<double> to) {
  std::vector<float> single(to.size());
  device_->to_host(single.data(), ptr(from) + offset, single.size() * sizeof(float));
  std::copy(single.begin(), single.end(), to.begin());
}

void CudaBackend::copy(const Array& from, Index from_offset, Array& to, Index to_offset,
                       Index size) {
  device_->copy(ptr(to) + to_offset, ptr(from) + from_offset, size * sizeof(float));
}

std::shared_ptr<const void> CudaBackend::host(const Array& from) {
  const std::size_t bytes = from.size() * sizeof(float);
  std::shared_ptr<void> memory(std::malloc(std::max<std::size_t>(bytes, 1)), std::free);
  if (!memory)
    throw InputError(fmt::format(
        "not enough memory for {} MiB; use a shorter prompt or a smaller model", bytes >> 20));
  device_->to_host(memory.get(), from.raw(), bytes);
  return memory;
}

// A long prompt's stream takes longer to download than a fifth of its forward pass.
std::optional<bool> CudaBackend::all_finite(const Array& x) {
  const Index parts = (x.size() + kFinitePart - 1) / kFinitePart;
  const Array found = device_->floats(parts);
  device_->launch(NonFinite{ptr(x), x.size(), ptr(found)}, parts);
  const std::vector<float> numbers = device_->download(found);
  return std::all_of(numbers.begin(), numbers.end(), [](float n) { return n == 0; });
}

// Products with weights
// -------------------------------------------------------------------------------------------------

// Whether stored halves need not be widened for so few rows.
bool CudaBackend::few_rows(const DeviceMatrix& w, Index m) const {
  return m <= few_rows_ && (w.type == kBf16 || w.type == kF16) && w.in % 8 == 0 && w.out % 8 == 0;
}

void CudaBackend::multiply_few(const DeviceMatrix& w, bool turned, const float* a, Index m,
                               float* c) {
  UnpackFewRows call{};
  call.transposed = w.turned != turned ? 1 : 0;
  call.bf16 = w.type == kBf16 ? 1 : 0;
  call.m = m;
  call.n = turned ? w.in : w.out;
  call.k = turned ? w.out : w.in;
  call.a = a;
  call.weights = w.data.get();
  call.scale = maybe(w.scale);
  call.scale_output = turned ? 1 : 0;
  call.factor = w.factor;
  call.c = c;
  Array work;
  if (call.transposed == 0) work = device_->floats(16 * UNPACK_FEW_ROWS_PARTS * call.n);
  call.work = maybe(work);
  device_->few_rows(call);
}

void CudaBackend::multiply(const DeviceMatrix& w, const float* a, Index m, float* c) {
  if (few_rows(w, m)) return multiply_few(w, false, a, m, c);
  const Operand x = operand(w);
  device_->gemm(
      {x.turned ? 1 : 0, 0, m, x.out, x.in, a, x.in, 0, x.data, x.ld(), 0, c, x.out, 0, 1});
}

void CudaBackend::multiply_turned(const DeviceMatrix& w, const float* a, Index m, float* c) {
  if (few_rows(w, m)) return multiply_few(w, true, a, m, c);
  const Operand x = operand(w);
  device_->gemm(
      {x.turned ? 0 : 1, 0, m, x.in, x.out, a, x.out, 0, x.data, x.ld(), 0, c, x.in, 0, 1});
}

void CudaBackend::heads_to_model(const Operand& w, int heads, const float* a, Index m, float* c) {
  // Heads of one group share their columns: the r-th head of every group at once.
  const Index e = config_.d_head, d = w.in;
  const Index groups = w.out / e;
  const Index group = heads / groups;
  for (Index r = 0; r < group; ++r) {
    device_->gemm({w.turned ? 0 : 1, 0, m, d, e, a + r * e, heads * e, group * e, w.data, w.ld(),
                   w.column(e) - w.data, c + r * d, heads * d, group * d, groups});
  }
}

// Primitives
// -------------------------------------------------------------------------------------------------

namespace {

float* floats(const Any* p) { return reinterpret_cast<float*>(const_cast<Any*>(p)); }

int kernel_of(kernels::Name name) {
  switch (name) {
#define UNPACK_KERNEL_OF(name) \
  case kernels::Name::k##name: \
    return static_cast<int>(KernelId::k##name);
    UNPACK_SHARED_KERNELS(UNPACK_KERNEL_OF)
#undef UNPACK_KERNEL_OF
  }
  throw InternalError("no such kernel");
}

}  // namespace

void CudaBackend::run_kernel(kernels::Name name, const void* parameters, std::size_t bytes,
                             Index count) {
  device_->launch_raw(kernel_of(name), parameters, bytes, count);
}

std::shared_ptr<const void> CudaBackend::upload_bytes(std::span<const std::byte> from) {
  auto memory = device_->bytes(from.size());
  device_->to_device(memory.get(), from.data(), from.size());
  return memory;
}

// Walks that need nothing of a layer but what folds keys back take nothing else up.
std::shared_ptr<const DeviceRoles> CudaBackend::roles(const WeightName& name) {
  return name.expert < 0 ? on_device_.layer(name.layer)
                         : on_device_.expert(name.layer, name.expert);
}

Array CudaBackend::vector(const WeightName& name) {
  if (name.role == model::Role::k_norm) return on_device_.keys(name.layer)->vector(name.role);
  return roles(name)->vector(name.role);
}

void CudaBackend::multiply(std::span<const Product> products, const View& a) {
  for (const Product& product : products) {
    const auto w = roles(product.weight);
    const DeviceMatrix& matrix = w->matrix(product.weight.role);
    check_shape(a.cols == matrix.in && product.out.cols == matrix.out && product.out.rows == a.rows,
                "rows, a matrix and their product");
    multiply(matrix, floats(a.data), a.rows, floats(product.out.data));
    if (!product.bias) continue;
    const Array& bias = w->vector(*product.bias);
    if (!bias.empty())
      device_->launch(AddBias{ptr(bias), floats(product.out.data), matrix.out, nullptr, nullptr},
                      a.rows * matrix.out);
  }
}

void CudaBackend::multiply_turned(const WeightName& weight, const View& a, const View& c) {
  const auto w = weight.role == model::Role::w_k ? on_device_.keys(weight.layer) : roles(weight);
  const DeviceMatrix& matrix = w->matrix(weight.role);
  check_shape(a.cols == matrix.out && c.cols == matrix.in && c.rows == a.rows,
              "rows, a turned matrix and their product");
  multiply_turned(matrix, floats(a.data), a.rows, floats(c.data));
}

void CudaBackend::heads_to_model(const WeightName& weight, Index heads, const View& a,
                                 const View& c) {
  const auto w = roles(weight);
  const DeviceMatrix& matrix = w->matrix(weight.role);
  check_shape(a.cols == heads * config_.d_head && c.cols == heads * matrix.in && c.rows == a.rows,
              "heads and what they make of a matrix");
  heads_to_model(operand(matrix), heads, floats(a.data), a.rows, floats(c.data));
}

void CudaBackend::heads_out(const WeightName& weight, Index heads, const View& a, const Tail& c,
                            Index row) {
  const auto w = roles(weight);
  const Operand x = operand(w->matrix(weight.role));
  check_shape(a.cols == x.in && (a.rows - 1) * row + heads * x.out <= c.size,
              "heads, a matrix and what each head makes of it");
  const Index e = a.cols / heads;
  device_->gemm({x.turned ? 1 : 0, 0, a.rows, x.out, e, floats(a.data), a.cols, e, x.data, x.ld(),
                 x.row(e) - x.data, floats(c.data), row, x.out, heads});
}

void CudaBackend::multiply_batch(const BatchedProduct& p) {
  check_batch(p);
  // Runs of neighbours in one call.
  for (Index i = 0; i < p.batch;) {
    const Index b = p.which_b.empty() ? i : p.which_b[i];
    Index n = 1;
    while (i + n < p.batch && (p.which_b.empty() || p.which_b[i + n] == b + n)) ++n;
    device_->gemm({p.b_turned ? 1 : 0, 0, p.m, p.n, p.k, floats(p.a.data) + i * p.stride_a, p.lda,
                   p.stride_a, floats(p.b.data) + b * p.stride_b, p.ldb, p.stride_b,
                   floats(p.c.data) + i * p.stride_c, p.ldc, p.stride_c, n});
    i += n;
  }
}

void CudaBackend::vocabulary_product(const View& x, std::span<double> out) {
  const DeviceMatrix& table = on_device_.unembed();
  const Index vocabulary = config_.vocab_size;
  check_shape(x.cols == config_.d_model && std::ssize(out) == x.rows * vocabulary,
              "rows and their logits");
  Array made = device_->floats(x.rows * vocabulary);
  constexpr Index kFewRows = 4;
  if (x.rows <= kFewRows) {
    device_->launch(
        StoredDots{table.data.get(), table.type, floats(x.data), ptr(made), x.cols, vocabulary},
        x.rows * vocabulary);
  } else {
    multiply_turned(table, floats(x.data), x.rows, ptr(made));
  }
  download(made, 0, out);
}

std::vector<double> CudaBackend::vocabulary_sum() {
  const DeviceMatrix& table = on_device_.unembed();
  const Index d = config_.d_model, vocabulary = config_.vocab_size;
  const Index chunks = (vocabulary + ColumnSums::kRows - 1) / ColumnSums::kRows;
  std::vector<double> partial(chunks * d), sum(d, 0.0);
  const auto memory = device_->bytes(partial.size() * sizeof(double));
  device_->launch(
      ColumnSums{table.data.get(), table.type, vocabulary, d, static_cast<double*>(memory.get())},
      chunks * d);
  device_->to_host(partial.data(), memory.get(), partial.size() * sizeof(double));
  for (std::size_t i = 0; i < partial.size(); ++i) sum[i % d] += partial[i];
  return sum;
}

Rotary CudaBackend::rotary(int index, Index positions, int context) {
  const auto table = Backend::rotary(index, positions, context);
  if (!table) return {nullptr, nullptr, 0};
  return {ptr(table->cos), ptr(table->sin), table->rope.dims / 2};
}

Backend::Peaks CudaBackend::measure_peaks() {
  using Clock = std::chrono::steady_clock;
  const auto fastest = [&](int repeat, const auto& work) {
    double best = 1e30;
    for (int i = 0; i < repeat; ++i) {
      device_->wait();
      const auto begin = Clock::now();
      work();
      device_->wait();
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return best;
  };
  const bool emulated = name_ != "cuda";
  const Index n = emulated ? 256 : 8192;
  const Index floats = emulated ? Index{1} << 20 : Index{1} << 29;
  std::vector<float> noise(n * n);
  std::uint64_t state = 1;
  for (float& x : noise) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    x = static_cast<double>(state >> 40) / (1 << 24) - 0.5;
  }
  Peaks peaks;
  {
    Array a = device_->floats(n * n), b = device_->floats(n * n), c = device_->floats(n * n);
    device_->to_device(a.raw(), noise.data(), noise.size() * sizeof(float));
    device_->to_device(b.raw(), noise.data(), noise.size() * sizeof(float));
    // As the scores of neurons are made: with weights that are stored like theirs.
    const model::LayerWeights& layer = weights_->layers[0];
    const model::RoleViews& mlp = layer.experts.empty()
                                      ? static_cast<const model::RoleViews&>(layer)
                                      : static_cast<const model::RoleViews&>(layer.experts[0]);
    DeviceMatrix m;
    m.type = stored_as(mlp[model::Role::w_in]);
    if (m.type == kMxfp4) m.type = kBf16;  // which they become
    m.in = m.out = n;
    m.data = device_->bytes(noise.size() * sizeof(float));
    if (m.type == kF32) {
      device_->copy(m.data.get(), b.raw(), noise.size() * sizeof(float));
    } else {
      // Numbers from 1/2 to 1 and from -1 to -1/2.
      std::vector<std::uint16_t> halves;
      for (const float x : noise) {
        const std::uint32_t bits = base::bits_of_float(x) >> 8;
        halves.push_back(m.type == kF16 ? (bits & 0x83FFU) | 0x3800U : (bits & 0x807FU) | 0x3F00U);
      }
      device_->to_device(m.data.get(), halves.data(), halves.size() * sizeof(std::uint16_t));
      device_->wait();
    }
    const double seconds =
        split_.pays(m, n)
            ? fastest(5,
                      [&, w = split_.weights(m)] {
                        split_.multiply({ptr(a), n, nullptr, n, n}, w, ptr(c));
                      })
            : fastest(5, [&] {
                device_->gemm({0, 0, n, n, n, ptr(a), n, 0, ptr(b), n, 0, ptr(c), n, 0, 1});
              });
    peaks.flops = 2.0 * n * n * n / seconds;
  }
  // Bytes read and bytes written.
  Array from = zeros(floats), to = device_->floats(floats);
  const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
  peaks.bytes = 2.0 * bytes / fastest(5, [&] { device_->copy(to.raw(), from.raw(), bytes); });
  return peaks;
}

}  // namespace unpack::backend::cuda
