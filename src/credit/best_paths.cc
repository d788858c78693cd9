#include "credit/best_paths.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>

#include "base/index.h"
#include "credit/child_list.h"
#include "unpack/error.h"

namespace unpack::credit {

namespace {

// A partial path from the root side down to a node; the rest hangs on its parent.
struct Prefix {
  Index parent = -1;
  GraphNode node;
  Branch branch = Branch::none;  // of the parent's hop that led here
  double product = 1;
  SuffixState state;
  bool is_top = false;
};

struct Candidate {
  double reach = 0;
  std::uint64_t order = 0;
  Index prefix = -1;      // whose child it is; -1: the start
  std::size_t index = 0;  // among the children
  bool operator<(const Candidate& other) const {
    return reach != other.reach ? reach < other.reach : order > other.order;
  }
};

Path make_path(const std::vector<Prefix>& prefixes, Index last) {
  Path path;
  path.credit = prefixes[last].product;
  Branch own = Branch::none;  // the terminal has no hop of its own
  for (Index i = last; i >= 0; i = prefixes[i].parent) {
    const Prefix& p = prefixes[i];
    path.nodes.push_back({p.node.writer, p.node.position});
    path.branches.push_back(own);
    own = p.branch;
  }
  return path;
}

}  // namespace

void sort_paths(std::vector<Path>& paths) {
  const auto key = [](const Path& p) {
    std::vector<int> k;
    for (std::size_t i = 0; i < p.nodes.size(); ++i)
      k.insert(k.end(), {p.nodes[i].position, p.nodes[i].writer, static_cast<int>(p.branches[i])});
    return k;
  };
  std::stable_sort(paths.begin(), paths.end(), [&](const Path& a, const Path& b) {
    const double x = std::fabs(a.credit);
    const double y = std::fabs(b.credit);
    return x != y ? x > y : key(a) < key(b);
  });
}

namespace {

// The k strongest of those whose every prefix is at least tau.
template <typename T>
std::vector<Path> search(const PathGraph<T>& graph, std::size_t k, double tau,
                         const RunContext& context) {
  ChildLists<T> lists(graph);
  std::vector<Prefix> prefixes;
  std::priority_queue<Candidate> queue;
  std::uint64_t order = 0;
  const auto children = [&](Index prefix) -> ChildList& {
    if (prefix < 0) return lists.tops();
    const Prefix& p = prefixes[prefix];
    return lists.of(p.node, p.state, p.is_top);
  };
  const auto push = [&](Index prefix, std::size_t index) {
    ChildList& list = children(prefix);
    if (index >= list.size()) return;
    const double product = prefix < 0 ? 1.0 : std::fabs(prefixes[prefix].product);
    queue.push({product * list[index].reach, order++, prefix, index});
  };
  std::vector<Path> paths;
  std::size_t steps = 0;
  push(-1, 0);
  while (!queue.empty() && paths.size() < k) {
    const Candidate best = queue.top();
    if (best.reach < tau) break;
    queue.pop();
    if (++steps % 4096 == 0) context.check();
    if (tau > 0 && steps > kMostWalks)
      throw InputError(
          fmt::format("tau {:g} is too small here: the search passed {} steps; take a "
                      "larger tau, or fewer top_paths",
                      tau, kMostWalks));
    push(best.prefix, best.index + 1);
    const Child child = children(best.prefix)[best.index];
    Prefix next;
    next.parent = best.prefix;
    if (best.prefix < 0) {
      const TopNode& top = graph.tops()[child.order];
      next.node = top.node;
      next.product = top.first;
      next.state = graph.top_state(top);
      next.is_top = true;
    } else {
      const Prefix& parent = prefixes[best.prefix];
      next.node = {child.edge.writer, child.edge.position, false};
      next.branch = child.edge.branch;
      next.product = parent.product * child.edge.factor;
      next.state = graph.below(parent.state, child.edge.writer, child.edge.factor);
    }
    if (std::fabs(next.product) < tau) continue;
    prefixes.push_back(next);
    const auto index = std::ssize(prefixes) - 1;
    if (graph.terminal(next.node.writer)) {
      paths.push_back(make_path(prefixes, index));
      if (paths.size() % 1024 == 0) context.report("paths", paths.size(), k);
    } else {
      push(index, 0);
    }
  }
  sort_paths(paths);
  return paths;
}

}  // namespace

template <typename T>
std::vector<Path> best_paths(const PathGraph<T>& graph, std::size_t k, const RunContext& context) {
  return search(graph, k, 0, context);
}

template <typename T>
ThresholdPaths named_paths(const PathGraph<T>& graph, double tau, std::size_t top,
                           const RunContext& context) {
  ThresholdPaths out;
  if (top == 0) return out;
  out.paths = search(graph, top + 1, tau, context);  // one more tells whether there are others
  out.more = out.paths.size() > top;
  if (out.more) out.paths.pop_back();
  return out;
}

template std::vector<Path> best_paths<float>(const PathGraph<float>&, std::size_t,
                                             const RunContext&);
template std::vector<Path> best_paths<double>(const PathGraph<double>&, std::size_t,
                                              const RunContext&);
template ThresholdPaths named_paths<float>(const PathGraph<float>&, double, std::size_t,
                                           const RunContext&);
template ThresholdPaths named_paths<double>(const PathGraph<double>&, double, std::size_t,
                                            const RunContext&);

}  // namespace unpack::credit
