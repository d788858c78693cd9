#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/labels.h"
#include "report/svg_parts.h"
#include "report/text.h"

namespace unpack::report {

std::string stroke_class(const TraceResult& r, const DrawnPath& path) {
  const bool negative = r.paths[path.index].credit < 0;
  if (path.thin) return negative ? "cN thin" : "cP thin";
  return fmt::format("{}{}", negative ? 'w' : 'c', path.shade);
}

std::string path_data(const std::vector<std::size_t>& ranks) {
  std::string list;
  for (const std::size_t rank : ranks) list += (list.empty() ? "" : " ") + std::to_string(rank);
  return attribute("data-p", list);
}

std::string path_value(const TraceResult& r, const Path& path) {
  return percent_misleads(r.token_credit) ? signed_number(path.credit)
                                          : signed_percent(path.percent);
}

std::vector<std::string> legend_pieces(const Writers& writers, const TraceResult& r,
                                       const Path& path) {
  std::vector<std::string> pieces = path_pieces(writers, r, path);
  const int source = path.nodes.empty() ? -1 : path.nodes.front().position;
  if (source >= 0 && source < r.length())
    pieces.front() +=
        ' ' + clip(quoted_token(r.tokens[static_cast<std::size_t>(source)].text, {true}), 18, true);
  return pieces;
}

std::string legend_text(const Writers& writers, const TraceResult& r, const Path& path) {
  std::string text;
  for (const std::string& piece : legend_pieces(writers, r, path)) text += piece;
  return text;
}

std::string left_out_text(const GraphLayout& graph) {
  const auto thin = std::count_if(graph.drawn.begin(), graph.drawn.end(),
                                  [](const DrawnPath& p) { return p.thin; });
  std::string text;
  if (thin) text = fmt::format("The thin lines are the next {} paths", thin);
  if (graph.left_out)
    text += fmt::format("{}{} more path{} not drawn", text.empty() ? "" : "; ", graph.left_out,
                        graph.left_out == 1 ? " is" : "s are");
  return text.empty() ? text : text + ".";
}

static std::string box_experts(const TraceResult& r, const GraphBox& box) {
  if (box.target || r.experts.empty()) return {};
  const Writers writers = r.writer_table();
  const Writer& writer = writers[box.node.writer];
  if (writer.kind != WriterKind::mlp) return {};
  return experts_text(r.experts, writer.layer, box.node.position, 8);
}

void draw_graph(SvgCanvas& canvas, const TraceResult& r, const GraphLayout& g, double x, double y) {
  canvas.open_group(fmt::format(" transform=\"translate({:.1f} {:.1f})\"", x, y));
  for (const LayerBand& band : g.bands) {
    canvas.rect(0, band.top, g.width, band.bottom - band.top, "band", {}, 5);
    canvas.text(8, (band.top + band.bottom) / 2 + 4, fmt::format("layer {}", band.layer),
                "small soft");
  }
  const double largest = largest_magnitude(r.token_credit);
  for (const GraphColumn& column : g.columns) {
    if (column.position < 0) {
      canvas.text(column.x, g.tokens_y, column.label, "m soft");
      continue;
    }
    const auto s = static_cast<std::size_t>(column.position);
    const double share = largest > 0 && s < r.token_credit.size() ? r.token_credit[s] / largest : 0;
    const double w = text_width(column.label, 11) + 8;
    canvas.open_group(fmt::format(" class=\"tok\" data-s=\"{}\"", s));
    canvas.signed_rect(column.x - w / 2, g.tokens_y - 13, w, 18, share);
    canvas.text(column.x, g.tokens_y, column.label, fmt::format("m {}", ink_on(share)));
    canvas.text(column.x, g.tokens_y + 17, std::to_string(s), "m tiny soft");
    canvas.close_group();
  }
  // Weak lines first, so that the strongest lie on top.
  std::vector<const GraphLine*> order;
  for (const GraphLine& line : g.lines) order.push_back(&line);
  std::stable_sort(order.begin(), order.end(),
                   [](const GraphLine* a, const GraphLine* b) { return a->rank > b->rank; });
  for (const GraphLine* line : order) {
    const DrawnPath& path = g.drawn[line->rank];
    const std::string css = stroke_class(r, path) + " edge", data = path_data({line->rank});
    canvas.route(line->solid, css, path.width, data);
    canvas.route(line->dashed, css + " dash", path.width, data);
  }
  for (const HopMark& mark : g.marks)
    canvas.text(mark.at.x, mark.at.y, mark.text, "m small b halo hop", path_data(mark.paths));
  for (const GraphBox& box : g.boxes) {
    const double share = g.largest_credit > 0 ? box.credit / g.largest_credit : 0;
    const double left = box.x - box.w / 2, top = box.y - box.h / 2;
    canvas.open_group(" class=\"node\"" + path_data(box.paths));
    if (!box.target) {
      const std::string experts = box_experts(r, box);
      canvas.raw(tooltip(fmt::format("{}@{}: credit {}{}", box.label, box.node.position,
                                     signed_number(box.credit),
                                     experts.empty() ? "" : "; experts " + experts)));
    }
    canvas.rect(left, top, box.w, box.h, "box", {}, 5);
    canvas.signed_rect(left, top, box.w, box.h, share, {}, 5);
    if (box.target || box.root) canvas.rect(left, top, box.w, box.h, "mark", {}, 5);
    canvas.text(box.x, box.y + 3.5, box.label,
                fmt::format("m {}{}", ink_on(share), box.target ? " b" : ""),
                " style=\"font-size:10px\"");
    canvas.close_group();
  }
  canvas.close_group();
}

Extent draw_legend(SvgCanvas& canvas, const TraceResult& r, const GraphLayout& g, double x,
                   double y) {
  const Writers writers = r.writer_table();
  double at = y, widest = 0;
  for (std::size_t rank = 0; rank < g.drawn.size(); ++rank) {
    const DrawnPath& drawn = g.drawn[rank];
    if (drawn.thin) break;
    const Path& path = r.paths[drawn.index];
    const std::string text = legend_text(writers, r, path);
    canvas.route({{x, at + 9}, {x + 30, at + 9}}, stroke_class(r, drawn),
                 std::max(2.0, drawn.width));
    canvas.text(x + 96, at + 13, path_value(r, path), path.credit < 0 ? "e N b" : "e P b");
    canvas.text(x + 106, at + 13, text, "ink");
    widest = std::max(widest, 106 + text_width(text, 11));
    at += 18;
  }
  const std::string rest = left_out_text(g);
  if (!rest.empty()) {
    canvas.text(x, at + 14, rest, "s");
    at += 20;
  }
  return {widest, at - y};
}

}  // namespace unpack::report
