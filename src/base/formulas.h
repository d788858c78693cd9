// Small formulas that more than one device needs, each with its one home. nvcc compiles them as
// well as any C++ compiler.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/index.h"

#if defined(__CUDACC__)
#define UNPACK_BODY __host__ __device__ __forceinline__
#else
#define UNPACK_BODY inline
#endif

namespace unpack::base {

// Stored numbers
// ------------------------------------------------------------------------------------------------

UNPACK_BODY float float_of_bits(std::uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

UNPACK_BODY std::uint32_t bits_of_float(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}

// float16 -> the bits of the float, for one of them or a vector. Scaling by 2^112 moves the
// exponent bias from half to single precision, subnormals included; infinities and NaN need theirs
// set by hand.
template <typename Float, typename Bits>
UNPACK_BODY Bits f16_widened(const Bits& h) {
  const Bits size = (h & 0x7FFFU) << 13, none = h & 0U;
  Float scaled;
  memcpy(&scaled, &size, sizeof size);
  scaled *= 0x1p112F;
  Bits value;
  memcpy(&value, &scaled, sizeof value);
  const Bits special = size >= (none | 0x7C00U << 13) ? none | 0x7F800000U : none;
  return value | special | (h & 0x8000U) << 16;
}
UNPACK_BODY float f16_value(std::uint32_t h) { return float_of_bits(f16_widened<float>(h)); }

UNPACK_BODY float bf16_value(std::uint32_t h) { return float_of_bits(h << 16); }

// Bits of a number but NaN, of which the lowest `dropped` are to go: then the rest is the nearest,
// ties to even.
UNPACK_BODY std::uint32_t rounded_bits(std::uint32_t bits, int dropped) {
  return bits + ((1U << (dropped - 1)) - 1U) + (bits >> dropped & 1U);
}

// The nearest bfloat16; `x` is no NaN.
UNPACK_BODY std::uint16_t bf16_bits(float x) { return rounded_bits(bits_of_float(x), 16) >> 16; }

// The nearest float16; 65520 and more become infinity.
UNPACK_BODY std::uint16_t f16_bits(float x) {
  const std::uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000U;
  const std::uint32_t size = bits & 0x7FFFFFFFU;
  if (size > 0x7F800000U) return sign | 0x7E00U;
  if (size >= 0x477FF000U) return sign | 0x7C00U;
  // Below 2^-14 the result is subnormal: adding 0.5 puts its last bit where the float addition
  // rounds.
  if (size < 0x38800000U) return sign | (bits_of_float(float_of_bits(size) + 0.5F) - 0x3F000000U);
  return sign | ((rounded_bits(size, 13) >> 13) - (112U << 10));
}

// Elements of an MXFP4 block, and its bytes with the scale behind them.
inline constexpr Index kMxfp4Block = 32;
inline constexpr Index kMxfp4Bytes = kMxfp4Block / 2 + 1;

// MXFP4: four bits, {0, .5, 1, 1.5, 2, 3, 4, 6} with sign, times their block's 2^(scale - 127).
UNPACK_BODY float mxfp4_value(std::uint32_t code) {
  const std::uint32_t m = code & 7U;
  const std::uint32_t doubled = m < 4 ? m : m < 6 ? 2 * m - 4 : 4 * m - 16;
  const float size = 0.5F * doubled;
  return (code & 8U) != 0 ? -size : size;
}
UNPACK_BODY float mxfp4_scale(std::uint32_t scale) {
  return float_of_bits(scale == 0 ? 0x00400000U : scale << 23);
}

// Denominators (spec section 4)
// ------------------------------------------------------------------------------------------------

// sign(sum) * max(|sum|, beta * abs), sign(0) = +1.
UNPACK_BODY double safe_denom(double sum, double abs, double beta) {
  const double own = fabs(sum), least = beta * abs;
  const double size = own > least ? own : least;
  return sum < 0 ? -size : size;
}

// 1 / SafeDenom, 0 where the denominator is 0: all shares are 0 then.
UNPACK_BODY double inverse_denom(double sum, double abs, double beta) {
  const double d = safe_denom(sum, abs, beta);
  return d == 0 ? 0.0 : 1.0 / d;
}

// The same with a least denominator, in the unit of the sum. No call and no branch, so that a
// compiler takes several at once: 1 over infinity is 0.
UNPACK_BODY double floored_inverse(double sum, double abs, double beta, double floor) {
  const double own = fabs(safe_denom(sum, abs, beta));
  const double size = own > floor ? own : floor;
  const double inverse = 1.0 / (size == 0 ? HUGE_VAL : size);
  return sum < 0 ? -inverse : inverse;
}

// What the scores of a reader are multiplied with, so that they become credit: the branch's weight
// times the credit of the entry over the denominator of its scores. In this order on every device.
UNPACK_BODY double coefficient(double weight, double credit, double inverse) {
  return weight * credit * inverse;
}

// Signed sums this small against their absolute sum decide the sign of a denominator by rounding.
UNPACK_BODY bool ill_conditioned(double sum, double abs) { return fabs(sum) < 1e-5 * abs; }

// What of that credit passes such a denominator.
UNPACK_BODY double doubtful(double weight, double credit, double sum, double abs) {
  return ill_conditioned(sum, abs) ? weight * fabs(credit) : 0.0;
}

// The coefficient of the linearized rule, by what is read itself: never closer to 0 than this.
UNPACK_BODY double linear_coefficient(double credit, double read) {
  return credit / (fabs(read) < 1e-10 ? 1e-10 : read);
}

// Activations, and what bounds logits
// ------------------------------------------------------------------------------------------------

template <typename T>
UNPACK_BODY T gelu_erf(T x) {
  return T(0.5) * x * (T(1) + T(std::erf(x * T(0.70710678118654752440))));
}

template <typename T>
UNPACK_BODY T gelu_tanh(T x) {
  return T(0.5) * x *
         (T(1) + T(std::tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x))));
}

template <typename T>
UNPACK_BODY T relu(T x) {
  return x > T(0) ? x : T(0);
}

template <typename T>
UNPACK_BODY T silu(T x) {
  return x / (T(1) + T(std::exp(-x)));
}

// c sigmoid(1.702 c) (clamp(up, -7, 7) + 1) with c = min(gate, 7): gate and up of gpt-oss.
template <typename T>
UNPACK_BODY T clamped_swiglu(T gate, T up) {
  const T c = gate < T(7) ? gate : T(7);
  const T u = up < T(-7) ? T(-7) : up > T(7) ? T(7) : up;
  return c / (T(1) + T(std::exp(T(-1.702) * c))) * (u + T(1));
}

template <typename T>
UNPACK_BODY T soft_cap(T x, T cap) {
  return cap * T(std::tanh(x / cap));
}

// LayerConfig::first_source for kernels: the first source that a query sees; window 0: none.
UNPACK_BODY Index first_in_window(Index query, Index window) {
  return window > 0 && query >= window ? query - window + 1 : 0;
}

}  // namespace unpack::base
