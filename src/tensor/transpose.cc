#include "tensor/transpose.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace unpack::tensor {
namespace {

template <typename T>
void transpose_any(const T* from, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
                   T* to, std::int64_t ld) {
  for (std::int64_t j = 0; j < columns; ++j) {
    for (std::int64_t i = 0; i < rows; ++i) to[j * ld + i] = from[i * pitch + j];
  }
}

#if defined(__x86_64__)
constexpr std::int64_t kSide = 8;

__attribute__((target("avx"))) void transpose_square(const float* from, std::int64_t pitch,
                                                     float* to, std::int64_t ld) {
  __m256 pairs[kSide], fours[kSide];
  for (int i = 0; i < kSide; i += 2) {
    const __m256 a = _mm256_loadu_ps(from + i * pitch), b = _mm256_loadu_ps(from + (i + 1) * pitch);
    pairs[i] = _mm256_unpacklo_ps(a, b);
    pairs[i + 1] = _mm256_unpackhi_ps(a, b);
  }
  for (int i = 0; i < kSide; i += 4) {
    for (int k = 0; k < 2; ++k) {
      fours[i + 2 * k] = _mm256_shuffle_ps(pairs[i + k], pairs[i + 2 + k], 0x44);
      fours[i + 2 * k + 1] = _mm256_shuffle_ps(pairs[i + k], pairs[i + 2 + k], 0xEE);
    }
  }
  for (int j = 0; j < 4; ++j) {
    _mm256_storeu_ps(to + j * ld, _mm256_permute2f128_ps(fours[j], fours[j + 4], 0x20));
    _mm256_storeu_ps(to + (j + 4) * ld, _mm256_permute2f128_ps(fours[j], fours[j + 4], 0x31));
  }
}

bool has_avx() {
  static const bool yes = __builtin_cpu_supports("avx2");
  return yes;
}
#endif

}  // namespace

void transpose(const float* from, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
               float* to, std::int64_t ld) {
#if defined(__x86_64__)
  if (has_avx() && rows % kSide == 0 && columns % kSide == 0) {
    for (std::int64_t j = 0; j < columns; j += kSide) {
      for (std::int64_t i = 0; i < rows; i += kSide)
        transpose_square(from + i * pitch + j, pitch, to + j * ld + i, ld);
    }
    return;
  }
#endif
  transpose_any(from, rows, columns, pitch, to, ld);
}

void transpose(const double* from, std::int64_t rows, std::int64_t columns, std::int64_t pitch,
               double* to, std::int64_t ld) {
  transpose_any(from, rows, columns, pitch, to, ld);
}

}  // namespace unpack::tensor
