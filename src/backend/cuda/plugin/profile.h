// Times of kernels and products, where somebody asks for them.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace unpack::backend::cuda {

// With $UNPACK_CUDA_PROFILE=FILE every kernel and product is timed by itself, and the sums are
// written there at the end.
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

}  // namespace unpack::backend::cuda
