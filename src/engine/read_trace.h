// Answers along the direction of reading, and credit edge by edge.
#pragma once

#include <map>
#include <tuple>

#include "credit/path_graph.h"
#include "engine/state.h"
#include "unpack/prepared.h"

namespace unpack {

// Options::direction is `read`: fills in what trace.cc does otherwise.
void answer_along_reading(const PreparedState& state, const Question& question,
                          const PathFilter& filter, const RunContext& context, TraceResult& result);

// The Stage 1 shares of an MLP at a root, the largest first.
void add_neuron_entries(const Decomposition& d, const Node& root, const std::vector<double>& shares,
                        TraceResult& result);

using EdgeSums = std::map<std::tuple<int, Branch, int>, double>;  // reader, branch, writer
// Options::direction is `output`.
template <typename T>
void output_edges(const PreparedState& state, const Question& question, const TargetInfo& target,
                  const RunContext& context, EdgeSums& sums);

}  // namespace unpack
