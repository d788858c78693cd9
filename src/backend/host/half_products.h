// Few rows times weights in half precision as they are stored: halves are widened in registers on
// their way into the product, and every one of them is read once.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "base/index.h"
#include "unpack/config.h"

namespace unpack::backend {

// C[m, n] = A[m, k] W in single precision, row-major, on the calling thread. A comes as the pack
// function of the same way left it.
struct HalfProduct {
  DType dtype = DType::bf16;  // of W: bf16 or f16
  Index m = 0, n = 0, k = 0;
  const float* a = nullptr;
  float* c = nullptr;
  Index ldc = 0;
};

// Rows of A, lda apart, in the order that a product reads them; a[i, p] times scale[p] where that
// is given.
struct HalfRows {
  Index m = 0, k = 0;
  const float* a = nullptr;
  Index lda = 0;
  const float* scale = nullptr;
};

// The same for one instruction set. A non-finite value in W makes one of C, whatever A is.
struct HalfKernels {
  // Numbers that packed rows take.
  Index (*packed_size)(Index m, Index k);
  // W lies column by column (torch's Linear): columns[j] are k halves one after the other.
  void (*pack_along)(DType dtype, const HalfRows& rows, float* out);
  void (*along)(const HalfProduct& product, const std::byte* const* columns);
  // W lies row by row, `pitch` bytes apart (Conv1D, and the first turned): row p are n halves.
  void (*pack_across)(const HalfRows& rows, float* out);
  void (*across)(const HalfProduct& product, const std::byte* w, Index pitch);
};

// Those that this processor can run, the fastest first: "avx512", "avx2", "portable".
std::vector<std::pair<std::string, const HalfKernels*>> half_kernels();

}  // namespace unpack::backend
