// A matrix of weights on its way from host memory to the device: as it is stored, without gaps.
#pragma once

#include <cstddef>

#include "backend/cuda/device_weights.h"

namespace unpack::cuda {

// How it will be stored there (StoredAs), and what it takes.
int stored_as(const WeightView& w);
std::size_t matrix_bytes(const WeightView& w);
// `finite`: becomes false where some number is not; null: nobody asks.
DeviceMatrix put_matrix(Device& device, const WeightView& w, bool* finite);

}  // namespace unpack::cuda
