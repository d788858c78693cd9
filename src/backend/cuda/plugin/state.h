// What the plugin keeps of an open GPU, and the entries of its table (device_table.h) that other
// files hold.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/cuda/device_table.h"
#include "backend/cuda/plugin/profile.h"
#include "base/index.h"

namespace unpack::backend::cuda {

// Pinned memory that a part of an upload passes through: pageable memory is far slower, and the
// driver would hold up other threads over it.
struct Staging {
  void* memory = nullptr;
  cudaEvent_t left = nullptr;  // once what was put there last is on the device
};

// Pinned memory of a small download: whoever has it waits for his own copy alone, so that the
// search for paths, whose threads all ask for a row, does not stand in line.
struct Download {
  void* memory = nullptr;
  cudaEvent_t there = nullptr;
  bool taken = false;
};

// Memory in use. Small pieces, which a trace of a short prompt takes and gives back a thousand
// times, are kept by size when they are given back: all work with them is queued on one stream,
// where the next user's comes behind the last one's.
class Pieces {
 public:
  // What is asked for in place of so many bytes of the main stream's; 0: these are not small.
  static std::size_t rounded(std::size_t bytes);
  // A small one of that size that was given back, or null.
  void* take(std::size_t size);
  // The memory was taken from the device. Without memory to remember it, it is not counted.
  void add(void* memory, std::size_t size, bool small);
  // False: it is the device's again.
  bool give_back(void* memory);
  // The small ones that nobody uses, for the device; they are forgotten here.
  std::vector<void*> drop();
  // The most that was in use since the count was started again.
  std::uint64_t peak(bool start_again);
  std::uint64_t idle();  // bytes of those that nobody uses

 private:
  struct Piece {
    std::size_t size;
    bool small;
  };
  void count(std::size_t size);
  std::mutex mutex_;
  std::unordered_map<void*, Piece> all_;
  std::unordered_map<std::size_t, std::vector<void*>> free_;
  std::uint64_t used_ = 0, peak_ = 0, idle_ = 0;
};

struct State {
  int id = 0;
  Profile* profile = nullptr;
  cudaStream_t stream = nullptr;  // where all work is queued
  cudaStream_t beside = nullptr;  // where weights go up
  cudaEvent_t arrived = nullptr;
  cudaMemPool_t pool = nullptr;
  Pieces pieces;
  cublasHandle_t blas = nullptr;
  std::mutex blas_mutex;  // a handle serves one thread at a time
  void* workspace = nullptr;
  float* numbers = nullptr;  // 0 and 1, on the device
  void* pinned = nullptr;    // large downloads pass through it
  std::mutex pinned_mutex;
  Download downloads[16];  // and small ones through these
  std::mutex downloads_mutex;
  Staging staging[4];  // some are filled while others are on their way
  std::size_t next_staging = 0;
  std::mutex staging_mutex;
};

inline State& of(void* device) { return *static_cast<State*>(device); }

// Say what went wrong and return 1, or 0 where nothing did.
int fail(const std::string& text);
int check(cudaError_t status, const char* what);
int check(cublasStatus_t status, const char* what);

// device.cu
const char* error();
int out_of_memory();
int open_device(int tf32, void** device);
void close_device(void* device);
int info(void* device, UnpackDeviceInfo* out);
int memory_use(void* device, int start_again, UnpackDeviceMemory* out);
int allocate(void* device, std::size_t bytes, void** out);
int allocate_beside(void* device, std::size_t bytes, void** out);
void release(void* device, void* memory);
int zero(void* device, void* memory, std::size_t bytes);
int to_device(void* device, void* to, const void* from, std::size_t bytes);
int to_device_beside(void* device, void* to, UnpackFill fill, const void* context,
                     std::size_t bytes);
int wait_beside(void* device);
int join(void* device);
int to_host(void* device, void* to, const void* from, std::size_t bytes);
int copy(void* device, void* to, const void* from, std::size_t bytes);
int wait(void* device);

// few_rows.cu
int few_rows(void* device, const UnpackFewRows* call);

// pair_sums.cu
int pair_sums_fit(void* device, Index e);
int pair_sums(void* device, const UnpackPairSums* call);

// launch.cu
int launch(void* device, int id, const void* parameters, std::size_t bytes, Index count);

}  // namespace unpack::backend::cuda
