// Products in single precision, oneDNN's against our own, in CPU time, so that other programs on
// the machine matter little. Needs the library of a build:
//   g++ -std=c++20 -O3 -Iinclude -Isrc bench/gemm_bench.cc build/release/libunpack.a -lfmt -ldl
//       -o gemm_bench
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <random>
#include <vector>

#include "backend/cpu/gemm.h"
#include "backend/cpu/own_gemm.h"

namespace {

struct Shape {
  std::int64_t m, n, k;
  bool b_transposed;
};

constexpr Shape kShapes[] = {{1, 768, 768, false},   {1, 50257, 768, true},  {16, 768, 768, false},
                             {16, 3072, 768, true},  {64, 768, 64, false},   {64, 64, 768, false},
                             {64, 768, 768, true},   {256, 768, 768, false}, {256, 768, 3072, true},
                             {256, 3072, 768, false}};

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

int main() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const Shape& s : kShapes) {
    std::vector<float> a(static_cast<std::size_t>(s.m * s.k));
    std::vector<float> b(static_cast<std::size_t>(s.k * s.n));
    std::vector<float> c(static_cast<std::size_t>(s.m * s.n));
    for (float& x : a) x = normal(random);
    for (float& x : b) x = normal(random);
    const auto measure = [&](unpack::OwnGemm* gemm, const char* name) {
      constexpr int kMostCalls = 400;
      constexpr double kSeconds = 0.25;
      double best = 1e9, total = 0;
      for (int i = 0; i < kMostCalls && total < kSeconds; ++i) {
        const double start = cpu_seconds();
        gemm(s.b_transposed, s.m, s.n, s.k, a.data(), s.k, b.data(), s.b_transposed ? s.k : s.n,
             false, c.data(), s.n);
        const double took = cpu_seconds() - start;
        best = std::min(best, took);
        total += took;
      }
      const double operations =
          2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
      std::printf("  %s %.1f", name, operations / best * 1e-9);
    };
    std::printf("%4lld x %5lld x %4lld%s", static_cast<long long>(s.m), static_cast<long long>(s.n),
                static_cast<long long>(s.k), s.b_transposed ? " T" : "  ");
    measure(&unpack::sgemm, unpack::gemm_library().c_str());
    for (const auto& [name, gemm] : unpack::own_gemms()) measure(gemm, name.c_str());
    std::printf("  GFLOP/s\n");
  }
}
