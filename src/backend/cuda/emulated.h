// The device table in host memory: the kernels' bodies in plain loops, GEMMs through oneDNN. Tests
// run the CUDA backend on it.
#pragma once

#include "backend/cuda/device_table.h"
#include "base/index.h"

namespace unpack::backend::cuda {

const UnpackDeviceTable* emulated_table();

// What was asked of all emulated devices so far.
struct EmulatedWork {
  Index launches = 0, products = 0;
  Index requests = 0, fills = 0;  // of memory, and how often some of it was cleared
};
EmulatedWork emulated_work();

// What devices that are opened from now on say of themselves (UnpackDeviceInfo).
inline constexpr Index kEmulatedTile = Index{1} << 15;
void set_emulated(Index tile_bytes, Index tensor_work);

}  // namespace unpack::backend::cuda
