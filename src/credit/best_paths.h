// Path lists: the k strongest, exactly, and all above a threshold.
#pragma once

#include <cstddef>
#include <vector>

#include "credit/path_graph.h"
#include "unpack/result.h"

namespace unpack::credit {

// The k paths of largest |credit| that match the graph's filters, largest first. Best-first; the
// bound is the exact best remaining product, and children come out of a heap, so that only what is
// needed is sorted.
template <typename T>
std::vector<Path> best_paths(const PathGraph<T>& graph, std::size_t k, const RunContext& context);

struct ThresholdPaths {
  std::vector<Path> paths;  // the strongest `top` of them, largest first
  bool more = false;        // there are others
};

// Both throw InputError past kMostWalks steps.

// Rule `named`: first credit, every prefix product and the path's own credit are at least tau. No
// more is looked at than the strongest take.
template <typename T>
ThresholdPaths named_paths(const PathGraph<T>& graph, double tau, std::size_t top,
                           const RunContext& context);

// Rule `entry`: walks source by source and neuron by neuron, dropped below tau, added up by name.
// Only with mlp = per-neuron.
template <typename T>
ThresholdPaths entry_paths(const PathGraph<T>& graph, double tau, std::size_t top,
                           const RunContext& context);

}  // namespace unpack::credit
