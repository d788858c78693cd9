// Inner loops in single precision against the same in double.
#include "backend/host/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/formulas.h"

namespace unpack {
namespace {

class Activations : public testing::TestWithParam<Activation> {};

TEST_P(Activations, SinglePrecisionIsWithinAFewUnitsOfTheLastPlace) {
  std::vector<float> in;
  for (int i = -120'000; i <= 120'000; ++i) in.push_back(static_cast<float>(i) * 1e-4F);
  for (const float x :
       {-1e30F, -1000.0F, -80.0F, -20.0F, 20.0F, 80.0F, 1000.0F, 1e30F, 1e-30F, -1e-30F, 0.0F})
    in.push_back(x);
  std::vector<float> out(in.size());
  backend::activate_run(GetParam(), in.data(), out.data(), static_cast<std::int64_t>(in.size()));
  for (std::size_t i = 0; i < in.size(); ++i) {
    const double want = backend::activate_one(GetParam(), static_cast<double>(in[i]));
    ASSERT_NEAR(out[i], want, 4e-7 * std::fabs(want) + 2e-8) << "at " << in[i];
  }
}

TEST_P(Activations, EveryLengthGivesTheSameValues) {
  const std::vector<float> in = {-3.0F, -1.5F, -0.2F, 0.0F,  0.3F, 0.9F,  2.5F, 4.0F, -0.7F, 1.1F,
                                 -2.2F, 0.05F, 3.3F,  -4.4F, 0.6F, -0.6F, 1.7F, 5.5F, -5.5F};
  std::vector<float> whole(in.size());
  backend::activate_run(GetParam(), in.data(), whole.data(), static_cast<std::int64_t>(in.size()));
  for (std::size_t n = 1; n <= in.size(); ++n) {
    std::vector<float> part(n);
    backend::activate_run(GetParam(), in.data(), part.data(), static_cast<std::int64_t>(n));
    for (std::size_t i = 0; i < n; ++i)
      EXPECT_NEAR(part[i], whole[i], 2e-7 * std::fabs(whole[i]) + 1e-9) << n;
  }
}

// Few values, so that many are equal; lengths around the sixteen columns that are done at once.
TEST(Medians, AreTheMiddleOfEverySortedColumnOnEveryProcessor) {
  for (const auto& [name, kernels] : backend::float_kernels()) {
    for (const std::int64_t n : {1, 2, 3, 8, 101}) {
      for (const std::int64_t c : {1, 15, 16, 37}) {
        std::vector<float> rows(static_cast<std::size_t>(n * c));
        std::uint32_t state = 7;
        for (float& x : rows) {
          state = state * 1664525U + 1013904223U;
          const auto draw = static_cast<float>(state >> 20U);
          x = (state & 4096U) != 0 ? std::ldexp(draw - 2048.0F, static_cast<int>(state % 60U) - 40)
                                   : static_cast<float>(state % 3U);
        }
        std::vector<float> got(static_cast<std::size_t>(c));
        kernels->column_medians(rows.data(), n, c, got.data());
        for (std::int64_t j = 0; j < c; ++j) {
          std::vector<float> column;
          for (std::int64_t r = 0; r < n; ++r) column.push_back(rows[r * c + j]);
          std::sort(column.begin(), column.end());
          ASSERT_EQ(got[j], column[(n - 1) / 2])
              << name << " " << n << " rows, column " << j << " of " << c;
        }
      }
    }
  }
}

// Sums that cancel, that are 0, that are below the floor; lengths around what is done at once.
TEST(FlooredInverses, AreThoseOfTheFormulaOnEveryProcessor) {
  const std::vector<float> sums = {0.0F, -0.0F, 3.0F, -3.0F, 1e-8F, -1e-8F, 0.4F, -0.4F, 1e30F},
                           sizes = {0.0F, 5.0F, 3.5F, 1e-7F, 100.0F, 1e30F};
  std::vector<float> sum, abs;
  for (const float s : sums) {
    for (const float a : sizes) {
      sum.push_back(s);
      abs.push_back(a);
    }
  }
  for (const auto& [name, kernels] : backend::float_kernels()) {
    for (const double beta : {0.0, 0.2}) {
      for (const double floor : {0.0, 1.0}) {
        for (std::size_t n = 1; n <= sum.size(); ++n) {
          std::vector<double> got(n);
          kernels->floored_inverses(sum.data(), abs.data(), static_cast<std::int64_t>(n), beta,
                                    floor, got.data());
          for (std::size_t i = 0; i < n; ++i) {
            const auto s = static_cast<double>(sum[i]), a = static_cast<double>(abs[i]);
            ASSERT_EQ(got[i], base::floored_inverse(s, a, beta, floor))
                << name << " " << s << " " << a;
            if (floor == 0) {
              ASSERT_EQ(got[i], base::inverse_denom(s, a, beta)) << name;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Activations,
                         testing::Values(Activation::gelu_erf, Activation::gelu_tanh,
                                         Activation::relu, Activation::silu));

}  // namespace
}  // namespace unpack
