// How fast each pair of dimensions turns with the position.
#pragma once

#include <vector>

#include "unpack/config.h"

namespace unpack::backend {

// Whether a prompt of so many tokens is turned by the factors for long ones.
bool is_long_prompt(const Rope& rope, int context);
// Prompts of both lengths are turned alike in every layer.
bool same_rotary(const ModelConfig& config, int context, int other);

// [dims / 2] in radians per position, with the family's scaling for a prompt of `context` tokens.
std::vector<double> rotary_frequencies(const Rope& rope, int context);

}  // namespace unpack::backend
