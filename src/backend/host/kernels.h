// Inner loops of the host backends. The float versions are compiled for AVX-512, AVX2 and any
// processor, and chosen at run time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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

// tile[rows, n] of scores, a row a writer: sum[c] += tile[r, c], abs[c] += |tile[r, c]|, square[r]
// += sum_c tile[r, c]^2. In double.
template <typename T>
void reduce_writers(const T* tile, std::int64_t rows, std::int64_t n, std::int64_t ld, double* sum,
                    double* abs, double* square);

// Sum and absolute sum of a row, in double.
template <typename T>
void row_sums(const T* row, std::int64_t n, double& sum, double& abs);

// rows[n, c]: the sum and the absolute sum of every row; where column is given, column[j] +=
// rows[r, j] and square[j] += rows[r, j]^2.
template <typename T>
void reduce_rows(const T* rows, std::int64_t n, std::int64_t c, T* sums, T* abs, double* column,
                 double* square);

// rows[n, c] in double: sum[j] += rows[r, j], and rows[r, j] -= shift[j].
template <typename T>
void add_columns(const T* rows, std::int64_t n, std::int64_t c, double* sum);
template <typename T>
void subtract_columns(T* rows, std::int64_t n, std::int64_t c, const double* shift);

// out[c]: the lower median over the rows of every column of rows[n, c].
template <typename T>
void column_medians(const T* rows, std::int64_t n, std::int64_t c, T* out);

// The single-precision loops for one instruction set; what each does is said above.
struct FloatKernels {
  void (*reduce)(const float* tile, std::int64_t rows, std::int64_t n, std::int64_t ld, double* sum,
                 double* abs, double* square);
  void (*row_sums)(const float* row, std::int64_t n, double& sum, double& abs);
  void (*reduce_rows)(const float* rows, std::int64_t n, std::int64_t c, float* sums, float* abs,
                      double* column, double* square);
  void (*gelu_erf)(const float* in, float* out, std::int64_t n);
  void (*gelu_tanh)(const float* in, float* out, std::int64_t n);
  void (*silu)(const float* in, float* out, std::int64_t n);
  void (*softmax)(float* row, std::int64_t n, float scale);
  void (*axpy)(std::int64_t n, float scale, const float* x, float* y);
  float (*dot)(std::int64_t n, const float* x, const float* y);
  void (*add_columns)(const float* rows, std::int64_t n, std::int64_t c, double* sum);
  void (*subtract_columns)(float* rows, std::int64_t n, std::int64_t c, const double* shift);
  void (*column_medians)(const float* rows, std::int64_t n, std::int64_t c, float* out);
};
// Those that this processor can run, the fastest first: "avx512", "avx2", "portable"; "neon".
std::vector<std::pair<std::string, const FloatKernels*>> float_kernels();
std::string kernel_name();  // of the fastest

}  // namespace unpack
