#include "credit/best_paths.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>

#include "credit/child_list.h"

namespace unpack {

namespace {

// A partial path from the root side down to a node; the rest hangs on its parent.
struct Prefix {
  std::int64_t parent = -1;
  GraphNode node;
  Branch branch = Branch::none;  // of the parent's hop that led here
  double product = 1;
  SuffixState state;
  bool is_top = false;
};

struct Candidate {
  double reach = 0;
  std::uint64_t order = 0;
  std::int64_t prefix = -1;  // whose child it is; -1: the start
  std::size_t index = 0;     // among the children
  bool operator<(const Candidate& other) const {
    return reach != other.reach ? reach < other.reach : order > other.order;
  }
};

Path make_path(const std::vector<Prefix>& prefixes, std::int64_t last) {
  Path path;
  path.credit = prefixes[static_cast<std::size_t>(last)].product;
  Branch own = Branch::none;  // the terminal has no hop of its own
  for (std::int64_t i = last; i >= 0; i = prefixes[static_cast<std::size_t>(i)].parent) {
    const Prefix& p = prefixes[static_cast<std::size_t>(i)];
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

template <typename T>
std::vector<Path> best_paths(const PathGraph<T>& graph, std::size_t k, const RunContext& context) {
  ChildLists<T> lists(graph);
  std::vector<Prefix> prefixes;
  std::priority_queue<Candidate> queue;
  std::uint64_t order = 0;
  const auto children = [&](std::int64_t prefix) -> ChildList& {
    if (prefix < 0) return lists.tops();
    const Prefix& p = prefixes[static_cast<std::size_t>(prefix)];
    return lists.of(p.node, p.state, p.is_top);
  };
  const auto push = [&](std::int64_t prefix, std::size_t index) {
    ChildList& list = children(prefix);
    if (index >= list.size()) return;
    const double product =
        prefix < 0 ? 1.0 : std::fabs(prefixes[static_cast<std::size_t>(prefix)].product);
    queue.push({product * list[index].reach, order++, prefix, index});
  };
  std::vector<Path> paths;
  push(-1, 0);
  while (!queue.empty() && paths.size() < k) {
    const Candidate best = queue.top();
    queue.pop();
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
      const Prefix& parent = prefixes[static_cast<std::size_t>(best.prefix)];
      next.node = {child.edge.writer, child.edge.position, false};
      next.branch = child.edge.branch;
      next.product = parent.product * child.edge.factor;
      next.state = graph.below(parent.state, child.edge.writer, child.edge.factor);
    }
    prefixes.push_back(next);
    const auto index = static_cast<std::int64_t>(prefixes.size()) - 1;
    if (graph.terminal(next.node.writer)) {
      paths.push_back(make_path(prefixes, index));
      if (paths.size() % 1024 == 0)
        context.report("paths", static_cast<double>(paths.size()), static_cast<double>(k));
    } else {
      push(index, 0);
    }
  }
  sort_paths(paths);
  return paths;
}

namespace {

// Keeps the strongest `top` of a stream of paths.
class Strongest {
 public:
  explicit Strongest(std::size_t top) : top_(top) {}
  void add(Path path) {
    if (top_ == 0) return;
    paths_.push_back(std::move(path));
    if (paths_.size() >= 2 * top_ + 1024) shrink();
  }
  std::vector<Path> take() {
    shrink();
    return std::move(paths_);
  }

 private:
  void shrink() {
    sort_paths(paths_);
    if (paths_.size() > top_) paths_.resize(top_);
  }
  std::size_t top_;
  std::vector<Path> paths_;
};

template <typename T>
class NamedWalk {
 public:
  NamedWalk(const PathGraph<T>& graph, double tau, std::size_t top, const RunContext& context)
      : graph_(graph), lists_(graph), tau_(tau), strongest_(top), context_(context) {}

  ThresholdPaths run() {
    ChildList& tops = lists_.tops();
    for (std::size_t i = 0; i < tops.size(); ++i) {
      if (tops[i].reach < tau_) break;
      const TopNode& top = graph_.tops()[tops[i].order];
      if (std::fabs(top.first) < tau_) continue;
      enter(top.node, Branch::none, top.first, graph_.top_state(top), true);
    }
    out_.paths = strongest_.take();
    return std::move(out_);
  }

 private:
  void enter(const GraphNode& node, Branch branch, double product, const SuffixState& state,
             bool is_top) {
    nodes_.push_back({node.writer, node.position});
    branches_.push_back(branch);
    if (graph_.terminal(node.writer)) {
      emit(product);
    } else {
      ChildList& list = lists_.of(node, state, is_top);
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Child child = list[i];
        if (std::fabs(product) * child.reach < tau_)
          break;  // no path through this or a later child ends at tau or above
        const double next = product * child.edge.factor;
        if (std::fabs(next) < tau_) continue;
        enter({child.edge.writer, child.edge.position, false}, child.edge.branch, next,
              graph_.below(state, child.edge.writer, child.edge.factor), false);
      }
    }
    nodes_.pop_back();
    branches_.pop_back();
  }

  void emit(double credit) {
    Path path;
    path.credit = credit;
    path.nodes.assign(nodes_.rbegin(), nodes_.rend());
    // branches_[i] is the hop that led to nodes_[i], that is, the own hop of the node before it.
    path.branches.push_back(Branch::none);
    for (std::size_t i = branches_.size() - 1; i > 0; --i) path.branches.push_back(branches_[i]);
    out_.count++;
    out_.absolute += std::fabs(credit);
    strongest_.add(std::move(path));
    if (out_.count % 4096 == 0) context_.report("paths", static_cast<double>(out_.count), 0);
  }

  const PathGraph<T>& graph_;
  ChildLists<T> lists_;
  double tau_;
  Strongest strongest_;
  const RunContext& context_;
  std::vector<Node> nodes_;
  std::vector<Branch> branches_;
  ThresholdPaths out_;
};

}  // namespace

template <typename T>
ThresholdPaths named_paths(const PathGraph<T>& graph, double tau, std::size_t top,
                           const RunContext& context) {
  return NamedWalk<T>(graph, tau, top, context).run();
}

template std::vector<Path> best_paths<float>(const PathGraph<float>&, std::size_t,
                                             const RunContext&);
template std::vector<Path> best_paths<double>(const PathGraph<double>&, std::size_t,
                                              const RunContext&);
template ThresholdPaths named_paths<float>(const PathGraph<float>&, double, std::size_t,
                                           const RunContext&);
template ThresholdPaths named_paths<double>(const PathGraph<double>&, double, std::size_t,
                                            const RunContext&);

}  // namespace unpack
