// A NaN or an infinity never leaves as a result: what is not finite is an error that names it.
#pragma once

#include <span>

#include "unpack/result.h"

namespace unpack::engine {

// Throws InputError that names the first of these that is not finite: `what` and where.
void check_finite(const TraceResult& result);
void check_finite(const InteractionResult& result);
void check_logits(std::span<const double> logits);

}  // namespace unpack::engine
