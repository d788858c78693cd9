#include "credit/path_graph.h"

#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "credit/reach.h"

namespace unpack::credit {

template <typename T>
PathGraph<T>::PathGraph(const Edges<T>& edges, const Start& start, const Suffix& suffix,
                        const PathFilter& filter)
    : edges_(edges), start_(start), suffix_(suffix), filter_(filter) {
  if (start.root) {
    tops_.push_back(
        {{start.root->writer, start.root->position, start.root_is_direct}, 1.0, 0, 0, 0});
  } else {
    for (int k = 0; k < decomposition().writers().count(); ++k) {
      const double first = start.first[k];
      if (first != 0) tops_.push_back({{k, start.position, true}, first, 0, 0, 0});
    }
  }
  backend::Backend& backend = decomposition().backend();
  if (edges_.has_table() || filtered()) {
    backend.parallel_for(std::ssize(tops_), [&](Index i) { measure(tops_[i], {}); });
    return;
  }
  // The keys of a layer's heads are made together.
  for (std::size_t first = 0, end = 0; first < tops_.size(); first = end) {
    const Writer& writer = decomposition().writers()[tops_[first].node.writer];
    while (end < tops_.size() &&
           decomposition().writers()[tops_[end].node.writer].layer == writer.layer &&
           tops_[end].node.position == tops_[first].node.position)
      ++end;
    std::shared_ptr<const T> keys;
    if (end - first > 1 && !writer.terminal())
      keys = edges_.key_rows_of_heads(writer.layer, tops_[first].node.position);
    backend.parallel_for(end - first, [&](Index i) { measure(tops_[first + i], keys); });
  }
}

template <typename T>
SuffixState PathGraph<T>::top_state(const TopNode& top) const {
  SuffixState state;
  state.must_pass = filter_.suffix.through && *filter_.suffix.through != top.node.writer;
  state.negative = filter_.sign && ((*filter_.sign < 0) != (top.first < 0));
  return state;
}

template <typename T>
SuffixState PathGraph<T>::below(const SuffixState& state, int writer, double factor) const {
  // The suffix of a child counts the child itself, so that passing `through` there needs no change
  // of state here.
  return {state.must_pass && filter_.suffix.through != writer,
          filter_.sign ? state.negative != (factor < 0) : false};
}

template <typename T>
double PathGraph<T>::child_bound(const SuffixState& state, const GraphEdge& edge) const {
  const SuffixState child{state.must_pass,
                          filter_.sign ? state.negative != (edge.factor < 0) : false};
  return suffix_.bound(child, edge.position, edge.writer);
}

template <typename T>
void PathGraph<T>::measure(TopNode& top, const std::shared_ptr<const T>& keys) const {
  const Writer& writer = decomposition().writers()[top.node.writer];
  const SuffixState state = top_state(top);
  if (writer.terminal()) {
    top.mass_all = 1.0;
    const bool matches = !filter_.branch && !state.must_pass && !state.negative &&
                         (!filter_.suffix.from || *filter_.suffix.from == top.node.position);
    top.mass = top.bound = matches ? 1.0 : 0.0;
    return;
  }
  if (!filtered()) {
    measure_unfiltered(top, keys);
    return;
  }
  const bool layer_matches = !filter_.suffix.min_layer || writer.layer >= *filter_.suffix.min_layer;
  for_each_edge(top.node, [&](const GraphEdge& edge) {
    const double size = std::fabs(edge.factor);
    top.mass_all += size * suffix_.mass_all(edge.position, edge.writer);
    if (!layer_matches || !allowed_last_hop(edge)) return;
    const SuffixState child{state.must_pass,
                            filter_.sign ? state.negative != (edge.factor < 0) : false};
    top.mass += size * suffix_.mass(child, edge.position, edge.writer);
    top.bound = std::max(top.bound, size * suffix_.bound(child, edge.position, edge.writer));
  });
}

// The same without a look at every edge by itself.
template <typename T>
void PathGraph<T>::measure_unfiltered(TopNode& top, const std::shared_ptr<const T>& keys) const {
  const decompose::Decomposition& d = decomposition();
  const Writer& writer = d.writers()[top.node.writer];
  const std::size_t q = top.node.position;
  const auto add = [&](double factor, const auto* row, std::size_t n, std::size_t position) {
    const int s = position;
    const Reach reach = reach_of(row, suffix_.mass_all_row(s), suffix_.bound_row({}, s), n);
    top.mass_all += std::fabs(factor) * reach.mass;
    top.bound = std::max(top.bound, std::fabs(factor) * reach.bound);
  };
  if (writer.kind == WriterKind::mlp) {
    for (const ReaderEdges& reader : reader_edges(edges_, start_, top.node))
      add(1.0, reader.row.data(), reader.row.size(), q);
  } else {
    const std::size_t cl = d.writers().visible_to_attention(writer.layer);
    const std::size_t h = writer.head;
    const HeadEdges<T> head =
        head_edges(edges_, start_, top.node,
                   keys ? std::shared_ptr<const T>(keys, keys.get() + h * (q + 1) * cl) : nullptr);
    for (std::size_t s = 0; s <= q; ++s) {
      add(head.key_coef[s], head.keys.get() + s * cl, cl, s);
      add(head.entry[s], head.values.get() + s * cl, cl, s);
    }
    add(1.0, head.query_edge.data(), cl, q);
  }
  top.mass = top.mass_all;
}

template <typename T>
void PathGraph<T>::for_each_edge(const GraphNode& node,
                                 const std::function<void(const GraphEdge&)>& visit) const {
  const decompose::Decomposition& d = decomposition();
  const Writer& writer = d.writers()[node.writer];
  const std::size_t q = node.position;
  const auto emit = [&](int j, int s, Branch branch, double factor) {
    if (factor != 0) visit({j, s, branch, factor});
  };
  if (writer.kind == WriterKind::mlp) {
    for (const ReaderEdges& reader : reader_edges(edges_, start_, node)) {
      int j = 0;
      for (const double factor : reader.row) emit(j++, node.position, reader.branch, factor);
    }
    return;
  }
  const int visible = d.writers().visible_to_attention(writer.layer);
  const std::size_t cl = visible;
  const HeadEdges<T> head = head_edges(edges_, start_, node);
  for (std::size_t s = 0; s <= q; ++s) {
    const T* key = head.keys.get() + s * cl;
    const T* value = head.values.get() + s * cl;
    for (int j = 0; j < visible; ++j) {
      emit(j, s, Branch::K, head.key_coef[s] * key[j]);
      emit(j, s, Branch::V, head.entry[s] * value[j]);
    }
  }
  int j = 0;
  for (const double factor : head.query_edge) emit(j++, node.position, Branch::Q, factor);
}

template <typename T>
double PathGraph<T>::absolute_total() const {
  double sum = 0;
  for (const TopNode& top : tops_) sum += std::fabs(top.first) * top.mass_all;
  return sum;
}

template <typename T>
double PathGraph<T>::absolute_matching() const {
  double sum = 0;
  for (const TopNode& top : tops_) sum += std::fabs(top.first) * top.mass;
  return sum;
}

template class PathGraph<float>;
template class PathGraph<double>;

}  // namespace unpack::credit
