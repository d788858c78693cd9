#include "backend/host/half_products.h"

#include <algorithm>

#include "backend/host/levels.h"
#include "base/formulas.h"
#include "base/index.h"
#include "base/scratch.h"

#if UNPACK_LEVELS
#include <immintrin.h>
#endif

namespace unpack::backend {
namespace {

// Of a column that are taken in one go: as much of all rows of A stays in the second cache.
constexpr Index kDepth = 2048;
// A block of a matrix that lies row by row: in the second cache, too, while all rows of A pass by.
constexpr Index kBlockRows = 128;
constexpr Index kBlockColumns = 256;

// How m rows are shared out to passes of at most `most`, each with as many as the others or one
// more.
struct Passes {
  Index m, count;
  Passes(Index rows, Index most) : m(rows), count((rows + most - 1) / most) {}
  Index begin(Index pass) const { return m / count * pass + std::min(pass, m % count); }
};

namespace portable {
constexpr int kBytes = 16;
constexpr int kRows = 2;  // of a tile of C along the columns of W, held in registers
constexpr int kColumns = 4;
constexpr int kRowsAcross = 4;  // of a tile across them, two vectors wide

using Halves [[gnu::vector_size(8)]] = std::uint16_t;
using Words [[gnu::vector_size(kBytes)]] = std::uint32_t;
using Floats [[gnu::vector_size(kBytes)]] = float;

inline Floats widen_f16(const std::byte* from) {
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof halves);
  const Words bits = __builtin_convertvector(halves, Words);
  return __builtin_bit_cast(Floats, base::f16_widened<Floats>(bits));
}
#include "backend/host/half_products.inl"
}  // namespace portable

#if UNPACK_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace avx2 {
constexpr int kBytes = 32;
constexpr int kRows = 3;
constexpr int kColumns = 4;
constexpr int kRowsAcross = 6;
using Floats [[gnu::vector_size(kBytes)]] = float;
[[gnu::always_inline]] inline Floats widen_f16(const std::byte* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}
#include "backend/host/half_products.inl"
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
namespace avx512 {
constexpr int kBytes = 64;
constexpr int kRows = 4;
constexpr int kColumns = 4;
constexpr int kRowsAcross = 8;
using Floats [[gnu::vector_size(kBytes)]] = float;
[[gnu::always_inline]] inline Floats widen_f16(const std::byte* from) {
  return _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
#include "backend/host/half_products.inl"
}  // namespace avx512
#pragma GCC pop_options
#endif

}  // namespace

std::vector<std::pair<std::string, const HalfKernels*>> half_kernels() {
  std::vector<std::pair<std::string, const HalfKernels*>> out;
#if UNPACK_LEVELS
  if (__builtin_cpu_supports("x86-64-v4")) out.emplace_back("avx512", &avx512::kKernels);
  if (__builtin_cpu_supports("x86-64-v3")) out.emplace_back("avx2", &avx2::kKernels);
#endif
  out.emplace_back("portable", &portable::kKernels);
  return out;
}

}  // namespace unpack::backend
