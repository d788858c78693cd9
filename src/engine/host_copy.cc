#include "engine/host_copy.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/read_ops.h"

namespace unpack {

namespace {

std::shared_ptr<Backend> host_backend(const ModelState& model) {
  const std::lock_guard lock(model.host_mutex);
  if (!model.host_backend) {
    BackendOptions options;
    options.threads = model.options.threads;
    model.host_backend = make_cpu_backend(model.weights, options);
  }
  return model.host_backend;
}

}  // namespace

std::shared_ptr<const Decomposition> on_host(const PreparedState& state) {
  if (dynamic_cast<ReadOps*>(&state.backend()) != nullptr) return state.decomposition;
  const std::lock_guard lock(state.host_mutex);
  if (!state.on_host)
    state.on_host = std::make_shared<const Decomposition>(host_backend(*state.model.state()),
                                                          state.decomposition);
  return state.on_host;
}

}  // namespace unpack
