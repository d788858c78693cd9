#include "backend/cpu/own_gemm.h"

#include <algorithm>
#include <type_traits>

#include "backend/host/levels.h"
#include "base/index.h"
#include "base/scratch.h"

namespace unpack::backend {
namespace {

// Depth, rows and columns of the blocks: a panel of B stays in the first cache while the rows of A
// of a block, which stay in the second, pass by.
constexpr Index kBlockK = 256;
constexpr Index kBlockM = 96;
constexpr Index kBlockN = 1024;

using Four [[gnu::vector_size(16)]] = float;

// out[p, i] = in[i, p] for four rows and columns.
inline void transpose_four(const float* in, Index ld_in, float* out, Index ld_out) {
  const auto load = [&](Index i) {
    Four x;
    __builtin_memcpy(&x, in + i * ld_in, sizeof x);
    return x;
  };
  const Four r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
  const Four low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5);
  const Four high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Four low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const Four high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  const auto store = [&](Index p, Four x) { __builtin_memcpy(out + p * ld_out, &x, sizeof x); };
  store(0, __builtin_shufflevector(low01, low23, 0, 1, 4, 5));
  store(1, __builtin_shufflevector(low01, low23, 2, 3, 6, 7));
  store(2, __builtin_shufflevector(high01, high23, 0, 1, 4, 5));
  store(3, __builtin_shufflevector(high01, high23, 2, 3, 6, 7));
}

namespace generic {
constexpr int kBytes = 16;
#if defined(__aarch64__)
constexpr int kRows = 6;  // 24 of 32 registers hold sums
constexpr int kVectors = 4;
constexpr const char* kName = "neon";
#else
constexpr int kRows = 4;  // 8 of 16
constexpr int kVectors = 2;
#if defined(__x86_64__)
constexpr const char* kName = "sse2";
#else
constexpr const char* kName = "portable";
#endif
#endif
#include "backend/cpu/own_gemm.inl"
}  // namespace generic

#if UNPACK_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace avx2 {
constexpr int kBytes = 32;
constexpr int kRows = 6;  // 12 of 16
constexpr int kVectors = 2;
#include "backend/cpu/own_gemm.inl"
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
namespace avx512 {
constexpr int kBytes = 64;
constexpr int kRows = 12;  // 24 of 32
constexpr int kVectors = 2;
#include "backend/cpu/own_gemm.inl"
}  // namespace avx512
#pragma GCC pop_options
#endif

}  // namespace

std::vector<std::pair<std::string, OwnGemm*>> own_gemms() {
  std::vector<std::pair<std::string, OwnGemm*>> out;
#if UNPACK_LEVELS
  if (__builtin_cpu_supports("x86-64-v4")) out.emplace_back("avx512", &avx512::gemm);
  if (__builtin_cpu_supports("x86-64-v3")) out.emplace_back("avx2", &avx2::gemm);
#endif
  out.emplace_back(generic::kName, &generic::gemm);
  return out;
}

}  // namespace unpack::backend
