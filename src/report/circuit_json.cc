// circuit.json, and the files other programs read: MIB's and EAP-IG's graph.
#include <fmt/format.h>

#include <map>

#include "report/json.h"
#include "unpack/circuit.h"

namespace unpack {

namespace {

using Json = OrderedJson;

Json branch_json(Branch branch) {
  return has_branch_name(branch) ? Json(to_string(branch)) : Json(nullptr);
}

std::string reader_name(const Writers& writers, int reader) {
  return reader < 0 ? "target" : writers.name(reader);
}

Json point_json(const CircuitPoint& point) {
  return {{"share", point.share},
          {"asked", point.asked},
          {"edges", point.edges},
          {"logit_difference", point.value},
          {"faithfulness", point.faithfulness},
          {"necessity", point.necessity}};
}

// "input", "a0.h1", "m3", "logits".
std::string mib_name(const Writers& writers, int writer) {
  if (writer < 0) return "logits";
  const Writer& w = writers[writer];
  if (w.terminal()) return "input";
  return w.kind == WriterKind::head ? fmt::format("a{}.h{}", w.layer, w.head)
                                    : fmt::format("m{}", w.layer);
}

}  // namespace

std::string to_json(const CircuitResult& r) {
  const Writers writers = r.writer_table();
  Json points = Json::array(), edges = Json::array();
  for (const CircuitPoint& point : r.measure.points) points.push_back(point_json(point));
  for (const RankedEdge& e : r.edges) {
    Json row = {{"writer", writer_name(writers, e.edge)},
                {"reader", reader_name(writers, e.edge.reader)},
                {"branch", branch_json(e.edge.branch)},
                {"credit", e.credit},
                {"absolute", e.absolute},
                {"rank", e.rank},
                {"in_circuit", e.kept}};
    if (e.drop) row["drop"] = *e.drop;
    edges.push_back(std::move(row));
  }
  const Json object = {
      {"version", 1},
      {"program", r.program.version},
      {"model", report::model_json(r.model)},
      {"task", r.task.name},
      {"prompts", r.task.prompts.size()},
      {"wrong", r.wrong},
      {"other_length", r.other_length},
      {"method", to_string(r.options.method)},
      {"preset", r.options.method == CircuitMethod::ours ? Json(r.options.preset) : Json(nullptr)},
      {"contrast", r.options.contrast},
      {"steps", r.options.method == CircuitMethod::eap_ig ? Json(r.options.steps) : Json(nullptr)},
      {"ablation", to_string(r.options.ablation)},
      {"nodes", r.options.nodes},
      {"positions", r.options.positions},
      {"all_edges", r.all_edges},
      {"all_nodes", r.all_nodes},
      {"clean", r.clean},
      {"ablated", r.ablated},
      {"cpr", r.measure.cpr},
      {"cmd", r.measure.cmd},
      {"sizes", points},
      {"circuit", point_json(r.final_point)},
      {"cost",
       {{"ranking_passes", r.cost.ranking},
        {"proof_passes", r.cost.proof},
        {"proof_pass_cost", r.cost.proof_cost}}},
      {"warnings", r.warnings},
      {"edges", edges}};
  return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The format knows one input for tokens and positions and one reader of an MLP: their credits are
// added, and an edge is in the graph where one of them is.
std::string to_mib(const CircuitResult& r) {
  const Writers writers = r.writer_table();
  struct Entry {
    double score = 0;
    bool kept = false;
  };
  std::map<std::string, Entry> scores;
  std::map<std::string, bool> nodes;
  const auto edge_name = [&](const CircuitEdge& e) {
    std::string to = mib_name(writers, e.reader);
    if (e.branch == Branch::K) to += "<k>";
    if (e.branch == Branch::Q) to += "<q>";
    if (e.branch == Branch::V) to += "<v>";
    return fmt::format("{}->{}", mib_name(writers, e.writer), to);
  };
  for (const RankedEdge& e : r.edges) {
    Entry& entry = scores[edge_name(e.edge)];
    entry.score += e.credit;
    entry.kept |= e.kept;
    if (!e.kept) continue;
    nodes[mib_name(writers, e.edge.writer)] = true;
    nodes[mib_name(writers, e.edge.reader)] = true;
  }
  Json node_list = Json::object(), edge_list = Json::object();
  node_list["input"] = {{"in_graph", true}};
  const auto add = [&](const CircuitEdge& edge) {
    const std::string name = edge_name(edge);
    if (edge_list.contains(name)) return;
    const Entry entry = scores.contains(name) ? scores[name] : Entry{};
    edge_list[name] = {{"score", entry.score}, {"in_graph", entry.kept}};
  };
  for (int w = writers.terminals(); w < writers.count(); ++w) {
    const Writer& reader = writers[w];
    node_list[mib_name(writers, w)] = {{"in_graph", nodes.contains(mib_name(writers, w))}};
    const bool head = reader.kind == WriterKind::head;
    const int visible =
        head ? writers.visible_to_attention(reader.layer) : writers.visible_to_mlp(reader.layer);
    for (int from = 0; from < visible; ++from) {
      if (!head) {
        add({from, w, Branch::mlp});
        continue;
      }
      for (const Branch branch : {Branch::Q, Branch::K, Branch::V}) add({from, w, branch});
    }
  }
  for (int from = 0; from < writers.count(); ++from) add({from, -1, Branch::none});
  node_list["logits"] = {{"in_graph", true}};
  const Json object = {{"cfg",
                        {{"n_layers", r.layout.n_layers},
                         {"n_heads", r.layout.n_heads},
                         {"parallel_attn_mlp", r.layout.block == Block::parallel},
                         {"d_model", r.layout.d_model}}},
                       {"nodes", node_list},
                       {"edges", edge_list}};
  return report::compact(object) + "\n";
}

}  // namespace unpack
