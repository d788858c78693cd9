// Text form of edges: `A5.H1@9 -[K]-> A7.H2@13`, `MLP0@9 -> MLP3@9`, `A5.H1@9 -> target`.
#include <fmt/format.h>

#include "backend/mlp_readers.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack {

namespace {

std::string_view trim(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

Branch parse_branch(std::string_view text, std::string_view whole) {
  for (const Branch branch :
       {Branch::K, Branch::Q, Branch::V, Branch::G, Branch::U, Branch::R, Branch::mlp}) {
    if (text == to_string(branch)) return branch;
  }
  throw InputError(fmt::format(
      "'{}' in edge '{}' is no branch: use K, Q, V (a head), G, U (a gated MLP), R (a router)",
      text, whole));
}

}  // namespace

const char* to_string(Channel channel) {
  return channel == Channel::attention ? "attention" : "mlp";
}

Edge parse_edge(const Writers& writers, const ModelConfig& config, std::string_view text,
                int length) {
  const std::size_t arrow = text.rfind("->");
  const auto fail = [&](const std::string& why) {
    throw InputError(fmt::format("edge '{}': {}", text, why));
  };
  if (arrow == std::string_view::npos)
    fail("an edge is written 'A5.H1@9 -[K]-> A7.H2@13' or 'MLP0@9 -> target'");
  const std::string_view to = trim(text.substr(arrow + 2));
  std::string_view from = trim(text.substr(0, arrow));
  Edge edge;
  std::optional<Branch> branch;
  if (from.ends_with(']')) {
    const std::size_t open = from.rfind("-[");
    if (open == std::string_view::npos) fail("the branch is written -[K]->");
    branch = parse_branch(from.substr(open + 2, from.size() - open - 3), text);
    from = trim(from.substr(0, open));
  }
  edge.writer = parse_node(writers, from, length);
  if (to == "target") {
    if (branch) fail("the target has no branches: write '-> target'");
    edge.branch = Branch::none;
    return edge;
  }
  const Node reader = parse_node(writers, to, length);
  const Writer& kind = writers[reader.writer];
  if (kind.terminal())
    fail("emb and pos read nothing: the right side must be a head, an MLP or target");
  const bool head = kind.kind == WriterKind::head;
  if (!branch && head) fail("a head reads through K, Q or V: write -[K]->");
  const bool gated = !head && config.layer(kind.layer).gated();
  if (!branch && gated) fail("a gated MLP reads through G or U: write -[G]->");
  edge.branch = branch.value_or(Branch::mlp);
  const bool fits =
      head ? edge.branch == Branch::K || edge.branch == Branch::Q || edge.branch == Branch::V
           : backend::has_branch(config.layer(kind.layer), edge.branch);
  if (!fits)
    fail(head ? "a head has the branches K, Q and V"
              : fmt::format("this MLP has {}{}", backend::branch_words(config.layer(kind.layer)),
                            gated ? "" : ": write ->"));
  const int visible =
      head ? writers.visible_to_attention(kind.layer) : writers.visible_to_mlp(kind.layer);
  if (edge.writer.writer >= visible)
    fail(fmt::format("{} writes after {} has read", writers.name(edge.writer.writer),
                     writers.name(reader.writer)));
  const bool across = edge.branch == Branch::K || edge.branch == Branch::V;
  if (across ? edge.writer.position > reader.position : edge.writer.position != reader.position) {
    fail(across ? "a head reads keys and values at its own position and before"
                : fmt::format("this branch reads at position {}", reader.position));
  }
  edge.reader = reader;
  return edge;
}

std::string to_string(const Writers& writers, const Edge& edge) {
  const std::string from = to_string(writers, edge.writer);
  if (!edge.reader) return from + " -> target";
  const std::string arrow =
      edge.branch == Branch::mlp ? " -> " : fmt::format(" -[{}]-> ", to_string(edge.branch));
  return from + arrow + to_string(writers, *edge.reader);
}

}  // namespace unpack
