#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "report/figure.h"
#include "report/html_page.h"
#include "report/labels.h"
#include "report/svg_parts.h"
#include "report/text.h"
#include "unpack/report.h"

namespace unpack {
namespace {

using namespace report;

constexpr std::size_t kListed = 1000;

// Pointing at a line, a node, a token, a cell or a list entry shows the paths that pass there; a
// click keeps them shown.
constexpr const char* kTraceScript = R"js("use strict";
const root = document.querySelector("main");
const rows = [...document.querySelectorAll(".paths li")];
const info = rows.map(li => ({s: li.dataset.s, w: li.dataset.w.split(" ")}));
const marked = [...document.querySelectorAll("[data-p]")].filter(e => e.tagName !== "LI");
const tokens = [...document.querySelectorAll(".tok")];
const cells = [...document.querySelectorAll(".cell")];
let pinned = null;
function show(paths, token) {
  const on = new Set(paths), writers = new Set(), sources = new Set();
  for (const p of on) { sources.add(info[p].s); info[p].w.forEach(w => writers.add(w)); }
  if (token !== undefined) sources.add(token);
  root.classList.add("focus");
  for (const e of marked) e.classList.toggle("hot", e.dataset.p.split(" ").some(p => on.has(+p)));
  for (const e of tokens) e.classList.toggle("hot", sources.has(e.dataset.s));
  for (const e of cells) e.classList.toggle("hot", writers.has(e.dataset.w));
  rows.forEach((e, i) => e.classList.toggle("hot", on.has(i)));
}
function clear() {
  if (pinned) { show(...pinned); return; }
  root.classList.remove("focus");
  for (const e of document.querySelectorAll(".hot")) e.classList.remove("hot");
}
function pathsOf(e) {
  const all = test => rows.map((_, i) => i).filter(test);
  if (e.tagName === "LI") return [[rows.indexOf(e)]];
  if (e.dataset.p !== undefined) return [e.dataset.p.split(" ").map(Number)];
  if (e.dataset.s !== undefined) return [all(i => info[i].s === e.dataset.s), e.dataset.s];
  return [all(i => info[i].w.includes(e.dataset.w))];
}
for (const e of [...rows, ...marked, ...tokens, ...cells]) {
  e.addEventListener("mouseenter", () => show(...pathsOf(e)));
  e.addEventListener("mouseleave", clear);
  e.addEventListener("focus", () => show(...pathsOf(e)));
  e.addEventListener("blur", clear);
  e.addEventListener("click", event => {
    pinned = pathsOf(e);
    show(...pinned);
    event.stopPropagation();
  });
}
document.addEventListener("click", () => { pinned = null; clear(); });
document.addEventListener("keydown", event => {
  if (event.key === "Escape") { pinned = null; clear(); }
});
)js";

// Drawn paths come first and in the order of their ranks: a list entry's place is its rank.
std::vector<std::size_t> list_order(const TraceResult& r, const GraphLayout& graph) {
  std::vector<bool> drawn(r.paths.size(), false);
  std::vector<std::size_t> order;
  for (const DrawnPath& path : graph.drawn) {
    order.push_back(path.index);
    drawn[path.index] = true;
  }
  for (std::size_t i = 0; i < r.paths.size(); ++i) {
    if (!drawn[i]) order.push_back(i);
  }
  order.resize(std::min(order.size(), kListed));
  return order;
}

// May be broken before an arrow, never within one.
std::string path_markup(const Writers& writers, const TraceResult& r, const Path& path) {
  std::string out;
  for (const std::string& piece : legend_pieces(writers, r, path)) {
    const bool arrow = piece.starts_with(' ');
    out +=
        fmt::format("{}<b>{}</b>", arrow ? " " : "", xml_escape(arrow ? piece.substr(1) : piece));
  }
  return out;
}

std::string path_list(const TraceResult& r, const GraphLayout& graph) {
  const Writers writers = r.writer_table();
  std::string out = "<ol class=\"paths\">\n";
  const std::vector<std::size_t> order = list_order(r, graph);
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const Path& path = r.paths[order[rank]];
    std::string through;
    for (const Node& node : path.nodes)
      through += (through.empty() ? "" : " ") + std::to_string(node.writer);
    std::string swatch;
    if (rank < graph.drawn.size())
      swatch = fmt::format("<i style=\"height:{:.1f}px\"></i>", graph.drawn[rank].width);
    out += fmt::format(
        "<li tabindex=\"0\" data-s=\"{}\" data-w=\"{}\"><span class=\"k {}\">{}</span><span "
        "class=\"v "
        "{}\">{}</span><span>{}</span></li>\n",
        path.nodes.empty() ? -1 : path.nodes.front().position, through,
        path.credit < 0 ? "neg" : "pos", swatch, path.credit < 0 ? "neg" : "pos",
        xml_escape(path_value(r, path)), path_markup(writers, r, path));
  }
  out += "</ol>\n";
  if (order.size() < r.paths.size())
    out += fmt::format("<p class=\"note\">{} more paths are not listed.</p>\n",
                       r.paths.size() - order.size());
  return out;
}

}  // namespace

std::string to_html(const TraceResult& r) {
  const bool whole = r.method == "unpack";
  const std::string name = figure_question(r);
  std::string body =
      fmt::format("<h1>{}</h1>\n<p class=\"sub\">{}; {}{}</p>\n", xml_escape(name),
                  xml_escape(model_text(r.model, true)), xml_escape(headline(r, true)),
                  whole ? "" : "; method " + xml_escape(r.method));
  for (const std::string& warning : r.warnings)
    body += fmt::format("<p class=\"warn\">{}</p>\n", xml_escape(warning));

  SvgCanvas strip;
  const double strip_width = 1120, strip_height = draw_token_strip(strip, r, 1, 1, strip_width);
  const bool raw = !whole || percent_misleads(r.token_credit);
  body += fmt::format("<section><h2>{}</h2><div class=\"scroll\">{}</div></section>\n",
                      raw ? "Tokens" : "Tokens, percent of all positive credit",
                      strip.element(strip_width + 2, strip_height, "credit of every token", ""));
  SvgCanvas side;
  const Extent predicted = draw_predictions(side, r, 0, 0, 380);
  const std::string next =
      fmt::format("<section><h2>Next token</h2>{}</section>\n",
                  side.element(predicted.width, predicted.height, "next-token probabilities", ""));
  if (!whole) return render_page({name, body + next, {}});

  SvgCanvas map;
  const Extent map_size = draw_credit_map(map, r, 0, 1);
  body += fmt::format(
      "<div class=\"row\"><section><h2>Layers and heads, credit over all positions</h2><div "
      "class=\"scroll\">{}</div></section>\n{}</div>\n",
      map.element(map_size.width + 2, map_size.height + 2, "credit of every head and MLP", ""),
      next);
  const GraphLayout graph = layout_graph(r);
  if (!graph.drawn.empty()) {
    SvgCanvas drawing;
    const Extent size = draw_figure(drawing, r, graph);
    body += fmt::format(
        "<section><h2>Strongest paths</h2>\n<p class=\"note\">Paths that share an edge share its "
        "line. Point at a line, a box, a token or an entry to follow it; click to keep it.{}</p>\n"
        "<div class=\"split\"><div class=\"scroll\">{}</div><div>{}</div></div></section>\n",
        graph.left_out ? fmt::format(" {} more paths are not drawn.", graph.left_out) : "",
        drawing.element(size.width, size.height, "the strongest paths", "graph"),
        path_list(r, graph));
  }
  body += fmt::format("<p class=\"note\">Coverage: {}.<br>Conservation: {}.</p>\n",
                      xml_escape(coverage_text(r)), xml_escape(conservation_text(r)));
  return render_page({name, body, graph.drawn.empty() ? std::string{} : kTraceScript});
}

}  // namespace unpack
