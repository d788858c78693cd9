// Statistics of the experiments. All deterministic.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace unpack::experiments {

double mean(std::span<const double> values);              // 0 of nothing
double sample_deviation(std::span<const double> values);  // n - 1; 0 of fewer than two
double median(std::span<const double> values);            // 0 of nothing

// Ranks from 1, ties share their mean rank.
std::vector<double> ranks(std::span<const double> values);
// Rank correlation; NaN where a side is constant or there are fewer than two values.
double spearman(std::span<const double> x, std::span<const double> y);

struct Interval {
  double low = 0, high = 0;
};
// 95% interval of the mean: normal, and percentiles of resampled means.
Interval normal_interval(std::span<const double> values);
Interval bootstrap_interval(std::span<const double> values, std::uint64_t seed, int samples = 2000);
// Where 95% of the values lie.
Interval percentile_interval(std::vector<double> values);
// The same of any statistic of a sample of `n`: it is given the members of every draw. NaN where it
// is NaN in more than half of the draws; other such draws are left out.
using DrawStatistic = std::function<double(const std::vector<std::size_t>& draw)>;
Interval bootstrap_statistic(std::size_t n, std::uint64_t seed, int samples,
                             const DrawStatistic& statistic);
// Of the median.
Interval median_interval(std::span<const double> values, std::uint64_t seed, int samples = 2000);
// Of sum(above) / sum(below), members drawn together.
Interval ratio_interval(std::span<const double> above, std::span<const double> below,
                        std::uint64_t seed, int samples = 2000);

// Mean over steps 1 .. N of lerf - morf; both begin with step 0, the unchanged prompt.
double area_between(std::span<const double> lerf, std::span<const double> morf);
// The curve at `points` evenly spaced fractions of its steps, linear between them.
std::vector<double> resample(std::span<const double> curve, int points);

}  // namespace unpack::experiments
