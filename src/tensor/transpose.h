// Small tiles turned in the cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "unpack/config.h"

namespace unpack::tensor {

// to[j, i] = from[i, j] for i < rows, j < columns; rows of `from` are `pitch` apart, those of `to`
// ld.
void transpose(const float* from, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
               float* to, std::int64_t ld);
void transpose(const double* from, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
               double* to, std::int64_t ld);

// The same of stored halves, widened, and row j of what is written times scale[j] where that is
// given. False, and nothing done, where there is no quick way to do it.
bool widen_turned(const std::byte* from, DType dtype, std::int64_t rows, std::int64_t columns,
                  std::int64_t pitch, const float* scale, float* to, std::int64_t ld);

}  // namespace unpack::tensor
