#include "experiments/number_text.h"

#include <fmt/format.h>

#include <cmath>

namespace unpack::experiments {

namespace {

constexpr double kRoundingError = 1e-9;

// x in units of the last decimal, rounded; `decimals` falls to 0 for large numbers.
double rounded_number(double x, int& decimals) {
  if (std::fabs(x) >= 1000) decimals = 0;
  const double unit = std::pow(10.0, decimals), size = std::fabs(x) * unit;
  const double whole = std::floor(size * (1 + kRoundingError) + 0.5) / unit;
  return whole == 0 ? 0.0 : std::copysign(whole, x);
}

}  // namespace

std::string fixed_text(double x, int decimals) {
  const double rounded = rounded_number(x, decimals);
  return fmt::format("{:.{}f}", rounded, decimals);
}

std::string signed_text(double x, int decimals) {
  const double rounded = rounded_number(x, decimals);
  return fmt::format("{:+.{}f}", rounded, decimals);
}

std::string short_text(double x) {
  const std::string one = fixed_text(x, 1);
  return one.ends_with(".0") ? fixed_text(x, 0) : one;
}

std::string percent_text(double percent) { return short_text(percent) + "%"; }

std::string with_interval(double x, double low, double high, int decimals) {
  return fmt::format("{} ({} to {})", fixed_text(x, decimals), fixed_text(low, decimals),
                     fixed_text(high, decimals));
}

std::string signed_with_interval(double x, double low, double high, int decimals) {
  return fmt::format("{} ({} to {})", signed_text(x, decimals), signed_text(low, decimals),
                     signed_text(high, decimals));
}

}  // namespace unpack::experiments
