#pragma once

#include <memory>

#include "backend/backend.h"

namespace unpack::backend {

std::shared_ptr<Backend> make_reference_backend(std::shared_ptr<const model::ModelWeights> weights,
                                                const BackendOptions& options);

}  // namespace unpack::backend
