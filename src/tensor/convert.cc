#include "tensor/convert.h"

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "base/index.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__GNUC__)
#include <arm_neon.h>
#endif

#include "base/formulas.h"

namespace unpack {
namespace {

template <typename T>
T load_raw(const std::byte* data, Index index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

template <typename Out>
void convert_half_portable(const std::byte* data, Index n, Out* out) {
  for (Index i = 0; i < n; ++i) out[i] = base::f16_value(load_raw<std::uint16_t>(data, i));
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) void convert_half_f16c(const std::byte* data, Index n,
                                                           float* out) {
  Index i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(
        out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 2 * i))));
  for (; i < n; ++i) out[i] = base::f16_value(load_raw<std::uint16_t>(data, i));
}

// Every CPU with AVX2 has F16C, and this question (unlike "f16c") is understood by all compilers in
// use.
bool has_f16c() {
  static const bool yes = __builtin_cpu_supports("avx2");
  return yes;
}
#elif defined(__aarch64__) && defined(__GNUC__)
void convert_half_neon(const std::byte* data, Index n, float* out) {
  Index i = 0;
  for (; i + 4 <= n; i += 4) {
    uint16x4_t bits;
    std::memcpy(&bits, data + 2 * i, sizeof bits);
    vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(bits)));
  }
  for (; i < n; ++i) out[i] = base::f16_value(load_raw<std::uint16_t>(data, i));
}
#endif

void convert_half(const std::byte* data, Index n, float* out) {
#if defined(__aarch64__) && defined(__GNUC__)
  convert_half_neon(data, n, out);
#else
#if defined(__x86_64__)
  if (has_f16c()) return convert_half_f16c(data, n, out);
#endif
  convert_half_portable(data, n, out);
#endif
}

void convert_half(const std::byte* data, Index n, double* out) {
  convert_half_portable(data, n, out);
}

template <typename Out>
void convert_any(const std::byte* data, DType dtype, Index n, Out* out) {
  switch (dtype) {
    case DType::f32:
      for (Index i = 0; i < n; ++i) out[i] = load_raw<float>(data, i);
      return;
    case DType::f64:
      for (Index i = 0; i < n; ++i) out[i] = load_raw<double>(data, i);
      return;
    case DType::bf16:
      for (Index i = 0; i < n; ++i) out[i] = base::bf16_value(load_raw<std::uint16_t>(data, i));
      return;
    case DType::f16:
      return convert_half(data, n, out);
  }
}

// One reduction per block, so that the inner loop vectorises; the exact place is looked for only
// where a block has one.
template <typename Bits, typename IsBad>
Index scan(const std::byte* data, Index n, IsBad is_bad) {
  constexpr Index kBlock = 4096;
  for (Index begin = 0; begin < n; begin += kBlock) {
    const Index count = std::min(kBlock, n - begin);
    const std::byte* block = data + begin * sizeof(Bits);
    Bits any = 0;
    for (Index i = 0; i < count; ++i) any = any | is_bad(load_raw<Bits>(block, i));
    if (any == 0) continue;
    for (Index i = 0; i < count; ++i) {
      if (is_bad(load_raw<Bits>(block, i)) != 0) return begin + i;
    }
  }
  return -1;
}

}  // namespace

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::f16:
      return "float16";
    case DType::bf16:
      return "bfloat16";
    case DType::f64:
      return "float64";
  }
  return "unknown";
}

std::size_t tensor::dtype_size(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f64:
      return 8;
  }
  return 0;
}

float tensor::f16_to_f32(std::uint16_t h) { return base::f16_value(h); }
float tensor::bf16_to_f32(std::uint16_t h) { return base::bf16_value(h); }

std::uint16_t tensor::f32_to_bf16(float x) {
  return std::isnan(x) ? (base::bits_of_float(x) >> 16) | 0x0040u : base::bf16_bits(x);
}

std::uint16_t tensor::f32_to_f16(float x) { return base::f16_bits(x); }

double tensor::load_element(const std::byte* data, DType dtype, Index index) {
  switch (dtype) {
    case DType::f32:
      return load_raw<float>(data, index);
    case DType::f16:
      return tensor::f16_to_f32(load_raw<std::uint16_t>(data, index));
    case DType::bf16:
      return tensor::bf16_to_f32(load_raw<std::uint16_t>(data, index));
    case DType::f64:
      return load_raw<double>(data, index);
  }
  return 0.0;
}

void tensor::convert_run(const std::byte* data, DType dtype, Index n, float* out) {
  convert_any(data, dtype, n, out);
}
void tensor::convert_run(const std::byte* data, DType dtype, Index n, double* out) {
  convert_any(data, dtype, n, out);
}

void tensor::store_run(const float* in, Index n, DType dtype, std::byte* out) {
  const auto store = [&](auto convert) {
    for (Index i = 0; i < n; ++i) {
      const auto value = convert(in[i]);
      std::memcpy(out + i * sizeof(value), &value, sizeof(value));
    }
  };
  switch (dtype) {
    case DType::f32:
      return store([](float x) { return x; });
    case DType::f64:
      return store([](float x) { return static_cast<double>(x); });
    case DType::f16:
      return store(tensor::f32_to_f16);
    case DType::bf16:
      return store(tensor::f32_to_bf16);
  }
}

Index tensor::find_non_finite(const std::byte* data, DType dtype, Index n) {
  switch (dtype) {
    case DType::f32:
      return scan<std::uint32_t>(data, n, [](std::uint32_t x) {
        return (x & 0x7F800000u) == 0x7F800000u ? ~std::uint32_t{0} : std::uint32_t{0};
      });
    case DType::f16:
      return scan<std::uint16_t>(data, n, [](std::uint16_t x) {
        return static_cast<std::uint16_t>((x & 0x7C00u) == 0x7C00u ? 0xFFFFu : 0u);
      });
    case DType::bf16:
      return scan<std::uint16_t>(data, n, [](std::uint16_t x) {
        return static_cast<std::uint16_t>((x & 0x7F80u) == 0x7F80u ? 0xFFFFu : 0u);
      });
    case DType::f64: {
      static const std::uint64_t limit = std::bit_cast<std::uint64_t>(double{FLT_MAX});
      return scan<std::uint64_t>(data, n, [](std::uint64_t x) {
        return (x & 0x7FFFFFFFFFFFFFFFull) > limit ? ~std::uint64_t{0} : std::uint64_t{0};
      });
    }
  }
  return -1;
}

}  // namespace unpack
