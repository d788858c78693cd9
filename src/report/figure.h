// The figure of a trace: title, facts, the graph of its routes and a legend, on white. SVG, HTML
// and TikZ draw it, and the page's exports (web/src/why_figure.ts) are the same, which a test
// holds.
#pragma once

#include "report/graph_layout.h"
#include "report/svg_parts.h"

namespace unpack::report {

// Numbers as the figure writes them: significant digits without trailing zeros, a true minus.
std::string figure_number(double value, int digits);
std::string figure_signed(double value, int digits);

std::string figure_question(const TraceResult& result);  // "Why ·Mary rather than ·John?"
std::string figure_title(const TraceResult& result);     // and the prompt
// Model, probability, logits, and what the drawn routes carry.
std::string figure_facts(const TraceResult& result, const GraphLayout& graph);

// How strongly a box is filled: never so that dark letters on it were hard to read.
double figure_fill(double share);

// Everything in places of its own, whatever draws it.
struct FigureFrame {
  double width = 0, height = 0;
  double graph_x = 0, graph_y = 0;  // of the layout's origin
  double bands_x = 0, bands_w = 0;
  double legend_y = 0;
};
inline constexpr double kFigureEdge = 24;
FigureFrame figure_frame(const TraceResult& result, const GraphLayout& graph);

struct FigureKey {
  double x = 0;
  int sign = 0;  // 0: a dashed line of no sign
  std::string text;
};
std::vector<FigureKey> figure_keys(const TraceResult& result);
inline constexpr double kFigureNoteX = kFigureEdge + 440;
inline constexpr const char* kFigureNote =
    "width: credit of the routes; fill: credit; K, Q, V: read as key, query, value";

// A token under the graph; a fold has no share and no number.
struct FigureToken {
  double x = 0, w = 0;
  std::string label, number;
  double share = 0;
};
std::vector<FigureToken> figure_tokens(const TraceResult& result, const GraphLayout& graph);

Extent draw_figure(SvgCanvas& canvas, const TraceResult& result, const GraphLayout& graph);

}  // namespace unpack::report
