// An open GPU: its memory, its two streams and what goes over them.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>

#include "backend/cuda/fill_in_parts.h"
#include "backend/cuda/plugin/state.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

thread_local std::string last_error;
thread_local bool last_was_memory = false;

constexpr std::size_t kPinnedBytes = std::size_t{32} << 20;
constexpr std::size_t kStagingBytes = std::size_t{32} << 20;
constexpr std::size_t kSmallDownload = std::size_t{256} << 10;
constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr Index kTileBytes = Index{768} << 20;
constexpr Index kFewRows = 48;

}  // namespace

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
  return status == CUBLAS_STATUS_SUCCESS
             ? 0
             : fail(std::string(what) + ": " + cublasGetStatusString(status));
}

const char* error() { return last_error.c_str(); }
int out_of_memory() { return last_was_memory ? 1 : 0; }

void close_device(void* device) {
  State& s = of(device);
  delete s.profile;
  (void)cudaSetDevice(s.id);
  for (void* memory : s.pieces.drop()) (void)cudaFreeAsync(memory, s.stream);
  if (s.stream != nullptr) (void)cudaStreamSynchronize(s.stream);
  if (s.beside != nullptr) (void)cudaStreamSynchronize(s.beside);
  if (s.blas != nullptr) (void)cublasDestroy(s.blas);
  if (s.workspace != nullptr) (void)cudaFree(s.workspace);
  if (s.numbers != nullptr) (void)cudaFree(s.numbers);
  if (s.pinned != nullptr) (void)cudaFreeHost(s.pinned);
  for (Download& download : s.downloads) {
    if (download.memory != nullptr) (void)cudaFreeHost(download.memory);
    if (download.there != nullptr) (void)cudaEventDestroy(download.there);
  }
  for (Staging& part : s.staging) {
    if (part.memory != nullptr) (void)cudaFreeHost(part.memory);
    if (part.left != nullptr) (void)cudaEventDestroy(part.left);
  }
  if (s.arrived != nullptr) (void)cudaEventDestroy(s.arrived);
  if (s.stream != nullptr) (void)cudaStreamDestroy(s.stream);
  if (s.beside != nullptr) (void)cudaStreamDestroy(s.beside);
  if (s.pool != nullptr) (void)cudaMemPoolDestroy(s.pool);
  delete &s;
}

namespace {

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
  if (check(cudaMemPoolSetAttribute(s.pool, cudaMemPoolAttrReleaseThreshold, &keep),
            "a memory pool"))
    return 1;
  if (check(cudaMalloc(&s.workspace, kWorkspaceBytes), "memory for cuBLAS")) return 1;
  constexpr float kNumbers[] = {0.0F, 1.0F};
  if (check(cudaMalloc(&s.numbers, sizeof kNumbers), "memory for cuBLAS") ||
      check(cudaMemcpy(s.numbers, kNumbers, sizeof kNumbers, cudaMemcpyHostToDevice),
            "copying to the device"))
    return 1;
  if (check(cudaMallocHost(&s.pinned, kPinnedBytes), "pinned memory")) return 1;
  if (check(cublasCreate(&s.blas), "cuBLAS")) return 1;
  if (check(cublasSetStream(s.blas, s.stream), "cuBLAS")) return 1;
  if (check(cublasSetWorkspace(s.blas, s.workspace, kWorkspaceBytes), "cuBLAS")) return 1;
  s.profile = Profile::make();
  return check(cublasSetMathMode(s.blas, tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH),
               "cuBLAS");
}

}  // namespace

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
  if (check(cudaSetDevice(s.id), "device 0") ||
      check(cudaGetDeviceProperties(&props, s.id), "device 0"))
    return 1;
  std::size_t free = 0, total = 0;
  if (check(cudaMemGetInfo(&free, &total), "device 0")) return 1;
  int version = 0;
  (void)cublasGetVersion(s.blas, &version);
  std::snprintf(out->name, sizeof out->name, "%.100s, cuBLAS %d.%d", props.name, version / 10000,
                version / 100 % 100);
  std::uint64_t held = 0, used = 0;
  if (check(cudaMemPoolGetAttribute(s.pool, cudaMemPoolAttrReservedMemCurrent, &held),
            "the memory pool") ||
      check(cudaMemPoolGetAttribute(s.pool, cudaMemPoolAttrUsedMemCurrent, &used),
            "the memory pool"))
    return 1;
  out->memory_free = free + (held > used ? held - used : 0) + s.pieces.idle();
  out->memory_total = total;
  // bf16 came with compute capability 8.0. A launch costs some microseconds, in which single
  // precision does about this much.
  out->tile_bytes = kTileBytes;
  out->few_rows = kFewRows;
  out->tensor_work = props.major >= 8 ? Index{1} << 28 : INT64_MAX;
  return 0;
}

int memory_use(void* device, int start_again, UnpackDeviceMemory* out) {
  State& s = of(device);
  std::uint64_t held = 0;
  if (check(cudaMemPoolGetAttribute(s.pool, cudaMemPoolAttrReservedMemHigh, &held),
            "the memory pool"))
    return 1;
  out->peak = s.pieces.peak(start_again != 0) + kWorkspaceBytes;
  out->held = held + kWorkspaceBytes;
  return 0;
}

namespace {

int allocate_on(State& s, cudaStream_t stream, std::size_t bytes, void** out) {
  if (check(cudaSetDevice(s.id), "device 0")) return 1;
  return check(cudaMallocFromPoolAsync(out, bytes, s.pool, stream), "memory");
}

}  // namespace

std::size_t Pieces::rounded(std::size_t bytes) {
  constexpr std::size_t kSmall = std::size_t{1} << 20, kLeast = 256;
  if (bytes > kSmall) return 0;
  // Steps of a quarter of the power of two below, so that little is wasted on few sizes.
  std::size_t step = kLeast;
  while (step * 8 <= bytes) step *= 2;
  return std::max((bytes + step - 1) / step * step, kLeast);
}

void Pieces::count(std::size_t size) {
  used_ += size;
  peak_ = std::max(peak_, used_);
}

void* Pieces::take(std::size_t size) {
  std::lock_guard lock(mutex_);
  const auto found = free_.find(size);
  if (found == free_.end() || found->second.empty()) return nullptr;
  void* memory = found->second.back();
  found->second.pop_back();
  idle_ -= size;
  count(size);
  return memory;
}

void Pieces::add(void* memory, std::size_t size, bool small) {
  std::lock_guard lock(mutex_);
  try {
    all_.insert_or_assign(memory, Piece{size, small});
    count(size);
  } catch (const std::bad_alloc&) {
  }
}

bool Pieces::give_back(void* memory) {
  std::lock_guard lock(mutex_);
  const auto found = all_.find(memory);
  if (found == all_.end()) return false;
  const Piece piece = found->second;
  used_ -= piece.size;
  if (piece.small) {
    try {
      free_[piece.size].push_back(memory);
      idle_ += piece.size;
      return true;
    } catch (const std::bad_alloc&) {
    }
  }
  all_.erase(found);
  return false;
}

std::vector<void*> Pieces::drop() {
  std::lock_guard lock(mutex_);
  std::vector<void*> out;
  for (auto& [size, pieces] : free_) {
    for (void* memory : pieces) all_.erase(memory);
    out.insert(out.end(), pieces.begin(), pieces.end());
  }
  free_.clear();
  idle_ = 0;
  return out;
}

std::uint64_t Pieces::peak(bool start_again) {
  std::lock_guard lock(mutex_);
  const std::uint64_t out = peak_;
  if (start_again) peak_ = used_;
  return out;
}

std::uint64_t Pieces::idle() {
  std::lock_guard lock(mutex_);
  return idle_;
}

int allocate(void* device, std::size_t bytes, void** out) {
  State& s = of(device);
  const std::size_t small = Pieces::rounded(bytes);
  if (small > 0) {
    *out = s.pieces.take(small);
    if (*out != nullptr) return 0;
  }
  const std::size_t size = small > 0 ? small : bytes;
  if (allocate_on(s, s.stream, size, out) != 0) {
    if (!last_was_memory) return 1;
    for (void* memory : s.pieces.drop()) (void)cudaFreeAsync(memory, s.stream);
    if (allocate_on(s, s.stream, size, out) != 0) return 1;
  }
  s.pieces.add(*out, size, small > 0);
  return 0;
}
int allocate_beside(void* device, std::size_t bytes, void** out) {
  State& s = of(device);
  if (allocate_on(s, s.beside, bytes, out) != 0) return 1;
  s.pieces.add(*out, bytes, false);
  return 0;
}
void release(void* device, void* memory) {
  State& s = of(device);
  if (!s.pieces.give_back(memory)) (void)cudaFreeAsync(memory, s.stream);
}

int zero(void* device, void* memory, std::size_t bytes) {
  return check(cudaMemsetAsync(memory, 0, bytes, of(device).stream), "clearing memory");
}

int to_device(void* device, void* to, const void* from, std::size_t bytes) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, of(device).stream),
               "copying to the device");
}

int to_device_beside(void* device, void* to, UnpackFill fill, const void* context,
                     std::size_t bytes) {
  State& s = of(device);
  if (check(cudaSetDevice(s.id), "device 0")) return 1;
  std::lock_guard lock(s.staging_mutex);
  for (std::size_t at = 0; at < bytes; at += kStagingBytes) {
    Staging& part = s.staging[s.next_staging];
    s.next_staging = (s.next_staging + 1) % std::size(s.staging);
    const std::size_t n = bytes - at < kStagingBytes ? bytes - at : kStagingBytes;
    if (part.memory == nullptr) {
      if (check(cudaMallocHost(&part.memory, kStagingBytes), "pinned memory")) return 1;
      if (check(cudaEventCreateWithFlags(&part.left, cudaEventDisableTiming), "an event")) return 1;
    }
    if (check(cudaEventSynchronize(part.left), "copying to the device")) return 1;
    char* const staged = static_cast<char*>(part.memory);
    fill_in_parts(n, [=](std::size_t offset, std::size_t size) {
      fill(context, staged + offset, at + offset, size);
    });
    if (check(cudaMemcpyAsync(static_cast<char*>(to) + at, part.memory, n, cudaMemcpyHostToDevice,
                              s.beside),
              "copying to the device"))
      return 1;
    if (check(cudaEventRecord(part.left, s.beside), "an event")) return 1;
  }
  return 0;
}

int wait_beside(void* device) {
  return check(cudaStreamSynchronize(of(device).beside), "copying to the device");
}

int join(void* device) {
  State& s = of(device);
  if (check(cudaEventRecord(s.arrived, s.beside), "an event")) return 1;
  return check(cudaStreamWaitEvent(s.stream, s.arrived, 0), "an event");
}

namespace {

// One that nobody has, or null: all are taken, or there is no pinned memory for one more.
Download* taken_download(State& s) {
  std::lock_guard lock(s.downloads_mutex);
  for (Download& download : s.downloads) {
    if (download.taken) continue;
    if (download.there == nullptr &&
        (cudaEventCreateWithFlags(&download.there, cudaEventDisableTiming) != cudaSuccess ||
         cudaMallocHost(&download.memory, kSmallDownload) != cudaSuccess)) {
      (void)cudaGetLastError();
      if (download.there != nullptr) (void)cudaEventDestroy(download.there);
      download.there = nullptr;
      download.memory = nullptr;
      return nullptr;
    }
    download.taken = true;
    return &download;
  }
  return nullptr;
}

int small_to_host(State& s, const Download& by, void* to, const void* from, std::size_t bytes) {
  if (check(cudaMemcpyAsync(by.memory, from, bytes, cudaMemcpyDeviceToHost, s.stream),
            "copying to the host") ||
      check(cudaEventRecord(by.there, s.stream), "an event") ||
      check(cudaEventSynchronize(by.there), "the work before a copy"))
    return 1;
  std::memcpy(to, by.memory, bytes);
  return 0;
}

}  // namespace

int to_host(void* device, void* to, const void* from, std::size_t bytes) {
  State& s = of(device);
  if (bytes <= kSmallDownload) {
    if (Download* by = taken_download(s)) {
      const int status = small_to_host(s, *by, to, from, bytes);
      std::lock_guard lock(s.downloads_mutex);
      by->taken = false;
      return status;
    }
  }
  std::lock_guard lock(s.pinned_mutex);
  for (std::size_t at = 0; at < bytes; at += kPinnedBytes) {
    const std::size_t n = bytes - at < kPinnedBytes ? bytes - at : kPinnedBytes;
    if (check(cudaMemcpyAsync(s.pinned, static_cast<const char*>(from) + at, n,
                              cudaMemcpyDeviceToHost, s.stream),
              "copying to the host"))
      return 1;
    if (check(cudaStreamSynchronize(s.stream), "the work before a copy")) return 1;
    char* const kept = static_cast<char*>(to) + at;
    const char* const pinned = static_cast<const char*>(s.pinned);
    fill_in_parts(n, [=](std::size_t offset, std::size_t size) {
      std::memcpy(kept + offset, pinned + offset, size);
    });
  }
  return 0;
}

int copy(void* device, void* to, const void* from, std::size_t bytes) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, of(device).stream),
               "copying");
}

int wait(void* device) { return check(cudaStreamSynchronize(of(device).stream), "the work"); }

}  // namespace unpack::backend::cuda
