#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/host/panels.h"
#include "base/index.h"

namespace unpack::backend {

// Weights in half precision are packed as long as that takes no more than pack_halves bytes. Where
// they are not, up to few_halves rows are multiplied with what is stored, more with panels of it.
std::shared_ptr<Backend> make_cpu_backend(std::shared_ptr<const model::ModelWeights> weights,
                                          const BackendOptions& options,
                                          std::size_t pack_halves = kPackHalves,
                                          Index few_halves = kFewHalves);

}  // namespace unpack::backend
