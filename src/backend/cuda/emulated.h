// The device table in host memory: the kernels' bodies in plain loops, GEMMs through oneDNN. Tests
// run the CUDA backend on it.
#pragma once

#include <cstdint>

#include "backend/cuda/device_table.h"

namespace unpack::backend::cuda {

const UnpackDeviceTable* emulated_table();

// What was asked of all emulated devices so far.
struct EmulatedWork {
  std::int64_t launches = 0, products = 0;
  std::int64_t requests = 0, fills = 0;  // of memory, and how often some of it was cleared
};
EmulatedWork emulated_work();

// What devices that are opened from now on say of themselves (UnpackDeviceInfo).
inline constexpr std::int64_t kEmulatedTile = std::int64_t{1} << 15;
void set_emulated(std::int64_t tile_bytes, std::int64_t tensor_work);

}  // namespace unpack::backend::cuda
