// How fast each pair of dimensions turns with the position.
#pragma once

#include <vector>

#include "unpack/config.h"

namespace unpack {

// [dims / 2] in radians per position, with the family's scaling of long contexts.
std::vector<double> rotary_frequencies(const Rope& rope);

}  // namespace unpack
