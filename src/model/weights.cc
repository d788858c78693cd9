#include "model/weights.h"

#include <algorithm>
#include <array>

#include "base/index.h"
#include "model/blocks.h"
#include "model/weight_block.h"
#include "tensor/transpose.h"

namespace unpack::model {
namespace {

std::size_t elements(const WeightView& w) { return w ? w.in * w.out : 0; }

// n consecutive stored elements from (i, o) on.
template <typename Scalar>
void load_run(const WeightView& w, Index i, Index o, Index n, Scalar* out) {
  const Index at = w.offset(i, o);
  if (w.encoded == nullptr) {
    tensor::convert_run(w.data + at * tensor::dtype_size(w.dtype), w.dtype, n, out);
  } else if constexpr (sizeof(Scalar) == sizeof(float)) {
    w.encoded->decode(w.start + at, n, out);
  } else {
    std::vector<float> single(n);
    w.encoded->decode(w.start + at, n, single.data());
    std::copy(single.begin(), single.end(), out);
  }
}

// How what is stored becomes what is read.
template <typename Scalar>
struct Change {
  double scale, shift;      // of the view
  const Scalar* row_scale;  // of the reader, or null

  // x[i] of rows from `row` on.
  void rows(Index row, Index n, Scalar* x) const {
    apply(n, x);
    for (Index i = 0; row_scale != nullptr && i < n; ++i) x[i] *= row_scale[row + i];
  }
  // Of one row.
  void row(Index row, Index n, Scalar* x) const {
    apply(n, x);
    for (Index i = 0; row_scale != nullptr && i < n; ++i) x[i] *= row_scale[row];
  }

 private:
  void apply(Index n, Scalar* x) const {
    if (scale == 1.0 && shift == 0.0) return;
    for (Index i = 0; i < n; ++i) x[i] = scale * (x[i] + shift);
  }
};

// Rows are contiguous inside a block of columns.
template <typename Scalar>
void read_contiguous_columns(const WeightView& w, const WeightBlock& part,
                             const Change<Scalar>& change, Scalar* out, Index ld) {
  const Index end = part.column + part.columns;
  for (Index i = 0; i < part.rows; ++i) {
    for (Index o = part.column; o < end;) {
      const Index n = std::min(w.block - o % w.block, end - o);
      load_run(w, part.row + i, o, n, out + i * ld + o - part.column);
      o += n;
    }
    change.row(part.row + i, part.columns, out + i * ld);
  }
}

// Halves with contiguous columns in one go; false where they lie otherwise.
bool read_turned(const WeightView& w, const WeightBlock& part, const float* row_scale, float* out,
                 Index ld) {
  const Index last = part.column + part.columns - 1;
  if (!w.plain() || tensor::dtype_size(w.dtype) != 2 || part.column / w.block != last / w.block)
    return false;
  return tensor::widen_turned(w.data + 2 * w.offset(part.row, part.column), w.dtype, part.columns,
                              part.rows, w.out_stride,
                              row_scale != nullptr ? row_scale + part.row : nullptr, out, ld);
}
bool read_turned(const WeightView&, const WeightBlock&, const double*, double*, Index) {
  return false;
}

// Columns are contiguous (Linear's [out, in]): convert a tile of columns, then turn it in cache.
template <typename Scalar>
void read_contiguous_rows(const WeightView& w, const WeightBlock& part,
                          const Change<Scalar>& change, Scalar* out, Index ld) {
  constexpr Index kColumns = 16;
  constexpr Index kRows = 256;
  // The odd pitch keeps the 16 columns of a row in different cache sets.
  constexpr Index kPitch = kRows + 16 / static_cast<Index>(sizeof(Scalar) / 4);
  std::array<Scalar, kColumns * kPitch> tile;
  for (Index i = 0; i < part.rows; i += kRows) {
    const Index rows = std::min(kRows, part.rows - i);
    for (Index o = 0; o < part.columns; o += kColumns) {
      const Index columns = std::min(kColumns, part.columns - o);
      for (Index c = 0; c < columns; ++c) {
        load_run(w, part.row + i, part.column + o + c, rows, tile.data() + c * kPitch);
        change.rows(part.row + i, rows, tile.data() + c * kPitch);
      }
      tensor::transpose(tile.data(), columns, rows, kPitch, out + i * ld + o, ld);
    }
  }
}

template <typename Scalar>
void read_any(const WeightView& w, const WeightBlock& part, const Scalar* row_scale, Scalar* out,
              Index ld) {
  const Change<Scalar> change{w.scale, w.shift, row_scale};
  if (w.out_stride == 1 && (w.block > 1 || w.out == 1))
    return read_contiguous_columns(w, part, change, out, ld);
  if (w.in_stride == 1) {
    if (!read_turned(w, part, row_scale, out, ld)) read_contiguous_rows(w, part, change, out, ld);
    return;
  }
  for (Index i = 0; i < part.rows; ++i) {
    for (Index o = 0; o < part.columns; ++o)
      load_run(w, part.row + i, part.column + o, 1, out + i * ld + o);
    change.row(part.row + i, part.columns, out + i * ld);
  }
}

}  // namespace

double WeightView::at(Index i, Index o) const {
  double value = 0;
  load_run(*this, i, o, 1, &value);
  return scale * (value + shift);
}

void read_rows(const WeightView& w, Index row, Index n, float* out) {
  read_any<float>(w, {row, n, 0, w.out}, nullptr, out, w.out);
}
void read_rows(const WeightView& w, Index row, Index n, double* out) {
  read_any<double>(w, {row, n, 0, w.out}, nullptr, out, w.out);
}

namespace {

// n elements from (i, o) on, which `step` says to lie one after the other.
const std::byte* stored_run(const WeightView& w, Index i, Index o, Index n, Index step) {
  if (w.scale != 1.0 || w.shift != 0.0 || (step != 1 && n > 1)) return nullptr;
  const Index at = w.offset(i, o);
  if (w.encoded != nullptr) return w.encoded->place(w.start + at, n);
  return w.data + at * tensor::dtype_size(w.dtype);
}

}  // namespace

const std::byte* stored_row(const WeightView& w, Index i) {
  const bool whole = w.block >= w.out || w.block_stride == w.block * w.out_stride;
  return whole ? stored_run(w, i, 0, w.out, w.out_stride) : nullptr;
}

const std::byte* stored_column(const WeightView& w, Index o) {
  return stored_run(w, 0, o, w.in, w.in_stride);
}

bool is_quantised(const WeightView& w) { return w.encoded != nullptr && !is_plain(*w.encoded); }

void read_block(const WeightView& w, const WeightBlock& block, const float* row_scale, float* out,
                Index ld) {
  read_any(w, block, row_scale, out, ld);
}
void read_block(const WeightView& w, const WeightBlock& block, const double* row_scale, double* out,
                Index ld) {
  read_any(w, block, row_scale, out, ld);
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

}  // namespace unpack::model
