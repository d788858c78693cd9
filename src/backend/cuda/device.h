// A device table with C++ manners: memory frees itself, failures throw, kernels are typed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device_table.h"
#include "backend/cuda/kernel_list.h"
#include "base/index.h"

namespace unpack::backend::cuda {

class Device : public std::enable_shared_from_this<Device> {
 public:
  // `library` keeps the plugin loaded.
  static std::shared_ptr<Device> open(const UnpackDeviceTable* table, std::shared_ptr<void> library,
                                      bool tf32);
  // The same device again with an order of work of its own, and memory of its own.
  std::shared_ptr<Device> another() const { return open(table_, library_, tf32_); }
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // $UNPACK_CUDA_MEMORY bounds memory_free.
  UnpackDeviceInfo info() const;
  std::uint64_t memory_free() const;  // whatever the environment says
  UnpackDeviceMemory memory_use(bool start_again = false) const;

  Array floats(Index count) { return Array(bytes(count * sizeof(float)), count); }
  Array zeros(Index count);
  std::shared_ptr<void> bytes(std::size_t count);
  std::shared_ptr<void> bytes_beside(std::size_t count);
  void to_device_beside(void* to, const void* from, std::size_t count);
  void to_device_beside(void* to, UnpackFill fill, const void* context, std::size_t count);
  void wait_beside();
  void join();

  void to_device(void* to, const void* from, std::size_t count);
  void to_host(void* to, const void* from, std::size_t count);
  void copy(void* to, const void* from, std::size_t count);
  void wait();

  // A small array of plain values on the device.
  template <typename T>
  std::shared_ptr<const T> upload(std::span<const T> values) {
    auto memory = bytes(values.size_bytes());
    to_device(memory.get(), values.data(), values.size_bytes());
    return {memory, static_cast<const T*>(memory.get())};
  }
  Array upload_floats(std::span<const double> values);
  std::vector<float> download(const Array& from);

  // `times`: a number on the device; null: 1.
  void gemm(const UnpackGemm& call, UnpackFactors factors = UNPACK_FACTORS_SINGLE,
            const float* times = nullptr);
  void few_rows(const UnpackFewRows& call);
  bool pair_sums_fit(Index e) const;
  void pair_sums(const UnpackPairSums& call);
  template <typename Kernel>
  void launch(const Kernel& kernel, Index count) {
    static_assert(std::is_trivially_copyable_v<Kernel>);
    if (count > 0)
      launch_raw(static_cast<int>(KernelTraits<Kernel>::kId), &kernel, sizeof kernel, count);
  }

  // By its place in the list.
  void launch_raw(int id, const void* parameters, std::size_t size, Index count);

 private:
  Device() = default;
  void check(int status, std::size_t wanted = 0) const;

  std::shared_ptr<void> library_;
  const UnpackDeviceTable* table_ = nullptr;
  void* device_ = nullptr;
  bool tf32_ = false;
};

inline float* ptr(const Array& a) { return static_cast<float*>(a.raw()); }
inline float* floats_at(Any* a) { return reinterpret_cast<float*>(a); }
inline float* maybe(const Array& a) { return a.empty() ? nullptr : ptr(a); }

}  // namespace unpack::backend::cuda
