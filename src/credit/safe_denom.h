// Spec section 4: the one place that divides credit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace unpack {

// sign(sum) * max(|sum|, beta * abs), sign(0) = +1.
inline double safe_denom(double sum, double abs, double beta) {
  const double size = std::max(std::fabs(sum), beta * abs);
  return sum < 0 ? -size : size;
}

// 1 / SafeDenom, 0 where the denominator is 0: all shares are 0 then.
inline double inverse_denom(double sum, double abs, double beta) {
  const double d = safe_denom(sum, abs, beta);
  return d == 0 ? 0.0 : 1.0 / d;
}

// Signed sums this small against their absolute sum decide the sign of a denominator by rounding.
inline bool ill_conditioned(double sum, double abs) { return std::fabs(sum) < 1e-5 * abs; }

// A read that something is divided by: never closer to 0 than this.
inline double away_from_zero(double x) { return std::fabs(x) < 1e-10 ? 1e-10 : x; }

// values -> shares, in place.
inline void to_shares(double* values, std::size_t n, double beta) {
  double sum = 0;
  double abs = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += values[i];
    abs += std::fabs(values[i]);
  }
  const double inverse = inverse_denom(sum, abs, beta);
  for (std::size_t i = 0; i < n; ++i) values[i] *= inverse;
}

}  // namespace unpack
