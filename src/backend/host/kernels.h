// Inner loops of the host backends. The float versions are compiled for AVX-512, AVX2 and any
// processor, and chosen at run time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/index.h"
#include "unpack/config.h"

namespace unpack::backend {

template <typename T>
void axpy(Index n, T scale, const T* x, T* y);  // y += scale x
template <typename T>
T dot(Index n, const T* x, const T* y);
template <typename T>
void softmax_row(T* row, Index n, T scale);  // row = softmax(scale * row)
template <typename T>
void activate_run(Activation activation, const T* in, T* out, Index n);
double activate_one(Activation activation, double x);

// tile[rows, n] of scores, a row a writer: sum[c] += tile[r, c], abs[c] += |tile[r, c]|, square[r]
// += sum_c tile[r, c]^2. In double.
template <typename T>
void reduce_writers(const T* tile, Index rows, Index n, Index ld, double* sum, double* abs,
                    double* square);

// Sum and absolute sum of a row, in double.
template <typename T>
void row_sums(const T* row, Index n, double& sum, double& abs);

// rows[n, c]: the sum and the absolute sum of every row; where column is given, column[j] +=
// rows[r, j] and square[j] += rows[r, j]^2.
template <typename T>
void reduce_rows(const T* rows, Index n, Index c, T* sums, T* abs, double* column, double* square);

// rows[n, c] in double: sum[j] += rows[r, j], and rows[r, j] -= shift[j].
template <typename T>
void add_columns(const T* rows, Index n, Index c, double* sum);
template <typename T>
void subtract_columns(T* rows, Index n, Index c, const double* shift);

// out[c]: the lower median over the rows of every column of rows[n, c].
template <typename T>
void column_medians(const T* rows, Index n, Index c, T* out);

// out[i] = floored_inverse(sum[i], abs[i], beta, floor), in double.
template <typename T>
void floored_inverses(const T* sum, const T* abs, Index n, double beta, double floor, double* out);

// The right side of a product in panels of so many columns, [panel][depth][kPanelColumns].
inline constexpr Index kPanelColumns = 32;
inline Index padded_columns(Index n) {
  return (n + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}
// B[depth, n] with rows ld apart (transposed: [n, depth]) as such panels, zeros behind the last
// column; to[depth * padded_columns(n)].
template <typename T>
void pack_columns(bool transposed, Index depth, Index n, const T* b, Index ld, T* to);

// A right side as products take it: panels of kPanelColumns columns, whose rows are ld apart and
// which are `panel` apart themselves.
template <typename T>
struct InPanels {
  const T* data;
  Index ld, panel;

  // As pack_columns makes it, and as a matrix lies whose columns fill panels.
  static InPanels packed(const T* b, Index depth) {
    return {b, kPanelColumns, depth * kPanelColumns};
  }
  static InPanels plain(const T* b, Index ld) { return {b, ld, kPanelColumns}; }
  const T* at(Index column) const {
    return data + column / kPanelColumns * panel + column % kPanelColumns;
  }
  InPanels from_row(Index row) const { return {data + row * ld, ld, panel}; }
  InPanels from_panel(Index i) const { return {data + i * panel, ld, panel}; }
};

// C[rows, columns] = scale A[rows, depth] B (+ C): C's panels are c_panel apart, their rows ldc. A
// row of C has the same bits whatever rows stand beside it.
template <typename T>
struct PackedProduct {
  Index rows, columns, depth;  // columns: a multiple of kPanelColumns
  const T* a;
  Index lda;
  InPanels<T> b;
  bool accumulate;
  T* c;
  Index ldc, c_panel;
  const T* scale = nullptr;  // [rows]
};
template <typename T>
void packed_product(const PackedProduct<T>& product);

// C[rows, columns] = A B[columns, depth]^T (+ C), for few rows: nothing is packed, and what is
// added up stays in registers. The depth comes in `parts` of so many values, one after the other in
// a row of A and b_part apart in B. A place of C has the same bits whatever stands beside it.
struct TurnedProduct {
  Index rows, columns, depth;
  const float* a;
  Index lda;
  const float* b;
  Index ldb;
  bool accumulate;
  float* c;
  Index ldc;
  Index parts = 1, b_part = 0;
};
void turned_product(const TurnedProduct& product);

// C = A[rows, depth] B, of which only sums are kept: over the rows, of every column C and |C| are
// added to sum and abs. Where `origin` is given, so are those of weight (C - origin) and its square
// for every place, to first and second [rows, ld]. Where `scores` is given, C goes there, too.
template <typename T>
struct PairProduct {
  Index rows, columns, depth;  // columns: a multiple of kPanelColumns
  const T* a;
  Index lda;
  const T* b;
  double* sum;
  double* abs;
  const T* weight = nullptr;  // [columns]
  const T* origin = nullptr;  // [rows, ld]
  T* first = nullptr;
  T* second = nullptr;
  Index ld = 0;
  T* scores = nullptr;  // [rows, ld]
  // Where it is given, the sums of ReachProduct on the way.
  const T* mass = nullptr;   // [rows]
  const T* bound = nullptr;  // [rows]
  double* reach = nullptr;   // [columns]
  T* most = nullptr;         // [columns]
};
template <typename T>
void pair_sums(const PairProduct<T>& product);

// to[c][r] = from[r, c], from[rows, ld].
void turn_rows(const float* from, Index ld, Index rows, Index columns, float* const* to);

// C = A[rows, depth] B: over the rows, of every column |C| mass is added to sum, and the largest
// |C| bound goes to most.
struct ReachProduct {
  Index rows, columns, depth;
  const float* a;
  Index lda;
  const float* b;
  const float* mass;   // [rows]
  const float* bound;  // [rows]
  double* sum;         // [columns]
  float* most;         // [columns]
};
void reach_sums(const ReachProduct& product);

// C = (A[rows, depth] B - offset) factor, over the columns from begin on: of every row |C| is added
// to sum, and the largest |C| bound goes to most. Columns before begin that share a tile with it
// are taken along: their factor must be 0, as behind the end.
struct EdgeProduct {
  Index rows, begin, end, depth;
  const float* a;
  Index lda;
  const float* b;
  const float* factor;  // [columns]
  const float* bound;   // [columns]
  const float* offset;  // [rows, ld], or none
  Index ld;
  double* sum;  // [rows]
  float* most;  // [rows]
};
void edge_sums(const EdgeProduct& product);

// C[rows, columns] += A[depth, rows]^T B[depth, columns], where row p of A lies step + (p - 1) grow
// behind the one before it, as the rows of a triangle do.
struct TriangleProduct {
  Index rows, columns, depth;  // columns: a multiple of kPanelColumns, of which C's rows are made
  const float* a;
  Index step, grow;
  const float* b;
  float* c;
};
void triangle_product(const TriangleProduct& product);

// C = A[rows, depth] B: C and |C| are added to sum and abs [rows, ld], and square[row * square_ld]
// becomes the sum of the row's squares. Where `last` is given, the last row of C goes there.
template <typename T>
struct HeadProduct {
  Index rows, columns, depth;
  const T* a;
  Index lda;
  InPanels<T> b;
  T* sum;
  T* abs;
  Index ld;
  double* square;
  Index square_ld;
  T* last = nullptr;  // [columns]
};
template <typename T>
void head_sums(const HeadProduct<T>& product);

// C = A[rows, depth] B: over the rows, of every column C and |C| are added to sum and abs; of every
// row the squares go to square. Where `scores` is given, C goes there, too.
struct WriterProduct {
  Index rows, columns, depth;  // columns: a multiple of kPanelColumns
  const float* a;
  Index lda;
  InPanels<float> b;
  double* sum;              // [columns]
  double* abs;              // [columns]
  double* square;           // [rows]
  float* scores = nullptr;  // [rows, columns]
};
void writer_sums(const WriterProduct& product);

// The single-precision loops for one instruction set; what each does is said above.
struct FloatKernels {
  void (*reduce)(const float* tile, Index rows, Index n, Index ld, double* sum, double* abs,
                 double* square);
  void (*row_sums)(const float* row, Index n, double& sum, double& abs);
  void (*reduce_rows)(const float* rows, Index n, Index c, float* sums, float* abs, double* column,
                      double* square);
  void (*gelu_erf)(const float* in, float* out, Index n);
  void (*gelu_tanh)(const float* in, float* out, Index n);
  void (*silu)(const float* in, float* out, Index n);
  void (*softmax)(float* row, Index n, float scale);
  void (*axpy)(Index n, float scale, const float* x, float* y);
  float (*dot)(Index n, const float* x, const float* y);
  void (*add_columns)(const float* rows, Index n, Index c, double* sum);
  void (*subtract_columns)(float* rows, Index n, Index c, const double* shift);
  void (*column_medians)(const float* rows, Index n, Index c, float* out);
  void (*pair_sums)(const PairProduct<float>& product);
  void (*head_sums)(const HeadProduct<float>& product);
  void (*reach_sums)(const ReachProduct& product);
  void (*edge_sums)(const EdgeProduct& product);
  void (*writer_sums)(const WriterProduct& product);
  void (*packed_product)(const PackedProduct<float>& product);
  void (*turn_rows)(const float* from, Index ld, Index rows, Index columns, float* const* to);
  void (*floored_inverses)(const float* sum, const float* abs, Index n, double beta, double floor,
                           double* out);
  void (*turned_product)(const TurnedProduct& product);
  void (*triangle_product)(const TriangleProduct& product);
};
// Those that this processor can run, the fastest first: "avx512", "avx2", "portable"; "neon".
std::vector<std::pair<std::string, const FloatKernels*>> float_kernels();
std::string kernel_name();  // of the fastest

}  // namespace unpack::backend
