// Paths of direction `read`. What a node passes on depends on who reads it, so that no edge has a
// factor of its own; each edge has its credit. A path's credit is that of its edge into the
// embedding, times the share that each node above got of its (absolute) credit by the path's way:
// all paths that end in a token add up to its credit, and the strongest are found exactly. Shares
// are known once all readers of a node are, so that one pass from the top tells how much the ways
// down to every node weigh, and the search goes from the tokens up.
#pragma once

#include <array>
#include <vector>

#include "credit/path_graph.h"
#include "engine/read_sweep.h"
#include "unpack/result.h"

namespace unpack::engine {

class ReadPaths {
 public:
  ReadPaths(const ReadSweep& sweep, const credit::PathFilter& filter, const RunContext& context);

  // |credit| >= least. What cannot be among the `count` best is left out where prune is set.
  std::vector<Path> best(std::size_t count, double least, bool prune = true) const;
  double absolute_total() const { return total_; }
  double absolute_matching() const { return matching_; }
  // [S, C]: absolute credit of all paths that go on below a node, per absolute credit of an edge
  // into it. Another pass over all edges.
  std::vector<double> masses_below() const;

 private:
  // Ways from the start down to a node: the largest product of shares, and the sum of all.
  struct Ways {
    double bound = 0, mass = 0;
  };
  // Whether the way above must still pass `through`.
  enum Slot : std::size_t { kAny = 0, kNeed = 1 };
  struct NodeWays {
    std::vector<double> bound, mass;  // [S, C], through readers
  };
  // A reader that the search may go up to, or the end of a path.
  struct Step {
    Node reader;
    Branch branch = Branch::none;
    double factor = 0;  // signed only out of a terminal
    double reach = 0;
    bool end = false;
  };
  struct Search;

  std::size_t at(const Node& node) const { return node.position * writers_ + node.writer; }
  bool terminal(int writer) const { return writer < d_.writers().terminals(); }
  bool passes(int writer) const {
    return filter_.suffix.through && *filter_.suffix.through == writer;
  }
  bool filtered() const { return filter_.suffix.any() || filter_.branch || filter_.sign; }
  double first_of(const Node& node) const;
  double share_of_first(const Node& node) const;
  Slot below(Slot slot, int writer) const { return slot == kNeed && passes(writer) ? kAny : slot; }
  Slot slot_at_end(int writer) const {
    return filter_.suffix.through && !passes(writer) ? kNeed : kAny;
  }
  bool branch_fits(Branch branch) const { return !filter_.branch || *filter_.branch == branch; }
  Ways ways(Slot slot, const Node& reader, Branch branch) const;
  // The same at every position, in both slots: [S].
  std::vector<std::array<Ways, 2>> ways_of(int writer, Branch branch) const;
  template <typename T>
  void absorb(int position, std::size_t visible, std::span<const std::array<Ways, 2>> readers,
              const T* credit);
  void finish(int writer);
  bool pass_on_device(int l);
  template <typename T>
  void pass_down();
  template <typename T>
  std::vector<double> pass_up() const;
  void count_ends();
  std::vector<Step> steps(const Node& node, Slot slot, bool branch_fits, std::size_t count,
                          double least) const;

  const ReadSweep& sweep_;
  const decompose::Decomposition& d_;
  credit::PathFilter filter_;
  const RunContext& context_;
  std::size_t writers_, length_;
  std::vector<double> incoming_;  // [S, C] absolute credit that reaches a node
  std::array<NodeWays, 2> ways_;
  std::array<NodeWays, 2> ends_;  // [S, terminals] of paths, by sign
  double total_ = 0, matching_ = 0;
};

}  // namespace unpack::engine
