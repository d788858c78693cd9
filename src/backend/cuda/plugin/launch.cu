// The kernels of kernel_list.h in launches.
#include <algorithm>
#include <cstring>

#include "backend/cuda/kernel_list.h"
#include "backend/cuda/plugin/state.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

// A row's threads: a part of a warp's or a whole block's.
template <int kThreads>
struct DeviceGroup {
  static_assert(kThreads == 32 || kThreads % 32 == 0);
  int lane;        // among the row's threads
  double* shared;  // two per warp

  __device__ __forceinline__ void sync() const {
    if constexpr (kThreads == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  template <typename F>
  __device__ __forceinline__ void each(Index n, const F& f) {
    for (Index i = lane; i < n; i += kThreads) f(i);
    sync();
  }

  // The row's sum of x and its sum or largest y, to all of its threads.
  template <bool kMost>
  __device__ __forceinline__ void combine(double& x, double& y) {
    const auto add = [](double a, double b) { return kMost ? fmax(a, b) : a + b; };
    for (int step = 16; step > 0; step /= 2) {
      x += __shfl_xor_sync(0xFFFFFFFFU, x, step);
      y = add(y, __shfl_xor_sync(0xFFFFFFFFU, y, step));
    }
    if constexpr (kThreads > 32) {
      __syncthreads();
      if (lane % 32 == 0) {
        shared[lane / 32 * 2] = x;
        shared[lane / 32 * 2 + 1] = y;
      }
      __syncthreads();
      x = 0;
      y = 0;  // the largest is of numbers that are 0 or more
      for (int w = 0; w < kThreads / 32; ++w) {
        x += shared[w * 2];
        y = add(y, shared[w * 2 + 1]);
      }
    }
    sync();
  }

  template <typename F>
  __device__ __forceinline__ void sums(Index n, const F& f, double& a, double& b) {
    a = 0;
    b = 0;
    for (Index i = lane; i < n; i += kThreads) f(i, a, b);
    combine<false>(a, b);
  }

  template <typename F>
  __device__ __forceinline__ double sum(Index n, const F& f) {
    double a = 0, b = 0;
    sums(
        n, [&](Index i, double& x, double&) { x += static_cast<double>(f(i)); }, a, b);
    return a;
  }

  template <typename F>
  __device__ __forceinline__ void sum_and_most(const F& f, double& total, double& most) {
    total = 0;
    most = 0;
    f(static_cast<Index>(lane), static_cast<Index>(kThreads), total, most);
    combine<true>(total, most);
  }

  template <typename F>
  __device__ __forceinline__ double largest(Index n, const F& f) {
    double most = -INFINITY;
    for (Index i = lane; i < n; i += kThreads) most = fmax(most, static_cast<double>(f(i)));
    for (int step = 16; step > 0; step /= 2)
      most = fmax(most, __shfl_xor_sync(0xFFFFFFFFU, most, step));
    if constexpr (kThreads > 32) {
      __syncthreads();
      if (lane % 32 == 0) shared[lane / 32] = most;
      __syncthreads();
      most = shared[0];
      for (int w = 1; w < kThreads / 32; ++w) most = fmax(most, shared[w]);
    }
    sync();
    return most;
  }
};

constexpr int kBlock = 256;

template <typename Kernel>
__global__ void __launch_bounds__(kBlock)
    map_kernel(const __grid_constant__ Kernel kernel, Index count) {
  for (Index i = static_cast<Index>(blockIdx.x) * kBlock + threadIdx.x; i < count;
       i += static_cast<Index>(gridDim.x) * kBlock)
    kernel(i);
}

template <typename Kernel, int kThreads>
__global__ void __launch_bounds__(kThreads == 32 ? kBlock : kThreads)
    row_kernel(const __grid_constant__ Kernel kernel, Index count) {
  __shared__ double shared[kThreads == 32 ? 1 : kThreads / 16];
  constexpr int kRows = kThreads == 32 ? kBlock / 32 : 1;
  DeviceGroup<kThreads> group{static_cast<int>(threadIdx.x) % kThreads, shared};
  for (Index row = static_cast<Index>(blockIdx.x) * kRows + threadIdx.x / kThreads; row < count;
       row += static_cast<Index>(gridDim.x) * kRows) {
    kernel(group, row);
    group.sync();
  }
}

template <typename Kernel>
int run(State& s, const void* parameters, std::size_t bytes, Index count) {
  if (bytes != sizeof(Kernel)) return fail("a kernel's parameters have another size");
  Kernel kernel;
  std::memcpy(&kernel, parameters, sizeof kernel);
  constexpr int kThreads = KernelTraits<Kernel>::kThreads;
  constexpr Index kMostBlocks = Index{1} << 30;
  if constexpr (kThreads == 0) {
    const Index blocks = std::min((count + kBlock - 1) / kBlock, kMostBlocks);
    map_kernel<Kernel><<<static_cast<unsigned>(blocks), kBlock, 0, s.stream>>>(kernel, count);
  } else {
    constexpr Index kRows = kThreads == 32 ? kBlock / 32 : 1;
    const Index blocks = std::min((count + kRows - 1) / kRows, kMostBlocks);
    row_kernel<Kernel, kThreads>
        <<<static_cast<unsigned>(blocks), kThreads == 32 ? kBlock : kThreads, 0, s.stream>>>(kernel,
                                                                                             count);
  }
  return check(cudaGetLastError(), "a launch");
}

int queue_kernel(State& s, int id, const void* parameters, std::size_t bytes, Index count) {
  switch (static_cast<KernelId>(id)) {
#define UNPACK_RUN_KERNEL(name, threads) \
  case KernelId::k##name:                \
    return run<name>(s, parameters, bytes, count);
    UNPACK_KERNELS(UNPACK_RUN_KERNEL)
#undef UNPACK_RUN_KERNEL
    default:
      return fail("no such kernel");
  }
}

constexpr const char* kKernelNames[] = {
#define UNPACK_KERNEL_NAME(name, threads) #name,
    UNPACK_KERNELS(UNPACK_KERNEL_NAME)
#undef UNPACK_KERNEL_NAME
};

}  // namespace

int launch(void* device, int id, const void* parameters, std::size_t bytes, Index count) {
  State& s = of(device);
  if (s.profile == nullptr) return queue_kernel(s, id, parameters, bytes, count);
  std::lock_guard one_at_a_time(s.profile->mutex);
  s.profile->begin(s.stream);
  const int status = queue_kernel(s, id, parameters, bytes, count);
  if (status == 0) s.profile->end(s.stream, kKernelNames[id], 0);
  return status;
}

}  // namespace unpack::backend::cuda
