// The sums that questions with certain options need of a prepared prompt, which the first of them
// makes otherwise.
#pragma once

#include "unpack/options.h"
#include "unpack/run_context.h"

namespace unpack {

struct PreparedState;
void make_sums(const PreparedState& state, Options options, const RunContext& context);
// The edges of such questions, of direction `output`.
void make_edges(const PreparedState& state, const Options& options, const RunContext& context);

}  // namespace unpack
