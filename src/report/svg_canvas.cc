#include "report/svg_canvas.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/text.h"

namespace unpack::report {
namespace {

// Blue for positive, orange for negative credit: told apart by every kind of colour vision.
struct Variable {
  const char *name, *light, *dark;
};
constexpr Variable kVariables[] = {
    {"paper", "#ffffff", "#14171c"},    {"ink", "#1b1f24", "#e7eaee"},
    {"soft", "#5d6672", "#9aa4b0"},     {"faint", "#d9dee4", "#333a44"},
    {"band", "#f5f7f9", "#1a1f26"},     {"box", "#ffffff", "#20262e"},
    {"positive", "#0b5fa5", "#4ea3e6"}, {"negative", "#d55e00", "#ff8a3d"},
    {"on", "#ffffff", "#0e1116"},       {"mark", "#1b1f24", "#e7eaee"},
};

template <class Value>
std::string replace_variables(std::string text, Value&& value_of) {
  for (std::size_t at; (at = text.find("var(--")) != std::string::npos;) {
    const std::size_t end = text.find(')', at);
    text.replace(at, end + 1 - at, value_of(text.substr(at + 6, end - at - 6)));
  }
  return text;
}

std::string light_value(const std::string& name) {
  for (const Variable& v : kVariables) {
    if (name == v.name) return v.light;
  }
  return "none";
}

std::string define(std::string_view selector, bool dark) {
  std::string out = fmt::format("{}{{", selector);
  for (const Variable& v : kVariables)
    out += fmt::format("--{}:{};", v.name, dark ? v.dark : v.light);
  return out + "}\n";
}

std::string number(double x) {
  std::string text = fmt::format("{:.1f}", std::isfinite(x) ? x : 0.0);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

}  // namespace

double fill_opacity(double share) {
  const double size = std::isfinite(share) ? std::clamp(std::abs(share), 0.0, 1.0) : 0;
  return size < 0.01 ? 0 : 0.06 + 0.86 * size;
}

const char* ink_on(double share) { return fill_opacity(share) > 0.6 ? "on" : "ink"; }

double text_width(std::string_view text, double size) { return 0.61 * size * display_width(text); }

std::string attribute(std::string_view name, std::string_view value) {
  return fmt::format(" {}=\"{}\"", name, xml_escape(value));
}

std::string tooltip(std::string_view text) {
  return fmt::format("<title>{}</title>", xml_escape(text));
}

std::string css_light(std::string_view selector) { return define(selector, false); }
std::string css_dark(std::string_view selector) { return define(selector, true); }

std::string css_rules() {
  std::string out =
      "text{font:11px 'DejaVu Sans Mono',Menlo,Consolas,'Liberation Mono','Noto Sans Mono','Noto "
      "Sans Mono CJK SC',monospace;fill:var(--ink)}"
      "text.h{font:600 13px system-ui,'Helvetica Neue',Arial,'DejaVu "
      "Sans',sans-serif}text.t{font:600 17px system-ui,'Helvetica Neue',Arial,'DejaVu "
      "Sans',sans-serif}"
      "text.s{font:11.5px system-ui,'Helvetica Neue',Arial,'DejaVu "
      "Sans',sans-serif;fill:var(--soft)}"
      "text.soft{fill:var(--soft)}text.on{fill:var(--on)}text.small{font-size:9px}text.tiny{font-"
      "size:8px}text.m{text-anchor:middle}text.e{text-anchor:end}"
      "text.b{font-weight:700}text.P{fill:var(--positive)}text.N{fill:var(--negative)}"
      "text.halo{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}"
      ".paper{fill:var(--paper)}.band{fill:var(--band)}.box{fill:var(--box);stroke:var(--faint)}."
      "mark{fill:none;stroke:var(--mark);stroke-width:1.6px}"
      ".P{fill:var(--positive)}.N{fill:var(--negative)}.softfill{fill:var(--soft)}"
      ".grid{stroke:var(--faint);stroke-width:1px}.axis{stroke:var(--soft);stroke-width:1px}"
      ".r{fill:none;stroke-linecap:round;stroke-linejoin:round}.dash{stroke-dasharray:5 "
      "4;stroke-linecap:butt}.thin{opacity:.4}"
      ".cP{stroke:var(--positive)}.cN{stroke:var(--negative)}.cS{stroke:var(--soft)}"
      ".edge{stroke-opacity:.75}.edge.thin{stroke-opacity:.3;opacity:1}.node-mark{fill:var(--mark)}"
      ".port{fill:var(--box);stroke:var(--faint)}.port.used{fill:var(--mark);stroke:var(--mark)}"
      "text.f{font-family:Helvetica,Arial,'Liberation Sans','DejaVu Sans',sans-serif}\n";
  return out;
}

void SvgCanvas::rect(double x, double y, double w, double h, std::string_view css,
                     std::string_view more, double radius) {
  body_ +=
      fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"{}/>\n",
                  css, number(x), number(y), number(std::max(w, 0.0)), number(std::max(h, 0.0)),
                  number(radius), more);
}

void SvgCanvas::signed_rect(double x, double y, double w, double h, double share,
                            std::string_view more, double radius) {
  const double opacity = fill_opacity(share);
  if (opacity > 0)
    rect(x, y, w, h, share < 0 ? "N" : "P",
         fmt::format(" fill-opacity=\"{:.2f}\"{}", opacity, more), radius);
}

void SvgCanvas::line(double x1, double y1, double x2, double y2, std::string_view css) {
  body_ += fmt::format("<line class=\"{}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>\n", css,
                       number(x1), number(y1), number(x2), number(y2));
}

void SvgCanvas::text(double x, double y, std::string_view content, std::string_view css,
                     std::string_view more) {
  body_ += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\"{}>{}</text>\n", css, number(x),
                       number(y), more, xml_escape(content));
}

void SvgCanvas::route(const std::vector<Point>& points, std::string_view css, double width,
                      std::string_view more) {
  if (points.size() < 2) return;
  constexpr double kRadius = 5;
  std::string d = fmt::format("M{} {}", number(points[0].x), number(points[0].y));
  for (std::size_t i = 1; i + 1 < points.size(); ++i) {
    const Point a = points[i - 1], b = points[i], c = points[i + 1];
    const double before = std::hypot(b.x - a.x, b.y - a.y),
                 after = std::hypot(c.x - b.x, c.y - b.y);
    const double r = std::min({kRadius, before / 2, after / 2});
    if (r <= 0.05) continue;
    d += fmt::format("L{} {}Q{} {} {} {}", number(b.x + (a.x - b.x) / before * r),
                     number(b.y + (a.y - b.y) / before * r), number(b.x), number(b.y),
                     number(b.x + (c.x - b.x) / after * r), number(b.y + (c.y - b.y) / after * r));
  }
  d += fmt::format("L{} {}", number(points.back().x), number(points.back().y));
  body_ += fmt::format("<path class=\"r {}\" d=\"{}\" stroke-width=\"{}\"{}/>\n", css, d,
                       number(width), more);
}

void SvgCanvas::open_group(std::string_view more) { body_ += fmt::format("<g{}>\n", more); }

std::string SvgCanvas::document(double width, double height, std::string_view title) const {
  // Spelled out without custom properties: Inkscape, rsvg and LaTeX know none.
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
      "{1}\" role=\"img\">\n<title>{2}</title>\n<style>{3}</style>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"{4}\"/>\n{5}</svg>\n",
      number(std::ceil(width)), number(std::ceil(height)), xml_escape(title),
      replace_variables(css_rules(), light_value), light_value("paper"), body_);
}

std::string SvgCanvas::element(double width, double height, std::string_view label,
                               std::string_view css) const {
  return fmt::format(
      "<svg class=\"{0}\" width=\"{1}\" height=\"{2}\" viewBox=\"0 0 {1} {2}\" role=\"img\" "
      "aria-label=\"{3}\">\n{4}</svg>\n",
      css, number(std::ceil(width)), number(std::ceil(height)), xml_escape(label), body_);
}

}  // namespace unpack::report
