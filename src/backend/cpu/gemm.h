// Single-precision GEMM of one thread, from oneDNN 2.x or 3.x: the one file that knows the library.
#pragma once

#include <cstdint>
#include <string>

namespace unpack {

// C[m, n] = A[m, k] op(B) (+ C), row-major. Runs on the calling thread alone when OpenMP is set to
// one thread, as ThreadPool does.
void sgemm(bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
           std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c,
           std::int64_t ldc);

std::string gemm_library();  // "oneDNN 2.6.3 (avx2)"

}  // namespace unpack
