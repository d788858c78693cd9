// Products against the same in double: oneDNN's where it is installed, and ours on every
// instruction set that this processor has.
#include "backend/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "backend/cpu/onednn.h"
#include "backend/cpu/own_gemm.h"
#include "base/system.h"
#include "unpack/about.h"

namespace unpack {
namespace {

struct Shape {
  std::int64_t m, n, k;
};

// Below, at and behind the ends of tiles and blocks of every kind.
const Shape kShapes[] = {{1, 1, 1},    {1, 7, 5},     {1, 70, 300},   {2, 33, 17},  {3, 16, 256},
                         {4, 8, 257},  {6, 16, 9},    {7, 31, 64},    {12, 32, 40}, {13, 65, 513},
                         {97, 33, 30}, {100, 130, 3}, {50, 1029, 70}, {24, 64, 0}};

// The largest error relative to the largest value, over a matrix with gaps between its rows, which
// must stay as they were.
template <typename Gemm>
void check(const Gemm& gemm, const Shape& s, bool transposed, bool accumulate) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::int64_t n) {
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& x : out) x = normal(random);
    return out;
  };
  const std::int64_t lda = s.k + 3, ldb = (transposed ? s.k : s.n) + 2, ldc = s.n + 1;
  // Exactly as long as they must be: a read behind the end is seen by the sanitizer.
  const std::int64_t b_rows = transposed ? s.n : s.k;
  const auto a = fill((s.m - 1) * lda + s.k);
  const auto b = fill(std::max<std::int64_t>(0, (b_rows - 1) * ldb + (transposed ? s.k : s.n)));
  const auto before = fill((s.m - 1) * ldc + s.n);
  auto c = before;
  gemm(transposed, s.m, s.n, s.k, a.data(), lda, b.data(), ldb, accumulate, c.data(), ldc);
  for (std::int64_t i = 0; i < s.m; ++i) {
    for (std::int64_t j = 0; j < ldc; ++j) {
      const auto at = static_cast<std::size_t>(i * ldc + j);
      if (at >= c.size()) continue;
      if (j >= s.n) {
        ASSERT_EQ(c[at], before[at]) << "a value between two rows was written";
        continue;
      }
      double want = accumulate ? static_cast<double>(before[at]) : 0.0, size = 1;
      for (std::int64_t p = 0; p < s.k; ++p) {
        const double product = static_cast<double>(a[i * lda + p]) *
                               static_cast<double>(b[transposed ? j * ldb + p : p * ldb + j]);
        want += product;
        size += std::fabs(product);
      }
      ASSERT_NEAR(c[at], want, 1e-6 * size) << s.m << " x " << s.n << " x " << s.k << " at " << i
                                            << ", " << j << (transposed ? ", transposed" : "");
    }
  }
}

TEST(Gemm, EveryOwnProductIsThatOfDoublePrecision) {
  for (const auto& [name, gemm] : backend::own_gemms()) {
    SCOPED_TRACE(name);
    for (const Shape& shape : kShapes) {
      if (shape.k == 0) continue;
      for (const bool transposed : {false, true}) {
        for (const bool accumulate : {false, true}) check(*gemm, shape, transposed, accumulate);
      }
    }
  }
}

TEST(Gemm, TheProductInUseIsThatOfDoublePrecision) {
  for (const Shape& shape : kShapes) {
    for (const bool transposed : {false, true}) {
      for (const bool accumulate : {false, true})
        check(backend::sgemm, shape, transposed, accumulate);
    }
  }
}

// In a process of its own: whether the choice is still open can be asked only by making it.
TEST(About, LeavesTheInstructionSetOpen) {
  if (backend::find_onednn() == nullptr) GTEST_SKIP() << "oneDNN is not installed";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        about();
        std::string why;
        const auto library = base::SharedLibrary::open(backend::find_onednn()->file, true, why);
        using SetMaxIsa = int (*)(int);
        const auto set_max = reinterpret_cast<SetMaxIsa>(library->symbol("dnnl_set_max_cpu_isa"));
        constexpr int kAvx2 = 7;
        std::exit(set_max(kAvx2));  // 0 while nothing has asked for a product
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace unpack
