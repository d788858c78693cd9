// Products with halves for one instruction set: included by half_products.cc several times, each in
// a namespace that says kBytes (of a vector), the tiles, and how halves in f16 are widened.

using Bits [[gnu::vector_size(kBytes)]] = std::uint32_t;

constexpr Index kLanes = kBytes / 4;
constexpr Index kStep = 2 * kLanes;  // halves in a vector's bytes: two vectors of floats
constexpr Index kHalf = 2;           // bytes

[[gnu::always_inline]] inline Floats load(const float* from) {
  Floats x;
  __builtin_memcpy(&x, from, kBytes);
  return x;
}
[[gnu::always_inline]] inline void store(Floats x, float* to) { __builtin_memcpy(to, &x, kBytes); }

// A step of halves becomes two vectors. In bf16 a word of two needs no more than a shift or a mask,
// so that the first holds the even places and the second the odd ones; in f16 they follow.
template <bool bf16>
[[gnu::always_inline]] inline void widen(const std::byte* from, Floats& first, Floats& second) {
  if constexpr (bf16) {
    Bits bits;
    __builtin_memcpy(&bits, from, kBytes);
    first = __builtin_bit_cast(Floats, bits << 16);
    second = __builtin_bit_cast(Floats, bits & 0xFFFF0000U);
  } else {
    first = widen_f16(from);
    second = widen_f16(from + kHalf * kLanes);
  }
}

// Where element i of a step stands in its two vectors.
inline Index place_in_step(bool bf16, Index i) { return bf16 ? i % 2 * kLanes + i / 2 : i; }

Index whole_steps(Index k) { return (k + kStep - 1) / kStep; }
Index packed_size(Index m, Index k) { return m * whole_steps(k) * kStep; }

// Along the columns of W
// -------------------------------------------------------------------------------------------------

// Parts of kDepth, in each the passes, in each the steps: a step of every row of the pass, with
// zeros behind the last element.
void pack_along(DType dtype, const HalfRows& rows, float* out) {
  const bool bf16 = dtype == DType::bf16;
  const Passes passes(rows.m, kRows);
  for (Index begin = 0; begin < rows.k; begin += kDepth) {
    const Index depth = std::min(kDepth, rows.k - begin), steps = whole_steps(depth);
    for (Index pass = 0; pass < passes.count; ++pass) {
      for (Index s = 0; s < steps; ++s) {
        for (Index r = passes.begin(pass); r < passes.begin(pass + 1); ++r, out += kStep) {
          const Index p = begin + s * kStep, n = std::min(kStep, rows.k - p);
          const float* from = rows.a + r * rows.lda + p;
          float step[kStep] = {};
          for (Index i = 0; i < n; ++i)
            step[i] = rows.scale ? from[i] * rows.scale[p + i] : from[i];
          for (Index i = 0; i < kLanes; ++i) {
            out[i] = step[bf16 ? 2 * i : i];
            out[kLanes + i] = step[bf16 ? 2 * i + 1 : kLanes + i];
          }
        }
      }
    }
  }
}

// One step of R rows and N columns.
template <bool bf16, int R, int N>
[[gnu::always_inline]] inline void add_step(const float* a, const std::byte* const* columns,
                                            Index offset, Floats (&sum)[R][N]) {
  Floats first[R], second[R];
  for (int r = 0; r < R; ++r) {
    first[r] = load(a + r * kStep);
    second[r] = load(a + r * kStep + kLanes);
  }
  for (int j = 0; j < N; ++j) {
    Floats low, high;
    widen<bf16>(columns[j] + offset, low, high);
    for (int r = 0; r < R; ++r) sum[r][j] += first[r] * low;
    for (int r = 0; r < R; ++r) sum[r][j] += second[r] * high;
  }
}

[[gnu::always_inline]] inline float total(Floats x) {
  if constexpr (kLanes > 4) {
    // Halves onto each other down to four, whose order the compiler chooses well.
    float half[kLanes];
    store(x, half);
    using Quarter [[gnu::vector_size(16)]] = float;
    Quarter sum = {};
    for (Index i = 0; i < kLanes; i += 4) {
      Quarter some;
      __builtin_memcpy(&some, half + i, sizeof some);
      sum += some;
    }
    return sum[0] + sum[1] + (sum[2] + sum[3]);
  } else {
    return x[0] + x[1] + (x[2] + x[3]);
  }
}

// C[R, N] (+)= one part of kDepth; `ahead` are columns to be fetched meanwhile, of which this pass
// has some.
template <bool bf16, int R, int N>
void add_along(Index depth, const float* a, const std::byte* const* columns,
               const std::byte* const* ahead, int fetched, bool add, float* c, Index ldc) {
  Floats sum[R][N] = {};
  const Index steps = depth / kStep;
  const std::byte* own[N];
  for (int j = 0; j < N; ++j) own[j] = columns[j];
  for (Index s = 0; s < steps; ++s) {
    for (int j = 0; j < fetched; ++j) __builtin_prefetch(ahead[j] + s * kBytes, 0, 2);
    add_step<bf16, R, N>(a + s * R * kStep, own, s * kBytes, sum);
  }
  if (const Index rest = depth - steps * kStep; rest > 0) {
    std::byte last[N][kBytes] = {};
    for (int j = 0; j < N; ++j) {
      __builtin_memcpy(last[j], own[j] + steps * kBytes, rest * kHalf);
      own[j] = last[j];
    }
    add_step<bf16, R, N>(a + steps * R * kStep, own, 0, sum);
  }
  for (int r = 0; r < R; ++r) {
    for (int j = 0; j < N; ++j) {
      float& out = c[r * ldc + j];
      out = add ? out + total(sum[r][j]) : total(sum[r][j]);
    }
  }
}

template <bool bf16, int R, int N>
void add_rows_along(Index rows, Index depth, const float* a, const std::byte* const* columns,
                    const std::byte* const* ahead, int fetched, bool add, float* c, Index ldc) {
  if (rows == R) {
    add_along<bf16, R, N>(depth, a, columns, ahead, fetched, add, c, ldc);
  } else if constexpr (R > 1) {
    add_rows_along<bf16, R - 1, N>(rows, depth, a, columns, ahead, fetched, add, c, ldc);
  }
}

template <bool bf16>
void along_of(const HalfProduct& p, const std::byte* const* columns) {
  const Passes passes(p.m, kRows);
  const float* a = p.a;
  for (Index begin = 0; begin < p.k; begin += kDepth) {
    const Index depth = std::min(kDepth, p.k - begin), padded = whole_steps(depth) * kStep;
    for (Index j = 0; j < p.n;) {
      const bool whole = j + kColumns <= p.n;
      const Index width = whole ? kColumns : 1;
      const std::byte* now[kColumns];
      const std::byte* next[kColumns];
      // What comes behind these columns: the ones beside them, or the first ones further down.
      const bool last = j + 2 * kColumns > p.n;
      const Index beside = last ? 0 : j + kColumns;
      const Index down = kHalf * (last ? begin + kDepth : begin);
      const bool any = whole && p.n >= kColumns && (!last || begin + kDepth < p.k);
      for (Index i = 0; i < width; ++i) {
        now[i] = columns[j + i] + kHalf * begin;
        if (any) next[i] = columns[beside + i] + down;
      }
      for (Index pass = 0; pass < passes.count; ++pass) {
        const Index row = passes.begin(pass), rows = passes.begin(pass + 1) - row;
        const float* from = a + row * padded;
        float* to = p.c + row * p.ldc + j;
        if (whole) {
          const Index first = any ? kColumns * pass / passes.count : 0;
          const Index end = any ? kColumns * (pass + 1) / passes.count : 0;
          add_rows_along<bf16, kRows, kColumns>(rows, depth, from, now, next + first, end - first,
                                                begin > 0, to, p.ldc);
        } else {
          add_rows_along<bf16, kRows, 1>(rows, depth, from, now, nullptr, 0, begin > 0, to, p.ldc);
        }
      }
      j += width;
    }
    a += p.m * padded;
  }
}

void along(const HalfProduct& product, const std::byte* const* columns) {
  (product.dtype == DType::bf16 ? along_of<true> : along_of<false>)(product, columns);
}

// Across them
// -------------------------------------------------------------------------------------------------

// Passes, in each the places of the sum, in each the rows of the pass.
void pack_across(const HalfRows& rows, float* out) {
  const Passes passes(rows.m, kRowsAcross);
  for (Index pass = 0; pass < passes.count; ++pass) {
    for (Index p = 0; p < rows.k; ++p) {
      for (Index r = passes.begin(pass); r < passes.begin(pass + 1); ++r) {
        const float x = rows.a[r * rows.lda + p];
        *out++ = rows.scale ? x * rows.scale[p] : x;
      }
    }
  }
}

// sum[R, kStep] += A[R, depth] W[depth, kStep], in the order of widened vectors. A line of what is
// `ahead` bytes further on is fetched with every row.
template <bool bf16, int R>
void add_across(Index depth, const float* a, const std::byte* w, Index pitch, Index ahead,
                float* sums) {
  Floats sum[R][2];
  for (int r = 0; r < R; ++r) {
    sum[r][0] = load(sums + r * kStep);
    sum[r][1] = load(sums + r * kStep + kLanes);
  }
  for (Index p = 0; p < depth; ++p) {
    const std::byte* row = w + p * pitch;
    __builtin_prefetch(row + ahead, 0, 2);
    Floats low, high;
    widen<bf16>(row, low, high);
    for (int r = 0; r < R; ++r) {
      const float x = a[p * R + r];
      sum[r][0] += x * low;
      sum[r][1] += x * high;
    }
  }
  for (int r = 0; r < R; ++r) {
    store(sum[r][0], sums + r * kStep);
    store(sum[r][1], sums + r * kStep + kLanes);
  }
}

template <bool bf16, int R>
void add_rows_across(Index rows, Index depth, const float* a, const std::byte* w, Index pitch,
                     Index ahead, float* sums) {
  if (rows == R) {
    add_across<bf16, R>(depth, a, w, pitch, ahead, sums);
  } else if constexpr (R > 1) {
    add_rows_across<bf16, R - 1>(rows, depth, a, w, pitch, ahead, sums);
  }
}

template <bool bf16>
void across_of(const HalfProduct& p, const std::byte* w, Index pitch) {
  const Passes passes(p.m, kRowsAcross);
  base::Scratch scratch, end;
  auto* sums = scratch.of<float>(p.m * kBlockColumns);
  auto* tail = end.of<std::byte>(kBlockRows * kBytes);
  for (Index first = 0; first < p.n; first += kBlockColumns) {
    const Index columns = std::min(kBlockColumns, p.n - first);
    std::fill_n(sums, p.m * kBlockColumns, 0.0F);
    for (Index begin = 0; begin < p.k; begin += kBlockRows) {
      const Index depth = std::min(kBlockRows, p.k - begin);
      const bool more = begin + 2 * kBlockRows <= p.k;
      for (Index j = 0; j < columns; j += kStep) {
        const Index width = std::min(kStep, columns - j);
        const std::byte* from = w + begin * pitch + kHalf * (first + j);
        Index apart = pitch;
        if (width < kStep) {  // the last columns: nothing behind them may be read
          std::fill_n(tail, depth * kBytes, std::byte{0});
          for (Index i = 0; i < depth; ++i)
            std::copy_n(from + i * pitch, width * kHalf, tail + i * kBytes);
          from = tail;
          apart = kBytes;
        }
        for (Index pass = 0; pass < passes.count; ++pass) {
          const Index row = passes.begin(pass), rows = passes.begin(pass + 1) - row;
          const Index ahead = pass == 0 && more && apart == pitch ? kBlockRows * pitch : 0;
          add_rows_across<bf16, kRowsAcross>(rows, depth, p.a + row * p.k + begin * rows, from,
                                             apart, ahead, sums + j * p.m + row * kStep);
        }
      }
    }
    for (Index j = 0; j < columns; j += kStep) {
      for (Index r = 0; r < p.m; ++r) {
        const float* from = sums + j * p.m + r * kStep;
        float* to = p.c + r * p.ldc + first + j;
        for (Index i = 0; i < std::min(kStep, columns - j); ++i)
          to[i] = from[place_in_step(bf16, i)];
      }
    }
  }
}

void across(const HalfProduct& product, const std::byte* w, Index pitch) {
  (product.dtype == DType::bf16 ? across_of<true> : across_of<false>)(product, w, pitch);
}

constexpr HalfKernels kKernels = {packed_size, pack_along, along, pack_across, across};
