// The ground that the kernels of CUDA devices stand on: what all devices share (kernels/base.h), in
// single precision, and how weights are stored.
#pragma once

#include "backend/kernels/base.h"
#include "base/index.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

namespace unpack::backend::cuda {

using kernels::Divided;
using kernels::divided;
using kernels::HostGroup;
using kernels::pairs_before;
using kernels::sum_and_size;
using Rotary = kernels::Rotary<float>;

using base::bf16_bits;
// As base::f16_bits, by the instruction where there is one.
UNPACK_BODY std::uint16_t f16_bits(float x) {
#ifdef __CUDA_ARCH__
  return __half_as_ushort(__float2half_rn(x));
#else
  return base::f16_bits(x);
#endif
}
// A power of two that brings the largest of some numbers to between 2^14 and 2^15, where halves
// have all their bits and those of what is 2^18 times smaller.
UNPACK_BODY float unit_of(float largest) {
  const std::uint32_t exponent = base::bits_of_float(largest) >> 23 & 0xFFU;
  if (largest == 0) return 1.0F;
  const std::uint32_t least = exponent < 28U ? 28U : exponent;
  return base::float_of_bits((2 * 127U + 14U - least) << 23);
}
// The nearest number of eleven bits, ties to even; `x` is no NaN.
inline constexpr std::uint32_t kBelowTf32 = 0x1FFFU;
UNPACK_BODY float tf32_rounded(float x) {
  return base::float_of_bits(base::rounded_bits(base::bits_of_float(x), 13) & ~kBelowTf32);
}

// How weights are stored on the device. MXFP4: blocks with their scale behind them.
enum StoredAs : int { kF32 = 0, kF16 = 1, kBf16 = 2, kMxfp4 = 3 };

UNPACK_BODY float stored_value(const void* data, int type, Index i) {
  if (type == kF32) return static_cast<const float*>(data)[i];
  if (type == kMxfp4) {
    const std::uint8_t* block =
        static_cast<const std::uint8_t*>(data) + i / base::kMxfp4Block * base::kMxfp4Bytes;
    const std::uint32_t pair = block[i % base::kMxfp4Block / 2];
    return base::mxfp4_value(i % 2 == 0 ? pair & 15U : pair >> 4) *
           base::mxfp4_scale(block[base::kMxfp4Bytes - 1]);
  }
  const std::uint16_t h = static_cast<const std::uint16_t*>(data)[i];
  return type == kF16 ? base::f16_value(h) : base::bf16_value(h);
}

}  // namespace unpack::backend::cuda
