// A prompt of a device whose memory is far, as a host backend sees it: copies of what its passes
// made, for work that only host backends do.
#pragma once

#include <memory>

#include "engine/state.h"

namespace unpack {

// The decomposition itself where its backend has ReadOps; otherwise a copy that the state keeps.
std::shared_ptr<const Decomposition> on_host(const PreparedState& state);

}  // namespace unpack
