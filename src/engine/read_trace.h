// Answers along the direction of reading, and credit edge by edge.
#pragma once

#include <map>
#include <tuple>

#include "credit/best_paths.h"
#include "credit/path_graph.h"
#include "engine/state.h"
#include "unpack/prepared.h"

namespace unpack::engine {

// Options::direction is `read`: fills in what trace.cc does otherwise.
void answer_along_reading(const PreparedState& state, const Question& question,
                          const credit::PathFilter& filter, const RunContext& context,
                          TraceResult& result);

// Paths above a threshold into the result, with what there is to say of those left out.
void take_paths(credit::ThresholdPaths found, const PathQuery& query, TraceResult& result);

// The Stage 1 shares of an MLP at a root, the largest first.
void add_neuron_entries(const decompose::Decomposition& d, const Node& root,
                        const std::vector<double>& shares, TraceResult& result);

// Reader, branch, writer, and where the writer wrote (0 where positions are summed up).
using EdgeSums = std::map<std::tuple<int, Branch, int, int>, double>;

struct EdgeQuestion {
  bool positions = false;
  // Another prompt of as many tokens: readers are given what writers write here less what they
  // write there, and read it as they read here. Options::direction must be `read`.
  const PreparedState* other = nullptr;
};
struct EdgeAnswer {
  EdgeSums sums;
  double first = 0;  // sizes of the direct credit on this prompt
};
EdgeAnswer edge_sums(const PreparedState& state, const Question& question, const EdgeQuestion& how,
                     const RunContext& context);

// Options::direction is `output`.
template <typename T>
void output_edges(const PreparedState& state, const Question& question, const TargetInfo& target,
                  bool positions, const RunContext& context, EdgeSums& sums);

}  // namespace unpack::engine
