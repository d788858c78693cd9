// The devices that a backend test runs on: plain loops in double precision, the CPU, the CUDA
// backend on its emulated device, and a GPU where there is one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/make_cuda_backend.h"
#include "unpack/model.h"

namespace unpack::testing {

inline bool has_gpu() {
  // Held open: many small models are made.
  static const std::shared_ptr<backend::cuda::Device> device =
      backend::cuda::device_name().empty() ? nullptr : backend::cuda::open_gpu(false);
  return device != nullptr;
}

// Says once on a machine without a GPU what is not run there.
inline std::vector<std::string> float_devices() {
  std::vector<std::string> devices = {"cpu", "cuda-emulated"};
  if (has_gpu()) devices.emplace_back("cuda");
  static const bool told = [] {
    if (!has_gpu())
      std::printf("no CUDA device here: the CUDA backend runs on its emulated device alone\n");
    return true;
  }();
  (void)told;
  return devices;
}

inline const std::vector<std::string> kDevices = {"reference", "cpu", "cuda-emulated", "cuda"};

// Test names have no hyphens.
inline std::string test_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char x) { return x == '-' || x == '.'; }, '_');
  return name;
}

// What a test that runs on every device asks about the one it is on.
class DeviceTest : public ::testing::Test {
 protected:
  explicit DeviceTest(std::string device) : device_(std::move(device)) {}
  void SetUp() override {
    if (device_ == "cuda" && !has_gpu()) GTEST_SKIP() << "no CUDA device here";
  }
  const std::string& device() const { return device_; }
  bool is_double() const { return device_ == "reference"; }
  double limit(double in_double, double in_float) const {
    return is_double() ? in_double : in_float;
  }
  LoadOptions load() const {
    LoadOptions options;
    options.device = device_;
    options.threads = 2;
    return options;
  }

 private:
  std::string device_;
};

// One body, every device: class X : public testing::OnEveryDevice {}; UNPACK_ON_EVERY_DEVICE(X);
// TEST_P(X, ...).
class OnEveryDevice : public DeviceTest, public ::testing::WithParamInterface<std::string> {
 protected:
  OnEveryDevice() : DeviceTest(GetParam()) {}
};

#define UNPACK_ON_EVERY_DEVICE(suite)                                                        \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, ::testing::ValuesIn(::unpack::testing::kDevices), \
                           [](const ::testing::TestParamInfo<std::string>& about) {          \
                             return ::unpack::testing::test_name(about.param);               \
                           })

}  // namespace unpack::testing
