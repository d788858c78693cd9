#include "experiments/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/text.h"

namespace unpack::experiments {

namespace {

constexpr double kWidth = 720, kHeight = 420, kLeft = 70, kRight = 230, kTop = 40, kBottom = 50;
constexpr const char* kColors[] = {"#1b6ca8", "#d1495b", "#3a7d44", "#e09f3e", "#6a4c93",
                                   "#4a4a4a", "#00a6a6", "#b56576", "#7a9e1f", "#9a9a9a"};

struct Axis {
  double low = 0, high = 1;
  bool log = false;

  double share(double value) const {
    return ((log ? std::log10(value) : value) - low) / (high - low);
  }
  std::vector<double> ticks() const {
    std::vector<double> out;
    if (log) {
      const double step = std::max(1.0, std::ceil((high - low) / 6));
      for (double p = std::ceil(low); p <= high; p += step) out.push_back(std::pow(10.0, p));
      return out;
    }
    if (high <= low) return out;
    const double raw = (high - low) / 5;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    const double step = (raw / power < 1.5   ? 1
                         : raw / power < 3.5 ? 2
                         : raw / power < 7.5 ? 5
                                             : 10) *
                        power;
    for (double t = std::ceil(low / step) * step; t <= high + 1e-9 * step; t += step)
      out.push_back(std::fabs(t) < 1e-12 * step ? 0.0 : t);
    return out;
  }
};

Axis axis_of(const std::vector<double>& values, bool log) {
  Axis axis;
  axis.log = log;
  bool any = false;
  for (const double v : values) {
    if (!std::isfinite(v) || (log && v <= 0)) continue;
    const double x = log ? std::log10(v) : v;
    axis.low = any ? std::min(axis.low, x) : x;
    axis.high = any ? std::max(axis.high, x) : x;
    any = true;
  }
  const double margin = axis.high > axis.low ? 0.05 * (axis.high - axis.low) : 0.5;
  axis.low -= margin;
  axis.high += margin;
  return axis;
}

double place_x(const Axis& axis, double v) {
  return kLeft + axis.share(v) * (kWidth - kLeft - kRight);
}
double place_y(const Axis& axis, double v) {
  return kHeight - kBottom - axis.share(v) * (kHeight - kTop - kBottom);
}

std::string frame(const std::string& title, const std::string& x_label, const std::string& y_label,
                  const Axis& x, const Axis& y, double below = 0) {
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n<text x=\"{2}\" y=\"22\" "
      "font-size=\"14\" font-weight=\"bold\">{3}</text>\n",
      kWidth, kHeight + below, kLeft, report::xml_escape(title));
  for (const double t : x.ticks()) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#ddd\"/><text "
        "x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:.4g}</text>\n",
        place_x(x, t), kTop, kHeight - kBottom, kHeight - kBottom + 16, t);
  }
  for (const double t : y.ticks()) {
    out += fmt::format(
        "<line x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\" stroke=\"#ddd\"/><text "
        "x=\"{3}\" y=\"{4:.1f}\" text-anchor=\"end\">{5:.4g}</text>\n",
        place_y(y, t), kLeft, kWidth - kRight, kLeft - 6, place_y(y, t) + 4, t);
  }
  out += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#555\"/>\n", kLeft,
      kTop, kWidth - kLeft - kRight, kHeight - kTop - kBottom);
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 12, report::xml_escape(x_label));
  out += fmt::format(
      "<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
      (kTop + kHeight - kBottom) / 2, report::xml_escape(y_label));
  return out;
}

std::string legend(std::size_t row, const std::string& color, const std::string& name) {
  const double y = kTop + 12 + 18 * row;
  return fmt::format(
      "<rect x=\"{0}\" y=\"{1}\" width=\"12\" height=\"4\" fill=\"{2}\"/><text x=\"{3}\" "
      "y=\"{4}\">{5}</text>\n",
      kWidth - kRight + 10, y - 5, color, kWidth - kRight + 27, y, report::xml_escape(name));
}

}  // namespace

std::string line_plot(const std::string& title, const std::string& x_label,
                      const std::string& y_label, const std::vector<Series>& series) {
  std::vector<double> xs, ys;
  for (const Series& s : series) {
    xs.insert(xs.end(), s.x.begin(), s.x.end());
    ys.insert(ys.end(), s.y.begin(), s.y.end());
  }
  const Axis x = axis_of(xs, false), y = axis_of(ys, false);
  std::string out = frame(title, x_label, y_label, x, y);
  std::size_t row = 0;
  for (std::size_t i = 0; i < series.size(); ++i) {
    const std::string color =
        kColors[(series[i].color < 0 ? i : static_cast<std::size_t>(series[i].color)) %
                std::size(kColors)];
    out += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{} points=\"",
                       color, series[i].dashed ? " stroke-dasharray=\"5 3\"" : "");
    for (std::size_t k = 0; k < series[i].x.size(); ++k)
      out += fmt::format("{:.1f},{:.1f} ", place_x(x, series[i].x[k]), place_y(y, series[i].y[k]));
    out += "\"/>\n";
    if (!series[i].name.empty()) out += legend(row++, color, series[i].name);
  }
  return out + "</svg>\n";
}

namespace {

// How far the names below the axis are turned, and the room they take.
struct Lean {
  int degrees = 0;
  double below = 70;
};

// Neighbours must not meet, and no name may begin left of the picture.
Lean lean_of(const std::vector<std::string>& groups, double step) {
  constexpr double kLetter = 6.2, kDegree = 3.14159265358979 / 180;
  Lean lean;
  double widest = 0;
  for (const std::string& name : groups) widest = std::max(widest, kLetter * name.size());
  if (widest <= step) return lean;
  for (lean.degrees = 40; lean.degrees < 85; lean.degrees += 5) {
    bool fits = true;
    for (std::size_t g = 0; g < groups.size(); ++g)
      fits &= kLetter * groups[g].size() * std::cos(lean.degrees * kDegree) <
              kLeft + step * (g + 0.5) - 4;
    if (fits) break;
  }
  lean.below = std::max(lean.below, widest * std::sin(lean.degrees * kDegree) + 24 - kBottom);
  return lean;
}

}  // namespace

std::string bar_plot(const std::string& title, const std::string& y_label,
                     const std::vector<std::string>& groups, const std::vector<BarSeries>& series) {
  std::vector<double> ys = {0.0};
  for (const BarSeries& s : series) {
    ys.insert(ys.end(), s.values.begin(), s.values.end());
    for (const auto& [low, high] : s.interval) ys.insert(ys.end(), {low, high});
  }
  const Axis y = axis_of(ys, false);
  Axis no_ticks;
  no_ticks.low = 0;
  no_ticks.high = -1;
  const double step = (kWidth - kLeft - kRight) / (std::max<std::size_t>(1, groups.size()));
  const Lean lean = lean_of(groups, step);
  std::string out = frame(title, "", y_label, no_ticks, y, lean.below);
  const double bar = 0.8 * step / (std::max<std::size_t>(1, series.size()));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t i = 0; i < series.size(); ++i) {
      const double value = series[i].values[g];
      if (!std::isfinite(value)) continue;
      const double left = kLeft + step * (g + 0.1) + bar * i;
      const double from = place_y(y, std::max(value, 0.0)), to = place_y(y, std::min(value, 0.0));
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
          "fill=\"{}\"><title>{}, {}: {:.4g}</title></rect>\n",
          left, from, 0.92 * bar, to - from, kColors[i % std::size(kColors)],
          report::xml_escape(groups[g]), report::xml_escape(series[i].name), value);
      if (series[i].interval.empty()) continue;
      out += fmt::format(
          "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#222\"/>\n",
          left + 0.46 * bar, place_y(y, series[i].interval[g].first),
          place_y(y, series[i].interval[g].second));
    }
    const double middle = kLeft + step * (g + 0.5), base = kHeight - kBottom + 14;
    out += fmt::format(
        "<text x=\"{0:.1f}\" y=\"{1:.1f}\" font-size=\"11\" text-anchor=\"{2}\"{3}>{4}</text>\n",
        middle, base, lean.degrees > 0 ? "end" : "middle",
        lean.degrees > 0
            ? fmt::format(" transform=\"rotate(-{} {:.1f} {:.1f})\"", lean.degrees, middle, base)
            : "",
        report::xml_escape(groups[g]));
  }
  out +=
      fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#222\"/>\n",
                  kLeft, kWidth - kRight, place_y(y, 0.0));
  for (std::size_t i = 0; i < series.size(); ++i)
    out += legend(i, kColors[i % std::size(kColors)], series[i].name);
  return out + "</svg>\n";
}

std::string scatter_plot(const std::string& title, const std::string& x_label,
                         const std::string& y_label, const std::vector<ScatterPoint>& points) {
  std::vector<double> xs, ys;
  int lowest = 0, highest = 0;
  for (const ScatterPoint& p : points) {
    xs.push_back(p.x);
    ys.push_back(p.y);
    lowest = std::min(lowest, p.layer);
    highest = std::max(highest, p.layer);
  }
  const Axis x = axis_of(xs, true), y = axis_of(ys, true);
  std::string out = frame(title, x_label, y_label, x, y);
  // From dark blue (early) to yellow (late).
  const auto color = [&](int layer) {
    const double t =
        highest > lowest ? static_cast<double>(layer - lowest) / (highest - lowest) : 0.0;
    return fmt::format("hsl({:.0f},70%,{:.0f}%)", 260 - 210 * t, 32 + 20 * t);
  };
  for (const ScatterPoint& p : points) {
    const bool edge = !(p.x > 0) || !(p.y > 0);
    const double px = p.x > 0 ? place_x(x, p.x) : kLeft;
    const double py = p.y > 0 ? place_y(y, p.y) : kHeight - kBottom;
    out += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\" stroke=\"{}\"><title>{}: {:.4g}, "
        "{:.4g}</title></circle>\n",
        px, py, edge ? "#fff" : color(p.layer), color(p.layer), report::xml_escape(p.name), p.x,
        p.y);
  }
  std::size_t row = 0;
  for (int layer = lowest; layer <= highest; layer += std::max(1, (highest - lowest) / 12))
    out += legend(row++, color(layer), fmt::format("layer {}", layer));
  return out + "</svg>\n";
}

}  // namespace unpack::experiments
