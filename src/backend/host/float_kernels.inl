// The inner loops in single precision, once for every instruction set: included by kernels.cc
// several times, each in a namespace of its own.

// Writers are added up in single precision eight at a time, then in double: the rounding of eight
// terms is all that is lost.
void reduce_float(const float* tile, Index rows, Index n, Index ld, double* sum, double* abs,
                  double* square) {
  constexpr Index kGroup = 8;
  for (Index r = 0; r < rows; r += kGroup) {
    const Index group = std::min(kGroup, rows - r);
    if (group == kGroup) {
      const float* p = tile + r * ld;
      for (Index c = 0; c < n; ++c) {
        const float a0 = p[c], a1 = p[c + ld], a2 = p[c + 2 * ld], a3 = p[c + 3 * ld];
        const float a4 = p[c + 4 * ld], a5 = p[c + 5 * ld], a6 = p[c + 6 * ld], a7 = p[c + 7 * ld];
        sum[c] += ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7));
        abs[c] += ((std::fabs(a0) + std::fabs(a1)) + (std::fabs(a2) + std::fabs(a3))) +
                  ((std::fabs(a4) + std::fabs(a5)) + (std::fabs(a6) + std::fabs(a7)));
      }
    } else {
      for (Index i = 0; i < group; ++i) {
        const float* p = tile + (r + i) * ld;
        for (Index c = 0; c < n; ++c) {
          sum[c] += p[c];
          abs[c] += std::fabs(p[c]);
        }
      }
    }
    for (Index i = 0; i < group; ++i) {
      const float* p = tile + (r + i) * ld;
      float lanes[16] = {};
      Index c = 0;
      for (; c + 16 <= n; c += 16) {
        for (int j = 0; j < 16; ++j) lanes[j] += p[c + j] * p[c + j];
      }
      double total = 0;
      for (; c < n; ++c) total += p[c] * static_cast<double>(p[c]);
      for (const float lane : lanes) total += lane;
      square[r + i] += total;
    }
  }
}

void row_sums_float(const float* row, Index n, double& sum, double& abs) {
  double s[8] = {};
  double a[8] = {};
  Index i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) {
      s[j] += row[i + j];
      a[j] += std::fabs(row[i + j]);
    }
  }
  sum = 0;
  abs = 0;
  for (; i < n; ++i) {
    sum += row[i];
    abs += std::fabs(row[i]);
  }
  for (int j = 0; j < 8; ++j) {
    sum += s[j];
    abs += a[j];
  }
}

// Every row's sum and absolute sum; and over the rows, every column's sum and sum of squares. Runs
// of eight are added in single precision.
void reduce_rows_float(const float* rows, Index n, Index c, float* sums, float* abs, double* column,
                       double* square) {
  constexpr Index kRun = 64;
  for (Index r = 0; r < n; ++r) {
    const float* row = rows + r * c;
    double s[8] = {};
    double a[8] = {};
    Index i = 0;
    for (; i + kRun <= c; i += kRun) {
      float fs[8] = {};
      float fa[8] = {};
      for (Index k = 0; k < kRun; k += 8) {
        for (int j = 0; j < 8; ++j) {
          fs[j] += row[i + k + j];
          fa[j] += std::fabs(row[i + k + j]);
        }
      }
      for (int j = 0; j < 8; ++j) {
        s[j] += fs[j];
        a[j] += fa[j];
      }
    }
    for (; i + 8 <= c; i += 8) {
      for (int j = 0; j < 8; ++j) {
        s[j] += row[i + j];
        a[j] += std::fabs(row[i + j]);
      }
    }
    double sum = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
    double size = ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]));
    for (; i < c; ++i) {
      sum += row[i];
      size += std::fabs(row[i]);
    }
    sums[r] = sum;
    abs[r] = size;
    if (!column) continue;
    for (Index j = 0; j < c; ++j) {
      const double x = row[j];
      column[j] += x;
      square[j] += x * x;
    }
  }
}

// e^x to about one unit in the last place, without a branch or a call, so that the loops around it
// are vectorised.
[[gnu::always_inline]] inline float exp_inline(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: what is added to it is rounded to an
                                         // integer, which its last bits then hold
  const float rounded = x * 1.44269504088896F + kRound;
  const float n = rounded - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r * r + r + 1.0F;
  const std::int32_t power =
      (__builtin_bit_cast(std::int32_t, rounded) - __builtin_bit_cast(std::int32_t, kRound)) *
      (1 << 23);
  return __builtin_bit_cast(float, __builtin_bit_cast(std::int32_t, p) + power);
}

void silu_float(const float* in, float* out, Index n) {
  for (Index i = 0; i < n; ++i) out[i] = in[i] / (1.0F + exp_inline(-in[i]));
}

// (1 + tanh u) / 2 = 1 / (1 + e^(-2u)), which keeps its digits where the tanh is near -1.
void gelu_tanh_float(const float* in, float* out, Index n) {
  constexpr float kScale = -2 * kSqrt2OverPi;
  for (Index i = 0; i < n; ++i) {
    const float x = in[i];
    out[i] = x / (1.0F + exp_inline(kScale * (x + 0.044715F * x * x * x)));
  }
}

// The normal distribution's tail at |x| is e^(-x^2/2) / 2 times a function of 1 / (1 + 0.37 |x| /
// sqrt 2) that a polynomial meets to 2e-8 of its value (least squares, reweighted until the largest
// error is smallest).
void gelu_erf_float(const float* in, float* out, Index n) {
  for (Index i = 0; i < n; ++i) {
    const float x = in[i];
    const float z = std::fabs(x);
    const float t = 1.0F / (1.0F + static_cast<float>(0.37 * 0.70710678118654752440) * z);
    float p = 0.06192673067569479F;
    p = p * t - 0.3032900660279246F;
    p = p * t + 0.48687563748046375F;
    p = p * t - 0.28534880788980027F;
    p = p * t + 0.31082627529546564F;
    p = p * t + 0.10651052076713248F;
    p = p * t + 0.2062564088810365F;
    p = p * t + 0.20742952199826903F;
    p = p * t + 0.20881376177567823F;
    const float tail = 0.5F * p * t * exp_inline(-0.5F * z * z);
    out[i] = x * (x > 0 ? 1.0F - tail : tail);
  }
}

void softmax_float(float* row, Index n, float scale) {
  float largest = row[0];
  for (Index i = 1; i < n; ++i) largest = std::max(largest, row[i]);
  for (Index i = 0; i < n; ++i) row[i] = exp_inline((row[i] - largest) * scale);
  double sum = 0;
  for (Index i = 0; i < n; ++i) sum += row[i];
  const float inverse = 1.0 / sum;
  for (Index i = 0; i < n; ++i) row[i] *= inverse;
}

void axpy_float(Index n, float scale, const float* x, float* y) {
  for (Index i = 0; i < n; ++i) y[i] += scale * x[i];
}

void add_columns_float(const float* rows, Index n, Index c, double* sum) {
  for (Index r = 0; r < n; ++r) {
    for (Index j = 0; j < c; ++j) sum[j] += rows[r * c + j];
  }
}

void subtract_columns_float(float* rows, Index n, Index c, const double* shift) {
  for (Index r = 0; r < n; ++r) {
    for (Index j = 0; j < c; ++j) rows[r * c + j] = rows[r * c + j] - shift[j];
  }
}

Index count_upto_float(const float* x, Index n, float limit) {
  constexpr int kLanes = 16;
  std::int32_t lanes[kLanes] = {};
  Index i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes[j] += x[i + j] <= limit ? 1 : 0;
  }
  Index count = 0;
  for (; i < n; ++i) count += x[i] <= limit ? 1 : 0;
  for (const std::int32_t lane : lanes) count += lane;
  return count;
}

// The value that `wanted` others come before. It lies in (low, high], of which more and more is cut
// off by guesses a little below and above it; the few values that are left are sorted out.
float ordered_float(const float* x, Index n, Index wanted, float* left) {
  constexpr Index kFew = 24;
  constexpr int kGuesses = 8;
  float sum = 0, size = 0;
  for (Index i = 0; i < n; ++i) {
    sum += x[i];
    size += std::fabs(x[i]);
  }
  const float step = size / n;
  float low = -std::numeric_limits<float>::infinity(), high = -low;
  Index under = 0, upto = n;  // values <= low, <= high
  float guess = sum / n;
  for (int i = 0; i < kGuesses && upto - under > kFew; ++i) {
    if (!(guess > low && guess < high)) break;
    const Index count = count_upto_float(x, n, guess);
    if (count > wanted) {
      high = guess;
      upto = count;
    } else {
      low = guess;
      under = count;
    }
    if (under == 0 && low < -std::numeric_limits<float>::max()) {
      guess = high - step;
    } else if (high > std::numeric_limits<float>::max()) {
      guess = low + step;
    } else {
      const float rank = (wanted - under) + (i % 2 == 0 ? 5.5F : -4.5F);
      const float part = rank / (upto - under);
      guess = low + (high - low) * (part < 0.05F ? 0.05F : part > 0.95F ? 0.95F : part);
    }
  }
  Index kept = 0;
  for (Index i = 0; i < n; ++i) {
    left[kept] = x[i];
    kept += x[i] > low && x[i] <= high ? 1 : 0;
  }
  if (kept <= wanted - under) return x[0];  // not a number among them
  std::nth_element(left, left + (wanted - under), left + kept);
  return left[wanted - under];
}

void column_medians_float(const float* rows, Index n, Index c, float* out) {
  constexpr Index kColumns = 16;
  std::vector<float> columns((kColumns + 1) * n + 1);
  for (Index first = 0; first < c; first += kColumns) {
    const Index count = std::min(kColumns, c - first);
    for (Index r = 0; r < n; ++r) {
      for (Index j = 0; j < count; ++j) columns[j * n + r] = rows[r * c + first + j];
    }
    for (Index j = 0; j < count; ++j)
      out[first + j] =
          ordered_float(columns.data() + j * n, n, (n - 1) / 2, columns.data() + kColumns * n);
  }
}

// Products and their sums
// -------------------------------------------------------------------------------------------------

using Lanes [[gnu::vector_size(kVectorBytes)]] = float;
using LaneBits [[gnu::vector_size(kVectorBytes)]] = std::int32_t;
constexpr Index kLaneCount = kVectorBytes / 4;
constexpr int kTileVectors = 2;
constexpr Index kTileColumns = kTileVectors * kLaneCount;

[[gnu::always_inline]] inline Lanes load_lanes(const float* from) {
  Lanes x;
  __builtin_memcpy(&x, from, kVectorBytes);
  return x;
}

[[gnu::always_inline]] inline void store_lanes(Lanes x, float* to) {
  __builtin_memcpy(to, &x, kVectorBytes);
}

// to[i] += x[i], in double.
[[gnu::always_inline]] inline void add_lanes(Lanes x, double* to) {
  using Half [[gnu::vector_size(kVectorBytes / 2)]] = float;
  using Doubles [[gnu::vector_size(kVectorBytes)]] = double;
  constexpr Index kHalf = kLaneCount / 2;
  Half part[2];
  __builtin_memcpy(part, &x, sizeof part);
#pragma GCC unroll 16
  for (int i = 0; i < 2; ++i) {
    Doubles sum;
    __builtin_memcpy(&sum, to + i * kHalf, sizeof sum);
    sum += __builtin_convertvector(part[i], Doubles);
    __builtin_memcpy(to + i * kHalf, &sum, sizeof sum);
  }
}

[[gnu::always_inline]] inline Lanes size_of_lanes(Lanes x) {
  const LaneBits bits = __builtin_bit_cast(LaneBits, x) & 0x7fffffff;
  return __builtin_bit_cast(Lanes, bits);
}

// Loops over what a tile holds in registers are written out, with no counter to find it by: the
// compiler keeps the tile in memory otherwise.

// C[R, kTileColumns] = A[R, depth] B[depth, kTileColumns], in registers. Ahead: what stands so far
// behind B is fetched meanwhile.
template <int R, bool Ahead = false>
[[gnu::always_inline]] inline void product_tile(Index depth, const float* a, Index lda,
                                                const float* b, Lanes (&c)[R][kTileVectors],
                                                Index ldb = kPanelColumns, Index ahead = 0) {
  for (Index p = 0; p < depth; ++p) {
    Lanes row[kTileVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      row[v] = load_lanes(b + p * ldb + v * kLaneCount);
      if constexpr (Ahead) __builtin_prefetch(b + p * ldb + v * kLaneCount + ahead);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float x = a[r * lda + p];
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) c[r][v] += x * row[v];
    }
  }
}

// The tile's part of the sums of a ReachProduct.
template <int R>
[[gnu::always_inline]] inline void reach_of_tile(const Lanes (&c)[R][kTileVectors],
                                                 const float* mass, const float* bound,
                                                 double* to_sum, float* to_most) {
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    Lanes sum = {};
    Lanes most = load_lanes(to_most + v * kLaneCount);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Lanes size = size_of_lanes(c[r][v]);
      sum += size * mass[r];
      const Lanes reach = size * bound[r];
      most = reach > most ? reach : most;
    }
    store_lanes(most, to_most + v * kLaneCount);
    add_lanes(sum, to_sum + v * kLaneCount);
  }
}

// `at`: the first column.
template <int R>
void pair_tile(const PairProduct<float>& x, Index row, Index at) {
  Lanes c[R][kTileVectors] = {};
  product_tile<R>(x.depth, x.a + row * x.lda, x.lda,
                  x.b + at / kPanelColumns * kPanelColumns * x.depth + at % kPanelColumns, c);
  Lanes sum[kTileVectors] = {};
  Lanes abs[kTileVectors] = {};
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      sum[v] += c[r][v];
      abs[v] += size_of_lanes(c[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    add_lanes(sum[v], x.sum + at + v * kLaneCount);
    add_lanes(abs[v], x.abs + at + v * kLaneCount);
  }
  if (x.mass != nullptr)
    reach_of_tile<R>(c, x.mass + row, x.bound + row, x.reach + at, x.most + at);
  if (x.scores != nullptr) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v)
        store_lanes(c[r][v], x.scores + (row + r) * x.ld + at + v * kLaneCount);
    }
  }
  if (x.origin == nullptr) return;
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    const Index column = at + v * kLaneCount;
    const Lanes weight = load_lanes(x.weight + column);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Index place = (row + r) * x.ld + column;
      const Lanes away = (c[r][v] - load_lanes(x.origin + place)) * weight;
      store_lanes(load_lanes(x.first + place) + away, x.first + place);
      store_lanes(load_lanes(x.second + place) + away * away, x.second + place);
    }
  }
}

template <int R>
void reach_tile(const ReachProduct& x, Index row, Index at) {
  Lanes c[R][kTileVectors] = {};
  product_tile<R>(x.depth, x.a + row * x.lda, x.lda,
                  x.b + at / kPanelColumns * kPanelColumns * x.depth + at % kPanelColumns, c);
  reach_of_tile<R>(c, x.mass + row, x.bound + row, x.sum + at, x.most + at);
}

template <int R>
void edge_tile(const EdgeProduct& x, Index row, Index at, Lanes* sum, Lanes* most) {
  Lanes c[R][kTileVectors] = {};
  product_tile<R>(x.depth, x.a + row * x.lda, x.lda,
                  x.b + at / kPanelColumns * kPanelColumns * x.depth + at % kPanelColumns, c);
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    const Index column = at + v * kLaneCount;
    const Lanes factor = load_lanes(x.factor + column), bound = load_lanes(x.bound + column);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      Lanes credit = c[r][v];
      if (x.offset != nullptr) credit -= load_lanes(x.offset + (row + r) * x.ld + column);
      const Lanes size = size_of_lanes(credit * factor);
      sum[r] += size;
      const Lanes reach = size * bound;
      most[r] = reach > most[r] ? reach : most[r];
    }
  }
}

template <int R, bool Ahead>
void head_tile(const HeadProduct<float>& x, Index row, Index at, float* square) {
  Lanes c[R][kTileVectors] = {};
  product_tile<R, Ahead>(x.depth, x.a + row * x.lda, x.lda, x.b.at(at), c, x.b.ld, x.b.panel);
  if (x.last != nullptr && row + R == x.rows) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) store_lanes(c[R - 1][v], x.last + at + v * kLaneCount);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Lanes squares = {};
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      const Index place = (row + r) * x.ld + at + v * kLaneCount;
      store_lanes(load_lanes(x.sum + place) + c[r][v], x.sum + place);
      store_lanes(load_lanes(x.abs + place) + size_of_lanes(c[r][v]), x.abs + place);
      squares += c[r][v] * c[r][v];
    }
    float* to = square + r * kLaneCount;
    store_lanes(load_lanes(to) + squares, to);
  }
}

template <int R>
void pair_rows(const PairProduct<float>& x, Index rows, Index row, Index at) {
  if (rows == R) {
    pair_tile<R>(x, row, at);
  } else if constexpr (R > 1) {
    pair_rows<R - 1>(x, rows, row, at);
  }
}

template <int R>
void reach_rows(const ReachProduct& x, Index rows, Index row, Index at) {
  if (rows == R) {
    reach_tile<R>(x, row, at);
  } else if constexpr (R > 1) {
    reach_rows<R - 1>(x, rows, row, at);
  }
}

template <int R>
void edge_rows(const EdgeProduct& x, Index rows, Index row) {
  if (rows == R) {
    Lanes sum[R] = {}, most[R] = {};
    for (Index at = x.begin / kTileColumns * kTileColumns; at < x.end; at += kTileColumns)
      edge_tile<R>(x, row, at, sum, most);
    for (int r = 0; r < R; ++r) {
      double total = 0;
      float largest = x.most[row + r];
      for (Index i = 0; i < kLaneCount; ++i) {
        total += sum[r][i];
        largest = std::max(largest, most[r][i]);
      }
      x.sum[row + r] += total;
      x.most[row + r] = largest;
    }
  } else if constexpr (R > 1) {
    edge_rows<R - 1>(x, rows, row);
  }
}

template <int R, bool Ahead>
void head_rows(const HeadProduct<float>& x, Index rows, Index row, Index at, float* square) {
  if (rows == R) {
    head_tile<R, Ahead>(x, row, at, square);
  } else if constexpr (R > 1) {
    head_rows<R - 1, Ahead>(x, rows, row, at, square);
  }
}

void pair_sums_float(const PairProduct<float>& x) {
  for (Index row = 0; row < x.rows; row += kTileRows) {
    const Index rows = std::min<Index>(kTileRows, x.rows - row);
    for (Index at = 0; at < x.columns; at += kTileColumns) pair_rows<kTileRows>(x, rows, row, at);
  }
}

void reach_sums_float(const ReachProduct& x) {
  for (Index row = 0; row < x.rows; row += kTileRows) {
    const Index rows = std::min<Index>(kTileRows, x.rows - row);
    for (Index at = 0; at < x.columns; at += kTileColumns) reach_rows<kTileRows>(x, rows, row, at);
  }
}

void edge_sums_float(const EdgeProduct& x) {
  for (Index row = 0; row < x.rows; row += kTileRows)
    edge_rows<kTileRows>(x, std::min<Index>(kTileRows, x.rows - row), row);
}

// Columns of B that fit a tile stay in the cache while the rows of a block pass by, and the first
// of these fetch those that follow: of many products few rows each, B comes from far away.
void head_sums_float(const HeadProduct<float>& x) {
  constexpr Index kBlock = 8 * kDeepRows;
  for (Index first = 0; first < x.rows; first += kBlock) {
    const Index end = std::min(x.rows, first + kBlock);
    float square[kBlock * kLaneCount] = {};
    for (Index at = 0; at < x.columns; at += kTileColumns) {
      Index row = first;
      if (x.b.ld == kPanelColumns) {
        head_rows<kDeepRows, true>(x, std::min<Index>(kDeepRows, end - first), first, at, square);
        row += kDeepRows;
      }
      for (; row < end; row += kDeepRows)
        head_rows<kDeepRows, false>(x, std::min<Index>(kDeepRows, end - row), row, at,
                                    square + (row - first) * kLaneCount);
    }
    for (Index row = first; row < end; ++row) {
      double total = 0;
      for (Index i = 0; i < kLaneCount; ++i) total += square[(row - first) * kLaneCount + i];
      x.square[row * x.square_ld] = total;
    }
  }
}

template <int R>
void writer_tile(const WriterProduct& x, Index row, Index at, float* square) {
  Lanes c[R][kTileVectors] = {};
  product_tile<R>(x.depth, x.a + row * x.lda, x.lda, x.b.at(at), c, x.b.ld);
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    Lanes sum = {}, abs = {};
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      sum += c[r][v];
      abs += size_of_lanes(c[r][v]);
    }
    const Index column = at + v * kLaneCount;
    add_lanes(sum, x.sum + column);
    add_lanes(abs, x.abs + column);
    if (x.scores != nullptr) {
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) store_lanes(c[r][v], x.scores + (row + r) * x.columns + column);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Lanes squares = {};
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) squares += c[r][v] * c[r][v];
    float* to = square + r * kLaneCount;
    store_lanes(load_lanes(to) + squares, to);
  }
}

template <int R>
void writer_rows(const WriterProduct& x, Index rows, Index row, Index at, float* square) {
  if (rows == R) {
    writer_tile<R>(x, row, at, square);
  } else if constexpr (R > 1) {
    writer_rows<R - 1>(x, rows, row, at, square);
  }
}

// Rows of a block stay in the second cache while B passes by. No tile has more than one row less
// than another, for one of few rows waits for B.
void writer_sums_float(const WriterProduct& x) {
  constexpr Index kTiles = 8;
  const Index tiles = (x.rows + kDeepRows - 1) / kDeepRows;
  const auto begin = [&](Index tile) {
    return x.rows / tiles * tile + std::min(tile, x.rows % tiles);
  };
  for (Index first = 0; first < tiles; first += kTiles) {
    const Index end = std::min(tiles, first + kTiles), top = begin(first);
    float square[kTiles * kDeepRows * kLaneCount] = {};
    for (Index at = 0; at < x.columns; at += kTileColumns) {
      for (Index tile = first; tile < end; ++tile) {
        const Index row = begin(tile);
        writer_rows<kDeepRows>(x, begin(tile + 1) - row, row, at,
                               square + (row - top) * kLaneCount);
      }
    }
    for (Index row = top; row < begin(end); ++row) {
      double total = 0;
      for (Index i = 0; i < kLaneCount; ++i)
        total += static_cast<double>(square[(row - top) * kLaneCount + i]);
      x.square[row] = total;
    }
  }
}

template <int R>
void packed_tile(const PackedProduct<float>& x, Index row, Index at) {
  Lanes c[R][kTileVectors] = {};
  product_tile<R>(x.depth, x.a + row * x.lda, x.lda, x.b.at(at), c, x.b.ld);
  float* to = x.c + at / kPanelColumns * x.c_panel + at % kPanelColumns + row * x.ldc;
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      float* place = to + r * x.ldc + v * kLaneCount;
      Lanes made = c[r][v];
      if (x.scale != nullptr) made *= x.scale[row + r];
      store_lanes(x.accumulate ? load_lanes(place) + made : made, place);
    }
  }
}

template <int R>
void packed_rows(const PackedProduct<float>& x, Index rows, Index row, Index at) {
  if (rows == R) {
    packed_tile<R>(x, row, at);
  } else if constexpr (R > 1) {
    packed_rows<R - 1>(x, rows, row, at);
  }
}

void packed_product_float(const PackedProduct<float>& x) {
  for (Index at = 0; at < x.columns; at += kTileColumns) {
    for (Index row = 0; row < x.rows; row += kDeepRows)
      packed_rows<kDeepRows>(x, std::min<Index>(kDeepRows, x.rows - row), row, at);
  }
}

using Four [[gnu::vector_size(16)]] = float;

// Halves onto each other, down to four lanes.
template <typename V>
[[gnu::always_inline]] inline Four folded_lanes(V x) {
  if constexpr (sizeof(V) == 64) {
    return folded_lanes(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                        __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
  } else if constexpr (sizeof(V) == 32) {
    return __builtin_shufflevector(x, x, 0, 1, 2, 3) + __builtin_shufflevector(x, x, 4, 5, 6, 7);
  } else {
    return x;
  }
}

// The sums of the lanes of four vectors, each in the same order wherever it stands.
[[gnu::always_inline]] inline Four sums_of_lanes(Lanes x0, Lanes x1, Lanes x2, Lanes x3) {
  const Four a0 = folded_lanes(x0), a1 = folded_lanes(x1), a2 = folded_lanes(x2),
             a3 = folded_lanes(x3);
  const Four low =
      __builtin_shufflevector(a0, a1, 0, 4, 1, 5) + __builtin_shufflevector(a0, a1, 2, 6, 3, 7);
  const Four high =
      __builtin_shufflevector(a2, a3, 0, 4, 1, 5) + __builtin_shufflevector(a2, a3, 2, 6, 3, 7);
  return __builtin_shufflevector(low, high, 0, 1, 4, 5) +
         __builtin_shufflevector(low, high, 2, 3, 6, 7);
}

float dot_float(Index n, const float* x, const float* y) {
  constexpr Index kSums = 4, kStep = kSums * kLaneCount;
  Lanes sum[kSums] = {};
  Index i = 0;
  for (; i + kStep <= n; i += kStep) {
#pragma GCC unroll 16
    for (Index j = 0; j < kSums; ++j)
      sum[j] += load_lanes(x + i + j * kLaneCount) * load_lanes(y + i + j * kLaneCount);
  }
  for (; i + kLaneCount <= n; i += kLaneCount) sum[0] += load_lanes(x + i) * load_lanes(y + i);
  float rest = 0;
  for (; i < n; ++i) rest += x[i] * y[i];
  const Four all = sums_of_lanes(sum[0], sum[1], sum[2], sum[3]);
  return ((all[0] + all[1]) + (all[2] + all[3])) + rest;
}

template <int R, int C>
void turned_tile(const TurnedProduct& x, Index row, Index column) {
  const Index whole = x.depth / kLaneCount * kLaneCount, rest = x.depth - whole;
  Lanes sum[R][C] = {};
  for (Index part = 0; part < x.parts; ++part) {
    const float* a = x.a + row * x.lda + part * x.depth;
    const float* b = x.b + column * x.ldb + part * x.b_part;
    for (Index p = 0; p < whole; p += kLaneCount) {
      Lanes of[C];
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) of[c] = load_lanes(b + c * x.ldb + p);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r) {
        const Lanes with = load_lanes(a + r * x.lda + p);
#pragma GCC unroll 16
        for (int c = 0; c < C; ++c) sum[r][c] += with * of[c];
      }
    }
    if (rest == 0) continue;
    const auto last = [&](const float* from) {
      Lanes lanes = {};
      __builtin_memcpy(&lanes, from + whole, static_cast<std::size_t>(rest) * sizeof(float));
      return lanes;
    };
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Lanes with = last(a + r * x.lda);
#pragma GCC unroll 16
      for (int c = 0; c < C; ++c) sum[r][c] += with * last(b + c * x.ldb);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    float* to = x.c + (row + r) * x.ldc + column;
#pragma GCC unroll 16
    for (int c = 0; c < C; c += 4) {
      const auto of = [&](int i) { return c + i < C ? sum[r][c + i] : Lanes{}; };
      const Four made = sums_of_lanes(of(0), of(1), of(2), of(3));
      for (int i = 0; i < 4 && c + i < C; ++i)
        to[c + i] = x.accumulate ? to[c + i] + made[i] : made[i];
    }
  }
}

// As many rows at once as are left: the most, half of them, one.
template <int R, int C>
void turned_rows(const TurnedProduct& x, Index row, Index column) {
  for (; row + R <= x.rows; row += R) turned_tile<R, C>(x, row, column);
  if constexpr (R > 1) turned_rows<R / 2, C>(x, row, column);
}

template <int C>
void turned_columns(const TurnedProduct& x, Index columns, Index column) {
  if (columns == C) {
    turned_rows<kTurnedRows, C>(x, 0, column);
  } else if constexpr (C > 1) {
    turned_columns<C - 1>(x, columns, column);
  }
}

// No tile has more than one column less than another.
void turned_product_float(const TurnedProduct& x) {
  const Index tiles = (x.columns + kTurnedColumns - 1) / kTurnedColumns;
  for (Index tile = 0, column = 0; tile < tiles; ++tile) {
    const Index columns = (x.columns - column + tiles - tile - 1) / (tiles - tile);
    turned_columns<kTurnedColumns>(x, columns, column);
    column += columns;
  }
}

// Some of the depth at a time, which stay in the first cache for all tiles.
constexpr Index kTriangleDepth = 64;

template <int R>
void triangle_tile(const TriangleProduct& x, Index depth, const float* a, Index step,
                   const float* ahead, const float* b, float* c) {
  Lanes sum[R][kTileVectors] = {};
  for (Index p = 0; p < depth; ++p) {
    Lanes of[kTileVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) of[v] = load_lanes(b + p * x.columns + v * kLaneCount);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const float with = a[r];
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] += with * of[v];
    }
    __builtin_prefetch(ahead);
    a += step;
    ahead += step + kTriangleDepth * x.grow;
    step += x.grow;
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      float* to = c + r * x.columns + v * kLaneCount;
      store_lanes(load_lanes(to) + sum[r][v], to);
    }
  }
}

template <int R>
void triangle_rows(const TriangleProduct& x, Index rows, Index depth, const float* a, Index step,
                   const float* ahead, const float* b, float* c) {
  if (rows == R) {
    triangle_tile<R>(x, depth, a, step, ahead, b, c);
  } else if constexpr (R > 1) {
    triangle_rows<R - 1>(x, rows, depth, a, step, ahead, b, c);
  }
}

// Every tile fetches a line of the rows that come after those in the cache.
void triangle_product_float(const TriangleProduct& x) {
  constexpr Index kLine = 16;
  const float* a = x.a;
  Index step = x.step;
  for (Index p = 0; p < x.depth; p += kTriangleDepth) {
    const Index depth = std::min(kTriangleDepth, x.depth - p);
    const float* next = a + depth * step + depth * (depth - 1) / 2 * x.grow;
    Index line = 0;
    for (Index at = 0; at < x.columns; at += kTileColumns) {
      for (Index row = 0; row < x.rows; row += kTileRows, line += kLine)
        triangle_rows<kTileRows>(x, std::min<Index>(kTileRows, x.rows - row), depth, a + row, step,
                                 next + std::min(line, x.rows), x.b + p * x.columns + at,
                                 x.c + row * x.columns + at);
    }
    a = next;
    step += depth * x.grow;
  }
}

// Four rows and four columns at a time.
void turn_rows_float(const float* from, Index ld, Index rows, Index columns, float* const* to) {
  Index r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* p = from + r * ld;
    Index c = 0;
    for (; c + 4 <= columns; c += 4) {
      Four a0, a1, a2, a3;
      __builtin_memcpy(&a0, p + c, 16);
      __builtin_memcpy(&a1, p + ld + c, 16);
      __builtin_memcpy(&a2, p + 2 * ld + c, 16);
      __builtin_memcpy(&a3, p + 3 * ld + c, 16);
      const Four low01 = __builtin_shufflevector(a0, a1, 0, 4, 1, 5);
      const Four low23 = __builtin_shufflevector(a2, a3, 0, 4, 1, 5);
      const Four high01 = __builtin_shufflevector(a0, a1, 2, 6, 3, 7);
      const Four high23 = __builtin_shufflevector(a2, a3, 2, 6, 3, 7);
      const Four turned[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                              __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                              __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                              __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
      for (int i = 0; i < 4; ++i) __builtin_memcpy(to[c + i] + r, &turned[i], 16);
    }
    for (; c < columns; ++c) {
      for (int i = 0; i < 4; ++i) to[c][r + i] = p[i * ld + c];
    }
  }
  for (; r < rows; ++r) {
    for (Index c = 0; c < columns; ++c) to[c][r] = from[r * ld + c];
  }
}

void floored_inverses_float(const float* sum, const float* abs, Index n, double beta, double floor,
                            double* out) {
  for (Index i = 0; i < n; ++i) out[i] = base::floored_inverse(sum[i], abs[i], beta, floor);
}

constexpr FloatKernels kKernels = {reduce_float,
                                   row_sums_float,
                                   reduce_rows_float,
                                   gelu_erf_float,
                                   gelu_tanh_float,
                                   silu_float,
                                   softmax_float,
                                   axpy_float,
                                   dot_float,
                                   add_columns_float,
                                   subtract_columns_float,
                                   column_medians_float,
                                   pair_sums_float,
                                   head_sums_float,
                                   reach_sums_float,
                                   edge_sums_float,
                                   writer_sums_float,
                                   packed_product_float,
                                   turn_rows_float,
                                   floored_inverses_float,
                                   turned_product_float,
                                   triangle_product_float};
