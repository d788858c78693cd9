#include "backend/cuda/device.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/index.h"
#include "unpack/error.h"

namespace unpack::backend::cuda {

namespace {

// For a GPU that is shared with others, and to see how a model does that does not fit.
std::optional<std::uint64_t> memory_bound() {
  const char* text = std::getenv("UNPACK_CUDA_MEMORY");
  if (text == nullptr || *text == 0) return std::nullopt;
  std::uint64_t bytes = 0;
  const char* end = text + std::strlen(text);
  const auto [behind, status] = std::from_chars(text, end, bytes);
  if (status != std::errc() || behind != end)
    throw InputError(fmt::format("UNPACK_CUDA_MEMORY must be a number of bytes, not {}", text));
  return bytes;
}

}  // namespace

std::shared_ptr<Device> Device::open(const UnpackDeviceTable* table, std::shared_ptr<void> library,
                                     bool tf32) {
  if (table->version != UNPACK_DEVICE_TABLE_VERSION ||
      table->kernel_count != static_cast<int>(KernelId::kCount)) {
    throw InputError(
        "the CUDA plugin belongs to another version of unpack; install both from one build");
  }
  std::shared_ptr<Device> device(new Device);
  device->library_ = std::move(library);
  device->table_ = table;
  device->tf32_ = tf32;
  if (table->open(tf32 ? 1 : 0, &device->device_) != 0) {
    device->device_ = nullptr;
    throw InputError(fmt::format("no CUDA device can be used: {}", table->error()));
  }
  return device;
}

Device::~Device() {
  if (device_ != nullptr) table_->close(device_);
}

void Device::check(int status, std::size_t wanted) const {
  if (status == 0) return;
  if (table_->out_of_memory() != 0) {
    throw InputError(
        fmt::format("not enough memory on the device for {} MiB more; use a shorter prompt, a "
                    "smaller model or device cpu",
                    wanted >> 20));
  }
  throw InternalError(fmt::format("[cuda] {}", table_->error()));
}

UnpackDeviceInfo Device::info() const {
  UnpackDeviceInfo out{};
  check(table_->info(device_, &out));
  if (const auto bound = memory_bound()) out.memory_free = std::min(out.memory_free, *bound);
  return out;
}

std::uint64_t Device::memory_free() const {
  UnpackDeviceInfo out{};
  check(table_->info(device_, &out));
  return out.memory_free;
}

UnpackDeviceMemory Device::memory_use(bool start_again) const {
  UnpackDeviceMemory out{};
  check(table_->memory_use(device_, start_again ? 1 : 0, &out));
  return out;
}

std::shared_ptr<void> Device::bytes(std::size_t count) {
  void* memory = nullptr;
  check(table_->allocate(device_, std::max<std::size_t>(count, 16), &memory), count);
  return {memory,
          [self = shared_from_this()](void* p) { self->table_->release(self->device_, p); }};
}

std::shared_ptr<void> Device::bytes_beside(std::size_t count) {
  void* memory = nullptr;
  check(table_->allocate_beside(device_, std::max<std::size_t>(count, 16), &memory), count);
  return {memory,
          [self = shared_from_this()](void* p) { self->table_->release(self->device_, p); }};
}

void Device::to_device_beside(void* to, UnpackFill fill, const void* context, std::size_t count) {
  check(table_->to_device_beside(device_, to, fill, context, count));
}
void Device::to_device_beside(void* to, const void* from, std::size_t count) {
  const auto copy = [](const void* all, void* part, std::size_t offset, std::size_t n) {
    std::memcpy(part, static_cast<const char*>(all) + offset, n);
  };
  to_device_beside(to, copy, from, count);
}
void Device::wait_beside() { check(table_->wait_beside(device_)); }
void Device::join() { check(table_->join(device_)); }

Array Device::zeros(Index count) {
  Array a = floats(count);
  check(table_->zero(device_, a.raw(), count * sizeof(float)));
  return a;
}

void Device::to_device(void* to, const void* from, std::size_t count) {
  if (count > 0) check(table_->to_device(device_, to, from, count));
}

void Device::to_host(void* to, const void* from, std::size_t count) {
  if (count > 0) check(table_->to_host(device_, to, from, count));
}

void Device::copy(void* to, const void* from, std::size_t count) {
  if (count > 0) check(table_->copy(device_, to, from, count));
}

void Device::wait() { check(table_->wait(device_)); }

Array Device::upload_floats(std::span<const double> values) {
  const std::vector<float> single(values.begin(), values.end());
  Array a = floats(values.size());
  to_device(a.raw(), single.data(), single.size() * sizeof(float));
  return a;
}

std::vector<float> Device::download(const Array& from) {
  std::vector<float> out(from.size());
  to_host(out.data(), from.raw(), out.size() * sizeof(float));
  return out;
}

void Device::gemm(const UnpackGemm& call, UnpackFactors factors, const float* times) {
  if (call.m == 0 || call.n == 0 || call.batch == 0) return;
  check(times == nullptr ? table_->gemm(device_, factors, &call)
                         : table_->scaled_gemm(device_, factors, &call, times));
}

void Device::few_rows(const UnpackFewRows& call) {
  if (call.m > 0) check(table_->few_rows(device_, &call));
}
bool Device::pair_sums_fit(Index e) const { return table_->pair_sums_fit(device_, e) != 0; }
void Device::pair_sums(const UnpackPairSums& call) {
  if (call.count > 0) check(table_->pair_sums(device_, &call));
}

void Device::launch_raw(int id, const void* parameters, std::size_t size, Index count) {
  check(table_->launch(device_, id, parameters, size, count));
}

}  // namespace unpack::backend::cuda
