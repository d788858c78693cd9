#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/figure.h"
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

std::string fill_of(double share) {
  const int strength = std::lround(100 * figure_fill(share));
  return strength == 0 ? "white"
                       : fmt::format("{}!{}", share < 0 ? "negative" : "positive", strength);
}

const char* sign_of(double credit) { return credit < 0 ? "negative" : "positive"; }

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

std::string tikz_words(double x, double y, double size, const std::string& style,
                       const std::string& text) {
  return fmt::format(
      "\\node[{},font=\\sffamily\\fontsize{{{:.1f}}}{{{:.1f}}}\\selectfont] at {} {{{}}};\n", style,
      size * kUnit, size * kUnit, at(x, y), text);
}

void tikz_box(std::string& out, const GraphLayout& g, const GraphBox& box, double dx, double dy) {
  const double x = dx + box.x, y = dy + box.y;
  const double share = g.largest_credit > 0 ? box.credit / g.largest_credit : 0;
  const bool dark = box.target || box.root;
  const auto rectangle = [&](double left, double top, double w, double h, double radius,
                             const std::string& style) {
    out += fmt::format("\\path[{},rounded corners={:.1f}pt] {} rectangle {};\n", style,
                       radius * kUnit, at(left, top), at(left + w, top + h));
  };
  for (const GraphPort& port : box.ports) {
    rectangle(x + port.x - kPortSize / 2 - 1, y + box.h / 2 - 1, kPortSize + 2, kPortSize, 2,
              port.used ? "fill=ink,draw=ink" : "fill=white,draw=black!20");
    out += tikz_words(x + port.x, y + box.h / 2 + kPortSize - 3, 8,
                      port.used ? "word,text=white" : "word,text=soft",
                      port.used ? fmt::format("\\textbf{{{}}}", port.branch) : port.branch);
  }
  rectangle(
      x - box.w / 2, y - box.h / 2, box.w, box.h, 5,
      dark ? "fill=ink,draw=ink" : fmt::format("fill={},draw={}", fill_of(share), sign_of(share)));
  const std::string label = tex_escape(box.label);
  out += tikz_words(x, y + 4, 11, fmt::format("word,text={}", dark ? "white" : "ink"),
                    dark ? "\\textbf{" + label + "}" : label);
}

void draw_picture(std::string& out, const TraceResult& r, const GraphLayout& g) {
  const FigureFrame f = figure_frame(r, g);
  out += tikz_words(kFigureEdge, 34, 18, "left word,text=ink",
                    "\\textbf{" + tex_escape(figure_title(r)) + "}");
  out += tikz_words(kFigureEdge, 54, 12, "left word,text=soft", tex_escape(figure_facts(r, g)));
  for (const LayerBand& band : g.bands) {
    const double top = f.graph_y + band.top, bottom = f.graph_y + band.bottom;
    out += fmt::format("\\fill[band,rounded corners=3pt] {} rectangle {};\n", at(f.bands_x, top),
                       at(f.bands_x + f.bands_w, bottom));
    out += tikz_words(f.bands_x + 8, (top + bottom) / 2 + 4, 11, "left word,text=soft",
                      fmt::format("L{}", band.layer));
  }
  for (auto line = g.lines.rbegin(); line != g.lines.rend(); ++line) {
    std::vector<Point> points = line->points;
    for (Point& p : points) p = {p.x + f.graph_x, p.y + f.graph_y};
    out += draw(points, fmt::format("{}{},opacity={},line width={:.2f}pt",
                                    line->crosses ? "across," : "", sign_of(line->credit),
                                    line->thin ? "0.3" : "0.75", line->width * kUnit));
  }
  for (const GraphBox& box : g.boxes) tikz_box(out, g, box, f.graph_x, f.graph_y);
  const double y = f.graph_y + g.tokens_y;
  for (const FigureToken& token : figure_tokens(r, g)) {
    const double x = f.graph_x + token.x;
    if (token.w > 0) {
      out +=
          fmt::format("\\fill[{},rounded corners=2.4pt] {} rectangle {};\n", fill_of(token.share),
                      at(x - token.w / 2, y - 14), at(x + token.w / 2, y + 5));
      out += tikz_words(x, y + 17, 9, "word,text=soft", tex_escape(token.number));
    }
    out += tikz_words(x, y, token.w > 0 ? 12.5 : 10,
                      fmt::format("word,text={}", token.w > 0 ? "ink" : "soft"),
                      tex_escape(token.label));
  }
  for (const FigureKey& key : figure_keys(r)) {
    out += draw({{key.x, f.legend_y - 4}, {key.x + 26, f.legend_y - 4}},
                fmt::format("{},line width={:.2f}pt",
                            key.sign == 0 ? "across,draw=soft" : sign_of(key.sign), 3 * kUnit));
    out += tikz_words(key.x + 32, f.legend_y, 11, "left word,text=soft", tex_escape(key.text));
  }
  out += tikz_words(kFigureNoteX, f.legend_y, 11, "left word,text=soft", tex_escape(kFigureNote));
}

double draw_legend_rows(std::string& out, const TraceResult& r, const GraphLayout& g, double y) {
  const Writers writers = r.writer_table();
  for (std::size_t rank = 0; rank < std::min(g.drawn.size(), kListedRoutes); ++rank) {
    const Path& path = r.paths[g.drawn[rank].index];
    out += draw({{0, y}, {26, y}}, fmt::format("{},line width={:.2f}pt", sign_of(path.credit),
                                               g.drawn[rank].width * kUnit));
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
                       fill_of(share), "ink", (w - 6) * kUnit, at(x + w / 2, y), tex_escape(label));
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
      "band}{HTML}{F5F7F9}\n\\definecolor{soft}{HTML}{5D6672}\n\\definecolor{ink}{HTML}{1B1F24}\n";
  out += fmt::format(
      "\\newsavebox\\thepicture\n\\begin{{document}}\n\\sbox\\thepicture{{%\n\\begin{{tikzpicture}}"
      "[x={0}pt,y={0}pt,font=\\ttfamily\\fontsize{{6.4}}{{7}}"
      "\\selectfont,\n"
      "  across/.style={{dash pattern=on 2.6pt off 1.8pt}},\n"
      "  token/.style={{rounded corners=1.5pt,inner sep=1.6pt,minimum height={1:.1f}pt,text "
      "height=4.6pt,text depth=1.4pt}},soft/.style={{text=soft,inner "
      "sep=0pt,font=\\ttfamily\\fontsize{{5}}{{6}}\\selectfont}},\n"
      "  word/.style={{anchor=base,inner sep=0pt}},left word/.style={{anchor=base west,inner "
      "sep=0pt}},legend/.style={{inner sep=0pt}},\n"
      "  note/.style={{inner "
      "sep=0pt,text=soft,font=\\sffamily\\fontsize{{6.4}}{{7}}\\selectfont}}]\n",
      kUnit, 20 * kUnit);
  if (r.method == "unpack") {
    const GraphLayout graph = layout_graph(r);
    draw_picture(out, r, graph);
    draw_legend_rows(out, r, graph, figure_frame(r, graph).height + 14);
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
