// The device table in host memory: the kernels' bodies in plain loops, GEMMs through oneDNN. Tests
// run the CUDA backend on it.
#pragma once

#include "backend/cuda/device_table.h"

namespace unpack::backend::cuda {

const UnpackDeviceTable* emulated_table();

}  // namespace unpack::backend::cuda
