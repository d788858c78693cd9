// The children of a node for one suffix state, strongest first, sorted only as far as they are
// asked for.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "credit/path_graph.h"
#include "unpack/result.h"

namespace unpack::credit {

struct Child {
  GraphEdge edge;
  double reach =
      0;  // |factor| times the best remaining product: the best a path through it can keep
  std::uint32_t order = 0;
};

// Few children of a node of a long prompt are ever asked for: the strongest are kept, all of them
// made again for whoever asks for more.
class ChildList {
 public:
  using Make = std::function<std::vector<Child>()>;
  explicit ChildList(Make make)
      : make_(std::move(make)), children_(make_()), size_(children_.size()) {
    if (size_ > kKept) {
      std::nth_element(children_.begin(), children_.begin() + kKept, children_.end(),
                       [](const Child& a, const Child& b) { return weaker(b, a); });
      children_ = std::vector<Child>(children_.begin(), children_.begin() + kKept);
    }
    arrange();
  }
  std::size_t size() const { return size_; }
  const Child& operator[](std::size_t i) {
    if (i >= children_.size()) {
      children_ = make_();
      arrange();
    }
    while (children_.size() - heap_end_ <= i) {
      std::pop_heap(children_.begin(), children_.begin() + heap_end_, weaker);
      --heap_end_;
    }
    // Sorted ones collect at the back, strongest last.
    return children_[children_.size() - 1 - i];
  }

 private:
  static constexpr std::ptrdiff_t kKept = 1024;
  // A total order, so that the strongest are the same whether all are there or not.
  static bool weaker(const Child& a, const Child& b) {
    return a.reach != b.reach ? a.reach < b.reach : a.order > b.order;
  }
  void arrange() {
    heap_end_ = children_.size();
    std::make_heap(children_.begin(), children_.end(), weaker);
  }
  Make make_;
  std::vector<Child> children_;
  std::size_t size_;
  std::size_t heap_end_ = 0;
};

// Lists by node and state, made when first asked for: edges do not depend on the path that led
// there.
template <typename T>
class ChildLists {
 public:
  explicit ChildLists(const PathGraph<T>& graph) : graph_(graph) {}

  ChildList& tops() {
    if (!tops_) {
      tops_ = std::make_unique<ChildList>([this] {
        std::vector<Child> children;
        for (std::size_t i = 0; i < graph_.tops().size(); ++i) {
          const TopNode& top = graph_.tops()[i];
          const double reach = std::fabs(top.first) * top.bound;
          if (reach > 0)
            children.push_back({{top.node.writer, top.node.position, Branch::none, top.first},
                                reach,
                                static_cast<std::uint32_t>(i)});
        }
        return children;
      });
    }
    return *tops_;
  }

  ChildList& of(const GraphNode& node, const SuffixState& state, bool is_top) {
    const std::uint64_t key =
        (((static_cast<std::uint64_t>(node.position) * graph_.decomposition().writers().count() +
           node.writer) *
              2 +
          (is_top ? 1 : 0)) *
             2 +
         (state.must_pass ? 1 : 0)) *
            2 +
        (state.negative ? 1 : 0);
    auto& slot = lists_[key];
    if (!slot) {
      slot = std::make_unique<ChildList>([this, node, state, is_top] {
        std::vector<Child> children;
        graph_.for_each_edge(node, [&](const GraphEdge& edge) {
          if (is_top && !graph_.allowed_last_hop(edge)) return;
          const double reach = std::fabs(edge.factor) * graph_.child_bound(state, edge);
          if (reach > 0)
            children.push_back({edge, reach, static_cast<std::uint32_t>(children.size())});
        });
        return children;
      });
    }
    return *slot;
  }

 private:
  const PathGraph<T>& graph_;
  std::unique_ptr<ChildList> tops_;
  std::unordered_map<std::uint64_t, std::unique_ptr<ChildList>> lists_;
};

// Sorts largest |credit| first; equal ones by their nodes, so that every run lists them alike.
void sort_paths(std::vector<Path>& paths);

}  // namespace unpack::credit
