// The pieces of a trace picture. Each draws at (x, y) and returns where it ends; SVG files stack
// them, pages place them apart.
#pragma once

#include "report/graph_layout.h"
#include "report/svg_canvas.h"
#include "unpack/result.h"

namespace unpack::report {

// Chips with the token, its position and credit, in lines of at most `width`.
double draw_token_strip(SvgCanvas& canvas, const TraceResult& result, double x, double y,
                        double width);

struct Extent {
  double width = 0, height = 0;
};
// Layers upward, heads and the MLP to the right; credit summed over positions.
Extent draw_credit_map(SvgCanvas& canvas, const TraceResult& result, double x, double y);
Extent draw_predictions(SvgCanvas& canvas, const TraceResult& result, double x, double y,
                        double width);

// The strongest paths as texts, and what was left out.
inline constexpr std::size_t kListedRoutes = 20;
Extent draw_routes(SvgCanvas& canvas, const TraceResult& result, const GraphLayout& graph, double x,
                   double y);
std::string left_out_text(const GraphLayout& graph);  // empty where everything is drawn and listed

// The path's text with its source token in quotes, whole or a piece per node.
std::vector<std::string> legend_pieces(const Writers& writers, const TraceResult& result,
                                       const Path& path);
std::string legend_text(const Writers& writers, const TraceResult& result, const Path& path);
std::string stroke_class(double credit);  // by its sign
// A list of ranks, for a page that highlights: ` data-p="0 4 7"`.
std::string path_data(const std::vector<std::size_t>& ranks);
// A path's credit in percent, or the raw number where percentages mislead.
std::string path_value(const TraceResult& result, const Path& path);

}  // namespace unpack::report
