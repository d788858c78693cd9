// Whether the forward pass stayed inside the range of its arithmetic.
#pragma once

#include "forward/forward.h"

namespace unpack {

// Throws InputError that names the first layer and quantity that is no finite number, as far as the
// trace has kept them; nothing where the stream behind the last layer is finite, for whatever goes
// wrong before reaches it.
void check_finite(Backend& backend, const ForwardTrace& trace);
bool stream_is_finite(Backend& backend, const ForwardTrace& trace);

}  // namespace unpack
