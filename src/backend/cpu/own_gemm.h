// Single-precision products of our own, for machines without oneDNN.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unpack::backend {

// C[m, n] = A[m, k] op(B) (+ C), row-major, on the calling thread; k > 0.
using OwnGemm = void(bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k,
                     const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
                     bool accumulate, float* c, std::int64_t ldc);

// Those that this processor can run, the fastest first: "avx512", "avx2", "sse2", "neon",
// "portable".
std::vector<std::pair<std::string, OwnGemm*>> own_gemms();

}  // namespace unpack::backend
