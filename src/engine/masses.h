// Absolute path mass below every node (spec 8.4), for readings that the composition ranking sums
// over positions.
#pragma once

#include <memory>

#include "credit/suffix.h"
#include "unpack/options.h"
#include "unpack/run_context.h"

namespace unpack {

struct PreparedState;
std::shared_ptr<const Suffix> path_masses(const PreparedState& state, const Options& options,
                                          const RunContext& context);

}  // namespace unpack
