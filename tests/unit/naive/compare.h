// How far two sets of numbers are apart, relative to the largest one that was expected.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace unpack::naive {

class Difference {
 public:
  // `floor`: expected values that are all smaller are held against it, for what remains where
  // larger parts cancel.
  explicit Difference(double floor = 0) : largest_(floor) {}

  void see(double got, double want) {
    const double d = std::fabs(got - want);
    apart_ = std::isfinite(d) ? std::max(apart_, d) : std::numeric_limits<double>::infinity();
    largest_ = std::max(largest_, std::fabs(want));
  }
  void see(const std::vector<double>& got, const std::vector<double>& want) {
    if (got.size() != want.size()) {
      apart_ = std::numeric_limits<double>::infinity();
      return;
    }
    for (std::size_t i = 0; i < got.size(); ++i) see(got[i], want[i]);
  }
  void see(const std::vector<std::vector<double>>& got,
           const std::vector<std::vector<double>>& want) {
    if (got.size() != want.size()) apart_ = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) see(got[i], want[i]);
  }
  // Expected zeros are held against 1.
  double relative() const { return apart_ / (largest_ > 0 ? largest_ : 1.0); }

 private:
  double apart_ = 0;
  double largest_;
};

template <typename Values>
double difference(const Values& got, const Values& want, double floor = 0) {
  Difference d(floor);
  d.see(got, want);
  return d.relative();
}

}  // namespace unpack::naive
