// Small tiles turned in the cache.
#pragma once

#include <cstdint>

namespace unpack::tensor {

// to[j, i] = from[i, j] for i < rows, j < columns; rows of `from` are `pitch` apart, those of `to`
// ld.
void transpose(const float* from, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
               float* to, std::int64_t ld);
void transpose(const double* from, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
               double* to, std::int64_t ld);

}  // namespace unpack::tensor
