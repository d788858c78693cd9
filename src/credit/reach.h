// What a row of edges to the writers of one position leads to: the sum of |factor| times the mass
// below, and the largest |factor| times the bound below.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace unpack::credit {

struct Reach {
  double mass = 0;
  double bound = 0;
};

// In lanes that can be added side by side.
template <typename T>
Reach reach_of(const T* row, const double* mass, const double* bound, std::size_t n) {
  constexpr std::size_t kLanes = 8;
  double sum[kLanes] = {};
  double most[kLanes] = {};
  std::size_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (std::size_t i = 0; i < kLanes; ++i) {
      const double x = std::fabs(row[j + i]);
      sum[i] += x * mass[j + i];
      most[i] = std::max(most[i], x * bound[j + i]);
    }
  }
  for (std::size_t i = 0; j < n; ++i, ++j) {
    const double x = std::fabs(row[j]);
    sum[i] += x * mass[j];
    most[i] = std::max(most[i], x * bound[j]);
  }
  Reach reach;
  for (std::size_t i = 0; i < kLanes; ++i) {
    reach.mass += sum[i];
    reach.bound = std::max(reach.bound, most[i]);
  }
  return reach;
}

}  // namespace unpack::credit
