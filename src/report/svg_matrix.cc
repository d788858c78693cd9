#include "report/svg_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/labels.h"
#include "report/svg_canvas.h"
#include "report/text.h"
#include "unpack/report.h"

namespace unpack {
namespace {

using namespace report;

constexpr double kMargin = 24;

// A heat map of non-negative numbers. Cells of one shade share a path element: a whole model stays
// a small file.
struct Heatmap {
  std::vector<std::string> rows, columns;
  std::vector<std::vector<double>> values;  // NaN: the reader does not see the writer

  double largest() const {
    double best = 0;
    for (const auto& row : values) best = std::max(best, largest_magnitude(row));
    return best;
  }
};

// The layer of a writer's name, for ticks where single names would not fit; -1 for emb and pos.
std::string tick_of(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (name.starts_with("A")) return "L" + name.substr(1, dot - 1);
  return name.starts_with("MLP") ? "L" + name.substr(3) : name;
}

double draw_heatmap(SvgCanvas& canvas, const Heatmap& map, double x, double y, double cell_width,
                    double cell_height) {
  constexpr int kLevels = 24;
  const double largest = map.largest();
  std::map<int, std::string> shades;
  for (std::size_t i = 0; i < map.rows.size(); ++i) {
    for (std::size_t j = 0; j < map.columns.size(); ++j) {
      const double value = map.values[i][j];
      if (!std::isfinite(value) || largest <= 0) continue;
      const int level = std::lround(kLevels * std::sqrt(std::max(value, 0.0) / largest));
      if (level == 0) continue;
      shades[level] += fmt::format("M{:.5g} {:.5g}h{:.4g}v{:.4g}h-{:.4g}z", x + cell_width * j,
                                   y + cell_height * i, cell_width, cell_height, cell_width);
    }
  }
  const double width = cell_width * map.columns.size(), height = cell_height * map.rows.size();
  canvas.rect(x, y, width, height, "band", {}, 0);
  for (const auto& [level, d] : shades)
    canvas.raw(fmt::format("<path class=\"P\" fill-opacity=\"{:.2f}\" d=\"{}\"/>\n",
                           0.95 * level / kLevels, d));
  const auto ticks = [&](const std::vector<std::string>& names, double cell, bool vertical) {
    std::string before;
    double last = -100;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string label = cell >= 11 ? names[i] : tick_of(names[i]);
      const double edge = cell * i, at = cell >= 11 ? edge + cell / 2 + 3 : edge + 7;
      if (label == before) continue;
      if (!before.empty() && cell < 11) {
        if (vertical) {
          canvas.line(x, y + edge, x + width, y + edge, "grid");
        } else {
          canvas.line(x + edge, y, x + edge, y + height, "grid");
        }
      }
      before = label;
      if (at - last < 10) continue;
      last = at;
      if (vertical) {
        canvas.text(x - 6, y + at, label, "e small soft");
      } else {
        canvas.text(
            x + at, y + height + 8, label, "e small soft",
            fmt::format(" transform=\"rotate(-60 {:.1f} {:.1f})\"", x + at, y + height + 8));
      }
    }
  };
  ticks(map.rows, cell_height, true);
  ticks(map.columns, cell_width, false);
  return y + height + 52;
}

Heatmap collect(const InteractionResult& r, const std::vector<Interaction>& list) {
  Heatmap map;
  std::map<int, std::size_t> row_of, column_of;
  for (const Interaction& x : list) row_of[x.reader] = column_of[x.writer] = 0;
  for (auto& [reader, row] : row_of) {
    row = map.rows.size();
    map.rows.push_back(r.writers.at(reader));
  }
  for (auto& [writer, column] : column_of) {
    column = map.columns.size();
    map.columns.push_back(r.writers.at(writer));
  }
  map.values.assign(map.rows.size(), std::vector<double>(map.columns.size(), 0));
  std::vector<std::vector<int>> counts(map.rows.size(), std::vector<int>(map.columns.size(), 0));
  for (const Interaction& x : list) {
    const std::size_t i = row_of[x.reader], j = column_of[x.writer];
    map.values[i][j] += x.score;
    ++counts[i][j];
  }
  for (std::size_t i = 0; i < map.rows.size(); ++i) {
    for (std::size_t j = 0; j < map.columns.size(); ++j)
      map.values[i][j] = counts[i][j] ? map.values[i][j] / counts[i][j] : NAN;
  }
  // Later layers upward, as in every other picture.
  std::reverse(map.rows.begin(), map.rows.end());
  std::reverse(map.values.begin(), map.values.end());
  return map;
}

// A model of very many heads is shown layer by layer, each cell the strongest pair in it.
Heatmap by_layer(const Heatmap& map) {
  const auto fold = [](const std::vector<std::string>& names, std::vector<std::string>& kept) {
    std::vector<std::size_t> place;
    for (const std::string& name : names) {
      const std::string label = name.starts_with("A") ? "A" + tick_of(name).substr(1) : name;
      if (kept.empty() || kept.back() != label) kept.push_back(label);
      place.push_back(kept.size() - 1);
    }
    return place;
  };
  Heatmap out;
  const std::vector<std::size_t> rows = fold(map.rows, out.rows),
                                 columns = fold(map.columns, out.columns);
  out.values.assign(out.rows.size(), std::vector<double>(out.columns.size(), NAN));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (std::size_t j = 0; j < columns.size(); ++j) {
      double& best = out.values[rows[i]][columns[j]];
      const double value = map.values[i][j];
      if (std::isfinite(value) && !(best >= value)) best = value;
    }
  }
  return out;
}

}  // namespace

std::string to_svg(const InteractionResult& r) {
  constexpr std::size_t kMostCells = 120000;
  Heatmap attention = collect(r, r.attention), mlp = collect(r, r.mlp);
  const bool folded = attention.rows.size() * attention.columns.size() > kMostCells;
  if (folded) {
    attention = by_layer(attention);
    mlp = by_layer(mlp);
  }
  SvgCanvas canvas;
  canvas.text(kMargin, 34, "Interactions: how strongly each writer shapes each reader", "t");
  std::string what = r.per_query ? "mean over the queries"
                     : !r.attention.empty() && r.attention.front().query >= 0
                         ? fmt::format("query {}", r.attention.front().query)
                         : "mean over the queries";
  canvas.text(
      kMargin, 54,
      fmt::format("{}; {}; colour by the square root of the score{}", model_text(r.model, true),
                  what, folded ? "; each cell the strongest pair of heads" : ""),
      "s");
  const std::size_t columns =
      std::max({attention.columns.size(), mlp.columns.size(), std::size_t{1}});
  const double cell = std::clamp(std::floor(1800.0 / columns) / 2, 3.0, 22.0);
  double y = 88;
  const auto part = [&](const Heatmap& map, const char* title) {
    if (map.rows.empty()) return;
    canvas.text(kMargin, y,
                fmt::format("{}: readers upward, writers to the right, largest score {}", title,
                            short_number(map.largest())),
                "h");
    y = draw_heatmap(canvas, map, kMargin + 52, y + 14, cell,
                     map.rows.size() < 40 ? std::max(cell, 14.0) : std::clamp(cell, 4.0, 22.0)) +
        16;
  };
  part(attention, "Attention");
  part(mlp, "MLP");
  const double width = std::max(680.0, 52 + cell * columns);
  return canvas.document(width + 2 * kMargin, y + 6, "Interactions");
}

namespace report {

Extent draw_attribution(SvgCanvas& canvas, const AttributeResult& r, double x, double y) {
  std::size_t columns = 0;
  double names = 40;
  for (const AttributeRow& row : r.rows) {
    columns = std::max(columns, row.token_credit.size());
    names = std::max(names, text_width(clip(token_label(row.text, {true}), 18, true), 11) + 52);
  }
  const double cell = std::clamp(std::floor(900.0 / std::max<double>(1, columns)), 7.0, 34.0),
               height = std::clamp(cell, 16.0, 24.0);
  double tokens_room = 10;
  for (std::size_t s = 0; s < columns && s < r.tokens.size(); ++s) {
    tokens_room =
        std::max(tokens_room,
                 text_width(clip(token_label(r.tokens[s].text, {true}), 16, true), 11) * 0.82 + 16);
  }
  const double left = x + names, top = y + tokens_room;
  const int every = std::max(1, static_cast<int>(std::ceil(11 / cell)));
  for (std::size_t s = 0; s < columns && s < r.tokens.size(); s += every) {
    const double at = left + cell * (s + 0.5);
    canvas.text(at + 2, top - 7, clip(token_label(r.tokens[s].text, {true}), 16, true), "ink",
                fmt::format(" transform=\"rotate(-55 {:.1f} {:.1f})\"", at + 2, top - 7));
  }
  for (std::size_t i = 0; i < r.rows.size(); ++i) {
    const AttributeRow& row = r.rows[i];
    const double at = top + height * i, largest = largest_magnitude(row.token_credit);
    canvas.text(left - 46, at + height / 2 + 4, clip(token_label(row.text, {true}), 18, true),
                "e b");
    canvas.text(left - 8, at + height / 2 + 3, fmt::format("{:.0f}%", 100 * row.probability),
                "e small soft");
    for (std::size_t s = 0; s < columns; ++s) {
      const double from = left + cell * s;
      if (s >= row.token_credit.size()) {
        canvas.rect(from + 0.5, at + 0.5, cell - 1, height - 1, "band", {}, 1.5);
        continue;
      }
      const double credit = row.token_credit[s], share = largest > 0 ? credit / largest : 0;
      const bool raw = percent_misleads(row.token_credit) || s >= row.token_percent.size();
      canvas.open_group();
      canvas.raw(tooltip(fmt::format(
          "{} -> {}: {}", s < r.tokens.size() ? quoted_token(r.tokens[s].text, {true}) : "",
          quoted_token(row.text, {true}),
          raw ? signed_number(credit) : signed_percent(row.token_percent[s]))));
      canvas.rect(from + 0.5, at + 0.5, cell - 1, height - 1, "box", {}, 1.5);
      canvas.signed_rect(from + 0.5, at + 0.5, cell - 1, height - 1, share, {}, 1.5);
      if (cell >= 28 && !raw && std::abs(share) >= 0.12) {
        canvas.text(from + cell / 2, at + height / 2 + 3,
                    fmt::format("{:.0f}", row.token_percent[s]),
                    fmt::format("m tiny {}", ink_on(share)));
      }
      canvas.close_group();
    }
  }
  return {names + cell * columns + 30, tokens_room + height * r.rows.size() + 8};
}

}  // namespace report

std::string to_svg(const AttributeResult& r) {
  SvgCanvas canvas;
  canvas.text(kMargin, 34, "Token credit of every token of the continuation", "t");
  canvas.text(kMargin, 54,
              fmt::format("{}; a row per predicted token with its probability; colour relative to "
                          "the row's largest, numbers in percent of its positive credit",
                          model_text(r.model, true)),
              "s");
  const Extent size = draw_attribution(canvas, r, kMargin, 70);
  return canvas.document(std::max(size.width, 900.0) + 2 * kMargin, 70 + size.height + 20,
                         "Token credit of a continuation");
}

}  // namespace unpack
