// Loops over single precision give, by every instruction set of the processor, what plain loops in
// double give.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/host/kernels.h"

namespace unpack {
namespace {

std::vector<float> random_floats(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<float> out(n);
  for (auto& x : out) x = normal(generator);
  return out;
}

class Kernels : public ::testing::TestWithParam<int> {
 protected:
  // Levels that this processor cannot run are not there to be asked.
  void SetUp() override {
    if (GetParam() >= static_cast<int>(backend::float_kernels().size()))
      GTEST_SKIP() << "this processor has fewer instruction sets";
    kernels = backend::float_kernels()[GetParam()].second;
  }
  const backend::FloatKernels* kernels = nullptr;
};

TEST_P(Kernels, AddWritersUp) {
  for (const std::int64_t rows : {1, 7, 8, 9, 30}) {
    for (const std::int64_t n : {1, 15, 16, 17, 256}) {
      const std::int64_t ld = n + 3;
      const std::vector<float> tile = random_floats(static_cast<std::size_t>(rows * ld), 1);
      std::vector<double> sum(static_cast<std::size_t>(n), 0.5), abs(sum),
          square(static_cast<std::size_t>(rows), 0.25);
      kernels->reduce(tile.data(), rows, n, ld, sum.data(), abs.data(), square.data());
      for (std::int64_t c = 0; c < n; ++c) {
        double want = 0.5, size = 0.5;
        for (std::int64_t r = 0; r < rows; ++r) {
          want += static_cast<double>(tile[r * ld + c]);
          size += std::fabs(static_cast<double>(tile[r * ld + c]));
        }
        EXPECT_NEAR(sum[c], want, 1e-6 * size);
        EXPECT_NEAR(abs[c], size, 1e-6 * size);
      }
      for (std::int64_t r = 0; r < rows; ++r) {
        double want = 0.25;
        for (std::int64_t c = 0; c < n; ++c)
          want += std::pow(static_cast<double>(tile[r * ld + c]), 2);
        EXPECT_NEAR(square[r], want, 2e-6 * want);
      }
    }
  }
}

TEST_P(Kernels, AddRowsUp) {
  for (const std::int64_t n : {1, 3, 20}) {
    for (const std::int64_t c : {1, 7, 8, 63, 64, 65, 200}) {
      const std::vector<float> rows = random_floats(static_cast<std::size_t>(n * c), 2);
      std::vector<float> sums(static_cast<std::size_t>(n)), abs(sums);
      std::vector<double> column(static_cast<std::size_t>(c), 1.0), square(column);
      kernels->reduce_rows(rows.data(), n, c, sums.data(), abs.data(), column.data(),
                           square.data());
      for (std::int64_t r = 0; r < n; ++r) {
        double sum = 0, size = 0;
        for (std::int64_t j = 0; j < c; ++j) {
          sum += static_cast<double>(rows[r * c + j]);
          size += std::fabs(static_cast<double>(rows[r * c + j]));
        }
        EXPECT_NEAR(sums[r], sum, 1e-6 * size);
        EXPECT_NEAR(abs[r], size, 1e-6 * size);
        double one = 0, one_size = 0;
        kernels->row_sums(rows.data() + r * c, c, one, one_size);
        EXPECT_NEAR(one, sum, 1e-12 * size);
        EXPECT_NEAR(one_size, size, 1e-12 * size);
      }
      for (std::int64_t j = 0; j < c; ++j) {
        double sum = 1, squares = 1;
        for (std::int64_t r = 0; r < n; ++r) {
          const auto x = static_cast<double>(rows[r * c + j]);
          sum += x;
          squares += x * x;
        }
        EXPECT_NEAR(column[j], sum, 1e-12 * squares);
        EXPECT_NEAR(square[j], squares, 1e-12 * squares);
      }
    }
  }
}

TEST_P(Kernels, BendAndScaleAsTheLibraryFunctionsDo) {
  std::vector<float> in;
  for (double x = -100; x <= 100; x += 0.037) in.push_back(static_cast<float>(x));
  std::vector<float> gelu(in.size()), erf(in.size()), silu(in.size());
  kernels->gelu_tanh(in.data(), gelu.data(), static_cast<std::int64_t>(in.size()));
  kernels->gelu_erf(in.data(), erf.data(), static_cast<std::int64_t>(in.size()));
  kernels->silu(in.data(), silu.data(), static_cast<std::int64_t>(in.size()));
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_NEAR(gelu[i], backend::activate_one(Activation::gelu_tanh, in[i]),
                2e-6 * (1 + std::fabs(in[i])))
        << in[i];
    EXPECT_NEAR(erf[i], backend::activate_one(Activation::gelu_erf, in[i]),
                2e-6 * (1 + std::fabs(in[i])))
        << in[i];
    EXPECT_NEAR(silu[i], backend::activate_one(Activation::silu, in[i]),
                2e-6 * (1 + std::fabs(in[i])))
        << in[i];
  }
  std::vector<float> row = random_floats(37, 3);
  row[5] = -1e30F;
  const std::vector<float> logits = row;
  kernels->softmax(row.data(), 37, 0.7F);
  double total = 0;
  for (const float x : logits) total += std::exp(0.7 * static_cast<double>(x));
  for (std::size_t i = 0; i < row.size(); ++i)
    EXPECT_NEAR(row[i], std::exp(0.7 * static_cast<double>(logits[i])) / total, 1e-6);
}

TEST_P(Kernels, MultiplyRuns) {
  const std::vector<float> x = random_floats(101, 4), y = random_floats(101, 5);
  double want = 0, size = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    want += static_cast<double>(x[i]) * static_cast<double>(y[i]);
    size += std::fabs(static_cast<double>(x[i]) * static_cast<double>(y[i]));
  }
  EXPECT_NEAR(kernels->dot(101, x.data(), y.data()), want, 1e-6 * size);
  std::vector<float> sum = y;
  kernels->axpy(101, 0.5F, x.data(), sum.data());
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(sum[i], y[i] + 0.5F * x[i], 1e-5);
}

// What a product in panels would be, in double.
double product_at(const std::vector<float>& a, const std::vector<float>& b, std::int64_t depth,
                  std::int64_t n, std::int64_t row, std::int64_t column) {
  double sum = 0;
  for (std::int64_t p = 0; column < n && p < depth; ++p)
    sum += static_cast<double>(a[row * depth + p]) * static_cast<double>(b[p * n + column]);
  return sum;
}

TEST_P(Kernels, AddProductsOfPairsUpWithoutWritingThem) {
  for (const std::int64_t rows : {1, 4, 7, 13, 30}) {
    for (const std::int64_t n : {1, 31, 32, 70}) {
      const std::int64_t depth = rows + 3, columns = backend::padded_columns(n);
      const std::vector<float> a = random_floats(static_cast<std::size_t>(rows * depth), 6),
                               b = random_floats(static_cast<std::size_t>(depth * n), 7),
                               origin = random_floats(static_cast<std::size_t>(rows * columns), 8);
      std::vector<float> panels(static_cast<std::size_t>(depth * columns)),
          first(origin.size(), 0.5F), second(origin.size(), 0.25F),
          weight(static_cast<std::size_t>(columns));
      backend::pack_columns(false, depth, n, b.data(), n, panels.data());
      for (std::size_t c = 0; c < weight.size(); ++c) weight[c] = c % 3 == 0 ? 0.0F : 1.0F;
      std::vector<double> sum(weight.size(), 2.0), abs(weight.size(), 3.0);
      backend::PairProduct<float> x{rows,          columns,       depth,        a.data(),
                                    depth,         panels.data(), sum.data(),   abs.data(),
                                    weight.data(), origin.data(), first.data(), second.data(),
                                    columns};
      kernels->pair_sums(x);
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto at = static_cast<std::size_t>(c);
        double want = 2, size = 3;
        for (std::int64_t r = 0; r < rows; ++r) {
          const double score = product_at(a, b, depth, n, r, c);
          want += score;
          size += std::fabs(score);
          const auto place = static_cast<std::size_t>(r * columns + c);
          const double away = c % 3 == 0 ? 0.0 : score - static_cast<double>(origin[place]);
          EXPECT_NEAR(first[place], 0.5 + away, 1e-4);
          EXPECT_NEAR(second[place], 0.25 + away * away, 1e-5 * (1 + away * away) + 1e-3);
        }
        EXPECT_NEAR(sum[at], want, 2e-6 * size);
        EXPECT_NEAR(abs[at], size, 2e-6 * size);
      }
      std::vector<float> scores(origin.size());
      x.scores = scores.data();
      kernels->pair_sums(x);
      std::vector<float> turned(static_cast<std::size_t>(n * rows));
      std::vector<float*> to;
      for (std::int64_t c = 0; c < n; ++c) to.push_back(turned.data() + c * rows);
      kernels->turn_rows(scores.data(), columns, rows, n, to.data());
      for (std::int64_t c = 0; c < n; ++c) {
        for (std::int64_t r = 0; r < rows; ++r) {
          EXPECT_NEAR(turned[c * rows + r], product_at(a, b, depth, n, r, c), 1e-4);
        }
      }
      x.scores = nullptr;
      x.origin = nullptr;
      const std::vector<float> before = first;
      kernels->pair_sums(x);
      EXPECT_EQ(first, before);
    }
  }
}

TEST_P(Kernels, AddTheReachOfProductsUpWithoutWritingThem) {
  for (const std::int64_t rows : {1, 6, 13, 25}) {
    const std::int64_t n = 70, depth = 11, columns = backend::padded_columns(n);
    const std::vector<float> a = random_floats(static_cast<std::size_t>(rows * depth), 11),
                             b = random_floats(static_cast<std::size_t>(depth * n), 12);
    std::vector<float> mass = random_floats(static_cast<std::size_t>(rows), 13), bound = mass,
                       panels(static_cast<std::size_t>(depth * columns)),
                       most(static_cast<std::size_t>(columns), 0.5F);
    for (float& x : mass) x = std::fabs(x);
    for (float& x : bound) x = 1.0F / (1.0F + x * x);
    backend::pack_columns(false, depth, n, b.data(), n, panels.data());
    std::vector<double> sum(most.size(), 1.0);
    kernels->reach_sums({rows, columns, depth, a.data(), depth, panels.data(), mass.data(),
                         bound.data(), sum.data(), most.data()});
    for (std::int64_t c = 0; c < columns; ++c) {
      double want = 1, largest = 0.5;
      for (std::int64_t r = 0; r < rows; ++r) {
        const double size = std::fabs(product_at(a, b, depth, n, r, c));
        want += size * static_cast<double>(mass[r]);
        largest = std::max(largest, size * static_cast<double>(bound[r]));
      }
      EXPECT_NEAR(sum[c], want, 1e-5 * want);
      EXPECT_NEAR(most[c], largest, 1e-5 * largest);
    }
  }
}

TEST_P(Kernels, AddTheEdgesOfAHeadUpWithoutWritingThem) {
  for (const std::int64_t rows : {1, 5, 6, 13, 25}) {
    for (const std::int64_t begin : {0, 9, 37, 69}) {
      const std::int64_t n = 70, depth = 11, columns = backend::padded_columns(n);
      const std::vector<float> a = random_floats(static_cast<std::size_t>(rows * depth), 14),
                               b = random_floats(static_cast<std::size_t>(depth * n), 15),
                               offset = random_floats(static_cast<std::size_t>(rows * columns), 16);
      std::vector<float> factor = random_floats(static_cast<std::size_t>(columns), 17),
                         bound = factor, panels(static_cast<std::size_t>(depth * columns));
      for (float& x : bound) x = 1.0F / (1.0F + x * x);
      for (std::int64_t c = 0; c < columns; ++c)
        if (c < begin || c >= n) factor[c] = 0;
      backend::pack_columns(false, depth, n, b.data(), n, panels.data());
      for (const float* taken : {offset.data(), static_cast<const float*>(nullptr)}) {
        std::vector<double> sum(static_cast<std::size_t>(rows), 1.0);
        std::vector<float> most(sum.size(), 0.01F);
        kernels->edge_sums({rows, begin, n, depth, a.data(), depth, panels.data(), factor.data(),
                            bound.data(), taken, columns, sum.data(), most.data()});
        for (std::int64_t r = 0; r < rows; ++r) {
          double want = 1, largest = static_cast<double>(0.01F);
          for (std::int64_t c = begin; c < n; ++c) {
            const auto column = static_cast<std::size_t>(c);
            const double less = taken ? static_cast<double>(taken[r * columns + c]) : 0.0;
            const double size = std::fabs((product_at(a, b, depth, n, r, c) - less) *
                                          static_cast<double>(factor[column]));
            want += size;
            largest = std::max(largest, size * static_cast<double>(bound[column]));
          }
          EXPECT_NEAR(sum[r], want, 1e-5 * want);
          EXPECT_NEAR(most[r], largest, 1e-5 * largest);
        }
      }
    }
  }
}

TEST_P(Kernels, AddProductsOfHeadsUpWithoutWritingThem) {
  for (const std::int64_t rows : {1, 5, 12, 29, 70}) {
    for (const std::int64_t n : {1, 33, 256}) {
      const std::int64_t depth = 9, columns = backend::padded_columns(n), ld = columns;
      const std::vector<float> a = random_floats(static_cast<std::size_t>(rows * depth), 9),
                               b = random_floats(static_cast<std::size_t>(depth * n), 10);
      std::vector<float> panels(static_cast<std::size_t>(depth * columns)), transposed(b.size()),
          again(panels.size()), sum(static_cast<std::size_t>(rows * ld), 1.0F),
          abs(sum.size(), 2.0F);
      std::vector<double> square(static_cast<std::size_t>(2 * rows), -1.0);
      std::vector<float> last(static_cast<std::size_t>(columns));
      backend::pack_columns(false, depth, n, b.data(), n, panels.data());
      for (std::int64_t p = 0; p < depth; ++p) {
        for (std::int64_t c = 0; c < n; ++c) transposed[c * depth + p] = b[p * n + c];
      }
      backend::pack_columns(true, depth, n, transposed.data(), depth, again.data());
      EXPECT_EQ(panels, again);
      const auto packed = backend::InPanels<float>::packed(panels.data(), depth);
      kernels->head_sums({rows, columns, depth, a.data(), depth, packed, sum.data(), abs.data(), ld,
                          square.data(), 2, last.data()});
      for (std::int64_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (std::int64_t c = 0; c < columns; ++c) {
          const double score = product_at(a, b, depth, n, r, c);
          squares += score * score;
          const auto place = static_cast<std::size_t>(r * ld + c);
          EXPECT_NEAR(sum[place], 1 + score, 2e-5);
          EXPECT_NEAR(abs[place], 2 + std::fabs(score), 2e-5);
          if (r == rows - 1) {
            EXPECT_NEAR(last[static_cast<std::size_t>(c)], score, 2e-5);
          }
        }
        EXPECT_NEAR(square[2 * r], squares, 1e-5 * squares + 1e-6);
      }
    }
  }
}

TEST_P(Kernels, AddProductsOfWritersUpWithoutWritingThem) {
  for (const std::int64_t rows : {1, 5, 8, 9, 29, 70, 131}) {
    for (const std::int64_t n : {1, 33, 256}) {
      const std::int64_t depth = 19, columns = backend::padded_columns(n), lda = depth + 2;
      const std::vector<float> a = random_floats(static_cast<std::size_t>(rows * lda), 21),
                               b = random_floats(static_cast<std::size_t>(depth * n), 22);
      std::vector<float> panels(static_cast<std::size_t>(depth * columns)),
          scores(static_cast<std::size_t>(rows * columns));
      backend::pack_columns(false, depth, n, b.data(), n, panels.data());
      const auto packed = backend::InPanels<float>::packed(panels.data(), depth);
      std::vector<double> sum(static_cast<std::size_t>(columns), 0.5), abs(sum), sum_alone(sum),
          abs_alone(sum), square(static_cast<std::size_t>(rows), -1.0), square_alone(square);
      kernels->writer_sums({rows, columns, depth, a.data(), lda, packed, sum.data(), abs.data(),
                            square.data(), scores.data()});
      kernels->writer_sums({rows, columns, depth, a.data(), lda, packed, sum_alone.data(),
                            abs_alone.data(), square_alone.data()});
      EXPECT_EQ(sum, sum_alone);
      EXPECT_EQ(abs, abs_alone);
      EXPECT_EQ(square, square_alone);
      std::vector<double> want(sum.size(), 0.5), size(want);
      for (std::int64_t r = 0; r < rows; ++r) {
        double squares = 0;
        for (std::int64_t c = 0; c < columns; ++c) {
          double score = 0;
          for (std::int64_t p = 0; c < n && p < depth; ++p)
            score += static_cast<double>(a[r * lda + p]) * static_cast<double>(b[p * n + c]);
          EXPECT_NEAR(scores[static_cast<std::size_t>(r * columns + c)], score, 5e-5);
          want[static_cast<std::size_t>(c)] += score;
          size[static_cast<std::size_t>(c)] += std::fabs(score);
          squares += score * score;
        }
        EXPECT_NEAR(square[static_cast<std::size_t>(r)], squares,
                    1e-5 * squares + 1e-4 * std::sqrt(squares));
      }
      for (std::size_t c = 0; c < sum.size(); ++c) {
        // What a score of this size is rounded by, and what sums of eight are.
        EXPECT_NEAR(sum[c], want[c], 1e-5 + 1e-6 * size[c]);
        EXPECT_NEAR(abs[c], size[c], 1e-5 + 1e-6 * size[c]);
      }
    }
  }
}

TEST_P(Kernels, MultiplyWithPanelsTheSameWhateverRowsStandBeside) {
  const std::int64_t depth = 21, n = 96, most = 41;
  const std::vector<float> a = random_floats(static_cast<std::size_t>(most * depth), 18),
                           b = random_floats(static_cast<std::size_t>(depth * n), 19),
                           scale = random_floats(static_cast<std::size_t>(most), 20);
  std::vector<float> panels(b.size());
  backend::pack_columns(false, depth, n, b.data(), n, panels.data());
  const auto packed = backend::InPanels<float>::packed(panels.data(), depth);
  const auto plain = backend::InPanels<float>::plain(b.data(), n);
  std::vector<float> alone(static_cast<std::size_t>(most * n));
  for (std::int64_t r = 0; r < most; ++r)
    kernels->packed_product({1, n, depth, a.data() + r * depth, depth, packed, false,
                             alone.data() + r * n, n, backend::kPanelColumns});
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{7}, std::int64_t{12}, most}) {
    std::vector<float> together(static_cast<std::size_t>(rows * n)), scaled(together.size(), 3.0F),
        in_panels(together.size());
    kernels->packed_product({rows, n, depth, a.data(), depth, plain, false, together.data(), n,
                             backend::kPanelColumns});
    kernels->packed_product({rows, n, depth, a.data(), depth, packed, true, scaled.data(), n,
                             backend::kPanelColumns, scale.data()});
    kernels->packed_product({rows, n, depth, a.data(), depth, packed, false, in_panels.data(),
                             backend::kPanelColumns, rows * backend::kPanelColumns});
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < n; ++c) {
        const auto place = static_cast<std::size_t>(r * n + c);
        const double want = product_at(a, b, depth, n, r, c);
        EXPECT_EQ(together[place], alone[place]);
        EXPECT_NEAR(together[place], want, 2e-5);
        EXPECT_NEAR(scaled[place], 3 + static_cast<double>(scale[r]) * want, 5e-5);
        const std::int64_t panel = c / backend::kPanelColumns, column = c % backend::kPanelColumns;
        EXPECT_EQ(in_panels[(panel * rows + r) * backend::kPanelColumns + column], alone[place]);
      }
    }
    // Rows of A and columns of B in two parts of the depth.
    std::vector<float> parts(together.size());
    for (const auto& [from, deep] : {std::pair<std::int64_t, std::int64_t>{0, 8}, {8, 13}})
      kernels->packed_product({rows, n, deep, a.data() + from, depth, packed.from_row(from),
                               from > 0, parts.data(), n, backend::kPanelColumns});
    for (std::size_t i = 0; i < parts.size(); ++i) EXPECT_NEAR(parts[i], together[i], 2e-5);
  }
}

// Rows of a triangle, and of a rectangle.
TEST_P(Kernels, MultiplyTheRowsOfATriangleWhereTheyLie) {
  constexpr std::int64_t kColumns = 64, kBegin = 3;
  for (const std::int64_t rows : {1, 12, 29}) {
    for (const std::int64_t depth : {1, 64, 150}) {
      for (const std::int64_t grow : {0, 1}) {
        const std::int64_t first = kBegin + rows;
        const auto place = [&](std::int64_t p) {
          return p * (first + 1) + grow * (p * (p - 1) / 2) + kBegin;
        };
        const std::vector<float> a = random_floats(static_cast<std::size_t>(place(depth)), 23),
                                 b = random_floats(static_cast<std::size_t>(depth * kColumns), 24);
        std::vector<float> c(static_cast<std::size_t>(rows * kColumns), 2.0F);
        kernels->triangle_product(
            {rows, kColumns, depth, a.data() + kBegin, first + 1, grow, b.data(), c.data()});
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t x = 0; x < kColumns; ++x) {
            double want = 2;
            for (std::int64_t p = 0; p < depth; ++p)
              want +=
                  static_cast<double>(a[place(p) + r]) * static_cast<double>(b[p * kColumns + x]);
            EXPECT_NEAR(c[r * kColumns + x], want, 5e-5);
          }
        }
      }
    }
  }
}

TEST_P(Kernels, MultiplyFewRowsWithTurnedWeightsTheSameWhateverStandsBeside) {
  constexpr std::int64_t kRows = 11, kColumns = 17;
  for (const std::int64_t depth : {1, 16, 37}) {
    for (const std::int64_t parts : {1, 3}) {
      const std::int64_t whole = parts * depth, part = kColumns * depth;
      // Part after part, [parts, columns, depth], as panels of weights lie.
      const std::vector<float> a = random_floats(static_cast<std::size_t>(kRows * whole), 21),
                               b = random_floats(static_cast<std::size_t>(parts * part), 22);
      const auto product = [&](std::int64_t row, std::int64_t rows, std::int64_t column,
                               std::int64_t columns, float* to) {
        kernels->turned_product({rows, columns, depth, a.data() + row * whole, whole,
                                 b.data() + column * depth, depth, false, to, columns, parts,
                                 part});
      };
      std::vector<float> together(kRows * kColumns);
      product(0, kRows, 0, kColumns, together.data());
      for (std::int64_t r = 0; r < kRows; ++r) {
        for (std::int64_t c = 0; c < kColumns; ++c) {
          float alone = 0;
          product(r, 1, c, 1, &alone);
          double want = 0;
          for (std::int64_t i = 0; i < whole; ++i)
            want += static_cast<double>(a[r * whole + i]) *
                    static_cast<double>(b[i / depth * part + c * depth + i % depth]);
          EXPECT_EQ(together[r * kColumns + c], alone);
          EXPECT_NEAR(alone, want, 2e-5);
        }
      }
      std::vector<float> added(together.size(), 3.0F);
      kernels->turned_product({kRows, kColumns, depth, a.data(), whole, b.data(), depth, true,
                               added.data(), kColumns, parts, part});
      for (std::size_t i = 0; i < added.size(); ++i) EXPECT_EQ(added[i], 3.0F + together[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OfThisProcessor, Kernels, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace unpack
