// A matrix of weights on its way from host memory to the device: as it is stored, without gaps.
#pragma once

#include <cstddef>

#include "backend/cuda/device_weights.h"

namespace unpack::backend::cuda {

// How it will be stored there (StoredAs), and what it takes.
int stored_as(const model::WeightView& w);
std::size_t matrix_bytes(const model::WeightView& w);
// `finite`: becomes false where some number is not; null: nobody asks.
DeviceMatrix put_matrix(Device& device, const model::WeightView& w, bool* finite);

}  // namespace unpack::backend::cuda
