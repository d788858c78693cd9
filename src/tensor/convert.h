// Runs of stored scalars to float or double and back. Stored data may be unaligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/index.h"
#include "unpack/config.h"

namespace unpack::tensor {

std::size_t dtype_size(DType dtype);

float f16_to_f32(std::uint16_t h);
float bf16_to_f32(std::uint16_t h);
std::uint16_t f32_to_f16(float x);   // round to nearest even, overflow to infinity
std::uint16_t f32_to_bf16(float x);  // round to nearest even

double load_element(const std::byte* data, DType dtype, Index index);

// out[i] = data[i] for i < n.
void convert_run(const std::byte* data, DType dtype, Index n, float* out);
void convert_run(const std::byte* data, DType dtype, Index n, double* out);
// The other way round; halves round to nearest even.
void store_run(const float* in, Index n, DType dtype, std::byte* out);

// Index of the first scalar that is NaN, infinite, or (f64) beyond float range; -1 where there is
// none.
Index find_non_finite(const std::byte* data, DType dtype, Index n);

}  // namespace unpack::tensor
