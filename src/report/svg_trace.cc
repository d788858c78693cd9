#include <fmt/format.h>

#include <algorithm>

#include "report/figure.h"
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
  SvgCanvas canvas, routes;
  const Extent routes_size = draw_routes(routes, r, graph, kMargin, 0);
  double width = std::max(kWidth, routes_size.width), y = 34;
  if (whole) {
    const Extent figure = draw_figure(canvas, r, graph);
    width = std::max(width, figure.width - 2 * kMargin);
    y = figure.height + 24;
  } else {
    canvas.text(kMargin, y, figure_title(r), "t");
    canvas.text(
        kMargin, y + 20,
        fmt::format("{}; {}; method {}", model_text(r.model, true), headline(r, true), r.method),
        "s");
    y += 50;
  }
  if (!graph.drawn.empty()) {
    canvas.text(kMargin, y, "Strongest paths", "h");
    canvas.open_group(fmt::format(" transform=\"translate(0 {:.1f})\"", y + 8));
    canvas.raw(routes.body());
    canvas.close_group();
    y += routes_size.height + 36;
  }
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
    y += std::max(map.height, side.height) + 40;
    canvas.text(kMargin, y + 6, fmt::format("Coverage: {}.", coverage_text(r)), "s");
    canvas.text(kMargin, y + 24, fmt::format("Conservation: {}.", conservation_text(r)), "s");
    y += 36;
  }
  for (const std::string& warning : r.warnings) {
    canvas.text(kMargin, y + 6, "Warning: " + visible(warning, {true}), "s");
    y += 18;
  }
  return canvas.document(width + 2 * kMargin, y + 14, figure_title(r));
}

}  // namespace unpack
