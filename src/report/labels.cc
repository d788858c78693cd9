#include "report/labels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/text.h"

namespace unpack::report {
namespace {

double ratio_percent(double part, double whole) { return whole == 0 ? 0 : 100 * part / whole; }

}  // namespace

std::string signed_percent(double percent) {
  if (!std::isfinite(percent)) return "n/a";
  if (std::abs(percent) < 0.05) return "0.0%";
  return std::abs(percent) >= 1e5 ? fmt::format("{:+.2g}%", percent)
                                  : fmt::format("{:+.1f}%", percent);
}

std::string signed_number(double value) {
  return std::isfinite(value) ? value == 0 ? "0" : fmt::format("{:+.3g}", value) : "n/a";
}

std::string short_number(double value) {
  return std::isfinite(value) ? fmt::format("{:.3g}", value) : "n/a";
}

std::string probability_text(double probability) {
  if (!std::isfinite(probability)) return "n/a";
  return probability > 0 && probability < 0.0005 ? "<0.1%"
                                                 : fmt::format("{:.1f}%", 100 * probability);
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) {
    if (std::isfinite(v)) sum += v;
  }
  return sum;
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0;
  for (const double v : values) {
    if (std::isfinite(v)) largest = std::max(largest, std::abs(v));
  }
  return largest;
}

bool percent_misleads(const std::vector<double>& token_credit) {
  double positive = 0, absolute = 0;
  for (const double v : token_credit) {
    if (v > 0) positive += v;
    absolute += std::abs(v);
  }
  return absolute > 0 && (sum_of(token_credit) < 0 || positive < 0.1 * absolute);
}

std::vector<ComponentCredit> ranked_components(const TraceResult& result) {
  std::vector<ComponentCredit> list;
  const Writers writers = result.writer_table();
  const int count = std::min<int>(writers.count(), result.node_credit.size());
  for (int w = writers.terminals(); w < count; ++w) {
    const std::size_t at = w;
    const double total = sum_of(result.node_credit[at]);
    const double direct = at < result.importance.size() ? result.importance[at] : 0;
    if (total != 0 || direct != 0) list.push_back({w, total, direct});
  }
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return std::abs(a.total) > std::abs(b.total);
  });
  return list;
}

std::string experts_text(const ExpertUses& experts, int layer, int position, std::size_t most) {
  const std::size_t l = layer, s = position;
  if (l >= experts.size() || s >= experts[l].size()) return {};
  const std::vector<ExpertUse>& used = experts[l][s];
  std::string text;
  for (std::size_t i = 0; i < std::min(most, used.size()); ++i)
    text += fmt::format("{}{} {:.0f}%", i ? ", " : "", used[i].expert, 100 * used[i].weight);
  if (used.size() > most) text += fmt::format(", {} more", used.size() - most);
  return text;
}

int explained_position(const TraceResult& r) {
  return r.root ? r.root->position : r.target.position;
}

std::string headline(const TraceResult& result, bool unicode) {
  const TextStyle style{unicode};
  const TargetInfo& target = result.target;
  std::string text =
      fmt::format("target {} at position {}", exact_token(target.text, style), target.position);
  if (target.raw) {
    text += ", raw logit";
  } else if (target.versus_text) {
    text += " versus " + exact_token(*target.versus_text, style);
  } else {
    text += " versus the vocabulary mean";
  }
  if (target.logit_difference) {
    text += fmt::format(": logit difference {}", signed_number(*target.logit_difference));
  } else {
    text += fmt::format(": logit {}", signed_number(target.logit));
  }
  text += ", probability " + probability_text(target.probability);
  return text;
}

bool shares_mislead(double net, double total, double gross_total) {
  return total <= 0 || total < 0.01 * gross_total || net < -total || net > 2 * total;
}

std::string coverage_text(const TraceResult& result) {
  const Coverage& c = result.coverage;
  double net = 0, total = 0;
  for (const Path& path : result.paths) net += path.credit;
  for (const double credit : result.token_credit) total += credit;
  const std::string paths = fmt::format("{} path{}", c.paths, c.paths == 1 ? "" : "s");
  std::string text =
      shares_mislead(net, total, c.absolute_total)
          ? fmt::format("{} add{} up to {} of a net token credit of {}", paths,
                        c.paths == 1 ? "s" : "", signed_number(net), signed_number(total))
          : fmt::format("{} carr{} {:.1f}% of the net token credit of {}", paths,
                        c.paths == 1 ? "ies" : "y", 100 * net / total, signed_number(total));
  text += fmt::format("; without signs {:.1f}% of the mass of all paths ({}, their sizes added up)",
                      ratio_percent(c.absolute, c.absolute_total), short_number(c.absolute_total));
  if (result.query.filtered())
    text += fmt::format(" and {:.1f}% of what matches the filters",
                        ratio_percent(c.absolute, c.absolute_matching));
  return text;
}

std::string conservation_text(const TraceResult& result) {
  std::string text = fmt::format("of {} first credit, {} reached the tokens",
                                 signed_number(result.conservation_first),
                                 signed_number(result.conservation_reached));
  if (result.conservation_first != 0)
    text += fmt::format(" ({:.1f}%)",
                        ratio_percent(result.conservation_reached, result.conservation_first));
  if (result.ill_conditioned > 0)
    text +=
        fmt::format("; {:.2g}% of it passed sums that nearly cancel", 100 * result.ill_conditioned);
  return text;
}

std::string model_text(const ModelInfo& model, bool unicode) {
  return fmt::format("{}: {} layers {} {} heads", model.name, model.layers, unicode ? "×" : "x",
                     model.heads);
}

}  // namespace unpack::report
