#include <fmt/format.h>

#include <algorithm>

#include "report/labels.h"
#include "report/svg_parts.h"
#include "report/text.h"
#include "unpack/report.h"

namespace unpack {

using namespace report;

std::string to_svg(const TraceResult& r) {
  constexpr double kMargin = 24, kWidth = 1000;
  const bool whole = r.method == "unpack";
  const GraphLayout graph = whole ? layout_graph(r) : GraphLayout{};
  SvgCanvas legend;
  const Extent legend_size = draw_legend(legend, r, graph, kMargin, 0);
  double width = std::max({kWidth, graph.width, legend_size.width});
  SvgCanvas canvas;
  double y = 34;
  const std::string name = r.root ? "Credit of " + to_string(r.writer_table(), *r.root)
                                  : "Credit of " + quoted_token(r.target.text, {true});
  canvas.text(kMargin, y, name, "t");
  canvas.text(kMargin, y + 20,
              fmt::format("{}; {}{}", model_text(r.model, true), headline(r, true),
                          whole ? "" : "; method " + r.method),
              "s");
  y += 50;
  const bool raw = !whole || percent_misleads(r.token_credit);
  canvas.text(kMargin, y, raw ? "Tokens" : "Tokens, percent of all positive credit", "h");
  y = draw_token_strip(canvas, r, kMargin, y + 12, width) + 12;

  if (whole) {
    canvas.text(kMargin, y, "Layers and heads, credit over all positions", "h");
    const Extent map = draw_credit_map(canvas, r, kMargin, y + 12);
    Extent side;
    constexpr double kHeading = 310;  // of the map's own heading, where that is wider
    const double beside = kMargin + std::max(map.width, kHeading) + 40;
    if (!r.predictions.empty() && width + kMargin - beside > 220) {
      canvas.text(beside, y, "Next token", "h");
      side = draw_predictions(canvas, r, beside, y + 10, std::min(width + kMargin - beside, 420.0));
    }
    y += std::max(map.height, side.height) + 48;
    if (!graph.drawn.empty()) {
      canvas.text(kMargin, y, "Strongest paths", "h");
      canvas.text(kMargin + 126, y,
                  "one line each; solid within a position, dashed across; cool colours add credit, "
                  "warm ones take it away",
                  "s");
      draw_graph(canvas, r, graph, kMargin, y + 10);
      y += graph.height + 24;
      canvas.open_group(fmt::format(" transform=\"translate(0 {:.1f})\"", y));
      canvas.raw(legend.body());
      canvas.close_group();
      y += legend_size.height + 12;
    }
    canvas.text(kMargin, y + 6, fmt::format("Coverage: {}.", coverage_text(r)), "s");
    canvas.text(kMargin, y + 24, fmt::format("Conservation: {}.", conservation_text(r)), "s");
    y += 36;
  }
  for (const std::string& warning : r.warnings) {
    canvas.text(kMargin, y + 6, "Warning: " + visible(warning, {true}), "s");
    y += 18;
  }
  return canvas.document(width + 2 * kMargin, y + 14, name);
}

}  // namespace unpack
