// Single-precision GEMM of one thread: oneDNN's where it is installed, our own elsewhere.
#pragma once

#include <cstddef>
#include <string>

#include "base/index.h"

namespace unpack::backend {

// C[m, n] = A[m, k] op(B) (+ C), row-major, on the calling thread alone.
void sgemm(bool b_transposed, Index m, Index n, Index k, const float* a, Index lda, const float* b,
           Index ldb, bool accumulate, float* c, Index ldc);

// Whether a model of so many parameters uses our own loops: a small one runs as fast with them, and
// to open oneDNN and let it write its kernels takes longer than such a model's forward pass.
bool small_for_gemm(std::size_t parameters);
// The same product by our own loops.
void own_sgemm(bool b_transposed, Index m, Index n, Index k, const float* a, Index lda,
               const float* b, Index ldb, bool accumulate, float* c, Index ldc);

// What the first product would otherwise do on its way; throws where there is no memory for it.
void prepare_gemm();

std::string gemm_library();   // "oneDNN 2.6.3", "own products (avx2)"; fixes nothing
std::string own_gemm_name();  // "own products (avx2)"
std::string gemm_details();   // "oneDNN 2.6.3 (avx2)": with the instruction set it settled on

}  // namespace unpack::backend
