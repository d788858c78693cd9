// Inner loops of the host backends. The float versions are compiled for AVX-512, AVX2 and plain x86-64 and chosen at run time.
#pragma once

#include <cstdint>

#include "unpack/config.h"

namespace unpack {

template <typename T>
void axpy(std::int64_t n, T scale, const T* x, T* y);  // y += scale x
template <typename T>
T dot(std::int64_t n, const T* x, const T* y);
template <typename T>
void softmax_row(T* row, std::int64_t n, T scale);  // row = softmax(scale * row)
template <typename T>
void activate_run(Activation activation, const T* in, T* out, std::int64_t n);
double activate_one(Activation activation, double x);

// tile[rows, n] of scores, a row a writer: sum[c] += tile[r, c], abs[c] += |tile[r, c]|, square[r] += sum_c tile[r, c]^2. In double.
template <typename T>
void reduce_writers(const T* tile, std::int64_t rows, std::int64_t n, std::int64_t ld, double* sum, double* abs, double* square);

// Sum and absolute sum of a row, in double.
template <typename T>
void row_sums(const T* row, std::int64_t n, double& sum, double& abs);

const char* kernel_name();  // "avx512", "avx2" or "portable"

}  // namespace unpack
