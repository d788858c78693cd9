// A circuit for graph programs: DOT and GraphML, a node a component.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "report/text.h"
#include "unpack/circuit.h"

namespace unpack {

namespace {

using namespace report;

constexpr const char* kWriterKinds[] = {"emb", "pos", "head", "mlp"};

struct CircuitNodes {
  std::set<int> writers;  // -1: the target
  double largest = 0;     // credit of an edge
};

CircuitNodes nodes_of(const CircuitResult& r) {
  CircuitNodes out;
  for (const RankedEdge& e : r.edges) {
    if (!e.kept) continue;
    out.writers.insert(e.edge.writer);
    out.writers.insert(e.edge.reader);
    out.largest = std::max(out.largest, e.absolute);
  }
  return out;
}

std::string name_of(const Writers& writers, int writer) {
  return writer < 0 ? "target" : writers.name(writer);
}

std::string branch_of(const RankedEdge& e) {
  return has_branch_name(e.edge.branch) ? to_string(e.edge.branch) : "";
}

}  // namespace

std::string to_dot(const CircuitResult& result) {
  const CircuitResult r = without_positions(result);
  const Writers writers = r.writer_table();
  const CircuitNodes nodes = nodes_of(r);
  std::string out =
      "digraph circuit {\n  rankdir=BT;\n  node [shape=box, style=\"rounded,filled\", "
      "fillcolor=white, fontname=\"monospace\"];\n  edge [fontname=\"monospace\"];\n";
  for (const int w : nodes.writers)
    out += fmt::format("  \"{}\"{};\n", name_of(writers, w), w < 0 ? " [penwidth=2]" : "");
  for (const RankedEdge& e : r.edges) {
    if (!e.kept) continue;
    out += fmt::format(
        "  \"{}\" -> \"{}\" [label=\"{}\", credit=\"{}\", absolute=\"{}\", rank={}{}, "
        "color=\"{}\", penwidth={:.2f}];\n",
        writers.name(e.edge.writer), name_of(writers, e.edge.reader), branch_of(e), e.credit,
        e.absolute, e.rank, e.drop ? fmt::format(", drop=\"{}\"", *e.drop) : "",
        e.credit < 0 ? "#D55E00" : "#0B5FA5",
        0.8 + (nodes.largest > 0 ? 4 * e.absolute / nodes.largest : 0));
  }
  return out + "}\n";
}

std::string to_graphml(const CircuitResult& result) {
  const CircuitResult r = without_positions(result);
  const Writers writers = r.writer_table();
  std::string out =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<graphml "
      "xmlns=\"http://graphml.graphdrawing.org/xmlns\">\n";
  constexpr std::tuple<const char*, const char*, const char*, const char*> kKeys[] = {
      {"kind", "node", "kind", "string"},         {"layer", "node", "layer", "int"},
      {"branch", "edge", "branch", "string"},     {"credit", "edge", "credit", "double"},
      {"absolute", "edge", "absolute", "double"}, {"rank", "edge", "rank", "int"},
      {"drop", "edge", "drop", "double"}};
  for (const auto& [id, of, name, type] : kKeys)
    out += fmt::format("<key id=\"{}\" for=\"{}\" attr.name=\"{}\" attr.type=\"{}\"/>\n", id, of,
                       name, type);
  out += "<graph edgedefault=\"directed\">\n";
  for (const int w : nodes_of(r).writers) {
    out += fmt::format(
        "<node id=\"{}\"><data key=\"kind\">{}</data><data key=\"layer\">{}</data></node>\n",
        name_of(writers, w),
        w < 0 ? "target" : kWriterKinds[static_cast<std::size_t>(writers[w].kind)],
        w < 0 ? r.layout.n_layers : writers[w].layer);
  }
  for (const RankedEdge& e : r.edges) {
    if (!e.kept) continue;
    const std::string from = writers.name(e.edge.writer), to = name_of(writers, e.edge.reader);
    out += fmt::format(
        "<edge id=\"{0}-{2}-{1}\" source=\"{0}\" target=\"{1}\"><data key=\"branch\">{2}</data>"
        "<data key=\"credit\">{3}</data><data key=\"absolute\">{4}</data><data "
        "key=\"rank\">{5}</data>{6}</edge>\n",
        from, to, branch_of(e), e.credit, e.absolute, e.rank,
        e.drop ? fmt::format("<data key=\"drop\">{}</data>", *e.drop) : "");
  }
  return out + "</graph>\n</graphml>\n";
}

}  // namespace unpack
