#include "model/weights.h"

#include <algorithm>
#include <array>

namespace unpack {
namespace {

std::size_t elements(const WeightView& w) {
  return w ? static_cast<std::size_t>(w.in) * static_cast<std::size_t>(w.out) : 0;
}

// n consecutive stored elements from (i, o) on.
template <typename Scalar>
void load_run(const WeightView& w, std::int64_t i, std::int64_t o, std::int64_t n, Scalar* out) {
  const std::int64_t at = w.offset(i, o);
  if (w.encoded == nullptr) {
    convert_run(w.data + at * static_cast<std::int64_t>(dtype_size(w.dtype)), w.dtype, n, out);
  } else if constexpr (sizeof(Scalar) == sizeof(float)) {
    w.encoded->decode(w.start + at, n, out);
  } else {
    std::vector<float> single(static_cast<std::size_t>(n));
    w.encoded->decode(w.start + at, n, single.data());
    std::copy(single.begin(), single.end(), out);
  }
}

// Rows are contiguous inside a block of columns.
template <typename Scalar>
void read_contiguous_columns(const WeightView& w, std::int64_t row, std::int64_t n, Scalar* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t o = 0; o < w.out; o += w.block) {
      load_run(w, row + i, o, std::min(w.block, w.out - o), out + i * w.out + o);
    }
  }
}

// Columns are contiguous (Linear's [out, in]): convert a tile of columns, then turn it in cache.
template <typename Scalar>
void read_contiguous_rows(const WeightView& w, std::int64_t row, std::int64_t n, Scalar* out) {
  constexpr std::int64_t kColumns = 16;
  constexpr std::int64_t kRows = 128;
  // The odd pitch keeps the 16 columns of a row in different cache sets.
  constexpr std::int64_t kPitch = kRows + 16 / static_cast<std::int64_t>(sizeof(Scalar) / 4);
  std::array<Scalar, kColumns * kPitch> tile;
  for (std::int64_t i = 0; i < n; i += kRows) {
    const std::int64_t rows = std::min(kRows, n - i);
    for (std::int64_t o = 0; o < w.out; o += kColumns) {
      const std::int64_t columns = std::min(kColumns, w.out - o);
      for (std::int64_t c = 0; c < columns; ++c)
        load_run(w, row + i, o + c, rows, tile.data() + c * kPitch);
      Scalar* target = out + i * w.out + o;
      if (columns == kColumns) {
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < kColumns; ++c)
            target[r * w.out + c] = tile[static_cast<std::size_t>(c * kPitch + r)];
        }
      } else {
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < columns; ++c)
            target[r * w.out + c] = tile[static_cast<std::size_t>(c * kPitch + r)];
        }
      }
    }
  }
}

template <typename Scalar>
void read_stored(const WeightView& w, std::int64_t row, std::int64_t n, Scalar* out) {
  if (w.out_stride == 1 && (w.block > 1 || w.out == 1))
    return read_contiguous_columns(w, row, n, out);
  if (w.in_stride == 1) return read_contiguous_rows(w, row, n, out);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t o = 0; o < w.out; ++o) load_run(w, row + i, o, 1, out + i * w.out + o);
  }
}

// The one place that applies a view's scale and shift.
template <typename Scalar>
void read_any(const WeightView& w, std::int64_t row, std::int64_t n, Scalar* out) {
  read_stored(w, row, n, out);
  if (w.scale == 1.0 && w.shift == 0.0) return;
  for (std::int64_t i = 0; i < n * w.out; ++i)
    out[i] = static_cast<Scalar>(w.scale * (static_cast<double>(out[i]) + w.shift));
}

}  // namespace

double WeightView::at(std::int64_t i, std::int64_t o) const {
  double value = 0;
  load_run(*this, i, o, 1, &value);
  return scale * (value + shift);
}

void read_rows(const WeightView& w, std::int64_t row, std::int64_t n, float* out) {
  read_any(w, row, n, out);
}
void read_rows(const WeightView& w, std::int64_t row, std::int64_t n, double* out) {
  read_any(w, row, n, out);
}

std::size_t ModelWeights::parameter_count() const {
  const auto count_of = [](const RoleViews& roles) {
    std::size_t count = 0;
    for (const WeightView& w : roles.views) count += elements(w);
    return count;
  };
  std::size_t count = count_of(*this);
  const WeightView &in = (*this)[Role::embed], &out = (*this)[Role::unembed];
  if (in.data == out.data && in.encoded == out.encoded) count -= elements(out);
  for (const LayerWeights& l : layers) {
    count += count_of(l);
    for (const RoleViews& expert : l.experts) count += count_of(expert);
  }
  return count;
}

}  // namespace unpack
