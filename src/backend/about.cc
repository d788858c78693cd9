#include "unpack/about.h"

#include <fmt/format.h>

#include "backend/cpu/gemm.h"
#include "backend/cuda/make_cuda_backend.h"
#include "backend/host/kernels.h"
#include "base/installation.h"
#include "base/thread_pool.h"

namespace unpack {

std::string version() { return UNPACK_VERSION; }

About about() {
  About result;
  result.version = version();
  result.build_type = UNPACK_BUILD_TYPE;
  result.installed = base::installed_as();
  result.kernels = fmt::format("{}, {}", backend::kernel_name(), backend::gemm_library());
  result.devices.push_back(fmt::format("cpu ({} threads)", base::available_threads()));
  if (backend::cuda::driver_present() && !backend::cuda::plugin_path().empty())
    result.devices.push_back("cuda (driver and plugin are here; unpack doctor asks the GPU)");
  return result;
}

}  // namespace unpack
