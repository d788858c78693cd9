#include "backend/host/kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/host/levels.h"
#include "base/formulas.h"
#include "base/index.h"
#include "unpack/error.h"

namespace unpack::backend {

namespace {

constexpr double kSqrt2OverPi = 0.79788456080286535588;

namespace portable {
constexpr int kVectorBytes = 16;
constexpr int kTileRows = 4;
constexpr int kDeepRows = 4;
constexpr int kTurnedRows = 3;
constexpr int kTurnedColumns = 3;
#include "backend/host/float_kernels.inl"
}  // namespace portable

#if UNPACK_LEVELS
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace avx2 {
constexpr int kVectorBytes = 32;
constexpr int kTileRows = 6;  // 12 of 16 registers hold sums
constexpr int kDeepRows = 6;
constexpr int kTurnedRows = 3;
constexpr int kTurnedColumns = 3;
#include "backend/host/float_kernels.inl"
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
namespace avx512 {
constexpr int kVectorBytes = 64;
constexpr int kTileRows = 12;  // 24 of 32
// Of products whose rows lie far apart: as many of them as there are registers for their addresses.
constexpr int kDeepRows = 8;
constexpr int kTurnedRows = 4;
constexpr int kTurnedColumns = 6;
#include "backend/host/float_kernels.inl"
}  // namespace avx512
#pragma GCC pop_options
#endif

const FloatKernels& best() {
  static const FloatKernels& kernels = *float_kernels().front().second;
  return kernels;
}

}  // namespace

std::vector<std::pair<std::string, const FloatKernels*>> float_kernels() {
  std::vector<std::pair<std::string, const FloatKernels*>> out;
#if UNPACK_LEVELS
  if (__builtin_cpu_supports("x86-64-v4")) out.emplace_back("avx512", &avx512::kKernels);
  if (__builtin_cpu_supports("x86-64-v3")) out.emplace_back("avx2", &avx2::kKernels);
#endif
#if defined(__aarch64__)
  out.emplace_back("neon", &portable::kKernels);  // which every such processor has
#else
  out.emplace_back("portable", &portable::kKernels);
#endif
  return out;
}

std::string kernel_name() { return float_kernels().front().first; }

template <>
void reduce_writers<float>(const float* tile, Index rows, Index n, Index ld, double* sum,
                           double* abs, double* square) {
  best().reduce(tile, rows, n, ld, sum, abs, square);
}

template <>
void reduce_writers<double>(const double* tile, Index rows, Index n, Index ld, double* sum,
                            double* abs, double* square) {
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < n; ++c) {
      const double x = tile[r * ld + c];
      sum[c] += x;
      abs[c] += std::fabs(x);
      square[r] += x * x;
    }
  }
}

template <>
void row_sums<float>(const float* row, Index n, double& sum, double& abs) {
  best().row_sums(row, n, sum, abs);
}

template <>
void row_sums<double>(const double* row, Index n, double& sum, double& abs) {
  sum = 0;
  abs = 0;
  for (Index i = 0; i < n; ++i) {
    sum += row[i];
    abs += std::fabs(row[i]);
  }
}

template <>
void reduce_rows<float>(const float* rows, Index n, Index c, float* sums, float* abs,
                        double* column, double* square) {
  best().reduce_rows(rows, n, c, sums, abs, column, square);
}

template <>
void reduce_rows<double>(const double* rows, Index n, Index c, double* sums, double* abs,
                         double* column, double* square) {
  for (Index r = 0; r < n; ++r) {
    row_sums(rows + r * c, c, sums[r], abs[r]);
    for (Index j = 0; column && j < c; ++j) {
      column[j] += rows[r * c + j];
      square[j] += rows[r * c + j] * rows[r * c + j];
    }
  }
}

template <>
void axpy<float>(Index n, float scale, const float* x, float* y) {
  best().axpy(n, scale, x, y);
}

template <>
void axpy<double>(Index n, double scale, const double* x, double* y) {
  for (Index i = 0; i < n; ++i) y[i] += scale * x[i];
}

template <>
float dot<float>(Index n, const float* x, const float* y) {
  return best().dot(n, x, y);
}

template <>
double dot<double>(Index n, const double* x, const double* y) {
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

template <>
void add_columns<float>(const float* rows, Index n, Index c, double* sum) {
  best().add_columns(rows, n, c, sum);
}

template <>
void add_columns<double>(const double* rows, Index n, Index c, double* sum) {
  for (Index i = 0; i < n * c; ++i) sum[i % c] += rows[i];
}

template <>
void subtract_columns<float>(float* rows, Index n, Index c, const double* shift) {
  best().subtract_columns(rows, n, c, shift);
}

template <>
void subtract_columns<double>(double* rows, Index n, Index c, const double* shift) {
  for (Index i = 0; i < n * c; ++i) rows[i] -= shift[i % c];
}

template <>
void column_medians<float>(const float* rows, Index n, Index c, float* out) {
  best().column_medians(rows, n, c, out);
}

template <>
void column_medians<double>(const double* rows, Index n, Index c, double* out) {
  std::vector<double> column(n);
  const auto middle = column.begin() + (n - 1) / 2;
  for (Index j = 0; j < c; ++j) {
    for (Index r = 0; r < n; ++r) column[r] = rows[r * c + j];
    std::nth_element(column.begin(), middle, column.end());
    out[j] = *middle;
  }
}

template <>
void pair_sums<float>(const PairProduct<float>& product) {
  best().pair_sums(product);
}

template <>
void head_sums<float>(const HeadProduct<float>& product) {
  best().head_sums(product);
}

template <>
void packed_product<float>(const PackedProduct<float>& product) {
  best().packed_product(product);
}

void reach_sums(const ReachProduct& product) { best().reach_sums(product); }

void edge_sums(const EdgeProduct& product) { best().edge_sums(product); }

void writer_sums(const WriterProduct& product) { best().writer_sums(product); }
void turned_product(const TurnedProduct& product) { best().turned_product(product); }
void triangle_product(const TriangleProduct& product) { best().triangle_product(product); }

void turn_rows(const float* from, Index ld, Index rows, Index columns, float* const* to) {
  best().turn_rows(from, ld, rows, columns, to);
}

template <>
void floored_inverses<float>(const float* sum, const float* abs, Index n, double beta, double floor,
                             double* out) {
  best().floored_inverses(sum, abs, n, beta, floor, out);
}

template <>
void floored_inverses<double>(const double* sum, const double* abs, Index n, double beta,
                              double floor, double* out) {
  for (Index i = 0; i < n; ++i) out[i] = base::floored_inverse(sum[i], abs[i], beta, floor);
}

namespace {

// An element of A times B in panels.
double element(const double* a, const InPanels<double>& b, Index depth, Index column) {
  const double* panel = b.at(column);
  double sum = 0;
  for (Index p = 0; p < depth; ++p) sum += a[p] * panel[p * b.ld];
  return sum;
}

}  // namespace

template <>
void pair_sums<double>(const PairProduct<double>& x) {
  for (Index r = 0; r < x.rows; ++r) {
    for (Index c = 0; c < x.columns; ++c) {
      const double score =
          element(x.a + r * x.lda, InPanels<double>::packed(x.b, x.depth), x.depth, c);
      x.sum[c] += score;
      x.abs[c] += std::fabs(score);
      if (x.scores != nullptr) x.scores[r * x.ld + c] = score;
      if (x.mass != nullptr) {
        x.reach[c] += std::fabs(score) * x.mass[r];
        x.most[c] = std::max(x.most[c], std::fabs(score) * x.bound[r]);
      }
      if (x.origin == nullptr) continue;
      const double away = (score - x.origin[r * x.ld + c]) * x.weight[c];
      x.first[r * x.ld + c] += away;
      x.second[r * x.ld + c] += away * away;
    }
  }
}

template <>
void head_sums<double>(const HeadProduct<double>& x) {
  for (Index r = 0; r < x.rows; ++r) {
    double square = 0;
    for (Index c = 0; c < x.columns; ++c) {
      const double score = element(x.a + r * x.lda, x.b, x.depth, c);
      x.sum[r * x.ld + c] += score;
      x.abs[r * x.ld + c] += std::fabs(score);
      square += score * score;
      if (x.last != nullptr && r == x.rows - 1) x.last[c] = score;
    }
    x.square[r * x.square_ld] = square;
  }
}

template <>
void packed_product<double>(const PackedProduct<double>& x) {
  for (Index r = 0; r < x.rows; ++r) {
    for (Index c = 0; c < x.columns; ++c) {
      double made = element(x.a + r * x.lda, x.b, x.depth, c);
      if (x.scale != nullptr) made *= x.scale[r];
      double& to = x.c[c / kPanelColumns * x.c_panel + r * x.ldc + c % kPanelColumns];
      to = x.accumulate ? to + made : made;
    }
  }
}

template <typename T>
void pack_columns(bool transposed, Index depth, Index n, const T* b, Index ld, T* to) {
  for (Index first = 0; first < n; first += kPanelColumns, to += depth * kPanelColumns) {
    const Index columns = std::min(kPanelColumns, n - first);
    if (columns < kPanelColumns) std::fill_n(to, depth * kPanelColumns, T(0));
    for (Index p = 0; p < depth; ++p) {
      if (!transposed) {
        std::copy_n(b + p * ld + first, columns, to + p * kPanelColumns);
        continue;
      }
      for (Index c = 0; c < columns; ++c) to[p * kPanelColumns + c] = b[(first + c) * ld + p];
    }
  }
}

template void pack_columns<float>(bool, Index, Index, const float*, Index, float*);
template void pack_columns<double>(bool, Index, Index, const double*, Index, double*);

template <typename T>
void softmax_row(T* row, Index n, T scale) {
  if constexpr (sizeof(T) == 4) {
    best().softmax(row, n, scale);
    return;
  }
  T largest = row[0];
  for (Index i = 1; i < n; ++i) largest = std::max(largest, row[i]);
  double sum = 0;
  for (Index i = 0; i < n; ++i) {
    row[i] = std::exp((row[i] - largest) * scale);
    sum += row[i];
  }
  const T inverse = 1.0 / sum;
  for (Index i = 0; i < n; ++i) row[i] *= inverse;
}

template <typename T>
void activate_run(Activation activation, const T* in, T* out, Index n) {
  switch (activation) {
    case Activation::gelu_erf:
      if constexpr (sizeof(T) == 4) {
        best().gelu_erf(in, out, n);
        return;
      }
      std::transform(in, in + n, out, base::gelu_erf<T>);
      return;
    case Activation::gelu_tanh:
      if constexpr (sizeof(T) == 4) {
        best().gelu_tanh(in, out, n);
        return;
      }
      std::transform(in, in + n, out, base::gelu_tanh<T>);
      return;
    case Activation::relu:
      std::transform(in, in + n, out, base::relu<T>);
      return;
    case Activation::silu:
      if constexpr (sizeof(T) == 4) {
        best().silu(in, out, n);
        return;
      }
      std::transform(in, in + n, out, base::silu<T>);
      return;
    case Activation::clamped_swiglu:
      throw InternalError("[activate_run] clamped_swiglu takes gate and up together");
  }
}

double activate_one(Activation activation, double x) {
  double y = 0;
  activate_run(activation, &x, &y, 1);
  return y;
}

template void softmax_row<float>(float*, Index, float);
template void softmax_row<double>(double*, Index, double);
template void activate_run<float>(Activation, const float*, float*, Index);
template void activate_run<double>(Activation, const double*, double*, Index);

}  // namespace unpack::backend
