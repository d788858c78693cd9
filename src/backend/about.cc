#include "unpack/about.h"

#include <fmt/format.h>

#include <thread>

#include "backend/cpu/gemm.h"
#include "backend/cuda/make_cuda_backend.h"
#include "backend/host/kernels.h"

namespace unpack {

About about() {
  About result{
      UNPACK_VERSION, UNPACK_BUILD_TYPE, fmt::format("{}, {}", kernel_name(), gemm_library()), {}};
  result.devices.push_back(
      fmt::format("cpu ({} threads)", std::max(1U, std::thread::hardware_concurrency())));
  const std::string cuda = cuda::device_name();
  if (!cuda.empty()) result.devices.push_back("cuda (" + cuda + ")");
  return result;
}

}  // namespace unpack
