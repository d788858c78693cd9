#include <fmt/format.h>

#include "backend/mlp_readers.h"
#include "unpack/circuit.h"
#include "unpack/error.h"

namespace unpack {

bool has_branch_name(Branch branch) { return branch != Branch::none && branch != Branch::mlp; }

std::string to_string(const Writers& writers, const CircuitEdge& edge) {
  const std::string branch =
      has_branch_name(edge.branch) ? fmt::format("-[{}]", to_string(edge.branch)) : "";
  return fmt::format("{} {}-> {}", writers.name(edge.writer), branch,
                     edge.reader < 0 ? "target" : writers.name(edge.reader));
}

CircuitEdge parse_circuit_edge(const Model& model, const std::string& writer,
                               const std::string& reader, const std::string& branch) {
  const Writers& writers = model.writers();
  CircuitEdge edge;
  edge.writer = writers.parse(writer);
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
    for (const MlpReader& there : mlp_readers(model.config().layer(kind.layer)))
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

}  // namespace unpack
