// The device table of NVIDIA GPUs: memory, streams, cuBLAS, and the kernels of kernel_list.h in launches.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/device_table.h"
#include "backend/cuda/kernel_list.h"

namespace unpack::cuda {

namespace {

thread_local std::string last_error;
thread_local bool last_was_memory = false;

int fail(const std::string& text) {
  last_error = text;
  last_was_memory = false;
  return 1;
}

int check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return 0;
  fail(std::string(what) + ": " + cudaGetErrorString(status));
  last_was_memory = status == cudaErrorMemoryAllocation;
  (void)cudaGetLastError();  // an allocation that failed is no reason to fail again later
  return 1;
}

int check(cublasStatus_t status, const char* what) {
  return status == CUBLAS_STATUS_SUCCESS ? 0 : fail(std::string(what) + ": " + cublasGetStatusString(status));
}

// With $UNPACK_CUDA_PROFILE=FILE every kernel and product is timed by itself, and the sums are written there at the end.
class Profile {
 public:
  static Profile* make() {
    const char* file = std::getenv("UNPACK_CUDA_PROFILE");
    return file != nullptr && *file != 0 ? new Profile(file) : nullptr;
  }
  ~Profile() {
    std::FILE* f = std::fopen(file_.c_str(), "w");
    if (f == nullptr) return;
    double all = 0;
    for (const auto& [name, row] : rows_) all += row.milliseconds;
    std::fprintf(f, "%10.3f ms in all\n", all);
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [name, row] : rows_) order.emplace_back(-row.milliseconds, name);
    std::sort(order.begin(), order.end());
    for (const auto& [key, name] : order) {
      const Row& row = rows_[name];
      std::fprintf(f, "%10.3f ms %8ld times  %s", row.milliseconds, row.count, name.c_str());
      if (row.flop > 0) std::fprintf(f, "  %.1f TFLOP/s", row.flop / row.milliseconds / 1e9);
      std::fprintf(f, "\n");
    }
    std::fclose(f);
  }
  void begin(cudaStream_t stream) { (void)cudaEventRecord(from_, stream); }
  void end(cudaStream_t stream, const std::string& name, double flop) {
    (void)cudaEventRecord(to_, stream);
    (void)cudaEventSynchronize(to_);
    float milliseconds = 0;
    (void)cudaEventElapsedTime(&milliseconds, from_, to_);
    Row& row = rows_[name];
    row.milliseconds += milliseconds;
    row.count++;
    row.flop += flop;
  }
  std::mutex mutex;

 private:
  explicit Profile(const char* file) : file_(file) {
    (void)cudaEventCreate(&from_);
    (void)cudaEventCreate(&to_);
  }
  struct Row {
    double milliseconds = 0, flop = 0;
    long count = 0;
  };
  std::string file_;
  std::map<std::string, Row> rows_;
  cudaEvent_t from_ = nullptr, to_ = nullptr;
};

struct State {
  int id = 0;
  Profile* profile = nullptr;
  cudaStream_t stream = nullptr;  // where all work is queued
  cudaStream_t beside = nullptr;  // where weights go up
  cudaEvent_t arrived = nullptr;
  cudaMemPool_t pool = nullptr;
  cublasHandle_t blas = nullptr;
  std::mutex blas_mutex;  // a handle serves one thread at a time
  void* workspace = nullptr;
  void* pinned = nullptr;  // downloads pass through it: pageable memory is far slower
  std::mutex pinned_mutex;
};

constexpr std::size_t kPinnedBytes = std::size_t{32} << 20;
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

State& of(void* device) { return *static_cast<State*>(device); }

const char* error() { return last_error.c_str(); }
int out_of_memory() { return last_was_memory ? 1 : 0; }

void close_device(void* device) {
  State& s = of(device);
  delete s.profile;
  (void)cudaSetDevice(s.id);
  if (s.stream != nullptr) (void)cudaStreamSynchronize(s.stream);
  if (s.beside != nullptr) (void)cudaStreamSynchronize(s.beside);
  if (s.blas != nullptr) (void)cublasDestroy(s.blas);
  if (s.workspace != nullptr) (void)cudaFree(s.workspace);
  if (s.pinned != nullptr) (void)cudaFreeHost(s.pinned);
  if (s.arrived != nullptr) (void)cudaEventDestroy(s.arrived);
  if (s.stream != nullptr) (void)cudaStreamDestroy(s.stream);
  if (s.beside != nullptr) (void)cudaStreamDestroy(s.beside);
  if (s.pool != nullptr) (void)cudaMemPoolDestroy(s.pool);
  delete &s;
}

int open_state(State& s, int tf32) {
  int count = 0;
  if (check(cudaGetDeviceCount(&count), "the driver")) return 1;
  if (count == 0) return fail("the driver knows no device");
  if (check(cudaSetDevice(s.id), "device 0")) return 1;
  if (check(cudaStreamCreateWithFlags(&s.stream, cudaStreamNonBlocking), "a stream")) return 1;
  if (check(cudaStreamCreateWithFlags(&s.beside, cudaStreamNonBlocking), "a stream")) return 1;
  if (check(cudaEventCreateWithFlags(&s.arrived, cudaEventDisableTiming), "an event")) return 1;
  // A pool of our own that keeps what it was given: the same sizes come back again and again.
  cudaMemPoolProps props{};
  props.allocType = cudaMemAllocationTypePinned;
  props.handleTypes = cudaMemHandleTypeNone;
  props.location.type = cudaMemLocationTypeDevice;
  props.location.id = s.id;
  if (check(cudaMemPoolCreate(&s.pool, &props), "a memory pool")) return 1;
  std::uint64_t keep = UINT64_MAX;
  if (check(cudaMemPoolSetAttribute(s.pool, cudaMemPoolAttrReleaseThreshold, &keep), "a memory pool")) return 1;
  if (check(cudaMalloc(&s.workspace, kWorkspaceBytes), "memory for cuBLAS")) return 1;
  if (check(cudaMallocHost(&s.pinned, kPinnedBytes), "pinned memory")) return 1;
  if (check(cublasCreate(&s.blas), "cuBLAS")) return 1;
  if (check(cublasSetStream(s.blas, s.stream), "cuBLAS")) return 1;
  if (check(cublasSetWorkspace(s.blas, s.workspace, kWorkspaceBytes), "cuBLAS")) return 1;
  s.profile = Profile::make();
  return check(cublasSetMathMode(s.blas, tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH), "cuBLAS");
}

int open_device(int tf32, void** device) {
  auto* s = new State;
  if (open_state(*s, tf32) != 0) {
    const std::string why = last_error;
    const bool memory = last_was_memory;
    close_device(s);
    last_error = why;
    last_was_memory = memory;
    return 1;
  }
  *device = s;
  return 0;
}

int info(void* device, UnpackDeviceInfo* out) {
  State& s = of(device);
  cudaDeviceProp props{};
  if (check(cudaSetDevice(s.id), "device 0") || check(cudaGetDeviceProperties(&props, s.id), "device 0")) return 1;
  std::size_t free = 0, total = 0;
  if (check(cudaMemGetInfo(&free, &total), "device 0")) return 1;
  int version = 0;
  (void)cublasGetVersion(s.blas, &version);
  std::snprintf(out->name, sizeof out->name, "%s, cuBLAS %d.%d", props.name, version / 10000, version / 100 % 100);
  out->memory_free = free;
  out->memory_total = total;
  return 0;
}

int allocate_on(State& s, cudaStream_t stream, std::size_t bytes, void** out) {
  if (check(cudaSetDevice(s.id), "device 0")) return 1;
  return check(cudaMallocFromPoolAsync(out, bytes, s.pool, stream), "memory");
}

int allocate(void* device, std::size_t bytes, void** out) { return allocate_on(of(device), of(device).stream, bytes, out); }
int allocate_beside(void* device, std::size_t bytes, void** out) { return allocate_on(of(device), of(device).beside, bytes, out); }
void release(void* device, void* memory) { (void)cudaFreeAsync(memory, of(device).stream); }

int zero(void* device, void* memory, std::size_t bytes) { return check(cudaMemsetAsync(memory, 0, bytes, of(device).stream), "clearing memory"); }

int to_device(void* device, void* to, const void* from, std::size_t bytes) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, of(device).stream), "copying to the device");
}

// Pageable memory is staged before the call returns, so that the caller may let go of it at once.
int to_device_beside(void* device, void* to, const void* from, std::size_t bytes) {
  State& s = of(device);
  if (check(cudaSetDevice(s.id), "device 0")) return 1;
  if (check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, s.beside), "copying to the device")) return 1;
  return check(cudaStreamSynchronize(s.beside), "copying to the device");
}

int join(void* device) {
  State& s = of(device);
  if (check(cudaEventRecord(s.arrived, s.beside), "an event")) return 1;
  return check(cudaStreamWaitEvent(s.stream, s.arrived, 0), "an event");
}

int to_host(void* device, void* to, const void* from, std::size_t bytes) {
  State& s = of(device);
  std::lock_guard lock(s.pinned_mutex);
  for (std::size_t at = 0; at < bytes; at += kPinnedBytes) {
    const std::size_t n = bytes - at < kPinnedBytes ? bytes - at : kPinnedBytes;
    if (check(cudaMemcpyAsync(s.pinned, static_cast<const char*>(from) + at, n, cudaMemcpyDeviceToHost, s.stream), "copying to the host")) return 1;
    if (check(cudaStreamSynchronize(s.stream), "the work before a copy")) return 1;
    std::memcpy(static_cast<char*>(to) + at, s.pinned, n);
  }
  return 0;
}

int copy(void* device, void* to, const void* from, std::size_t bytes) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, of(device).stream), "copying");
}

int wait(void* device) { return check(cudaStreamSynchronize(of(device).stream), "the work"); }

// Row-major C = A op(B) is column-major C^T = op(B)^T A^T.
int queue_gemm(State& s, const UnpackGemm* g) {
  const float one = 1.0F, beta = g->accumulate ? 1.0F : 0.0F;
  const cublasOperation_t op = g->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  if (g->batch == 1) {
    return check(cublasSgemm_64(s.blas, op, CUBLAS_OP_N, g->n, g->m, g->k, &one, g->b, g->ldb, g->a, g->lda, &beta, g->c, g->ldc), "cuBLAS");
  }
  return check(cublasSgemmStridedBatched_64(s.blas, op, CUBLAS_OP_N, g->n, g->m, g->k, &one, g->b, g->ldb, g->stride_b, g->a, g->lda, g->stride_a, &beta, g->c,
                                            g->ldc, g->stride_c, g->batch),
               "cuBLAS");
}

int gemm(void* device, const UnpackGemm* g) {
  State& s = of(device);
  std::lock_guard lock(s.blas_mutex);
  if (s.profile == nullptr) return queue_gemm(s, g);
  std::lock_guard one_at_a_time(s.profile->mutex);
  s.profile->begin(s.stream);
  const int status = queue_gemm(s, g);
  // Sizes that differ by the number of writers alone are one kind.
  const auto about = [](std::int64_t n) {
    std::int64_t p = 1;
    while (p < n) p *= 2;
    return std::to_string(p);
  };
  s.profile->end(s.stream, "product up to " + about(g->m) + " x " + about(g->n) + " x " + about(g->k) + ", batches up to " + about(g->batch),
                 2.0 * static_cast<double>(g->m) * static_cast<double>(g->n) * static_cast<double>(g->k) * static_cast<double>(g->batch));
  return status;
}

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

  template <typename F>
  __device__ __forceinline__ void sums(Index n, const F& f, double& a, double& b) {
    double x = 0, y = 0;
    for (Index i = lane; i < n; i += kThreads) f(i, x, y);
    for (int step = 16; step > 0; step /= 2) {
      x += __shfl_xor_sync(0xFFFFFFFFU, x, step);
      y += __shfl_xor_sync(0xFFFFFFFFU, y, step);
    }
    if constexpr (kThreads > 32) {
      __syncthreads();
      if (lane % 32 == 0) {
        shared[lane / 32 * 2] = x;
        shared[lane / 32 * 2 + 1] = y;
      }
      __syncthreads();
      x = 0;
      y = 0;
      for (int w = 0; w < kThreads / 32; ++w) {
        x += shared[w * 2];
        y += shared[w * 2 + 1];
      }
    }
    a = x;
    b = y;
    sync();
  }

  template <typename F>
  __device__ __forceinline__ double sum(Index n, const F& f) {
    double a = 0, b = 0;
    sums(
        n, [&](Index i, double& x, double&) { x += static_cast<double>(f(i)); }, a, b);
    return a;
  }

  // Of numbers that are 0 or more.
  template <typename F>
  __device__ __forceinline__ void sum_and_most(const F& f, double& total, double& most) {
    double x = 0, y = 0;
    f(static_cast<Index>(lane), static_cast<Index>(kThreads), x, y);
    for (int step = 16; step > 0; step /= 2) {
      x += __shfl_xor_sync(0xFFFFFFFFU, x, step);
      y = fmax(y, __shfl_xor_sync(0xFFFFFFFFU, y, step));
    }
    if constexpr (kThreads > 32) {
      __syncthreads();
      if (lane % 32 == 0) {
        shared[lane / 32 * 2] = x;
        shared[lane / 32 * 2 + 1] = y;
      }
      __syncthreads();
      x = 0;
      y = 0;
      for (int w = 0; w < kThreads / 32; ++w) {
        x += shared[w * 2];
        y = fmax(y, shared[w * 2 + 1]);
      }
    }
    total = x;
    most = y;
    sync();
  }

  template <typename F>
  __device__ __forceinline__ double largest(Index n, const F& f) {
    double most = -INFINITY;
    for (Index i = lane; i < n; i += kThreads) most = fmax(most, static_cast<double>(f(i)));
    for (int step = 16; step > 0; step /= 2) most = fmax(most, __shfl_xor_sync(0xFFFFFFFFU, most, step));
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
__global__ void __launch_bounds__(kBlock) map_kernel(const __grid_constant__ Kernel kernel, Index count) {
  for (Index i = static_cast<Index>(blockIdx.x) * kBlock + threadIdx.x; i < count; i += static_cast<Index>(gridDim.x) * kBlock) kernel(i);
}

template <typename Kernel, int kThreads>
__global__ void __launch_bounds__(kThreads == 32 ? kBlock : kThreads) row_kernel(const __grid_constant__ Kernel kernel, Index count) {
  __shared__ double shared[kThreads == 32 ? 1 : kThreads / 16];
  constexpr int kRows = kThreads == 32 ? kBlock / 32 : 1;
  DeviceGroup<kThreads> group{static_cast<int>(threadIdx.x) % kThreads, shared};
  for (Index row = static_cast<Index>(blockIdx.x) * kRows + threadIdx.x / kThreads; row < count; row += static_cast<Index>(gridDim.x) * kRows) {
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
    row_kernel<Kernel, kThreads><<<static_cast<unsigned>(blocks), kThreads == 32 ? kBlock : kThreads, 0, s.stream>>>(kernel, count);
  }
  return check(cudaGetLastError(), "a launch");
}

int queue_kernel(State& s, int id, const void* parameters, std::size_t bytes, std::int64_t count) {
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

int launch(void* device, int id, const void* parameters, std::size_t bytes, std::int64_t count) {
  State& s = of(device);
  if (s.profile == nullptr) return queue_kernel(s, id, parameters, bytes, count);
  std::lock_guard one_at_a_time(s.profile->mutex);
  s.profile->begin(s.stream);
  const int status = queue_kernel(s, id, parameters, bytes, count);
  if (status == 0) s.profile->end(s.stream, kKernelNames[id], 0);
  return status;
}

}  // namespace

}  // namespace unpack::cuda

extern "C" __attribute__((visibility("default"))) const UnpackDeviceTable* unpack_device_table() {
  using namespace unpack::cuda;
  static const UnpackDeviceTable table = {UNPACK_DEVICE_TABLE_VERSION,
                                          static_cast<int>(KernelId::kCount),
                                          error,
                                          open_device,
                                          close_device,
                                          info,
                                          out_of_memory,
                                          allocate,
                                          release,
                                          zero,
                                          to_device,
                                          to_host,
                                          copy,
                                          wait,
                                          allocate_beside,
                                          to_device_beside,
                                          join,
                                          gemm,
                                          launch};
  return &table;
}
