#include "experiments/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace unpack::experiments {

double mean(std::span<const double> values) {
  return values.empty() ? 0.0 : std::accumulate(values.begin(), values.end(), 0.0) / values.size();
}

double sample_deviation(std::span<const double> values) {
  if (values.size() < 2) return 0.0;
  const double m = mean(values);
  double sum = 0;
  for (const double x : values) sum += (x - m) * (x - m);
  return std::sqrt(sum / (values.size() - 1));
}

double median(std::span<const double> values) {
  if (values.empty()) return 0.0;
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 ? sorted[half] : 0.5 * (sorted[half - 1] + sorted[half]);
}

std::vector<double> ranks(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> out(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double shared = 0.5 * (begin + 1 + end);
    for (std::size_t i = begin; i < end; ++i) out[order[i]] = shared;
    begin = end;
  }
  return out;
}

double spearman(std::span<const double> x, std::span<const double> y) {
  const std::vector<double> a = ranks(x);
  const std::vector<double> b = ranks(y);
  const double mean_a = mean(a);
  const double mean_b = mean(b);
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  if (a.size() < 2 || aa == 0 || bb == 0) return std::numeric_limits<double>::quiet_NaN();
  return ab / std::sqrt(aa * bb);
}

Interval normal_interval(std::span<const double> values) {
  constexpr double kZ = 1.959963984540054;  // 97.5% point of the normal distribution
  const double m = mean(values);
  const double half =
      values.empty() ? 0.0 : kZ * sample_deviation(values) / std::sqrt(values.size());
  return {m - half, m + half};
}

Interval percentile_interval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    const double place = share * (values.size() - 1);
    const std::size_t below = place;
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - below) * (values[above] - values[below]);
  };
  return {at(0.025), at(0.975)};
}

Interval bootstrap_statistic(std::size_t n, std::uint64_t seed, int samples,
                             const DrawStatistic& statistic) {
  if (n == 0 || samples < 1) return {};
  std::mt19937_64 generator(seed);
  std::vector<double> values;
  std::vector<std::size_t> draw(n);
  for (int i = 0; i < samples; ++i) {
    // Modulo keeps the draw the same with every standard library; its bias is nothing beside 2^64.
    for (std::size_t& member : draw) member = generator() % n;
    const double value = statistic(draw);
    if (!std::isnan(value)) values.push_back(value);
  }
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (2 * values.size() <= static_cast<std::size_t>(samples)) return {kNan, kNan};
  return percentile_interval(std::move(values));
}

Interval bootstrap_interval(std::span<const double> values, std::uint64_t seed, int samples) {
  return bootstrap_statistic(values.size(), seed, samples, [&](const auto& draw) {
    double sum = 0;
    for (const std::size_t i : draw) sum += values[i];
    return sum / values.size();
  });
}

Interval median_interval(std::span<const double> values, std::uint64_t seed, int samples) {
  return bootstrap_statistic(values.size(), seed, samples, [&](const auto& draw) {
    std::vector<double> drawn;
    drawn.reserve(draw.size());
    for (const std::size_t i : draw) drawn.push_back(values[i]);
    return median(drawn);
  });
}

Interval ratio_interval(std::span<const double> above, std::span<const double> below,
                        std::uint64_t seed, int samples) {
  return bootstrap_statistic(above.size(), seed, samples, [&](const auto& draw) {
    double a = 0, b = 0;
    for (const std::size_t i : draw) {
      a += above[i];
      b += below[i];
    }
    return b == 0 ? std::numeric_limits<double>::quiet_NaN() : a / b;
  });
}

double area_between(std::span<const double> lerf, std::span<const double> morf) {
  const std::size_t steps = std::min(lerf.size(), morf.size());
  if (steps < 2) return 0.0;
  double sum = 0;
  for (std::size_t k = 1; k < steps; ++k) sum += lerf[k] - morf[k];
  return sum / (steps - 1);
}

std::vector<double> resample(std::span<const double> curve, int points) {
  std::vector<double> out;
  if (curve.empty()) return out;
  for (int i = 0; i < points; ++i) {
    const double place =
        points == 1 ? 0.0 : static_cast<double>(i) / (points - 1) * (curve.size() - 1);
    const std::size_t below = place;
    const std::size_t above = std::min(below + 1, curve.size() - 1);
    out.push_back(curve[below] + (place - below) * (curve[above] - curve[below]));
  }
  return out;
}

}  // namespace unpack::experiments
