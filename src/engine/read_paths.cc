#include "engine/read_paths.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <queue>

#include "credit/child_list.h"

namespace unpack {

ReadPaths::ReadPaths(const ReadSweep& sweep, const PathFilter& filter, const RunContext& context)
    : sweep_(sweep),
      filter_(filter),
      context_(context),
      writers_(static_cast<std::size_t>(sweep.decomposition().writers().count())),
      length_(static_cast<std::size_t>(sweep.decomposition().length())) {
  const Decomposition& d = sweep.decomposition();
  const Writers& writers = d.writers();
  incoming_.assign(length_ * writers_, 0.0);
  const ReadStart& start = sweep.start();
  if (start.root) {
    incoming_[at(*start.root)] = 1.0;
  } else {
    for (int w = 0; w < writers.count(); ++w)
      incoming_[at({w, start.position})] += std::fabs(sweep.first()[static_cast<std::size_t>(w)]);
  }
  SentRows rows;
  for (int w = writers.count() - 1; w >= writers.terminals(); --w) {
    context.check();
    for (int q = 0; q < d.length(); ++q) {
      if (incoming_[at({w, q})] == 0) continue;
      for_each_edge({w, q}, rows,
                    [&](const Edge& edge) { incoming_[at(edge.child)] += std::fabs(edge.credit); });
    }
  }
  mass_all_.assign(length_ * writers_, 0.0);
  bound_.fill(mass_all_);
  mass_.fill(mass_all_);
  for (int w = 0; w < writers.count(); ++w) {
    context.check();
    for (int q = 0; q < d.length(); ++q) {
      const Node node{w, q};
      if (!terminal(w)) {
        if (incoming_[at(node)] != 0) measure(node, rows);
        continue;
      }
      mass_all_[at(node)] = 1.0;
      if (filter_.suffix.from && *filter_.suffix.from != q) continue;
      for (const bool must_pass : {false, true}) {
        if (!satisfied(must_pass, w)) continue;
        for (const bool negative : {false, true})
          bound_[slot(must_pass, negative)][at(node)] = mass_[slot(must_pass, negative)][at(node)] =
              1.0;
      }
    }
  }
  // The totals: what starts at the top nodes.
  const auto add = [&](const Node& node, double first) {
    const bool end = terminal(node.writer);
    const double share = end ? std::fabs(first) : std::fabs(first) / incoming_[at(node)];
    total_ += share * mass_all_[at(node)];
    for (const bool negative : {false, true}) {
      if (filter_.sign && negative != (*filter_.sign < 0)) continue;
      if (end && negative != (first < 0)) continue;
      if (end && filter_.branch) continue;
      if (!filter_.branch || end) {
        matching_ += share * mass_[slot(filter_.suffix.through.has_value(), negative)][at(node)];
        continue;
      }
      for (const Step& step : steps(node, filter_.suffix.through.has_value(), true, SIZE_MAX)) {
        const bool below = filter_.suffix.through && *filter_.suffix.through != node.writer;
        if (terminal(step.child.writer) && negative != (step.factor < 0)) continue;
        matching_ += share * std::fabs(step.factor) * mass_[slot(below, negative)][at(step.child)];
      }
    }
  };
  if (start.root) {
    add(*start.root, 1.0);
  } else {
    for (int w = 0; w < writers.count(); ++w) {
      const double first = sweep.first()[static_cast<std::size_t>(w)];
      if (first != 0) add({w, start.position}, first);
    }
  }
}

void ReadPaths::for_each_edge(const Node& node, SentRows& rows,
                              const std::function<void(const Edge&)>& visit) const {
  const Decomposition& d = sweep_.decomposition();
  const Writer& writer = d.writers()[node.writer];
  sweep_.sent(node.writer, node.position, rows);
  const auto emit = [&](int j, int s, Branch branch, double credit) {
    if (credit != 0) visit({{j, s}, branch, credit});
  };
  if (writer.kind == WriterKind::mlp) {
    const std::vector<MlpReader> readers = mlp_readers(d.config().layer(writer.layer));
    for (std::size_t side = 0; side < readers.size(); ++side) {
      const Branch branch = readers[side].branch;
      for (std::size_t j = 0; j < rows.mlp[side].size(); ++j)
        emit(static_cast<int>(j), node.position, branch, rows.mlp[side][j]);
    }
    return;
  }
  const auto cl = rows.q.size();
  for (int s = 0; s <= node.position; ++s) {
    for (std::size_t j = 0; j < cl; ++j) {
      const std::size_t i = static_cast<std::size_t>(s) * cl + j;
      emit(static_cast<int>(j), s, Branch::K, rows.k[i]);
      emit(static_cast<int>(j), s, Branch::V, rows.v[i]);
    }
  }
  for (std::size_t j = 0; j < cl; ++j)
    emit(static_cast<int>(j), node.position, Branch::Q, rows.q[j]);
}

double ReadPaths::factor(const Edge& edge) const {
  return terminal(edge.child.writer) ? edge.credit
                                     : std::fabs(edge.credit) / incoming_[at(edge.child)];
}

void ReadPaths::measure(const Node& node, SentRows& rows) {
  const Writer& writer = sweep_.decomposition().writers()[node.writer];
  const bool allowed = !filter_.suffix.min_layer || writer.layer >= *filter_.suffix.min_layer;
  const bool passes = filter_.suffix.through && *filter_.suffix.through == node.writer;
  for_each_edge(node, rows, [&](const Edge& edge) {
    const double f = factor(edge), size = std::fabs(f);
    const std::size_t child = at(edge.child);
    mass_all_[at(node)] += size * mass_all_[child];
    if (!allowed) return;
    for (const bool must_pass : {false, true}) {
      for (const bool negative : {false, true}) {
        if (terminal(edge.child.writer) && negative != (f < 0)) continue;
        const std::size_t own = slot(must_pass, negative),
                          below = slot(must_pass && !passes, negative);
        mass_[own][at(node)] += size * mass_[below][child];
        bound_[own][at(node)] = std::max(bound_[own][at(node)], size * bound_[below][child]);
      }
    }
  });
}

// The ways down from a node, those that can reach furthest first.
std::vector<ReadPaths::Step> ReadPaths::steps(const Node& node, bool must_pass, bool top,
                                              std::size_t count) const {
  std::vector<Step> out;
  SentRows rows;
  const bool below =
      must_pass && !(filter_.suffix.through && *filter_.suffix.through == node.writer);
  for_each_edge(node, rows, [&](const Edge& edge) {
    if (top && filter_.branch && edge.branch != *filter_.branch) return;
    const double f = factor(edge);
    double reach = 0;
    for (const bool negative : {false, true}) {
      if (filter_.sign && negative != (*filter_.sign < 0)) continue;
      if (terminal(edge.child.writer) && negative != (f < 0)) continue;
      reach = std::max(reach, std::fabs(f) * bound_[slot(below, negative)][at(edge.child)]);
    }
    if (reach > 0) out.push_back({edge.child, edge.branch, f, reach});
  });
  const auto before = [](const Step& a, const Step& b) {
    if (a.reach != b.reach) return a.reach > b.reach;
    if (a.child.writer != b.child.writer) return a.child.writer < b.child.writer;
    if (a.child.position != b.child.position) return a.child.position < b.child.position;
    return a.branch < b.branch;
  };
  // A list of k paths never needs more than the k best ways out of a node.
  if (count < out.size()) {
    std::nth_element(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count), out.end(),
                     before);
    out.resize(count);
  }
  std::sort(out.begin(), out.end(), before);
  return out;
}

std::vector<Path> ReadPaths::best(std::size_t count, double least) const {
  // A way from the root side: hops_[parent] and one step more.
  struct Hop {
    Node node;
    Branch branch = Branch::none;  // by which the one above read it
    std::int64_t parent = -1;
    double product = 1;
    bool must_pass = false;
  };
  struct Candidate {
    double reach = 0;
    std::uint64_t order = 0;
    std::int64_t parent = -1;  // hop whose steps these are; -1: the tops
    std::size_t index = 0;
    bool operator<(const Candidate& other) const {
      return reach != other.reach ? reach < other.reach : order > other.order;
    }
  };
  const ReadStart& start = sweep_.start();
  const int writers = sweep_.decomposition().writers().count();
  std::vector<Step> tops;
  const auto add_top = [&](const Node& node, double first) {
    const bool end = terminal(node.writer);
    if (end && filter_.branch) return;
    Step step{node, Branch::none, end ? first : std::fabs(first) / incoming_[at(node)], 0};
    for (const bool negative : {false, true}) {
      if (filter_.sign && negative != (*filter_.sign < 0)) continue;
      if (end && negative != (first < 0)) continue;
      step.reach = std::max(
          step.reach, std::fabs(step.factor) *
                          bound_[slot(filter_.suffix.through.has_value(), negative)][at(node)]);
    }
    if (step.reach > 0) tops.push_back(step);
  };
  if (start.root) {
    add_top(*start.root, 1.0);
  } else {
    for (int w = 0; w < writers; ++w) {
      const double first = sweep_.first()[static_cast<std::size_t>(w)];
      if (first != 0) add_top({w, start.position}, first);
    }
  }
  std::sort(tops.begin(), tops.end(), [](const Step& a, const Step& b) {
    return a.reach != b.reach ? a.reach > b.reach : a.child.writer < b.child.writer;
  });
  std::map<std::pair<std::size_t, int>, std::shared_ptr<const std::vector<Step>>> lists;
  std::vector<Hop> hops;
  const auto list_of = [&](std::int64_t hop) -> const std::vector<Step>& {
    if (hop < 0) return tops;
    const Hop& h = hops[static_cast<std::size_t>(hop)];
    const bool top = h.parent < 0;
    auto& known = lists[{at(h.node), (h.must_pass ? 1 : 0) + (top ? 2 : 0)}];
    if (!known)
      known = std::make_shared<const std::vector<Step>>(
          steps(h.node, h.must_pass, top, std::max<std::size_t>(count, 1)));
    return *known;
  };
  std::priority_queue<Candidate> queue;
  std::uint64_t order = 0;
  const auto push = [&](std::int64_t parent, std::size_t index) {
    const auto& list = list_of(parent);
    if (index >= list.size()) return;
    const double product = parent < 0 ? 1.0 : hops[static_cast<std::size_t>(parent)].product;
    queue.push({std::fabs(product) * list[index].reach, order++, parent, index});
  };
  std::vector<Path> found;
  push(-1, 0);
  while (!queue.empty() && found.size() < count) {
    if (order % 1024 == 0) context_.check();
    const Candidate next = queue.top();
    queue.pop();
    if (next.reach < least) break;
    const Step step = list_of(next.parent)[next.index];
    push(next.parent, next.index + 1);
    const bool above = next.parent < 0
                           ? filter_.suffix.through.has_value()
                           : hops[static_cast<std::size_t>(next.parent)].must_pass &&
                                 !(filter_.suffix.through &&
                                   *filter_.suffix.through ==
                                       hops[static_cast<std::size_t>(next.parent)].node.writer);
    const double product =
        (next.parent < 0 ? 1.0 : hops[static_cast<std::size_t>(next.parent)].product) * step.factor;
    hops.push_back({step.child, step.branch, next.parent, product, above});
    const auto own = static_cast<std::int64_t>(hops.size()) - 1;
    if (!terminal(step.child.writer)) {
      push(own, 0);
      continue;
    }
    Path path;
    path.credit = product;
    Branch branch = Branch::none;
    for (std::int64_t h = own; h >= 0; h = hops[static_cast<std::size_t>(h)].parent) {
      path.nodes.push_back(hops[static_cast<std::size_t>(h)].node);
      path.branches.push_back(branch);
      branch = hops[static_cast<std::size_t>(h)].branch;
    }
    found.push_back(std::move(path));
  }
  sort_paths(found);
  return found;
}

}  // namespace unpack
