#include "report/figure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/labels.h"
#include "report/text.h"

namespace unpack::report {
namespace {

constexpr double kHead = 66, kLayerNames = 34;

std::string plain_number(double size, int digits) {
  const bool small = size < 1e-4, large = size >= 1e5;
  if (small || large) {
    const std::string text = fmt::format("{:.{}e}", size, digits - 1);
    const std::size_t e = text.find('e');  // "1.2e-05" is written 1.2e-5
    return fmt::format("{}e{}{}", text.substr(0, e), text[e + 1], std::stoi(text.substr(e + 2)));
  }
  // Digits after the point, so that all of them are significant.
  int places = std::max(0, digits - 1 - static_cast<int>(std::floor(std::log10(size))));
  std::string text = fmt::format("{:.{}f}", size, places);
  const int shown = std::floor(std::log10(std::stod(text)));
  if (shown > std::floor(std::log10(size)) && places > 0)
    text = fmt::format("{:.{}f}", size, --places);  // 0.996 became 1.00
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.ends_with('.')) text.pop_back();
  }
  return text;
}

std::string prompt_of(const TraceResult& r) {
  std::string text;
  for (const Token& token : r.tokens) {
    const bool special = text.empty() && token.text.size() > 2 && token.text.front() == '<' &&
                         token.text.back() == '>';
    if (!special) text += token.text;
  }
  std::string out;  // any run of blanks is one
  for (const char c : text) {
    const bool blank = c == ' ' || c == '\n' || c == '\t' || c == '\r';
    if (!blank) {
      out += c;
    } else if (!out.ends_with(' ')) {
      out += ' ';
    }
  }
  return out;
}

std::string figure_probability(double p) {
  const double percent = 100 * p;
  if (percent < 0.005) return percent == 0 ? "0%" : "≈0%";
  return fmt::format("{:.{}f}%", percent, percent >= 99.95 ? 0 : percent >= 0.095 ? 1 : 2);
}

}  // namespace

std::string figure_number(double value, int digits) {
  if (value == 0 || !std::isfinite(value)) return value == 0 ? "0" : fmt::format("{}", value);
  return (value < 0 ? "−" : "") + plain_number(std::abs(value), digits);
}

std::string figure_signed(double value, int digits) {
  return (value > 0 ? "+" : "") + figure_number(value, digits);
}

std::string figure_question(const TraceResult& r) {
  if (r.root) return fmt::format("What does {} read?", to_string(r.writer_table(), *r.root));
  std::string text = "Why " + figure_token(r.target.text);
  if (r.target.versus_text) text += " rather than " + figure_token(*r.target.versus_text);
  return text + "?";
}

std::string figure_title(const TraceResult& r) {
  return figure_question(r) + "  " + clip(visible(prompt_of(r), {true}), 90, true);
}

std::string figure_facts(const TraceResult& r, const GraphLayout& graph) {
  double net = 0;
  for (const DrawnPath& drawn : graph.drawn) net += r.paths[drawn.index].credit;
  const double total = sum_of(r.token_credit);
  const std::size_t count = graph.drawn.size();
  const std::string routes = fmt::format("{} route{}", count, count == 1 ? "" : "s");
  const std::string carried =
      shares_mislead(net, total, r.coverage.absolute_total)
          ? fmt::format("{}, together {}", routes, figure_signed(net, 3))
          : fmt::format("{} carr{} {}{:.0f}% of the net credit", routes, count == 1 ? "ies" : "y",
                        net < 0 ? "−" : "", std::floor(std::abs(100 * net / total) + 0.5));
  const std::string logits =
      r.target.logit_difference ? "logit difference " + figure_signed(*r.target.logit_difference, 3)
                                : "logit " + figure_signed(r.target.logit, 3);
  return fmt::format("{}; P({}) = {}; {}; {}", r.model.name, figure_token(r.target.text),
                     figure_probability(r.target.probability), logits, carried);
}

double figure_fill(double share) {
  return std::isfinite(share) ? 0.72 * std::sqrt(std::min(1.0, std::abs(share))) : 0;
}

FigureFrame figure_frame(const TraceResult& r, const GraphLayout& g) {
  constexpr double kLegend = 640;
  const double edges = 2 * kFigureEdge;
  FigureFrame f;
  const double width = std::max({g.width + kLayerNames, kLegend, figure_width(figure_title(r), 18),
                                 figure_width(figure_facts(r, g), 12)}) +
                       edges;
  f.graph_x =
      kFigureEdge + kLayerNames + std::max(0.0, (width - edges - kLayerNames - g.width) / 2);
  f.graph_y = kHead + 8;
  f.bands_x = f.graph_x - kLayerNames;
  f.bands_w = g.width + kLayerNames;
  f.legend_y = f.graph_y + g.height + 12;
  f.width = std::max(width, kFigureNoteX + 400);
  f.height = f.legend_y + 20;
  return f;
}

std::vector<FigureKey> figure_keys(const TraceResult& r) {
  return {{kFigureEdge, 1, r.root ? "positive" : "raises the target"},
          {kFigureEdge + 140, -1, r.root ? "negative" : "lowers the target"},
          {kFigureEdge + 280, 0, "from another position"}};
}

std::vector<FigureToken> figure_tokens(const TraceResult& r, const GraphLayout& g) {
  const double largest = largest_magnitude(r.token_credit);
  std::vector<FigureToken> out;
  for (const GraphColumn& column : g.columns) {
    if (column.count > 1) {
      out.push_back({column.x, 0, fmt::format("… {} …", column.count), {}, 0});
      continue;
    }
    const std::size_t s = column.position;
    const double credit = s < r.token_credit.size() ? r.token_credit[s] : 0;
    const std::string text = figure_token(r.tokens[s].text);
    const int letters = std::max(2, static_cast<int>(std::floor(column.w / 6.6)));
    out.push_back({column.x, std::min(column.w - 6, figure_width(text, 13) + 10),
                   clip(text, letters, true), figure_signed(credit, 2),
                   largest > 0 ? credit / largest : 0});
  }
  return out;
}

}  // namespace unpack::report
