#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/reference/reference_backend.h"

namespace unpack {

std::shared_ptr<Backend> make_backend(std::shared_ptr<const ModelWeights> weights, const BackendOptions& options) {
  if (options.threads < 0) throw UsageError("--threads must be 0 or more, not " + std::to_string(options.threads));
  if (options.device == "auto" || options.device == "cpu") return make_cpu_backend(std::move(weights), options);
  if (options.device == "reference") return make_reference_backend(std::move(weights), options);
  if (options.device == "cuda") throw InputError("this build has no CUDA backend; use --device cpu");
  throw UsageError("unknown device '" + options.device + "': use auto, cpu or cuda");
}

}  // namespace unpack
