#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>

#include "report/labels.h"
#include "report/text.h"
#include "unpack/error.h"
#include "unpack/json.h"
#include "unpack/report.h"

namespace unpack {
using Json = OrderedJson;

namespace {

using namespace report;

struct ExportNode {
  std::string id, kind, token;  // kind: emb, pos, head, mlp, target
  int layer = -1, head = -1, position = 0;
  double credit = 0;
};

struct ExportEdge {
  std::string branch;  // empty where a hop has just one
  double credit = 0;   // of the listed paths that take it
  std::size_t paths = 0;
};

struct ExportGraph {
  std::vector<ExportNode> nodes;
  std::map<std::tuple<std::size_t, std::size_t, Branch>, ExportEdge> edges;
};

double finite(double x) { return std::isfinite(x) ? x : 0; }

ExportGraph collect(const TraceResult& r) {
  static constexpr const char* kKinds[] = {"emb", "pos", "head", "mlp"};
  const Writers writers = r.writer_table();
  ExportGraph graph;
  std::map<std::pair<int, int>, std::size_t> index;
  const auto node_at = [&](const Node& node) {
    const auto [found, fresh] = index.try_emplace({node.writer, node.position}, graph.nodes.size());
    if (fresh) {
      const Writer& w = writers[node.writer];
      const std::size_t s = node.position;
      graph.nodes.push_back({to_string(writers, node), kKinds[static_cast<int>(w.kind)],
                             r.tokens.at(s).text, w.layer, w.head, node.position,
                             finite(r.node_credit.at(node.writer).at(s))});
    }
    return found->second;
  };
  std::optional<std::size_t> target;
  if (!r.root && !r.paths.empty()) {
    target = graph.nodes.size();
    graph.nodes.push_back({"target", "target", r.target.text, r.layout.n_layers, -1,
                           r.target.position, finite(r.conservation_first)});
  }
  for (const Path& path : r.paths) {
    const auto pass = [&](std::size_t from, std::size_t to, Branch branch) {
      if (branch == Branch::mlp) branch = Branch::none;
      ExportEdge& edge = graph.edges[{from, to, branch}];
      edge.branch = hop_label(branch);
      edge.credit += finite(path.credit);
      ++edge.paths;
    };
    for (std::size_t i = 1; i < path.nodes.size(); ++i)
      pass(node_at(path.nodes[i - 1]), node_at(path.nodes[i]), path.branches.at(i));
    if (path.nodes.size() == 1) node_at(path.nodes.front());
    if (target) pass(node_at(path.nodes.back()), *target, Branch::none);
  }
  return graph;
}

std::string graphml(const ExportGraph& graph) {
  std::string out =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<graphml "
      "xmlns=\"http://graphml.graphdrawing.org/xmlns\">\n"
      "<key id=\"label\" for=\"node\" attr.name=\"label\" attr.type=\"string\"/>\n<key id=\"kind\" "
      "for=\"node\" attr.name=\"kind\" attr.type=\"string\"/>\n"
      "<key id=\"layer\" for=\"node\" attr.name=\"layer\" attr.type=\"int\"/>\n<key "
      "id=\"position\" for=\"node\" attr.name=\"position\" attr.type=\"int\"/>\n"
      "<key id=\"token\" for=\"node\" attr.name=\"token\" attr.type=\"string\"/>\n<key "
      "id=\"credit\" for=\"node\" attr.name=\"credit\" attr.type=\"double\"/>\n"
      "<key id=\"branch\" for=\"edge\" attr.name=\"branch\" attr.type=\"string\"/>\n<key "
      "id=\"edge_credit\" for=\"edge\" attr.name=\"credit\" "
      "attr.type=\"double\"/>\n"
      "<key id=\"paths\" for=\"edge\" attr.name=\"paths\" attr.type=\"int\"/>\n<graph "
      "edgedefault=\"directed\">\n";
  for (const ExportNode& n : graph.nodes) {
    out += fmt::format(
        "<node id=\"{0}\"><data key=\"label\">{0}</data><data key=\"kind\">{1}</data><data "
        "key=\"layer\">{2}</data><data key=\"position\">{3}</data><data "
        "key=\"token\">{4}</data>"
        "<data key=\"credit\">{5}</data></node>\n",
        xml_escape(n.id), n.kind, n.layer, n.position, xml_escape(n.token), n.credit);
  }
  // Two branches may join the same nodes: an id keeps such edges apart.
  for (const auto& [key, e] : graph.edges) {
    const std::string &from = graph.nodes[std::get<0>(key)].id,
                      &to = graph.nodes[std::get<1>(key)].id;
    out += fmt::format(
        "<edge id=\"{0}-{2}-{1}\" source=\"{0}\" target=\"{1}\"><data "
        "key=\"branch\">{2}</data><data key=\"edge_credit\">{3}</data><data "
        "key=\"paths\">{4}</data></edge>\n",
        xml_escape(from), xml_escape(to), e.branch, e.credit, e.paths);
  }
  return out + "</graph>\n</graphml>\n";
}

std::string dot(const ExportGraph& graph) {
  std::string out =
      "digraph unpack {\n  rankdir=BT;\n  node [shape=box, style=\"rounded,filled\", "
      "fillcolor=white, fontname=\"monospace\"];\n  edge "
      "[fontname=\"monospace\"];\n";
  double largest = 0;
  for (const auto& [key, e] : graph.edges) largest = std::max(largest, std::abs(e.credit));
  for (const ExportNode& n : graph.nodes) {
    const bool named = n.layer < 0 || n.kind == "target";
    const std::string label =
        named ? fmt::format("{}\\n{}", dot_escape(n.id), dot_escape(quoted_token(n.token, {true})))
              : dot_escape(n.id);
    out += fmt::format(
        "  \"{}\" [label=\"{}\", kind=\"{}\", layer={}, position={}, token=\"{}\", "
        "credit=\"{}\"{}];\n",
        dot_escape(n.id), label, n.kind, n.layer, n.position, dot_escape(n.token), n.credit,
        n.kind == "target" ? ", penwidth=2" : "");
  }
  for (const auto& [key, e] : graph.edges) {
    const ExportNode &from = graph.nodes[std::get<0>(key)], &to = graph.nodes[std::get<1>(key)];
    out += fmt::format(
        "  \"{}\" -> \"{}\" [label=\"{}\", branch=\"{}\", credit=\"{}\", paths={}, color=\"{}\", "
        "penwidth={:.2f}{}];\n",
        dot_escape(from.id), dot_escape(to.id), e.branch, e.branch, e.credit, e.paths,
        e.credit < 0 ? "#D55E00" : "#0B5FA5",
        0.8 + (largest > 0 ? 4 * std::abs(e.credit) / largest : 0),
        from.position == to.position ? "" : ", style=dashed");
  }
  return out + "}\n";
}

std::string json(const ExportGraph& graph) {
  Json nodes = Json::array(), edges = Json::array();
  for (const ExportNode& n : graph.nodes) {
    nodes.push_back({{"id", n.id},
                     {"label", n.id},
                     {"kind", n.kind},
                     {"layer", n.layer},
                     {"position", n.position},
                     {"token", n.token},
                     {"credit", n.credit}});
  }
  for (const auto& [key, e] : graph.edges) {
    edges.push_back({{"source", graph.nodes[std::get<0>(key)].id},
                     {"target", graph.nodes[std::get<1>(key)].id},
                     {"key", e.branch},
                     {"branch", e.branch.empty() ? Json(nullptr) : Json(e.branch)},
                     {"credit", e.credit},
                     {"paths", e.paths}});
  }
  // The layout that networkx.node_link_graph(data, edges="edges") reads.
  const Json object = {{"directed", true},
                       {"multigraph", true},
                       {"graph", Json::object()},
                       {"nodes", nodes},
                       {"edges", edges}};
  return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

GraphFormat graph_format(const std::filesystem::path& file) {
  std::string suffix = file.extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  if (suffix == ".graphml" || suffix == ".xml") return GraphFormat::graphml;
  if (suffix == ".dot" || suffix == ".gv") return GraphFormat::dot;
  if (suffix == ".json") return GraphFormat::json;
  throw UsageError(fmt::format(
      "'{}' does not say which graph format to write: end the name in .graphml, .dot or .json",
      file.string()));
}

std::string to_graph(const TraceResult& r, GraphFormat format) {
  const ExportGraph graph = collect(r);
  switch (format) {
    case GraphFormat::graphml:
      return graphml(graph);
    case GraphFormat::dot:
      return dot(graph);
    case GraphFormat::json:
      return json(graph);
  }
  throw InternalError("unknown graph format");
}

}  // namespace unpack
