// Absolute path mass below every node (spec 8.4), for readings that the composition ranking sums
// over positions.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "credit/suffix.h"
#include "unpack/options.h"
#include "unpack/prepared.h"
#include "unpack/run_context.h"

namespace unpack::engine {

struct PreparedState;
std::shared_ptr<const credit::Suffix> path_masses(const PreparedState& state,
                                                  const Options& options,
                                                  const RunContext& context);
// The same as the composition of a trace from a root sees it, whatever its direction: [S, C].
// `rooted` is the answer to `question`.
std::vector<double> masses_below(const PreparedState& state, const Question& question,
                                 const TraceResult& rooted, const RunContext& context);

// Those that the root of `result` composes with, by what it sends them (incoming), ranked by the
// mass below them.
void add_composition(TraceResult& result, int writers,
                     const std::function<double(int source, int writer)>& mass_below);

}  // namespace unpack::engine
