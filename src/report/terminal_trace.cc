#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "report/labels.h"
#include "report/terminal.h"

namespace unpack {
namespace {

using namespace report;

constexpr std::size_t kMostTokens = 48;
constexpr std::size_t kComponents = 8;
constexpr std::size_t kComposition = 5;
constexpr std::size_t kEntries = 8;

std::vector<std::size_t> strongest(const std::vector<double>& values, std::size_t count) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::abs(values[a]) > std::abs(values[b]);
  });
  order.resize(std::min(order.size(), count));
  return order;
}

struct SignedRow {
  std::string name, detail;
  double size = 0;  // what the bar shows
  std::string value;
};

void print_signed_rows(Terminal& t, const std::vector<SignedRow>& rows) {
  double largest = 0;
  int names = 0, values = 0;
  for (const SignedRow& row : rows) {
    if (std::isfinite(row.size)) largest = std::max(largest, std::abs(row.size));
    names = std::max(names, display_width(row.name));
    values = std::max({values, display_width(row.value)});
  }
  names = std::min(names, t.width() / 3);
  int details = 0;
  for (const SignedRow& row : rows) details = std::max(details, display_width(row.detail));
  const int rest = t.width() - 2 - names - 2 - values - 2 - 1;
  if (details > 0 && rest - details - 2 < 16) details = 0;
  const int half = std::clamp((rest - (details ? details + 2 : 0)) / 2, 4, 26);
  for (const SignedRow& row : rows) {
    std::string text =
        fmt::format("  {}  {}  {}", pad_right(clip(row.name, names, t.unicode()), names),
                    t.signed_bar(largest > 0 ? row.size / largest : 0, half),
                    t.paint(pad_left(row.value, values), t.ink_of(row.size)));
    if (details) text += "  " + t.paint(row.detail, Ink::dim);
    t.line(text);
  }
}

void print_tokens(Terminal& t, const TraceResult& r) {
  const bool raw = r.method != "unpack" || percent_misleads(r.token_credit);
  t.heading(raw ? "Token credit" : "Token credit, percent of all positive credit");
  std::vector<std::size_t> shown = strongest(r.token_credit, kMostTokens);
  std::sort(shown.begin(), shown.end());
  const int digits = std::to_string(r.token_credit.size()).size();
  std::vector<SignedRow> rows;
  double listed = 0;
  for (const std::size_t s : shown) {
    const double credit = r.token_credit[s];
    listed += credit;
    const std::string label =
        s < r.tokens.size() ? token_label(r.tokens[s].text, t.text_style()) : "";
    rows.push_back({fmt::format("{:>{}}  {}", s, digits, label), raw ? "" : signed_number(credit),
                    credit,
                    raw || s >= r.token_percent.size() ? signed_number(credit)
                                                       : signed_percent(r.token_percent[s])});
  }
  print_signed_rows(t, rows);
  if (shown.size() < r.token_credit.size()) {
    t.wrapped(fmt::format("{} tokens of smaller credit, {} in all, are not shown",
                          r.token_credit.size() - shown.size(),
                          signed_number(sum_of(r.token_credit) - listed)),
              2, Ink::dim);
  }
}

void print_paths(Terminal& t, const TraceResult& r, const Writers& writers) {
  if (r.paths.empty()) {
    t.heading(r.query.filtered() ? "No path matches the filters" : "No path carries credit");
    return;
  }
  t.heading(r.query.filtered() ? "Strongest paths that match the filters" : "Strongest paths");
  const bool raw = percent_misleads(r.token_credit);
  int widest = 6;
  const auto value_of = [&](const Path& path) {
    return raw ? signed_number(path.credit) : signed_percent(path.percent);
  };
  for (const Path& path : r.paths) widest = std::max(widest, display_width(value_of(path)));
  for (const Path& path : r.paths) {
    std::vector<std::string> parts = path_pieces(writers, r, path);
    const int source = path.nodes.empty() ? -1 : path.nodes.front().position;
    if (source >= 0 && source < r.length())
      parts.front() += ' ' + quoted_token(r.tokens[source].text, t.text_style());
    t.pieces(parts, widest + 4,
             "  " + t.paint(pad_left(value_of(path), widest), t.ink_of(path.credit)) + "  ");
  }
  t.wrapped(coverage_text(r), 2, Ink::dim);
}

void print_components(Terminal& t, const TraceResult& r, const Writers& writers) {
  std::vector<ComponentCredit> list = ranked_components(r);
  if (list.empty()) return;
  t.heading("Strongest components, credit over all positions");
  list.resize(std::min(list.size(), kComponents));
  std::vector<SignedRow> rows;
  for (const ComponentCredit& c : list) {
    rows.push_back({writers.name(c.writer), r.root ? "" : "direct " + signed_number(c.direct),
                    c.total, signed_number(c.total)});
  }
  print_signed_rows(t, rows);
}

void print_root(Terminal& t, const TraceResult& r, const Writers& writers) {
  const std::string name = to_string(writers, *r.root);
  std::vector<SignedRow> rows;
  if (writers[r.root->writer].kind == WriterKind::head) {
    t.heading(fmt::format("Sources that make the output of {}: strongest", name));
    for (const std::size_t s : strongest(r.entries, kEntries)) {
      const std::string label =
          s < r.tokens.size() ? token_label(r.tokens[s].text, t.text_style()) : "";
      rows.push_back({fmt::format("{:>3}  {}", s, label), "", r.entries[s],
                      signed_percent(100 * r.entries[s])});
    }
  } else {
    t.heading(fmt::format("Neurons that make the output of {}: strongest", name));
    for (std::size_t i = 0; i < std::min(kEntries, r.neuron_entries.size()); ++i) {
      const NeuronEntry& e = r.neuron_entries[i];
      rows.push_back({e.expert < 0 ? fmt::format("neuron {}", e.neuron)
                                   : fmt::format("expert {} neuron {}", e.expert, e.neuron),
                      "", e.credit, signed_percent(100 * e.credit)});
    }
  }
  print_signed_rows(t, rows);
  if (!r.expert_entries.empty()) {
    t.heading(fmt::format("Experts of {}, with what the router weights them by", name));
    std::vector<SignedRow> experts;
    for (const ExpertEntry& e : r.expert_entries) {
      experts.push_back({fmt::format("expert {}", e.expert), "weight " + probability_text(e.weight),
                         e.credit, signed_percent(100 * e.credit)});
    }
    print_signed_rows(t, experts);
  }

  t.heading(fmt::format("Components that compose with {}, by mass", name));
  for (const auto& [branch, entries] : r.composition) {
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < std::min(kComposition, entries.size()); ++i) {
      parts.push_back(fmt::format("{}{} {}", i ? ", " : "", writers.name(entries[i].writer),
                                  short_number(entries[i].mass)));
    }
    if (entries.size() > kComposition)
      parts.push_back(fmt::format(", {} more", entries.size() - kComposition));
    if (parts.empty()) parts.emplace_back("nothing");
    t.pieces(
        parts, 7,
        "  " +
            t.paint(pad_right(branch == Branch::none ? "all" : to_string(branch), 3), Ink::bold) +
            "  ");
  }
}

}  // namespace

std::string to_terminal(const TraceResult& r, const TerminalStyle& style) {
  Terminal t(style);
  const Writers writers = r.writer_table();
  t.wrapped(
      model_text(r.model, t.unicode()) + (r.program.device.empty() ? "" : ", " + r.program.device),
      0, Ink::bold);
  t.wrapped(r.root
                ? fmt::format("root {}; {}", to_string(writers, *r.root), headline(r, t.unicode()))
                : headline(r, t.unicode()),
            0, Ink::plain);
  if (r.method != "unpack") t.wrapped("method " + r.method, 0, Ink::plain);

  if (!r.predictions.empty()) {
    t.heading(fmt::format("Next token after position {}", r.target.position));
    print_predictions(t, r.predictions, r.target.ids);
  }
  print_tokens(t, r);
  if (r.method == "unpack") {
    print_paths(t, r, writers);
    if (r.root) print_root(t, r, writers);
    print_components(t, r, writers);
    t.line();
    t.wrapped("Conservation: " + conservation_text(r), 0, Ink::dim);
  }
  if (!r.warnings.empty()) t.line();
  for (const std::string& warning : r.warnings)
    t.wrapped(visible(warning, t.text_style()), 9, Ink::plain, "Warning: ");
  return t.take();
}

}  // namespace unpack
