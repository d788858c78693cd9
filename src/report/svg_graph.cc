#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/figure.h"
#include "report/labels.h"
#include "report/svg_parts.h"
#include "report/text.h"

namespace unpack::report {

std::string stroke_class(double credit) { return credit < 0 ? "cN" : "cP"; }

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
    pieces.front() += ' ' + clip(quoted_token(r.tokens[source].text, {true}), 18, true);
  return pieces;
}

std::string legend_text(const Writers& writers, const TraceResult& r, const Path& path) {
  std::string text;
  for (const std::string& piece : legend_pieces(writers, r, path)) text += piece;
  return text;
}

std::string left_out_text(const GraphLayout& graph) {
  std::string text;
  if (graph.drawn.size() > kListedRoutes)
    text = fmt::format("{} weaker routes of the figure are not listed",
                       graph.drawn.size() - kListedRoutes);
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

namespace {

std::string size_style(double size) { return fmt::format(" style=\"font-size:{:g}px\"", size); }

void filled_rect(SvgCanvas& canvas, double x, double y, double w, double h, double share,
                 double radius) {
  const double strength = figure_fill(share);
  if (strength > 0)
    canvas.rect(x, y, w, h, share < 0 ? "N" : "P",
                fmt::format(" fill-opacity=\"{:.3f}\"", strength), radius);
}

void draw_lines(SvgCanvas& canvas, const GraphLayout& g, double x, double y) {
  // Weak lines first, so that the strongest lie on top.
  for (auto line = g.lines.rbegin(); line != g.lines.rend(); ++line) {
    std::vector<Point> points = line->points;
    for (Point& p : points) p = {p.x + x, p.y + y};
    canvas.route(points,
                 fmt::format("{} edge{}{}", stroke_class(line->credit),
                             line->crosses ? " dash" : "", line->thin ? " thin" : ""),
                 line->width, path_data(line->paths));
  }
}

void draw_box(SvgCanvas& canvas, const TraceResult& r, const GraphLayout& g, const GraphBox& box,
              double dx, double dy) {
  const double x = dx + box.x, y = dy + box.y, left = x - box.w / 2, top = y - box.h / 2;
  const double share = g.largest_credit > 0 ? box.credit / g.largest_credit : 0;
  const bool dark = box.target || box.root;
  canvas.open_group(" class=\"node\"" + path_data(box.paths));
  if (!box.target) {
    const std::string experts = box_experts(r, box);
    canvas.raw(tooltip(fmt::format("{}@{}: credit {}{}", box.label, box.node.position,
                                   signed_number(box.credit),
                                   experts.empty() ? "" : "; experts " + experts)));
  }
  for (const GraphPort& port : box.ports) {
    canvas.rect(x + port.x - kPortSize / 2 - 1, y + box.h / 2 - 1, kPortSize + 2, kPortSize,
                port.used ? "port used" : "port", {}, 2);
    canvas.text(x + port.x, y + box.h / 2 + kPortSize - 3, port.branch,
                port.used ? "f m b on" : "f m soft", size_style(8));
  }
  canvas.rect(left, top, box.w, box.h, dark ? "node-mark" : share < 0 ? "box cN" : "box cP", {}, 5);
  if (!dark) filled_rect(canvas, left, top, box.w, box.h, share, 5);
  canvas.text(x, y + 4, box.label, fmt::format("f m{}{}", dark ? " b" : "", dark ? " on" : ""));
  canvas.close_group();
}

}  // namespace

Extent draw_figure(SvgCanvas& canvas, const TraceResult& r, const GraphLayout& g) {
  const FigureFrame f = figure_frame(r, g);
  canvas.text(kFigureEdge, 34, figure_title(r), "f b", size_style(18));
  canvas.text(kFigureEdge, 54, figure_facts(r, g), "f soft", size_style(12));
  for (const LayerBand& band : g.bands) {
    const double top = f.graph_y + band.top, bottom = f.graph_y + band.bottom;
    canvas.rect(f.bands_x, top, f.bands_w, bottom - top, "band", {}, 5);
    canvas.text(f.bands_x + 8, (top + bottom) / 2 + 4, fmt::format("L{}", band.layer), "f soft");
  }
  draw_lines(canvas, g, f.graph_x, f.graph_y);
  for (const GraphBox& box : g.boxes) draw_box(canvas, r, g, box, f.graph_x, f.graph_y);
  const double y = f.graph_y + g.tokens_y;
  const std::vector<FigureToken> tokens = figure_tokens(r, g);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const FigureToken& token = tokens[i];
    const double x = f.graph_x + token.x;
    if (g.columns[i].count > 1) {
      canvas.text(x, y, token.label, "f m soft", size_style(10));
      continue;
    }
    canvas.open_group(fmt::format(" class=\"tok\" data-s=\"{}\"", g.columns[i].position));
    filled_rect(canvas, x - token.w / 2, y - 14, token.w, 19, token.share, 4);
    canvas.text(x, y, token.label, "f m", size_style(12.5));
    canvas.text(x, y + 17, token.number, "f m soft", size_style(9));
    canvas.close_group();
  }
  for (const FigureKey& key : figure_keys(r)) {
    canvas.route({{key.x, f.legend_y - 4}, {key.x + 26, f.legend_y - 4}},
                 key.sign == 0 ? "cS dash" : stroke_class(key.sign), 3);
    canvas.text(key.x + 32, f.legend_y, key.text, "f soft");
  }
  canvas.text(kFigureNoteX, f.legend_y, kFigureNote, "f soft");
  return {f.width, f.height};
}

Extent draw_routes(SvgCanvas& canvas, const TraceResult& r, const GraphLayout& g, double x,
                   double y) {
  const Writers writers = r.writer_table();
  double at = y, widest = 0;
  for (std::size_t rank = 0; rank < std::min(g.drawn.size(), kListedRoutes); ++rank) {
    const Path& path = r.paths[g.drawn[rank].index];
    const std::string text = legend_text(writers, r, path);
    canvas.route({{x, at + 9}, {x + 30, at + 9}}, stroke_class(path.credit), g.drawn[rank].width);
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
