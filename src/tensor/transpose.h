// Small tiles turned in the cache.
#pragma once

#include <cstddef>

#include "base/index.h"
#include "unpack/config.h"

namespace unpack::tensor {

// to[j, i] = from[i, j] for i < rows, j < columns; rows of `from` are `pitch` apart, those of `to`
// ld.
void transpose(const float* from, Index rows, Index columns, Index pitch, float* to, Index ld);
void transpose(const double* from, Index rows, Index columns, Index pitch, double* to, Index ld);

// The same of stored halves, widened, and row j of what is written times scale[j] where that is
// given. False, and nothing done, where there is no quick way to do it.
bool widen_turned(const std::byte* from, DType dtype, Index rows, Index columns, Index pitch,
                  const float* scale, float* to, Index ld);

}  // namespace unpack::tensor
