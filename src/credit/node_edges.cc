#include "credit/node_edges.h"

namespace unpack::credit {

namespace {

const DirectEdges* towards_target(const Start& start, const Writer& writer, const GraphNode& node) {
  return node.direct ? start.direct_edges(writer.layer) : nullptr;
}

template <typename From>
std::vector<double> part_of(const From& from, std::size_t at, std::size_t n) {
  return {from + at, from + at + n};
}

}  // namespace

template <typename T>
HeadEdges<T> head_edges(const Edges<T>& edges, const Start& start, const GraphNode& node,
                        std::shared_ptr<const T> keys) {
  const decompose::Decomposition& d = edges.decomposition();
  const Writer& writer = d.writers()[node.writer];
  const DirectEdges* direct = towards_target(start, writer, node);
  const std::size_t h = writer.head, n = static_cast<std::size_t>(node.position) + 1;
  const std::size_t cl = d.writers().visible_to_attention(writer.layer);
  if (keys == nullptr) keys = edges.key_rows(writer.layer, writer.head, node.position);
  HeadEdges<T> out;
  if (direct != nullptr) {
    out.entry = part_of(direct->entry.data(), h * n, n);
    out.key_coef = part_of(direct->key_coef.data(), h * n, n);
    out.query_edge = part_of(direct->query_edge.data(), h * cl, cl);
  } else {
    const HeadRow<T> own = edges.head_row(writer.layer, writer.head, node.position, keys);
    out.entry = part_of(own.entry.get(), 0, n);
    out.key_coef = part_of(own.key_coef.get(), 0, n);
    out.query_edge =
        part_of(edges.query_row(writer.layer, writer.head, node.position).get(), 0, cl);
  }
  out.keys = std::move(keys);
  out.values = edges.value_rows(writer.layer, writer.head / d.config().group_size(), node.position);
  return out;
}

template <typename T>
std::vector<ReaderEdges> reader_edges(const Edges<T>& edges, const Start& start,
                                      const GraphNode& node) {
  const decompose::Decomposition& d = edges.decomposition();
  const Writer& writer = d.writers()[node.writer];
  const DirectEdges* direct = towards_target(start, writer, node);
  const LayerEdges<T>& own = edges.light(writer.layer);
  const std::size_t q = node.position, cm = d.writers().visible_to_mlp(writer.layer);
  const std::vector<backend::MlpReader> readers =
      backend::mlp_readers(d.config().layer(writer.layer));
  std::vector<ReaderEdges> out;
  for (std::size_t i = 0; i < readers.size(); ++i) {
    if (direct != nullptr ? direct->mlp_edge[i].empty() : own.mlp_edge[i].empty()) continue;
    out.push_back({readers[i].branch, direct != nullptr
                                          ? part_of(direct->mlp_edge[i].data(), 0, cm)
                                          : part_of(own.mlp_edge[i].data(), q * cm, cm)});
  }
  return out;
}

template <typename T>
std::vector<double> entry_shares(const Edges<T>& edges, const Start& start, const GraphNode& node) {
  const Writer& writer = edges.decomposition().writers()[node.writer];
  const DirectEdges* direct = towards_target(start, writer, node);
  if (writer.kind == WriterKind::mlp)
    return direct != nullptr ? direct->neuron_share
                             : edges.neuron_shares(writer.layer, node.position);
  const std::size_t n = static_cast<std::size_t>(node.position) + 1;
  if (direct != nullptr) return part_of(direct->entry.data(), writer.head * n, n);
  const HeadRow<T> own = edges.head_row(writer.layer, writer.head, node.position,
                                        edges.key_rows(writer.layer, writer.head, node.position));
  return part_of(own.entry.get(), 0, n);
}

template HeadEdges<float> head_edges<float>(const Edges<float>&, const Start&, const GraphNode&,
                                            std::shared_ptr<const float>);
template HeadEdges<double> head_edges<double>(const Edges<double>&, const Start&, const GraphNode&,
                                              std::shared_ptr<const double>);
template std::vector<ReaderEdges> reader_edges<float>(const Edges<float>&, const Start&,
                                                      const GraphNode&);
template std::vector<ReaderEdges> reader_edges<double>(const Edges<double>&, const Start&,
                                                       const GraphNode&);
template std::vector<double> entry_shares<float>(const Edges<float>&, const Start&,
                                                 const GraphNode&);
template std::vector<double> entry_shares<double>(const Edges<double>&, const Start&,
                                                  const GraphNode&);

}  // namespace unpack::credit
