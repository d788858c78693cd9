// Single-precision products of our own, for machines without oneDNN.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/index.h"

namespace unpack::backend {

// C[m, n] = A[m, k] op(B) (+ C), row-major, on the calling thread; k > 0.
using OwnGemm = void(bool b_transposed, Index m, Index n, Index k, const float* a, Index lda,
                     const float* b, Index ldb, bool accumulate, float* c, Index ldc);

// Those that this processor can run, the fastest first: "avx512", "avx2", "sse2", "neon",
// "portable".
std::vector<std::pair<std::string, OwnGemm*>> own_gemms();

}  // namespace unpack::backend
