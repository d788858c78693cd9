#include "backend/cuda/weight_copy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

// Whole blocks of four bits that run along the inputs.
bool keeps_blocks(const model::WeightView& w) {
  const bool even = w.block >= w.out || w.block_stride % base::kMxfp4Block == 0;
  return w.encoded != nullptr && w.encoded->mxfp4() && w.shift == 0 && w.in_stride == 1 &&
         w.in % base::kMxfp4Block == 0 && w.start % base::kMxfp4Block == 0 &&
         w.out_stride % base::kMxfp4Block == 0 && even;
}

}  // namespace

int stored_as(const model::WeightView& w) {
  if (keeps_blocks(w)) return kMxfp4;
  if (w.encoded != nullptr || w.shift != 0) return kF32;
  return w.dtype == DType::f16 ? kF16 : w.dtype == DType::bf16 ? kBf16 : kF32;
}

namespace {

// Whether the device has it as it is stored, but for its scale.
bool as_stored(const model::WeightView& w) {
  return keeps_blocks(w) || (w.encoded == nullptr && w.shift == 0 && w.dtype != DType::f64);
}

}  // namespace

std::size_t matrix_bytes(const model::WeightView& w) {
  if (!w) return 0;
  const std::size_t elements = w.in * w.out;
  if (keeps_blocks(w)) return elements / base::kMxfp4Block * base::kMxfp4Bytes;
  return elements * (as_stored(w) ? tensor::dtype_size(w.dtype) : sizeof(float));
}

namespace {

// Equal pieces of host memory that make up a matrix, one after the other. Whoever sends them takes
// any part of it, from several threads.
struct Pieces {
  const model::WeightView* w = nullptr;
  bool turned = false;
  std::size_t element = 0;
  Index run = 0;  // elements of a piece

  std::size_t bytes() const { return run * element; }
  const std::byte* piece(std::size_t i) const {
    const Index at = i;
    const Index per_row = w->out / run;
    const Index from = turned ? w->offset(0, at) : w->offset(at / per_row, at % per_row * run);
    return w->data + from * element;
  }
  bool without_gaps() const {
    if (w->block < w->out && w->block_stride != w->block * w->out_stride) return false;
    return turned ? w->out_stride == w->in : w->in_stride == w->out || w->in == 1;
  }
  static void fill(const void* pieces, void* to, std::size_t offset, std::size_t bytes) {
    const auto& p = *static_cast<const Pieces*>(pieces);
    auto* out = static_cast<std::byte*>(to);
    while (bytes > 0) {
      const std::size_t within = offset % p.bytes(), n = std::min(bytes, p.bytes() - within);
      std::memcpy(out, p.piece(offset / p.bytes()) + within, n);
      out += n;
      offset += n;
      bytes -= n;
    }
  }
};

// Nothing where the matrix has to be rewritten number by number.
std::optional<Pieces> pieces_of(const model::WeightView& w) {
  if (!as_stored(w) || keeps_blocks(w)) return std::nullopt;
  Pieces p{&w, w.in_stride == 1 && w.out_stride != 1, tensor::dtype_size(w.dtype), w.in};
  if (p.turned) return p;
  if (w.out_stride != 1) return std::nullopt;
  p.run = std::max<Index>(1, std::min(w.block, w.out));
  if (w.out % p.run != 0) return std::nullopt;
  return p;
}

// The view's elements without gaps, [in, out] or turned [out, in], whichever runs along the stored
// order; in single precision where the device has no such type. `gathered` is where they are put if
// they do not lie like that already.
const std::byte* contiguous(const model::WeightView& w, bool& turned,
                            std::vector<std::byte>& gathered) {
  turned = false;
  const std::optional<Pieces> pieces = pieces_of(w);
  if (pieces) {
    turned = pieces->turned;
    if (pieces->without_gaps()) return w.data;
  }
  gathered.resize(matrix_bytes(w));
  if (pieces) {
    Pieces::fill(&*pieces, gathered.data(), 0, gathered.size());
  } else if (!as_stored(w)) {
    model::read_rows(w, 0, w.in, reinterpret_cast<float*>(gathered.data()));
  } else if (keeps_blocks(w)) {
    turned = true;
    const Index blocks = w.in / base::kMxfp4Block;
    for (Index o = 0; o < w.out; ++o)
      w.encoded->copy_blocks(w.start + w.offset(0, o), blocks,
                             gathered.data() + o * blocks * base::kMxfp4Bytes);
  } else {
    const std::size_t element = tensor::dtype_size(w.dtype);
    for (Index i = 0; i < w.in; ++i) {
      for (Index o = 0; o < w.out; ++o) {
        std::memcpy(gathered.data() + (i * w.out + o) * element, w.data + w.offset(i, o) * element,
                    element);
      }
    }
  }
  return gathered.data();
}

// Of what contiguous() gives.
bool all_finite(const model::WeightView& w, const std::byte* data) {
  const Index elements = w.in * w.out;
  if (!as_stored(w)) return tensor::find_non_finite(data, DType::f32, elements) < 0;
  if (!keeps_blocks(w)) return tensor::find_non_finite(data, w.dtype, elements) < 0;
  constexpr auto kLargest = std::byte{252};  // six times such a scale is still a number
  for (Index i = 0; i < elements / base::kMxfp4Block; ++i) {
    if (data[(i + 1) * base::kMxfp4Bytes - 1] <= kLargest) continue;
    for (Index x = i * base::kMxfp4Block; x < (i + 1) * base::kMxfp4Block; ++x) {
      if (!std::isfinite(stored_value(data, kMxfp4, x))) return false;
    }
  }
  return true;
}

}  // namespace

DeviceMatrix put_matrix(Device& device, const model::WeightView& w, bool* finite) {
  DeviceMatrix m;
  if (!w) return m;
  m.type = stored_as(w);
  m.in = w.in;
  m.out = w.out;
  m.factor = as_stored(w) ? w.scale : 1.0F;
  m.data = device.bytes_beside(matrix_bytes(w));
  const std::optional<Pieces> pieces = finite == nullptr ? pieces_of(w) : std::nullopt;
  if (pieces) {
    m.turned = pieces->turned;
    device.to_device_beside(m.data.get(), Pieces::fill, &*pieces, matrix_bytes(w));
    return m;
  }
  std::vector<std::byte> gathered;
  const std::byte* from = contiguous(w, m.turned, gathered);
  if (finite != nullptr && !all_finite(w, from)) *finite = false;
  device.to_device_beside(m.data.get(), from, matrix_bytes(w));
  return m;
}

}  // namespace unpack::backend::cuda
