// The DAG that paths walk on, from the root side down: a start (target or root), nodes with direct
// credit as nodes of their own, and below them indirect edges only.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "credit/edges.h"
#include "credit/flow.h"
#include "credit/node_edges.h"
#include "credit/suffix.h"

namespace unpack::credit {

struct GraphEdge {
  int writer = 0;
  int position = 0;
  Branch branch = Branch::none;
  double factor = 0;
};

// A node next to the root side with the credit it starts with.
struct TopNode {
  GraphNode node;
  double first = 0;
  double mass_all = 0;  // absolute path mass below it, per unit of credit
  double mass = 0;      // the same for what matches the filters
  double bound = 0;     // largest matching product below it
};

// Filters resolved against a model and a prompt.
struct PathFilter {
  std::optional<Branch> branch;
  SuffixFilter suffix;
  std::optional<int> sign;  // +1, -1
};

template <typename T>
class PathGraph {
 public:
  PathGraph(const Edges<T>& edges, const Start& start, const Suffix& suffix,
            const PathFilter& filter);

  const Edges<T>& edges() const { return edges_; }
  const decompose::Decomposition& decomposition() const { return edges_.decomposition(); }
  const Start& start() const { return start_; }
  const Suffix& suffix() const { return suffix_; }
  const PathFilter& filter() const { return filter_; }
  const std::vector<TopNode>& tops() const { return tops_; }

  bool terminal(int writer) const { return writer < decomposition().writers().terminals(); }
  // All edges with a factor that is not 0, in a fixed order.
  void for_each_edge(const GraphNode& node,
                     const std::function<void(const GraphEdge&)>& visit) const;
  // Whether the edge may be the last hop of a matching path, out of a top node.
  bool allowed_last_hop(const GraphEdge& edge) const {
    return !filter_.branch || edge.branch == *filter_.branch;
  }

  // The state below a node whose suffix is asked for in `state`.
  SuffixState below(const SuffixState& state, int writer, double factor) const;
  double child_bound(const SuffixState& state, const GraphEdge& edge) const;
  SuffixState top_state(const TopNode& top) const;

  double absolute_total() const;
  double absolute_matching() const;

 private:
  bool filtered() const {
    return filter_.suffix.any() || filter_.branch.has_value() || filter_.sign.has_value();
  }
  // `keys`: those of all heads of the layer at the node's position, where they are there already.
  void measure(TopNode& top, const std::shared_ptr<const T>& keys) const;
  void measure_unfiltered(TopNode& top, const std::shared_ptr<const T>& keys) const;

  const Edges<T>& edges_;
  const Start& start_;
  const Suffix& suffix_;
  PathFilter filter_;
  std::vector<TopNode> tops_;
};

}  // namespace unpack::credit
