// Plain SVG plots for reports.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace unpack::experiments {

struct Series {
  std::string name;
  std::vector<double> x, y;
  int color = -1;  // -1: its own
  bool dashed = false;
};
std::string line_plot(const std::string& title, const std::string& x_label,
                      const std::string& y_label, const std::vector<Series>& series);

struct BarSeries {
  std::string name;
  std::vector<double> values;                       // one per group; NaN: no bar
  std::vector<std::pair<double, double>> interval;  // empty, or the ends of a whisker per group
};
// Bars side by side, a group for each name on the horizontal axis.
std::string bar_plot(const std::string& title, const std::string& y_label,
                     const std::vector<std::string>& groups, const std::vector<BarSeries>& series);

struct ScatterPoint {
  double x = 0, y = 0;
  int layer = 0;  // colour
  std::string name;
};
// Both axes logarithmic. What has no logarithm is drawn at the edge, hollow.
std::string scatter_plot(const std::string& title, const std::string& x_label,
                         const std::string& y_label, const std::vector<ScatterPoint>& points);

}  // namespace unpack::experiments
