#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/labels.h"
#include "report/svg_parts.h"
#include "report/text.h"

namespace unpack::report {
namespace {

constexpr double kChipHeight = 26, kLineHeight = 62;

// Few enough digits to stand in a cell.
std::string cell_number(double value) {
  const double size = std::abs(value);
  if (size >= 100) return fmt::format("{:.0f}", value);
  if (size >= 10) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

}  // namespace

double draw_token_strip(SvgCanvas& canvas, const TraceResult& r, double x, double y, double width) {
  const double largest = largest_magnitude(r.token_credit);
  const bool raw = r.method != "unpack" || percent_misleads(r.token_credit);
  double at = x;
  for (std::size_t s = 0; s < r.tokens.size(); ++s) {
    const double credit = s < r.token_credit.size() ? r.token_credit[s] : 0;
    const std::string label = clip(token_label(r.tokens[s].text, {true}), 24, true);
    const std::string value = raw || s >= r.token_percent.size()
                                  ? signed_number(credit)
                                  : signed_percent(r.token_percent[s]);
    const double w = std::max(text_width(label, 12) + 14, text_width(value, 9) + 8);
    if (at > x && at + w > x + width) {
      at = x;
      y += kLineHeight;
    }
    const double share = largest > 0 ? credit / largest : 0;
    canvas.open_group(fmt::format(" class=\"tok\" data-s=\"{}\"", s));
    canvas.raw(tooltip(fmt::format("position {}: {}, credit {}", s,
                                   quoted_token(r.tokens[s].text, {true}), signed_number(credit))));
    canvas.rect(at, y, w, kChipHeight, "box");
    canvas.signed_rect(at, y, w, kChipHeight, share);
    canvas.text(at + w / 2, y + 17, label, fmt::format("m {}", ink_on(share)),
                " style=\"font-size:12px\"");
    canvas.text(at + w / 2, y + kChipHeight + 11, value,
                fmt::format("m small {}", std::abs(share) < 0.01 ? "soft"
                                          : credit < 0           ? "N"
                                                                 : "P"));
    canvas.text(at + w / 2, y + kChipHeight + 21, std::to_string(s), "m tiny soft");
    canvas.close_group();
    at += w + 5;
  }
  return y + kLineHeight;
}

Extent draw_credit_map(SvgCanvas& canvas, const TraceResult& r, double x, double y) {
  const Writers writers = r.writer_table();
  const int layers = r.layout.n_layers, heads = r.layout.n_heads;
  const double cell = std::clamp(std::floor(560.0 / (heads + 2)), 9.0, 40.0);
  const double height = std::clamp(cell * 0.62, 9.0, 24.0), mlp_gap = 6,
               mlp_width = std::max(cell, 26.0);
  const auto total_of = [&](int writer) {
    const std::size_t at = writer;
    return at < r.node_credit.size() ? sum_of(r.node_credit[at]) : 0;
  };
  double largest = 0;
  for (int w = writers.terminals(); w < writers.count(); ++w)
    largest = std::max(largest, std::abs(total_of(w)));
  const double left = x + 26;
  // Beside the MLPs of a mixture: the experts at the position that is explained.
  const double experts_at = left + heads * cell + mlp_gap + mlp_width + 8;
  double experts_width = 0;
  const bool numbers = cell >= 30;
  const int every = std::max(1, static_cast<int>(std::ceil(20.0 / cell)));
  const int every_layer = std::max(1, static_cast<int>(std::ceil(11.0 / height)));
  for (int l = 0; l < layers; ++l) {
    const double top = y + height * (layers - 1 - l);
    if (l % every_layer == 0)
      canvas.text(left - 5, top + height / 2 + 3, std::to_string(l), "e small soft");
    for (int h = 0; h <= heads; ++h) {
      const int writer = h < heads ? writers.head(l, h) : writers.mlp(l);
      const double at = left + h * cell + (h == heads ? mlp_gap : 0),
                   w = h == heads ? mlp_width : cell;
      const double total = total_of(writer), share = largest > 0 ? total / largest : 0;
      canvas.open_group(fmt::format(" class=\"cell\" data-w=\"{}\"", writer));
      const std::string all =
          h == heads ? experts_text(r.experts, l, explained_position(r), 8) : std::string();
      canvas.raw(tooltip(fmt::format("{}: credit {}{}", writers.name(writer), signed_number(total),
                                     all.empty() ? "" : "; experts " + all)));
      canvas.rect(at + 0.5, top + 0.5, w - 1, height - 1, "box", {}, 2);
      canvas.signed_rect(at + 0.5, top + 0.5, w - 1, height - 1, share, {}, 2);
      if (numbers && std::abs(share) >= 0.08)
        canvas.text(at + w / 2, top + height / 2 + 3, cell_number(total),
                    fmt::format("m tiny {}", ink_on(share)));
      canvas.close_group();
    }
    if (l % every_layer != 0) continue;
    const std::string used = experts_text(r.experts, l, explained_position(r), 3);
    if (used.empty()) continue;
    canvas.text(experts_at, top + height / 2 + 3, used, "small soft");
    experts_width = std::max(experts_width, 8 + text_width(used, 9));
  }
  const double bottom = y + height * layers;
  if (experts_width > 0) {
    const std::string name = fmt::format("experts at position {}", explained_position(r));
    canvas.text(experts_at, bottom + 11, name, "small soft");
    experts_width = std::max(experts_width, 8 + text_width(name, 9));
  }
  for (int h = 0; h < heads; h += every)
    canvas.text(left + (h + 0.5) * cell, bottom + 11, (heads <= 16 ? "H" : "") + std::to_string(h),
                "m small soft");
  canvas.text(left + heads * cell + mlp_gap + mlp_width / 2, bottom + 11, "MLP", "m small soft");
  return {left - x + heads * cell + mlp_gap + mlp_width + experts_width, height * layers + 16};
}

Extent draw_predictions(SvgCanvas& canvas, const TraceResult& r, double x, double y, double width) {
  double largest = 0, names = 0;
  std::vector<std::string> labels;
  for (const Prediction& p : r.predictions) {
    largest = std::max(largest, p.probability);
    labels.push_back(clip(exact_token(p.text, {true}), 18, true));
    names = std::max(names, text_width(labels.back(), 11));
  }
  const double bars = std::max(40.0, width - names - 60);
  double at = y;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const Prediction& p = r.predictions[i];
    const bool target =
        std::find(r.target.ids.begin(), r.target.ids.end(), p.id) != r.target.ids.end();
    const double length = largest > 0 ? bars * p.probability / largest : 0;
    canvas.text(x + names, at + 12, labels[i], target ? "e b" : "e");
    canvas.rect(x + names + 8, at + 2, length, 13, target ? "P" : "softfill",
                target ? "" : " fill-opacity=\"0.45\"", 2);
    canvas.text(x + names + 14 + length, at + 12, probability_text(p.probability), "small soft");
    at += 20;
  }
  return {width, at - y};
}

}  // namespace unpack::report
