// Spec section 4: values to shares. The denominator itself is in base/formulas.h.
#pragma once

#include <cmath>
#include <cstddef>

#include "base/formulas.h"

namespace unpack::credit {

// values -> shares, in place.
inline void to_shares(double* values, std::size_t n, double beta) {
  double sum = 0;
  double abs = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += values[i];
    abs += std::fabs(values[i]);
  }
  const double inverse = base::inverse_denom(sum, abs, beta);
  for (std::size_t i = 0; i < n; ++i) values[i] *= inverse;
}

}  // namespace unpack::credit
