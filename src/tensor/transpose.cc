#include "tensor/transpose.h"

#include <algorithm>

#include "base/index.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace unpack::tensor {
namespace {

template <typename T>
void transpose_any(const T* from, Index rows, Index columns, Index pitch, T* to, Index ld) {
  for (Index j = 0; j < columns; ++j) {
    for (Index i = 0; i < rows; ++i) to[j * ld + i] = from[i * pitch + j];
  }
}

#if defined(__x86_64__)
constexpr Index kSide = 8;

// Eight rows of eight numbers, turned in registers.
__attribute__((target("avx"), always_inline)) inline void turn_square(__m256* rows) {
  __m256 pairs[kSide], fours[kSide];
  for (int i = 0; i < kSide; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < kSide; i += 4) {
    for (int k = 0; k < 2; ++k) {
      fours[i + 2 * k] = _mm256_shuffle_ps(pairs[i + k], pairs[i + 2 + k], 0x44);
      fours[i + 2 * k + 1] = _mm256_shuffle_ps(pairs[i + k], pairs[i + 2 + k], 0xEE);
    }
  }
  for (int j = 0; j < 4; ++j) {
    rows[j] = _mm256_permute2f128_ps(fours[j], fours[j + 4], 0x20);
    rows[j + 4] = _mm256_permute2f128_ps(fours[j], fours[j + 4], 0x31);
  }
}

__attribute__((target("avx"))) void transpose_square(const float* from, Index pitch, float* to,
                                                     Index ld) {
  __m256 rows[kSide];
  for (int i = 0; i < kSide; ++i) rows[i] = _mm256_loadu_ps(from + i * pitch);
  turn_square(rows);
  for (int j = 0; j < kSide; ++j) _mm256_storeu_ps(to + j * ld, rows[j]);
}

// Two squares beside each other fill a line of the cache, and every row is read from its beginning
// to its end.
template <bool bf16>
__attribute__((target("avx2,f16c"))) void widen_squares(const std::byte* from, Index rows,
                                                        Index columns, Index pitch,
                                                        const float* scale, float* to, Index ld) {
  constexpr Index kHalf = 2;
  for (Index i = 0; i < rows; i += 2 * kSide) {
    const Index some = std::min<Index>(2 * kSide, rows - i);
    for (Index j = 0; j < columns; j += kSide) {
      for (Index at = i; at < i + some; at += kSide) {
        __m256 square[kSide];
        for (int k = 0; k < kSide; ++k) {
          const auto* place =
              reinterpret_cast<const __m128i*>(from + kHalf * ((at + k) * pitch + j));
          const __m128i bits = _mm_loadu_si128(place);
          if constexpr (bf16) {
            square[k] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
          } else {
            square[k] = _mm256_cvtph_ps(bits);
          }
        }
        turn_square(square);
        for (int k = 0; k < kSide; ++k) {
          const __m256 row =
              scale ? _mm256_mul_ps(square[k], _mm256_broadcast_ss(scale + j + k)) : square[k];
          _mm256_storeu_ps(to + (j + k) * ld + at, row);
        }
      }
    }
  }
}

bool has_avx() {
  static const bool yes = __builtin_cpu_supports("avx2");
  return yes;
}
#endif

}  // namespace

void transpose(const float* from, Index rows, Index columns, Index pitch, float* to, Index ld) {
#if defined(__x86_64__)
  if (has_avx() && rows % kSide == 0 && columns % kSide == 0) {
    for (Index j = 0; j < columns; j += kSide) {
      for (Index i = 0; i < rows; i += kSide)
        transpose_square(from + i * pitch + j, pitch, to + j * ld + i, ld);
    }
    return;
  }
#endif
  transpose_any(from, rows, columns, pitch, to, ld);
}

void transpose(const double* from, Index rows, Index columns, Index pitch, double* to, Index ld) {
  transpose_any(from, rows, columns, pitch, to, ld);
}

bool widen_turned(const std::byte* from, DType dtype, Index rows, Index columns, Index pitch,
                  const float* scale, float* to, Index ld) {
#if defined(__x86_64__)
  if (!has_avx() || rows % kSide != 0 || columns % kSide != 0) return false;
  if (dtype == DType::bf16) {
    widen_squares<true>(from, rows, columns, pitch, scale, to, ld);
  } else if (dtype == DType::f16) {
    widen_squares<false>(from, rows, columns, pitch, scale, to, ld);
  } else {
    return false;
  }
  return true;
#else
  return false;
#endif
}

}  // namespace unpack::tensor
