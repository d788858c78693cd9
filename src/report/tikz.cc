#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/labels.h"
#include "report/svg_parts.h"
#include "report/text.h"
#include "unpack/report.h"

namespace unpack {
namespace {

using namespace report;

// One picture unit is a point of 0.6 pt: the layout's pixels become a page that fits a column or
// two. y is turned around.
constexpr double kUnit = 0.6;

// Cool and warm shades for print, as in the other pictures.
constexpr const char* kCool[kShades] = {"0B5FA5", "2F9BD6", "4B3FA7", "0F8496",
                                        "6F9BE0", "1F3C7A", "4FB9C6", "7D6FD0"};
constexpr const char* kWarm[kShades] = {"D55E00", "A4262C", "E8963E", "8A3A0B",
                                        "E2644A", "B97A12", "C43D5B", "F0A868"};

std::string colour_name(const TraceResult& r, const DrawnPath& path) {
  const bool negative = r.paths[path.index].credit < 0;
  if (path.thin) return negative ? "negative!40" : "positive!40";
  return fmt::format("{}{}", negative ? "warm" : "cool", static_cast<char>('a' + path.shade));
}

std::string fill_of(double share) {
  const int strength = static_cast<int>(std::lround(100 * fill_opacity(share)));
  return strength == 0 ? "white"
                       : fmt::format("{}!{}", share < 0 ? "negative" : "positive", strength);
}

const char* ink_of(double share) { return fill_opacity(share) > 0.6 ? "white" : "black"; }

std::string at(double x, double y) { return fmt::format("({:.1f},{:.1f})", x, -y); }

std::string draw(const std::vector<Point>& points, const std::string& options) {
  if (points.size() < 2) return {};
  // TeX rounds a corner even where its sides are shorter than the radius, and draws a kink.
  double radius = 4;
  for (std::size_t i = 1; i < points.size() && points.size() > 2; ++i) {
    radius = std::min(
        radius,
        0.45 * kUnit * std::hypot(points[i].x - points[i - 1].x, points[i].y - points[i - 1].y));
  }
  std::string out = fmt::format("\\draw[{},rounded corners={:.2f}pt] ", options, radius);
  for (std::size_t i = 0; i < points.size(); ++i)
    out += (i ? " -- " : "") + at(points[i].x, points[i].y);
  return out + ";\n";
}

// Arrows that TeX sets well.
std::string tex_path(const std::string& text) {
  std::string out = tex_escape(text);
  for (std::size_t found; (found = out.find("{-}\\textgreater{}")) != std::string::npos;)
    out.replace(found, 17, "\\ensuremath{\\rightarrow}");
  for (std::size_t found; (found = out.find(" {-}[")) != std::string::npos;)
    out.replace(found, 5, " [");
  return out;
}

void draw_picture(std::string& out, const TraceResult& r, const GraphLayout& g) {
  for (const LayerBand& band : g.bands) {
    out += fmt::format("\\fill[band,rounded corners=2pt] {} rectangle {};\n", at(0, band.top),
                       at(g.width, band.bottom));
    out += fmt::format("\\node[soft,anchor=west] at {} {{layer {}}};\n",
                       at(4, (band.top + band.bottom) / 2), band.layer);
  }
  const double largest = largest_magnitude(r.token_credit);
  for (const GraphColumn& column : g.columns) {
    if (column.position < 0) {
      out += fmt::format("\\node[soft] at {} {{\\ldots}};\n", at(column.x, g.tokens_y - 4));
      continue;
    }
    const auto s = static_cast<std::size_t>(column.position);
    const double share = largest > 0 && s < r.token_credit.size() ? r.token_credit[s] / largest : 0;
    out += fmt::format("\\node[token,fill={},text={}] at {} {{{}}};\n", fill_of(share),
                       ink_of(share), at(column.x, g.tokens_y - 4), tex_escape(column.label));
    out += fmt::format("\\node[soft] at {} {{{}}};\n", at(column.x, g.tokens_y + 15), s);
  }
  std::vector<const GraphLine*> order;
  for (const GraphLine& line : g.lines) order.push_back(&line);
  std::stable_sort(order.begin(), order.end(),
                   [](const GraphLine* a, const GraphLine* b) { return a->rank > b->rank; });
  for (const GraphLine* line : order) {
    const DrawnPath& path = g.drawn[line->rank];
    const std::string look =
        fmt::format("{},line width={:.2f}pt", colour_name(r, path), path.width * kUnit);
    out += draw(line->solid, look);
    out += draw(line->dashed, "across," + look);
  }
  for (const HopMark& mark : g.marks)
    out += fmt::format("\\node[hop] at {} {{{}}};\n", at(mark.at.x, mark.at.y - 1.5), mark.text);
  for (const GraphBox& box : g.boxes) {
    const double share = g.largest_credit > 0 ? box.credit / g.largest_credit : 0;
    out += fmt::format("\\node[box,{}minimum width={:.1f}pt,fill={},text={}] at {} {{{}}};\n",
                       box.target || box.root ? "marked," : "", box.w * kUnit, fill_of(share),
                       ink_of(share), at(box.x, box.y), tex_escape(box.label));
  }
}

double draw_legend_rows(std::string& out, const TraceResult& r, const GraphLayout& g, double y) {
  const Writers writers = r.writer_table();
  for (const DrawnPath& drawn : g.drawn) {
    if (drawn.thin) break;
    const Path& path = r.paths[drawn.index];
    out += draw({{0, y}, {26, y}}, fmt::format("{},line width={:.2f}pt", colour_name(r, drawn),
                                               std::max(1.6, drawn.width) * kUnit));
    out += fmt::format("\\node[legend,anchor=base east,text={}] at {} {{\\textbf{{{}}}}};\n",
                       path.credit < 0 ? "negative" : "positive", at(88, y + 3.5),
                       tex_escape(path_value(r, path)));
    out += fmt::format("\\node[legend,anchor=base west] at {} {{{}}};\n", at(94, y + 3.5),
                       tex_path(legend_text(writers, r, path)));
    y += 16;
  }
  const auto note = [&](const std::string& text) {
    out += fmt::format("\\node[note,anchor=base west] at {} {{{}}};\n", at(0, y + 6),
                       tex_escape(text));
    y += 15;
  };
  if (const std::string rest = left_out_text(g); !rest.empty()) note(rest);
  for (const LayerBand& band : g.bands) {
    const std::string used = experts_text(r.experts, band.layer, explained_position(r), 8);
    if (!used.empty())
      note(fmt::format("Experts of layer {} at position {}: {}.", band.layer, explained_position(r),
                       used));
  }
  note("Coverage: " + coverage_text(r) + ".");
  note("Conservation: " + conservation_text(r) + ".");
  for (const std::string& warning : r.warnings) note("Warning: " + warning);
  return y;
}

// A trace of a baseline has tokens and nothing else.
void draw_tokens_only(std::string& out, const TraceResult& r) {
  const double largest = largest_magnitude(r.token_credit);
  double x = 0, y = 0;
  for (std::size_t s = 0; s < r.tokens.size(); ++s) {
    const std::string label = clip(token_label(r.tokens[s].text, {true}), 24, true);
    const double credit = s < r.token_credit.size() ? r.token_credit[s] : 0,
                 share = largest > 0 ? credit / largest : 0,
                 w = std::max(46.0, text_width(label, 11) + 12);
    if (x > 0 && x + w > 900) {
      x = 0;
      y += 48;
    }
    out += fmt::format("\\node[token,fill={},text={},minimum width={:.1f}pt] at {} {{{}}};\n",
                       fill_of(share), ink_of(share), (w - 6) * kUnit, at(x + w / 2, y),
                       tex_escape(label));
    out += fmt::format("\\node[soft] at {} {{{}}};\n", at(x + w / 2, y + 18),
                       tex_escape(signed_number(credit)));
    x += w;
  }
}

}  // namespace

std::string to_tikz(const TraceResult& r) {
  std::string out =
      "% Compile with pdflatex; TikZ is all it needs. The tikzpicture may be copied into a paper "
      "together with the colours.\n"
      "\\RequirePackage{fix-cm}\n\\documentclass{article}\n\\usepackage[utf8]{inputenc}\n"
      "\\IfFileExists{lmodern.sty}{\\usepackage[T1]{fontenc}\\usepackage{lmodern}}{}\n\\usepackage{"
      "tikz}\n\\pagestyle{empty}\n"
      "\\definecolor{positive}{HTML}{0B5FA5}\n\\definecolor{negative}{HTML}{D55E00}\n\\definecolor{"
      "band}{HTML}{F3F5F8}\n\\definecolor{soft}{HTML}{5D6672}\n";
  for (int i = 0; i < kShades; ++i) {
    out += fmt::format(
        "\\definecolor{{cool{0}}}{{HTML}}{{{1}}}\n\\definecolor{{warm{0}}}{{HTML}}{{{2}}}\n",
        static_cast<char>('a' + i), kCool[i], kWarm[i]);
  }
  out += fmt::format(
      "\\newsavebox\\thepicture\n\\begin{{document}}\n\\sbox\\thepicture{{%\n\\begin{{tikzpicture}}"
      "[x={0}pt,y={0}pt,font=\\ttfamily\\fontsize{{6.4}}{{7}}"
      "\\selectfont,\n"
      "  across/.style={{dash pattern=on 2.6pt off 1.8pt}},\n"
      "  box/.style={{text height=4.4pt,text depth=0.6pt,draw=black!25,rounded "
      "corners=2.4pt,minimum height={1:.1f}pt,inner sep=0pt,line "
      "width=0.4pt}},marked/.style={{draw=black,line "
      "width=0.9pt}},\n"
      "  token/.style={{rounded corners=1.5pt,inner sep=1.6pt,minimum height={1:.1f}pt,text "
      "height=4.6pt,text depth=1.4pt}},soft/.style={{text=soft,inner "
      "sep=0pt,font=\\ttfamily\\fontsize{{5}}{{6}}\\selectfont}},\n"
      "  hop/.style={{fill=white,inner "
      "sep=0.2pt,font=\\sffamily\\bfseries\\fontsize{{5.2}}{{6}}\\selectfont}},legend/"
      ".style={{inner sep=0pt}},\n"
      "  note/.style={{inner "
      "sep=0pt,text=soft,font=\\sffamily\\fontsize{{6.4}}{{7}}\\selectfont}}]\n",
      kUnit, 20 * kUnit);
  if (r.method == "unpack") {
    const GraphLayout graph = layout_graph(r);
    out += fmt::format(
        "\\node[anchor=base west,inner sep=0pt,font=\\sffamily\\bfseries\\small] at {} {{{}}};\n",
        at(0, -34),
        tex_escape(r.root ? "Credit of " + to_string(r.writer_table(), *r.root)
                          : "Credit of " + quoted_token(r.target.text, {true})));
    out += fmt::format("\\node[note,anchor=base west] at {} {{{}}};\n", at(0, -16),
                       tex_escape(model_text(r.model, false) + "; " + headline(r, true)));
    if (!graph.drawn.empty()) draw_picture(out, r, graph);
    draw_legend_rows(out, r, graph, graph.drawn.empty() ? 0 : graph.height + 14);
  } else {
    draw_tokens_only(out, r);
  }
  // The page is as large as the picture, without the class and packages that Debian keeps in its
  // larger collections.
  out +=
      "\\end{tikzpicture}}\n\\pdfpagewidth=\\dimexpr\\wd\\thepicture+24pt\\relax\n\\pdfpageheight="
      "\\dimexpr\\ht\\thepicture+\\dp\\thepicture+24pt\\relax\n"
      "\\hoffset=\\dimexpr12pt-1in\\relax\n\\voffset=\\dimexpr12pt-"
      "1in\\relax\n\\shipout\\box\\thepicture\n\\end{document}\n";
  return out;
}

}  // namespace unpack
