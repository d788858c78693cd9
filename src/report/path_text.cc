#include <fmt/format.h>

#include "report/labels.h"
#include "unpack/result.h"

namespace unpack {

Writers TraceResult::writer_table() const { return Writers(layout); }

namespace report {

const char* hop_label(Branch branch) {
  return branch == Branch::none || branch == Branch::mlp ? "" : to_string(branch);
}

std::vector<std::string> path_pieces(const Writers& writers, const TraceResult& result,
                                     const Path& path) {
  std::vector<std::string> pieces;
  pieces.reserve(path.nodes.size() + 1);
  for (std::size_t i = 0; i < path.nodes.size(); ++i) {
    std::string piece;
    if (i > 0) {
      const char* hop = i < path.branches.size() ? hop_label(path.branches[i]) : "";
      piece = *hop ? fmt::format(" -[{}]-> ", hop) : " -> ";
    }
    pieces.push_back(piece + to_string(writers, path.nodes[i]));
  }
  if (!result.root) pieces.push_back(pieces.empty() ? "target" : " -> target");
  return pieces;
}

}  // namespace report

std::string path_text(const TraceResult& result, const Path& path) {
  std::string text;
  for (const std::string& piece : report::path_pieces(result.writer_table(), result, path))
    text += piece;
  return text;
}

}  // namespace unpack
