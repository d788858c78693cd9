#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "backend/mlp_readers.h"
#include "unpack/circuit.h"
#include "unpack/error.h"

namespace unpack {

bool has_branch_name(Branch branch) { return branch != Branch::none && branch != Branch::mlp; }

std::string writer_name(const Writers& writers, const CircuitEdge& edge) {
  const std::string& name = writers.name(edge.writer);
  return edge.position < 0 ? name : fmt::format("{}@{}", name, edge.position);
}

std::string to_string(const Writers& writers, const CircuitEdge& edge) {
  const std::string branch =
      has_branch_name(edge.branch) ? fmt::format("-[{}]", to_string(edge.branch)) : "";
  return fmt::format("{} {}-> {}", writer_name(writers, edge), branch,
                     edge.reader < 0 ? "target" : writers.name(edge.reader));
}

CircuitEdge parse_circuit_edge(const Model& model, const std::string& writer,
                               const std::string& reader, const std::string& branch) {
  const Writers& writers = model.writers();
  CircuitEdge edge;
  const std::size_t at = writer.find('@');
  edge.writer = writers.parse(writer.substr(0, at));
  if (at != std::string::npos) {
    const char *begin = writer.data() + at + 1, *end = writer.data() + writer.size();
    const auto [stop, error] = std::from_chars(begin, end, edge.position);
    if (error != std::errc() || stop != end || edge.position < 0)
      throw InputError(fmt::format("{} names no position behind the @", writer));
  }
  const auto fail = [&](const std::string& why) {
    throw InputError(fmt::format("edge {} -> {}: {}", writer, reader, why));
  };
  if (reader == "target") {
    if (!branch.empty()) fail("the target has no branches");
    return edge;
  }
  edge.reader = writers.parse(reader);
  const Writer& kind = writers[edge.reader];
  if (kind.terminal()) fail("emb and pos read nothing");
  std::vector<Branch> known = {Branch::K, Branch::Q, Branch::V};
  if (kind.kind == WriterKind::mlp) {
    known.clear();
    for (const backend::MlpReader& there : backend::mlp_readers(model.config().layer(kind.layer)))
      known.push_back(there.branch);
  }
  bool found = false;
  std::string names;
  for (const Branch b : known) {
    const std::string name = has_branch_name(b) ? to_string(b) : "";
    names += (names.empty() ? "" : ", ") + (name.empty() ? "none" : name);
    if (name != branch) continue;
    edge.branch = b;
    found = true;
  }
  if (!found) fail(fmt::format("{} reads through {}, not '{}'", reader, names, branch));
  const int visible = kind.kind == WriterKind::head ? writers.visible_to_attention(kind.layer)
                                                    : writers.visible_to_mlp(kind.layer);
  if (edge.writer >= visible) fail(fmt::format("{} writes after {} has read", writer, reader));
  return edge;
}

CircuitResult without_positions(CircuitResult result) {
  std::vector<RankedEdge> edges;
  std::map<CircuitEdge, std::size_t> known;
  for (RankedEdge edge : result.edges) {
    edge.edge.position = -1;
    const auto [found, fresh] = known.try_emplace(edge.edge, edges.size());
    if (fresh) {
      edges.push_back(edge);
      edges.back().rank = edges.size();
      continue;
    }
    RankedEdge& sum = edges[found->second];
    sum.credit += edge.credit;
    sum.absolute += edge.absolute;
    sum.kept |= edge.kept;
    if (edge.drop) sum.drop = sum.drop.value_or(0.0) + *edge.drop;
  }
  result.edges = std::move(edges);
  return result;
}

}  // namespace unpack
