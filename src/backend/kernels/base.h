// The ground that kernels stand on. A kernel is a plain struct of pointers and sizes with one body,
// which nvcc compiles for the GPU and any C++ compiler for the host: both run the very same code,
// in the scalar T of their arrays. Apart from pointers nothing in the struct depends on T, so that
// the operations, which do not know it, can fill it in (primitives.h).
//
// Map kernels are called once per index and write what belongs to it; one that goes over rows has
// at(row, column) as well, so that a host need not divide. Row kernels are called by a
// group of threads once per row: each() splits a loop over the group, sum() and largest() return
// the same value to all of it. No two indices or rows write the same address, and sums are taken in
// an order that depends on the sizes alone, so that results repeat bit for bit.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/formulas.h"
#include "base/index.h"

namespace unpack::backend::kernels {

UNPACK_BODY Index pairs_before(Index q) { return q * (q + 1) / 2; }

// i = quotient * n + rest, of numbers from 0 on. Where both have 32 bits, as nearly all have,
// a GPU divides several times faster.
struct Divided {
  Index quotient, rest;
};
UNPACK_BODY Divided divided(Index i, Index n) {
  if (((i | n) >> 32) == 0) {
    const auto a = static_cast<std::uint32_t>(i), b = static_cast<std::uint32_t>(n);
    return {(a / b), (a % b)};
  }
  return {i / n, i % n};
}

// Row groups where one thread does it all: the host, and the emulated device.
struct HostGroup {
  template <typename F>
  void each(Index n, const F& f) {
    for (Index i = 0; i < n; ++i) f(i);
  }
  template <typename F>
  double sum(Index n, const F& f) {
    double total = 0;
    for (Index i = 0; i < n; ++i) total += f(i);
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
      const double x = f(i);
      most = x > most ? x : most;
    }
    return most;
  }
};

// Sum of a row's values and of their sizes.
template <typename Group, typename T>
UNPACK_BODY void sum_and_size(Group& group, const T* x, Index n, double& sum, double& size) {
  group.sums(
      n,
      [&](Index i, double& a, double& b) {
        a += x[i];
        b += fabs(x[i]);
      },
      sum, size);
}

// A pair of elements turned by an angle, in place.
template <typename T>
UNPACK_BODY void turn_pair(T& a, T& b, T cosine, T sine) {
  const T x = a * cosine - b * sine;
  b = b * cosine + a * sine;
  a = x;
}

// Rotary and its inverse on element e of a head vector x; the first `half` elements are paired with
// the next `half`.
template <typename T>
struct Rotary {
  const T* cos;  // [positions, half]; null: none
  const T* sin;
  int half;

  UNPACK_BODY T element(const T* x, Index e, Index position, bool inverse) const {
    if (cos == nullptr || e >= 2 * half) return x[e];
    const Index i = e < half ? e : e - half, at = position * half + i;
    T a = x[i], b = x[i + half];
    turn_pair(a, b, cos[at], inverse ? -sin[at] : sin[at]);
    return e < half ? a : b;
  }

  // In place, a row's threads sharing the pairs.
  template <typename Group>
  UNPACK_BODY void turn(Group& group, T* x, Index position) const {
    if (cos == nullptr) return;
    group.each(half, [&](Index i) {
      turn_pair(x[i], x[i + half], cos[position * half + i], sin[position * half + i]);
    });
  }
};

}  // namespace unpack::backend::kernels
