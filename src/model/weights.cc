#include "model/weights.h"

#include <algorithm>
#include <array>

namespace unpack {
namespace {

std::size_t elements(const WeightView& w) {
  return w ? static_cast<std::size_t>(w.in) * static_cast<std::size_t>(w.out) : 0;
}

const std::byte* address(const WeightView& w, std::int64_t i, std::int64_t o) {
  return w.data + w.offset(i, o) * static_cast<std::int64_t>(dtype_size(w.dtype));
}

// Rows are contiguous inside a block of columns.
template <typename Scalar>
void read_contiguous_columns(const WeightView& w, std::int64_t row, std::int64_t n, Scalar* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t o = 0; o < w.out; o += w.block) {
      convert_run(address(w, row + i, o), w.dtype, std::min(w.block, w.out - o),
                  out + i * w.out + o);
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
        convert_run(address(w, row + i, o + c), w.dtype, rows, tile.data() + c * kPitch);
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
void read_any(const WeightView& w, std::int64_t row, std::int64_t n, Scalar* out) {
  if (w.out_stride == 1 && (w.block > 1 || w.out == 1))
    return read_contiguous_columns(w, row, n, out);
  if (w.in_stride == 1) return read_contiguous_rows(w, row, n, out);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t o = 0; o < w.out; ++o)
      out[i * w.out + o] = static_cast<Scalar>(w.at(row + i, o));
  }
}

}  // namespace

double WeightView::at(std::int64_t i, std::int64_t o) const {
  return load_element(data, dtype, offset(i, o));
}

void read_rows(const WeightView& w, std::int64_t row, std::int64_t n, float* out) {
  read_any(w, row, n, out);
}
void read_rows(const WeightView& w, std::int64_t row, std::int64_t n, double* out) {
  read_any(w, row, n, out);
}

std::size_t ModelWeights::parameter_count() const {
  std::size_t count =
      elements(embed) + elements(pos) + elements(final_norm.w) + elements(final_norm.b);
  if (unembed.data != embed.data) count += elements(unembed);
  for (const LayerWeights& l : layers) {
    for (const WeightView* w :
         {&l.attn_norm.w, &l.attn_norm.b, &l.mlp_norm.w, &l.mlp_norm.b, &l.w_q,
          &l.w_k,         &l.w_v,         &l.b_q,        &l.b_k,        &l.b_v,
          &l.w_o,         &l.b_o,         &l.q_norm,     &l.k_norm,     &l.w_in,
          &l.w_up,        &l.b_in,        &l.b_up,       &l.w_out,      &l.b_out}) {
      count += elements(*w);
    }
  }
  return count;
}

}  // namespace unpack
