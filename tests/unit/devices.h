// The devices that a backend test runs on: the CPU, the CUDA backend on its emulated device, and a GPU where there is one.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/make_cuda_backend.h"

namespace unpack::testing {

inline bool has_gpu() {
  // Held open: many small models are made.
  static const std::shared_ptr<cuda::Device> device = cuda::device_name().empty() ? nullptr : cuda::open_gpu(false);
  return device != nullptr;
}

// Says once on a machine without a GPU what is not run there.
inline std::vector<std::string> float_devices() {
  std::vector<std::string> devices = {"cpu", "cuda-emulated"};
  if (has_gpu()) devices.emplace_back("cuda");
  static const bool told = [] {
    if (!has_gpu()) std::printf("no CUDA device here: the CUDA backend runs on its emulated device alone\n");
    return true;
  }();
  (void)told;
  return devices;
}

}  // namespace unpack::testing
