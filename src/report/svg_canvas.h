// Draws SVG elements into a string. Colours are classes, so that a page can restyle the same
// drawing for dark screens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace unpack::report {

// What the two palettes hold: several shades per sign, so that neighbouring paths differ and the
// sign stays plain.

struct Point {
  double x = 0, y = 0;
};

class SvgCanvas {
 public:
  void rect(double x, double y, double w, double h, std::string_view css,
            std::string_view more = {}, double radius = 3);
  // Filled by sign, the stronger the fuller; `share` in [-1, 1].
  void signed_rect(double x, double y, double w, double h, double share, std::string_view more = {},
                   double radius = 3);
  void line(double x1, double y1, double x2, double y2, std::string_view css);
  void text(double x, double y, std::string_view content, std::string_view css,
            std::string_view more = {});
  // A polyline with rounded corners.
  void route(const std::vector<Point>& points, std::string_view css, double width,
             std::string_view more = {});
  void raw(std::string_view markup) { body_.append(markup); }
  void open_group(std::string_view more = {});
  void close_group() { body_ += "</g>\n"; }

  const std::string& body() const { return body_; }
  // A whole file with its own light style and white ground.
  std::string document(double width, double height, std::string_view title) const;
  // An element for a page that brings the style.
  std::string element(double width, double height, std::string_view label,
                      std::string_view css) const;

 private:
  std::string body_;
};

// How strong a fill is drawn, and which ink is legible on it.
double fill_opacity(double share);
const char* ink_on(double share);  // "on" (white) over a strong fill, "ink" elsewhere

double text_width(std::string_view text, double size);  // of the monospaced face
std::string css_rules();  // the drawing's classes, in terms of custom properties
std::string css_light(std::string_view selector);  // their values
std::string css_dark(std::string_view selector);
std::string attribute(std::string_view name, std::string_view value);  // ` name="escaped value"`
std::string tooltip(std::string_view text);                            // a <title> element

}  // namespace unpack::report
