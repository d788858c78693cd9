// Every wire format and picture: JSON, terminal, SVG, HTML, TikZ, graphs.
#pragma once

#include <filesystem>
#include <string>

#include "unpack/result.h"

namespace unpack {

std::string to_json(const TraceResult& result);
std::string to_json(const PredictResult& result);
std::string to_json(const InteractionResult& result);
std::string to_json(const AttributeResult& result);

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

}  // namespace unpack
