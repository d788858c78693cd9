#include <fmt/format.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/make_cuda_backend.h"
#include "backend/reference/reference_backend.h"

namespace unpack::backend {

std::shared_ptr<Backend> make_backend(std::shared_ptr<const model::ModelWeights> weights,
                                      const BackendOptions& options) {
  if (options.threads < 0)
    throw UsageError("threads takes a number of 0 or more, not " + std::to_string(options.threads));
  if (options.weight_products && options.device == "cuda")
    throw UsageError("weight_products are for the CPU; leave them out with device cuda");
  if (options.tf32 && options.exact_fp32)
    throw UsageError("tf32 and exact_fp32 contradict each other; leave one out");
  const bool automatic = options.device.empty() || options.device == "auto";
  if (automatic || options.device == "cuda") {
    // Without being asked only one who has both the plugin and a driver is told: something is wrong
    // there.
    const bool expected =
        !options.device.empty() || (!cuda::plugin_path().empty() && cuda::driver_present());
    try {
      std::shared_ptr<Backend> backend = cuda::make_cuda_backend(weights, options);
      if (options.weight_products && options.notice)
        options.notice("weight_products are left out: only the CPU is faster with them");
      return backend;
    } catch (const InputError& e) {
      if (!automatic) throw InputError(fmt::format("{}; use device cpu", e.what()));
      if (options.notice && expected)
        options.notice(fmt::format("computing on the CPU: {}", e.what()));
    }
    return make_cpu_backend(std::move(weights), options);
  }
  if (options.device == "cpu") return make_cpu_backend(std::move(weights), options);
  if (options.device == "reference") return make_reference_backend(std::move(weights), options);
  if (options.device == "cuda-emulated")
    return cuda::make_emulated_backend(std::move(weights), options);
  throw UsageError("unknown device '" + options.device + "': use auto, cpu or cuda");
}

}  // namespace unpack::backend
