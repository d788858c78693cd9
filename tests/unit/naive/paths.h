// Every path there is, one by one: for models small enough to count them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "unit/naive/recursion.h"
#include "unpack/result.h"

namespace unpack::naive {

struct TopCredit {
  Node node;
  double credit = 0;
  bool direct = true;
};

class Enumeration {
 public:
  Enumeration(Recursion& recursion, const Writers& writers, const std::vector<TopCredit>& tops)
      : recursion_(recursion), writers_(writers), tops_(tops) {}

  // With tau: paths whose first credit, every prefix and own credit reach it.
  std::vector<Path> all(double tau = 0) {
    paths_.clear();
    for (const TopCredit& top : tops_) {
      if (top.credit != 0 && std::fabs(top.credit) >= tau)
        walk(top.node, top.direct, top.credit, tau);
    }
    return paths_;
  }

  // The paper's walk: entry by entry, same names added up at the end.
  std::vector<Path> by_entry(double tau) {
    named_.clear();
    for (const TopCredit& top : tops_) {
      if (std::fabs(top.credit) >= tau) walk_entries(top.node, top.direct, top.credit, tau);
    }
    std::vector<Path> out;
    for (auto& [key, path] : named_) out.push_back(path);
    return out;
  }

  // How near, relatively, any credit that was tested came to tau in the last walk.
  double margin() const { return margin_; }

  static std::vector<int> key(const Path& p) {
    std::vector<int> k;
    for (std::size_t i = 0; i < p.nodes.size(); ++i)
      k.insert(k.end(), {p.nodes[i].writer, p.nodes[i].position, static_cast<int>(p.branches[i])});
    return k;
  }

 private:
  // hops_ holds what was walked, the root side first: a node, and the branch of its own hop once it
  // is taken.
  struct Hop {
    Node node;
    Branch branch;
  };

  Path path(double credit) const {
    Path p;
    p.credit = credit;
    for (auto hop = hops_.rbegin(); hop != hops_.rend(); ++hop) {
      p.nodes.push_back(hop->node);
      p.branches.push_back(hop->branch);
    }
    return p;
  }

  void walk(const Node& node, bool direct, double credit, double tau) {
    hops_.push_back({node, Branch::none});
    if (writers_[node.writer].terminal()) {
      paths_.push_back(path(credit));
    } else {
      for (const Edge& e : recursion_.edges(node, direct)) {
        const double next = credit * e.factor;
        if (std::fabs(next) < tau) continue;
        hops_.back().branch = e.branch;
        walk({e.writer, e.position}, false, next, tau);
      }
    }
    hops_.pop_back();
  }

  bool keeps(double credit, double tau) {
    margin_ = std::min(margin_, std::fabs(std::fabs(credit) / tau - 1));
    return std::fabs(credit) >= tau;
  }

  void walk_entries(const Node& node, bool direct, double credit, double tau) {
    hops_.push_back({node, Branch::none});
    if (writers_[node.writer].terminal()) {
      const Path p = path(credit);
      auto [slot, fresh] = named_.try_emplace(key(p), p);
      if (!fresh) slot->second.credit += credit;
    } else {
      auto [known, fresh] = entries_.try_emplace({node.writer, node.position, direct});
      if (fresh) known->second = recursion_.entries(node, direct);
      const std::vector<Entry>& entries = known->second;
      for (const Entry& entry : entries) {
        if (!keeps(credit * entry.share, tau)) continue;
        for (const Sub& sub : entry.subs) {
          const double next = credit * entry.share * sub.share;
          if (!keeps(next, tau)) continue;
          hops_.back().branch = sub.branch;
          walk_entries({sub.writer, sub.position}, false, next, tau);
        }
      }
    }
    hops_.pop_back();
  }

  Recursion& recursion_;
  const Writers& writers_;
  std::vector<TopCredit> tops_;
  std::vector<Hop> hops_;
  std::vector<Path> paths_;
  std::map<std::vector<int>, Path> named_;
  std::map<std::tuple<int, int, bool>, std::vector<Entry>> entries_;
  double margin_ = 1;
};

// Section 8.3's filters, on a finished path.
inline bool matches(const Path& path, const PathQuery& query, const Writers& writers) {
  if (query.branch && path.branches.back() != *query.branch) return false;
  if (query.sign && (path.credit > 0) != (*query.sign > 0)) return false;
  if (query.from && path.nodes.front().position != *query.from) return false;
  bool passed = !query.through;
  for (const Node& node : path.nodes) {
    const Writer& w = writers[node.writer];
    if (query.min_layer && !w.terminal() && w.layer < *query.min_layer) return false;
    if (query.through && writers.name(node.writer) == *query.through) passed = true;
  }
  return passed;
}

}  // namespace unpack::naive
