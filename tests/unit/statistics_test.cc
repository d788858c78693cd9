// Statistics against values computed with numpy (ranks with shared ties, Pearson correlation of
// them, normal interval).
#include "experiments/statistics.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>

#include "experiments/number_text.h"

namespace unpack {
namespace {

const std::vector<double> kX = {3.1, 2.0, 2.0, 5.5, 0.1, 7.2, 5.5, 5.5, 1.0, 4.4};
const std::vector<double> kY = {1.0, 0.5, 0.7, 3.0, 0.2, 2.9, 3.0, 0.4, 0.4, 2.0};

TEST(Statistics, TiesShareTheirMeanRank) {
  EXPECT_EQ(experiments::ranks(kX), (std::vector<double>{5, 3.5, 3.5, 8, 1, 10, 8, 8, 2, 6}));
}

TEST(Statistics, SpearmanWithTiesAgreesWithTheReference) {
  EXPECT_NEAR(experiments::spearman(kX, kY), 0.7306816718116531, 1e-14);
}

TEST(Statistics, SpearmanOfAConstantIsNotANumber) {
  EXPECT_TRUE(std::isnan(
      experiments::spearman(std::vector<double>{1, 1, 1}, std::vector<double>{1, 2, 3})));
  EXPECT_TRUE(std::isnan(experiments::spearman(std::vector<double>{1}, std::vector<double>{2})));
}

TEST(Statistics, SpearmanDependsOnTheOrderAlone) {
  rc::check([](std::vector<int> values) {
    std::vector<double> x, y, bent;
    for (std::size_t i = 0; i < values.size(); ++i) {
      x.push_back(values[i] % 100);
      y.push_back((values[i] / 100) % 100);
      bent.push_back(std::exp(0.05 * x.back()));
    }
    const double a = experiments::spearman(x, y), b = experiments::spearman(bent, y);
    RC_ASSERT((std::isnan(a) && std::isnan(b)) || std::fabs(a - b) < 1e-12);
    RC_ASSERT(std::isnan(a) || std::fabs(a) <= 1 + 1e-12);
  });
}

TEST(Statistics, MeanMedianAndDeviationAgreeWithTheReference) {
  EXPECT_NEAR(experiments::mean(kX), 3.63, 1e-14);
  EXPECT_NEAR(experiments::median(kX), 3.75, 1e-14);
  EXPECT_NEAR(experiments::sample_deviation(kX), 2.3285904176847705, 1e-14);
  EXPECT_EQ(experiments::median(std::vector<double>{3, 1, 2}), 2);
}

TEST(Statistics, NormalIntervalAgreesWithTheReference) {
  const experiments::Interval got = experiments::normal_interval(kX);
  EXPECT_NEAR(got.low, 2.186751226846975, 1e-13);
  EXPECT_NEAR(got.high, 5.073248773153025, 1e-13);
}

TEST(Statistics, ABootstrapOfTheMeanIsTheIntervalOfTheMean) {
  const experiments::Interval want = experiments::bootstrap_interval(kX, 3, 500),
                              got = experiments::bootstrap_statistic(
                                  kX.size(), 3, 500, [](const auto&draw) {
                                    double sum = 0;
                                    for (const std::size_t i : draw) sum += kX[i];
                                    return sum / static_cast<double>(draw.size());
                                  });
  EXPECT_DOUBLE_EQ(got.low, want.low);
  EXPECT_DOUBLE_EQ(got.high, want.high);
}

TEST(Statistics, AStatisticThatIsMostlyNotANumberHasNoInterval) {
  int turn = 0;
  EXPECT_TRUE(std::isnan(experiments::bootstrap_statistic(3, 1, 100, [&](const auto&) {
                           return turn++ % 3 == 0 ? 1.0 : NAN;
                         }).low));
}

// The ratio of a fixed part of a sample is that part, whatever is drawn.
TEST(Statistics, ARatioIsDrawnWithBothItsMembers) {
  std::vector<double> part;
  part.reserve(kX.size());
  for (const double x : kX) part.push_back(0.25 * x);
  const experiments::Interval fixed = experiments::ratio_interval(part, kX, 5),
                              moving = experiments::ratio_interval(kY, kX, 5);
  EXPECT_NEAR(fixed.low, 0.25, 1e-14);
  EXPECT_NEAR(fixed.high, 0.25, 1e-14);
  EXPECT_LT(moving.low, experiments::mean(kY) / experiments::mean(kX));
  EXPECT_GT(moving.high, experiments::mean(kY) / experiments::mean(kX));
}

TEST(Statistics, BootstrapIntervalIsNearTheNormalOneAndRepeatsItself) {
  const experiments::Interval got = experiments::bootstrap_interval(kX, 1),
                              again = experiments::bootstrap_interval(kX, 1),
                              normal = experiments::normal_interval(kX);
  EXPECT_EQ(got.low, again.low);
  EXPECT_EQ(got.high, again.high);
  EXPECT_NEAR(got.low, normal.low, 0.25);
  EXPECT_NEAR(got.high, normal.high, 0.25);
}

TEST(Statistics, AreaIsTheMeanGapOverTheSteps) {
  // The unchanged prompt is step 0 and counts for nothing: (0.5 - 0.1 + 0.2 - 0.2) / 2.
  EXPECT_NEAR(experiments::area_between(std::vector<double>{0.9, 0.5, 0.2},
                                        std::vector<double>{0.9, 0.1, 0.2}),
              0.2, 1e-15);
  EXPECT_EQ(experiments::area_between(std::vector<double>{0.9}, std::vector<double>{0.9}), 0);
}

TEST(Statistics, ResampledCurvesKeepTheirEnds) {
  const std::vector<double> got = experiments::resample(std::vector<double>{1, 0, 2}, 5);
  const std::vector<double> want = {1, 0.5, 0, 1, 2};
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-15);
}

}  // namespace

TEST(NumberText, HalvesGoAwayFromZeroAndNothingIsMinusZero) {
  EXPECT_EQ(experiments::fixed_text(38.5, 0), "39");
  EXPECT_EQ(experiments::fixed_text(39.5, 0), "40");
  EXPECT_EQ(experiments::fixed_text(-2.5, 0), "-3");
  EXPECT_EQ(experiments::fixed_text(0.285, 2), "0.29");  // 0.284999... as a double
  EXPECT_EQ(experiments::fixed_text(2.675, 2), "2.68");
  EXPECT_EQ(experiments::fixed_text(0.2849, 2), "0.28");
  EXPECT_EQ(experiments::fixed_text(-0.04, 1), "0.0");
  EXPECT_EQ(experiments::signed_text(-0.04, 1), "+0.0");
  EXPECT_EQ(experiments::signed_text(12.25, 1), "+12.3");
  EXPECT_EQ(experiments::signed_with_interval(-1.25, -2, 0.5, 1), "-1.3 (-2.0 to +0.5)");
  EXPECT_EQ(experiments::with_interval(0.515, 0.4, 0.6, 2), "0.52 (0.40 to 0.60)");
}

TEST(NumberText, LargeNumbersHaveNoDecimalsAndPercentagesThoseTheyNeed) {
  EXPECT_EQ(experiments::signed_text(-7490.55, 1), "-7491");
  EXPECT_EQ(experiments::signed_text(-1112.349, 1), "-1112");
  EXPECT_EQ(experiments::signed_text(999.94, 1), "+999.9");
  EXPECT_EQ(experiments::percent_text(38.5), "38.5%");
  EXPECT_EQ(experiments::percent_text(66.0 + 2.0 / 3.0), "66.7%");
  EXPECT_EQ(experiments::percent_text(100), "100%");
  EXPECT_EQ(experiments::percent_text(12.0000001), "12%");
}

TEST(Statistics, TheIntervalOfAMedianHoldsItAndRepeatsItself) {
  std::vector<double> values;
  for (int i = 0; i < 101; ++i) values.push_back(i * 37 % 101);
  const experiments::Interval interval = experiments::median_interval(values, 3),
                              again = experiments::median_interval(values, 3);
  EXPECT_LT(interval.low, 50);
  EXPECT_GT(interval.high, 50);
  EXPECT_GT(interval.low, 30);
  EXPECT_LT(interval.high, 70);
  EXPECT_EQ(interval.low, again.low);
  EXPECT_EQ(experiments::median_interval(std::vector<double>(9, 4.0), 0).high, 4.0);
}

}  // namespace unpack
