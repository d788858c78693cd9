// Paths of direction `read`. What a node passes on depends on who reads it, so that no edge has a
// factor of its own; each edge has its credit. A path's credit is that of its edge into the
// embedding, times the share that each node above got of its (absolute) credit by the path's way:
// all paths that end in a token add up to its credit, and the strongest are found exactly.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include "credit/path_graph.h"
#include "engine/read_sweep.h"
#include "unpack/result.h"

namespace unpack {

class ReadPaths {
 public:
  ReadPaths(const ReadSweep& sweep, const PathFilter& filter, const RunContext& context);

  std::vector<Path> best(std::size_t count, double least) const;  // |credit| >= least
  double absolute_total() const { return total_; }
  double absolute_matching() const { return matching_; }
  // Absolute credit of all paths that take an edge of this credit into a node.
  double mass_of_edge(const Node& child, double credit) const {
    return credit == 0 ? 0.0
                       : std::fabs(factor({child, Branch::none, credit})) * mass_all_[at(child)];
  }
  void for_each_edge(
      const Node& node,
      const std::function<void(const Node& child, Branch branch, double credit)>& visit) const {
    SentRows rows;
    for_each_edge(node, rows,
                  [&](const Edge& edge) { visit(edge.child, edge.branch, edge.credit); });
  }

 private:
  struct Edge {
    Node child;
    Branch branch = Branch::none;
    double credit = 0;
  };
  struct Step {
    Node child;
    Branch branch = Branch::none;
    double factor = 0;  // signed only into a terminal
    double reach = 0;
  };
  // Whether the way below must still pass `through`, and which sign its end must have (0: any).
  static constexpr std::size_t kSlots = 4;
  std::size_t slot(bool must_pass, bool negative) const {
    return (must_pass ? 2U : 0U) + (negative ? 1U : 0U);
  }
  std::size_t at(const Node& node) const {
    return static_cast<std::size_t>(node.position) * writers_ +
           static_cast<std::size_t>(node.writer);
  }
  bool terminal(int writer) const { return writer < sweep_.decomposition().writers().terminals(); }
  void for_each_edge(const Node& node, SentRows& rows,
                     const std::function<void(const Edge&)>& visit) const;
  double factor(const Edge& edge) const;
  void measure(const Node& node, SentRows& rows);
  bool satisfied(bool must_pass, int writer) const {
    return !must_pass || (filter_.suffix.through && *filter_.suffix.through == writer);
  }
  std::vector<Step> steps(const Node& node, bool must_pass, bool top, std::size_t count) const;

  const ReadSweep& sweep_;
  PathFilter filter_;
  const RunContext& context_;
  std::size_t writers_, length_;
  std::vector<double> incoming_;  // [S, C] absolute credit that reaches a node
  std::vector<double> mass_all_;
  std::array<std::vector<double>, kSlots> bound_, mass_;
  double total_ = 0, matching_ = 0;
};

}  // namespace unpack
