// The ground that kernels stand on. A kernel is a plain struct of pointers and sizes with one body,
// which nvcc compiles for the GPU and any C++ compiler for the emulated device: the tests run the
// very code that the GPU runs.
//
// Map kernels are called once per index and write what belongs to it. Row kernels are called by a
// group of threads once per row: each() splits a loop over the group, sum() and largest() return
// the same value to all of it. No two indices or rows write the same address, and sums are taken in
// an order that depends on the sizes alone, so that results repeat bit for bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/formulas.h"

namespace unpack::backend::cuda {

using Index = std::int64_t;

UNPACK_BODY Index pairs_before(Index q) { return q * (q + 1) / 2; }

// i = quotient * n + rest, of numbers from 0 on. Where both have 32 bits, as nearly all have,
// a GPU divides several times faster.
struct Divided {
  Index quotient, rest;
};
UNPACK_BODY Divided divided(Index i, Index n) {
  if (((i | n) >> 32) == 0) {
    const auto a = static_cast<std::uint32_t>(i), b = static_cast<std::uint32_t>(n);
    return {static_cast<Index>(a / b), static_cast<Index>(a % b)};
  }
  return {i / n, i % n};
}

// The nearest numbers of eight and of eleven bits, ties to even; `x` is finite.
inline constexpr std::uint32_t kBelowBf16 = 0xFFFFU, kBelowTf32 = 0x1FFFU;
UNPACK_BODY std::uint16_t bf16_bits(float x) {
  const std::uint32_t bits = base::bits_of_float(x);
  return static_cast<std::uint16_t>((bits + (kBelowBf16 >> 1) + (bits >> 16 & 1U)) >> 16);
}
UNPACK_BODY float tf32_rounded(float x) {
  const std::uint32_t bits = base::bits_of_float(x);
  return base::float_of_bits((bits + (kBelowTf32 >> 1) + (bits >> 13 & 1U)) & ~kBelowTf32);
}

// How weights are stored on the device. MXFP4: blocks with their scale behind them.
enum StoredAs : int { kF32 = 0, kF16 = 1, kBf16 = 2, kMxfp4 = 3 };

UNPACK_BODY float stored_value(const void* data, int type, Index i) {
  if (type == kF32) return static_cast<const float*>(data)[i];
  if (type == kMxfp4) {
    const std::uint8_t* block =
        static_cast<const std::uint8_t*>(data) + i / base::kMxfp4Block * base::kMxfp4Bytes;
    const std::uint32_t pair = block[i % base::kMxfp4Block / 2];
    return base::mxfp4_value(i % 2 == 0 ? pair & 15U : pair >> 4) *
           base::mxfp4_scale(block[base::kMxfp4Bytes - 1]);
  }
  const std::uint16_t h = static_cast<const std::uint16_t*>(data)[i];
  return type == kF16 ? base::f16_value(h) : base::bf16_value(h);
}

// Row groups of the emulated device: one thread that does it all.
struct HostGroup {
  template <typename F>
  void each(Index n, const F& f) {
    for (Index i = 0; i < n; ++i) f(i);
  }
  template <typename F>
  double sum(Index n, const F& f) {
    double total = 0;
    for (Index i = 0; i < n; ++i) total += static_cast<double>(f(i));
    return total;
  }
  // f(i, a, b) adds to both.
  template <typename F>
  void sums(Index n, const F& f, double& a, double& b) {
    a = 0;
    b = 0;
    for (Index i = 0; i < n; ++i) f(i, a, b);
  }
  // f(first, step, sum, most) goes over its part of a loop by itself.
  template <typename F>
  void sum_and_most(const F& f, double& sum, double& most) {
    sum = 0;
    most = 0;
    f(Index{0}, Index{1}, sum, most);
  }
  template <typename F>
  double largest(Index n, const F& f) {
    double most = -INFINITY;
    for (Index i = 0; i < n; ++i) {
      const double x = static_cast<double>(f(i));
      most = x > most ? x : most;
    }
    return most;
  }
};

// Sum of a row's values and of their sizes.
template <typename Group>
UNPACK_BODY void sum_and_size(Group& group, const float* x, Index n, double& sum, double& size) {
  group.sums(
      n,
      [&](Index i, double& a, double& b) {
        a += static_cast<double>(x[i]);
        b += fabs(static_cast<double>(x[i]));
      },
      sum, size);
}

// Rotary and its inverse on element e of a head vector x; the first `half` elements are paired with
// the next `half`.
struct Rotary {
  const float* cos;  // [positions, half]; null: none
  const float* sin;
  int half;

  UNPACK_BODY float element(const float* x, Index e, Index position, bool inverse) const {
    if (cos == nullptr || e >= 2 * half) return x[e];
    const Index at = position * half + (e < half ? e : e - half);
    const float sine = inverse ? -sin[at] : sin[at];
    return e < half ? x[e] * cos[at] - x[e + half] * sine : x[e] * cos[at] + x[e - half] * sine;
  }

  // In place, a row's threads sharing the pairs.
  template <typename Group>
  UNPACK_BODY void turn(Group& group, float* x, Index position) const {
    if (cos == nullptr) return;
    group.each(half, [&](Index i) {
      const float a = element(x, i, position, false);
      const float b = element(x, i + half, position, false);
      x[i] = a;
      x[i + half] = b;
    });
  }
};

}  // namespace unpack::backend::cuda
