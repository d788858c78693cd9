// A product in single precision for one instruction set: included by own_gemm.cc several times,
// each in a namespace that says kBytes (of a vector), kRows and kVectors (of a tile of C held in
// registers).

using Vector [[gnu::vector_size(kBytes)]] = float;

constexpr Index kLanes = kBytes / 4;
constexpr Index kColumns = kVectors * kLanes;

[[gnu::always_inline]] inline Vector load(const float* from) {
  Vector x;
  __builtin_memcpy(&x, from, kBytes);
  return x;
}

[[gnu::always_inline]] inline void store(Vector x, float* to) { __builtin_memcpy(to, &x, kBytes); }

// C[R, kColumns] (+)= A[R, k] B[k, kColumns]. C may be a scratch tile where n ends within it.
template <int R>
void multiply_tile(Index k, const float* a, Index lda, const float* b, Index ldb, bool accumulate,
                   float* c, Index ldc) {
  Vector sum[R][kVectors] = {};
  for (Index p = 0; p < k; ++p) {
    Vector row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + p * ldb + v * kLanes);
    for (int r = 0; r < R; ++r) {
      const float x = a[r * lda + p];
      for (int v = 0; v < kVectors; ++v) sum[r][v] += x * row[v];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      float* out = c + r * ldc + v * kLanes;
      store(accumulate ? load(out) + sum[r][v] : sum[r][v], out);
    }
  }
}

template <int R>
void multiply_rows(Index rows, Index k, const float* a, Index lda, const float* b, Index ldb,
                   bool accumulate, float* c, Index ldc) {
  if (rows == R) {
    multiply_tile<R>(k, a, lda, b, ldb, accumulate, c, ldc);
  } else if constexpr (R > 1) {
    multiply_rows<R - 1>(rows, k, a, lda, b, ldb, accumulate, c, ldc);
  }
}

// The same for at most kRows rows and any number of columns up to kColumns.
void multiply_any(Index rows, Index columns, Index k, const float* a, Index lda, const float* b,
                  Index ldb, bool accumulate, float* c, Index ldc) {
  if (columns == kColumns) {
    multiply_rows<kRows>(rows, k, a, lda, b, ldb, accumulate, c, ldc);
    return;
  }
  float scratch[kRows * kColumns];
  multiply_rows<kRows>(rows, k, a, lda, b, ldb, false, scratch, kColumns);
  for (Index r = 0; r < rows; ++r) {
    for (Index j = 0; j < columns; ++j) {
      float& out = c[r * ldc + j];
      out = accumulate ? out + scratch[r * kColumns + j] : scratch[r * kColumns + j];
    }
  }
}

// C[R, N] (+)= A[R, k] B[N, k]^T, by inner products along k.
template <int R, int N>
void inner_products(Index k, const float* a, Index lda, const float* b, Index ldb, bool accumulate,
                    float* c, Index ldc) {
  Vector sum[R][N] = {};
  Index p = 0;
  for (; p + kLanes <= k; p += kLanes) {
    Vector column[N];
    for (int j = 0; j < N; ++j) column[j] = load(b + j * ldb + p);
    for (int r = 0; r < R; ++r) {
      const Vector x = load(a + r * lda + p);
      for (int j = 0; j < N; ++j) sum[r][j] += x * column[j];
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < N; ++j) {
      float total = 0;
      for (Index rest = p; rest < k; ++rest) total += a[r * lda + rest] * b[j * ldb + rest];
      for (Index lane = 0; lane < kLanes; ++lane) total += sum[r][j][lane];
      float& out = c[r * ldc + j];
      out = accumulate ? out + total : total;
    }
  }
}

// Few rows and B transposed: its rows are read once, as they lie.
void multiply_few_transposed(Index m, Index n, Index k, const float* a, Index lda, const float* b,
                             Index ldb, bool accumulate, float* c, Index ldc) {
  Index j = 0;
  const auto columns = [&](auto width) {
    constexpr int kWidth = decltype(width)::value;
    for (; j + kWidth <= n; j += kWidth) {
      Index r = 0;
      for (; r + 2 <= m; r += 2)
        inner_products<2, kWidth>(k, a + r * lda, lda, b + j * ldb, ldb, accumulate,
                                  c + r * ldc + j, ldc);
      if (r < m)
        inner_products<1, kWidth>(k, a + r * lda, lda, b + j * ldb, ldb, accumulate,
                                  c + r * ldc + j, ldc);
    }
  };
  columns(std::integral_constant<int, 4>{});
  columns(std::integral_constant<int, 1>{});
}

// B's columns [j, j + columns) of k rows as a panel [k, kColumns], with zeros behind them.
void pack_panel(bool transposed, Index columns, Index k, const float* b, Index ldb, float* panel) {
  if (columns < kColumns) std::fill(panel, panel + k * kColumns, 0.0F);
  if (!transposed) {
    for (Index p = 0; p < k; ++p)
      std::copy(b + p * ldb, b + p * ldb + columns, panel + p * kColumns);
    return;
  }
  Index j = 0;
  for (; j + 4 <= columns; j += 4) {
    const float* rows = b + j * ldb;
    Index p = 0;
    for (; p + 4 <= k; p += 4) transpose_four(rows + p, ldb, panel + p * kColumns + j, kColumns);
    for (; p < k; ++p) {
      for (Index i = 0; i < 4; ++i) panel[p * kColumns + j + i] = rows[i * ldb + p];
    }
  }
  for (; j < columns; ++j) {
    for (Index p = 0; p < k; ++p) panel[p * kColumns + j] = b[j * ldb + p];
  }
}

void gemm(bool b_transposed, Index m, Index n, Index k, const float* a, Index lda, const float* b,
          Index ldb, bool accumulate, float* c, Index ldc) {
  // Where every value of B serves few rows, bringing B into panels would be most of the work.
  if (m <= 2 && b_transposed) {
    multiply_few_transposed(m, n, k, a, lda, b, ldb, accumulate, c, ldc);
    return;
  }
  const bool direct = m <= kRows && !b_transposed;
  base::Scratch scratch;
  const Index block_n = std::min(kBlockN / kColumns * kColumns, n);
  const Index padded = (block_n + kColumns - 1) / kColumns * kColumns;
  auto* panels = scratch.of<float>(std::min(kBlockK, k) * (direct ? kColumns : padded));
  for (Index j0 = 0; j0 < n; j0 += block_n) {
    const Index columns = std::min(block_n, n - j0);
    for (Index p0 = 0; p0 < k; p0 += kBlockK) {
      const Index depth = std::min(kBlockK, k - p0);
      const bool add = accumulate || p0 > 0;
      const auto corner = [&](Index j) {
        return b_transposed ? b + (j0 + j) * ldb + p0 : b + p0 * ldb + j0 + j;
      };
      if (!direct) {
        for (Index j = 0; j < columns; j += kColumns)
          pack_panel(b_transposed, std::min(kColumns, columns - j), depth, corner(j), ldb,
                     panels + j * depth);
      }
      for (Index i0 = 0; i0 < m; i0 += kBlockM) {
        const Index rows = std::min(kBlockM, m - i0);
        for (Index j = 0; j < columns; j += kColumns) {
          const Index width = std::min(kColumns, columns - j);
          const float* panel = direct ? corner(j) : panels + j * depth;
          Index stride = direct ? ldb : kColumns;
          if (direct && width < kColumns) {  // the last columns: nothing behind them may be read
            pack_panel(false, width, depth, panel, ldb, panels);
            panel = panels;
            stride = kColumns;
          }
          for (Index i = 0; i < rows; i += kRows)
            multiply_any(std::min<Index>(kRows, rows - i), width, depth, a + (i0 + i) * lda + p0,
                         lda, panel, stride, add, c + (i0 + i) * ldc + j0 + j, ldc);
        }
      }
    }
  }
}
