// Every wire format and picture: JSON, terminal, SVG, HTML, TikZ, graphs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "unpack/result.h"
#include "unpack/spans.h"

namespace unpack {

struct Sentence;

std::string to_json(const TraceResult& result);
// What goes beside the members of a trace, or instead of them.
struct TraceJson {
  bool paths_only = false;        // what a change of the path filters changes, and nothing else
  bool words = false;             // "words": the credit of subword tokens, added up
  std::vector<double> pattern{};  // "pattern": the attention of the root's head
  const std::vector<EdgeCredit>* edges = nullptr;    // "edges": what readers pass to writers
  const std::vector<SpanCredit>* groups = nullptr;   // "groups": credit added up by span
  const std::vector<Sentence>* sentences = nullptr;  // "sentences": what components do, in words
};
std::string to_json(const TraceResult& result, const TraceJson& parts);
std::string to_json(const std::vector<Token>& tokens);
std::string to_json(const PredictResult& result);
std::string to_json(const InteractionResult& result);
std::string to_json(const AttributeResult& result);

// A text in the quotes and with the escapes of JSON, for a person to read.
std::string quoted(const std::string& text);

struct TerminalStyle {
  bool color = false;
  int width = 100;
  bool unicode = true;
};
std::string to_terminal(const TraceResult& result, const TerminalStyle& style);
std::string to_terminal(const PredictResult& result, const TerminalStyle& style);
std::string to_terminal(const InteractionResult& result, const TerminalStyle& style);
std::string to_terminal(const AttributeResult& result, const TerminalStyle& style);

// A token strip, a layer x head map of credit and the graph of the listed paths.
std::string to_svg(const TraceResult& result);
std::string to_svg(const InteractionResult& result);
std::string to_svg(const AttributeResult& result);
// Self-contained pages, no network; hover highlights a path.
std::string to_html(const TraceResult& result);
std::string to_html(const AttributeResult& result);
std::string to_tikz(const TraceResult& result);  // a standalone LaTeX document

enum class GraphFormat { graphml, dot, json };
GraphFormat graph_format(const std::filesystem::path& file);  // by suffix; UsageError otherwise
std::string to_graph(const TraceResult& result, GraphFormat format);

// Writes all or nothing: a temporary file beside the target, then a rename. Throws InputError (full
// disk, no permission).
void write_file(const std::filesystem::path& file, const std::string& content);
// Throws what write_file would throw, as far as that can be known without writing.
void check_writable(const std::filesystem::path& file);

}  // namespace unpack
