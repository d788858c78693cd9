#pragma once

#include <memory>

#include "backend/backend.h"

namespace unpack {

std::shared_ptr<Backend> make_cpu_backend(std::shared_ptr<const ModelWeights> weights,
                                          const BackendOptions& options);

}  // namespace unpack
