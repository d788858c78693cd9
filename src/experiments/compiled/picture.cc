#include "experiments/compiled/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

namespace unpack::experiments::compiled {

namespace {

constexpr double kBoxWidth = 92, kBoxHeight = 26, kGapX = 16, kGapY = 62, kPanelGap = 50;

struct Place {
  double x = 0, y = 0;
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

// A row for the embeddings, one for each sublayer, one for the target, from below.
std::map<std::string, Place> places(const Program& program, double& width, double& height) {
  std::vector<std::vector<std::string>> rows = {{"emb"}};
  if (!program.position.empty()) rows[0].emplace_back("pos");
  for (std::size_t l = 0; l < program.layers.size(); ++l) {
    auto& heads = rows.emplace_back();
    for (std::size_t h = 0; h < program.layers[l].heads.size(); ++h)
      heads.push_back(fmt::format("A{}.H{}", l, h));
    rows.push_back({fmt::format("MLP{}", l)});
  }
  rows.push_back({"target"});
  std::size_t widest = 0;
  for (const auto& row : rows) widest = std::max(widest, row.size());
  width = widest * (kBoxWidth + kGapX) - kGapX;
  height = rows.size() * kGapY - kGapY + kBoxHeight;
  std::map<std::string, Place> out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const double own = rows[r].size() * (kBoxWidth + kGapX) - kGapX;
    for (std::size_t i = 0; i < rows[r].size(); ++i)
      out[rows[r][i]] = {(width - own) / 2 + i * (kBoxWidth + kGapX),
                         height - kBoxHeight - r * kGapY};
  }
  return out;
}

std::string role_of(const Program& program, const std::string& name) {
  const auto word = [](Role role) {
    return role == Role::live ? "live" : (role == Role::dead ? "dead" : "decoy");
  };
  for (std::size_t l = 0; l < program.layers.size(); ++l) {
    if (name == fmt::format("MLP{}", l)) return word(program.layers[l].mlp.role);
    for (std::size_t h = 0; h < program.layers[l].heads.size(); ++h) {
      if (name == fmt::format("A{}.H{}", l, h)) return word(program.layers[l].heads[h].role);
    }
  }
  return "end";
}

// Each branch enters its reader at a place of its own.
double port(Branch branch) {
  switch (branch) {
    case Branch::K:
    case Branch::G:
      return 0.22;
    case Branch::V:
    case Branch::U:
      return 0.78;
    default:
      return 0.5;
  }
}

}  // namespace

std::string circuit_picture(const Program& program, const std::vector<double>& edges,
                            const std::string& method) {
  double width = 0, height = 0;
  const std::map<std::string, Place> at = places(program, width, height);
  const std::vector<EdgeName> names = program.edges();
  std::vector<std::size_t> order(names.size()), truth;
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](std::size_t i) { return program.truth(names[i]) == Truth::neutral; });
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return edges[a] > edges[b]; });
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (program.truth(names[i]) == Truth::yes) truth.push_back(i);
  }
  order.resize(std::min(order.size(), truth.size()));
  const double top = 44, side = 18;
  const double full_width = 2 * side + 2 * width + kPanelGap, full_height = top + height + 18;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" font-family=\"sans-serif\">\n<title>{2}: the true circuit, and the one "
      "found by {3}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      full_width, full_height, program.name, method);
  const auto panel = [&](double x0, const std::string& title, const std::vector<std::size_t>& drawn,
                         bool sized) {
    out += fmt::format("<text x=\"{:.1f}\" y=\"20\" font-size=\"13\" fill=\"#222\">{}</text>\n", x0,
                       escaped(title));
    for (const std::size_t i : drawn) {
      const EdgeName& edge = names[i];
      const Place from = at.at(edge.writer), to = at.at(edge.reader);
      const double x1 = x0 + from.x + kBoxWidth / 2, y1 = top + from.y;
      const double x2 = x0 + to.x + kBoxWidth * port(edge.branch), y2 = top + to.y + kBoxHeight;
      const bool right = program.truth(edge) == Truth::yes;
      const double size =
          sized ? std::clamp(4 + std::log10(std::max(edges[i], 1e-4)), 0.5, 4.0) : 2;
      const char* color = !right                                                 ? "#c0392b"
                          : edge.branch == Branch::K || edge.branch == Branch::G ? "#2471a3"
                          : edge.branch == Branch::Q                             ? "#9a6a00"
                          : edge.branch == Branch::V || edge.branch == Branch::U ? "#1e8449"
                                                                                 : "#555";
      out += fmt::format(
          "<path d=\"M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}\" fill=\"none\" "
          "stroke=\"{}\" stroke-width=\"{:.1f}\" "
          "stroke-opacity=\"0.75\"{}><title>{}{}</title></path>\n",
          x1, y1, x1, y1 - 26, x2, y2 + 26, x2, y2, color, size,
          right ? "" : " stroke-dasharray=\"5 3\"", escaped(to_string(edge)),
          sized ? fmt::format(", {:.2g}", edges[i]) : "");
    }
    for (const auto& [name, place] : at) {
      const std::string role = role_of(program, name);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.0f}\" rx=\"4\" "
          "fill=\"{}\" stroke=\"#777\"/>\n<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"12\" "
          "text-anchor=\"middle\" fill=\"{}\">{}{}</text>\n",
          x0 + place.x, top + place.y, kBoxWidth, kBoxHeight,
          role == "dead" ? "#eee" : (role == "decoy" ? "#fbeee6" : "#fdfdfd"),
          x0 + place.x + kBoxWidth / 2, top + place.y + 17, role == "dead" ? "#888" : "#222", name,
          role == "dead" || role == "decoy" ? " " + role : "");
    }
  };
  panel(side, program.name + ": true circuit", truth, false);
  panel(side + width + kPanelGap, "found: " + method, order, true);
  return out + "</svg>\n";
}

}  // namespace unpack::experiments::compiled
