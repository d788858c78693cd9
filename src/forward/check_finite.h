// Whether the forward pass stayed inside the range of its arithmetic, and when that is asked.
#pragma once

#include "forward/forward.h"

namespace unpack::forward {

// Throws InputError that names the first layer and quantity that is no finite number, as far as the
// pass has kept them; nothing where the stream behind the last layer is finite, for whatever goes
// wrong before reaches it.
void check_finite(backend::Backend& backend, const ForwardPass& pass);
bool stream_is_finite(backend::Backend& backend, const ForwardPass& pass);

// forward() without that check, for a caller that makes it later, once more work is on its way: the
// check waits for the device.
ForwardPass forward_unchecked(backend::Backend& backend,
                              const std::vector<std::vector<TokenId>>& prompts,
                              const ForwardOptions& options, const RunContext& context);

}  // namespace unpack::forward
