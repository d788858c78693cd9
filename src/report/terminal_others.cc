#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/labels.h"
#include "report/terminal.h"

namespace unpack {
namespace {

using namespace report;

constexpr std::size_t kStrongest = 15;

void print_log_probabilities(Terminal& t, const PredictResult& r) {
  t.heading("Tokens with their probability given those before");
  const int digits = std::to_string(r.tokens.size()).size();
  const int cells = std::clamp(t.width() - 50, 6, 24);
  double total = 0;
  int counted = 0;
  for (std::size_t s = 0; s < r.tokens.size(); ++s) {
    const std::string label = clip(token_label(r.tokens[s].text, t.text_style()), 18, t.unicode());
    std::string row =
        fmt::format("  {:>{}}  {}", r.tokens[s].position, digits, pad_right(label, 18));
    if (s < r.log_probability.size() && r.log_probability[s].has_value()) {
      const double log_p = r.log_probability[s].value();
      total -= log_p;
      ++counted;
      row += fmt::format("  {:>9.3f}  {:>5.1f}%  {}", log_p, 100 * std::exp(log_p),
                         t.paint(t.bar(std::exp(log_p), cells), Ink::positive));
    }
    t.line(row);
  }
  if (counted)
    t.wrapped(fmt::format("negative log-likelihood {:.4f} over {} tokens, perplexity {:.3f}", total,
                          counted, std::exp(total / counted)),
              2, Ink::dim);
}

void print_lens(Terminal& t, const PredictResult& r) {
  if (r.lens.empty()) return;
  t.heading("What every layer's stream would predict");
  for (std::size_t l = 0; l < r.lens.size(); ++l) {
    std::vector<std::string> parts;
    for (const Prediction& p : r.lens[l]) {
      if (parts.size() == 5) break;
      const std::string label = clip(exact_token(p.text, t.text_style()), 16, t.unicode());
      parts.push_back(fmt::format("{}{} {}", parts.empty() ? "" : "  ", label,
                                  probability_text(p.probability)));
    }
    t.pieces(parts, 12,
             "  " +
                 t.paint(pad_right(l == 0 ? "emb" : fmt::format("layer {}", l - 1), 8), Ink::bold) +
                 "  ");
  }
}

void print_experts(Terminal& t, const PredictResult& r) {
  if (r.experts.empty()) return;
  t.heading("Experts of every token, layer by layer, with what the router weights them by");
  const int digits = std::to_string(r.tokens.size()).size();
  for (std::size_t s = 0; s < r.tokens.size(); ++s) {
    std::vector<std::string> parts;
    for (std::size_t l = 0; l < r.experts.size(); ++l) {
      if (r.experts[l].empty()) continue;
      std::string before = fmt::format("{}L{}: ", parts.empty() ? "" : "   ", l);
      for (const ExpertUse& use : r.experts[l][s]) {
        parts.push_back(fmt::format("{}{} {:.0f}%", before, use.expert, 100 * use.weight));
        before = ", ";
      }
    }
    const std::string label = clip(token_label(r.tokens[s].text, t.text_style()), 14, t.unicode());
    t.pieces(parts, digits + 20,
             fmt::format("  {:>{}}  {}  ", r.tokens[s].position, digits, pad_right(label, 14)));
  }
}

void print_interactions(Terminal& t, const InteractionResult& r,
                        const std::vector<Interaction>& list, std::string_view heading) {
  if (list.empty()) return;
  t.heading(heading);
  std::vector<Interaction> best = list;
  const auto kept = std::min(best.size(), kStrongest);
  std::partial_sort(best.begin(), best.begin() + kept, best.end(),
                    [](const Interaction& a, const Interaction& b) {
                      return a.score != b.score
                                 ? a.score > b.score
                                 : std::pair(a.reader, a.writer) < std::pair(b.reader, b.writer);
                    });
  best.resize(kept);
  const int cells = std::clamp(t.width() - 46, 6, 36);
  for (const Interaction& x : best) {
    const auto& names = r.writers;
    std::string who = fmt::format("{} -> {}", names.at(x.writer), names.at(x.reader));
    if (x.query >= 0) who += fmt::format("@{}", x.query);
    t.line(
        fmt::format("  {}  {:>9}  {}", pad_right(who, 24), short_number(x.score),
                    t.paint(t.bar(best.front().score > 0 ? x.score / best.front().score : 0, cells),
                            Ink::positive)));
  }
  if (list.size() > kept)
    t.wrapped(fmt::format("{} weaker pairs are not shown", list.size() - kept), 2, Ink::dim);
}

// One character per cell of the matrix, of another kind for each sign: legible without colour.
std::string cell_of(const Terminal& t, double share) {
  const double size = std::isfinite(share) ? std::abs(share) : 0;
  if (size < 0.05) return t.unicode() ? "·" : ".";
  static constexpr const char *kFor[] = {"░", "▒", "▓", "█"}, *kAgainst[] = {"-", "~", "=", "≡"};
  static constexpr const char *kAsciiFor[] = {"1", "2", "3", "4"},
                              *kAsciiAgainst[] = {"a", "b", "c", "d"};
  const std::size_t step = std::clamp(static_cast<int>(size * 4), 0, 3);
  if (t.unicode()) return t.paint(share < 0 ? kAgainst[step] : kFor[step], t.ink_of(share));
  return share < 0 ? kAsciiAgainst[step] : kAsciiFor[step];
}

// A row per predicted token, a cell per token before it: the shape of the matrix at a glance. Long
// prompts take several blocks of columns.
void print_matrix(Terminal& t, const AttributeResult& r) {
  t.heading("Token credit of every token of the continuation, a column per position");
  std::size_t columns = 0;
  int names = 4;
  for (const AttributeRow& row : r.rows) {
    columns = std::max(columns, row.token_credit.size());
    names = std::max(names, display_width(token_label(row.text, t.text_style())));
  }
  names = std::min(names, 16);
  const std::size_t room = t.width() - names - 4;
  const std::size_t cell = columns * 2 <= room ? 2 : 1,
                    block = std::max<std::size_t>(10, room / cell / 10 * 10);
  for (std::size_t from = 0; from < columns; from += block) {
    std::string ruler;
    for (std::size_t s = from; s < std::min(columns, from + block); s += 10)
      ruler += pad_right(std::to_string(s), 10 * cell);
    t.line(std::string(names + 4, ' ') +
           t.paint(clip(ruler.substr(0, ruler.find_last_not_of(' ') + 1), room, t.unicode()),
                   Ink::dim));
    for (const AttributeRow& row : r.rows) {
      const double largest = largest_magnitude(row.token_credit);
      std::string line =
          "  " + pad_right(clip(token_label(row.text, t.text_style()), names, t.unicode()), names) +
          "  ";
      for (std::size_t s = from; s < std::min(row.token_credit.size(), from + block); ++s) {
        const std::string mark = cell_of(t, largest > 0 ? row.token_credit[s] / largest : 0);
        line += mark;
        if (cell == 2) line += t.unicode() && mark != "·" ? mark : " ";
      }
      t.line(line);
    }
  }
  t.wrapped(
      t.unicode()
          ? "░▒▓█ speaks for it, -~=≡ against, relative to the row's largest; · next to nothing"
          : "1234 speaks for it, abcd against, relative to the row's largest; . next to nothing",
      2, Ink::dim);
}

}  // namespace

std::string to_terminal(const PredictResult& r, const TerminalStyle& style) {
  Terminal t(style);
  t.wrapped(model_text(r.model, t.unicode()), 0, Ink::bold);
  t.heading("Next token");
  print_predictions(t, r.predictions, {});
  if (!r.log_probability.empty()) print_log_probabilities(t, r);
  print_lens(t, r);
  print_experts(t, r);
  return t.take();
}

std::string to_terminal(const InteractionResult& r, const TerminalStyle& style) {
  Terminal t(style);
  t.wrapped(model_text(r.model, t.unicode()), 0, Ink::bold);
  t.wrapped(r.per_query ? "strength of every writer for every reader, per query"
                        : "strength of every writer for every reader, mean over the queries",
            0, Ink::plain);
  print_interactions(t, r, r.attention,
                     "Strongest into attention: standard deviation of the key scores over sources");
  print_interactions(t, r, r.mlp, "Strongest into MLPs: length of the score vector over neurons");
  return t.take();
}

std::string to_terminal(const AttributeResult& r, const TerminalStyle& style) {
  Terminal t(style);
  t.wrapped(model_text(r.model, t.unicode()), 0, Ink::bold);
  print_matrix(t, r);
  t.heading("Strongest tokens for each");
  for (const AttributeRow& row : r.rows) {
    t.wrapped(
        fmt::format("{} at position {}, probability {}", exact_token(row.text, t.text_style()),
                    row.position + 1, probability_text(row.probability)),
        2, Ink::bold);
    std::vector<std::size_t> order(row.token_credit.size());
    for (std::size_t s = 0; s < order.size(); ++s) order[s] = s;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::abs(row.token_credit[a]) > std::abs(row.token_credit[b]);
    });
    const bool raw =
        percent_misleads(row.token_credit) || row.token_percent.size() != row.token_credit.size();
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < std::min<std::size_t>(order.size(), 6); ++i) {
      const std::size_t s = order[i];
      const std::string label =
          s < r.tokens.size()
              ? clip(quoted_token(r.tokens[s].text, t.text_style()), 20, t.unicode())
              : "";
      parts.push_back(fmt::format(
          "{}{}@{} {}", i ? "  " : "", label, s,
          raw ? signed_number(row.token_credit[s]) : signed_percent(row.token_percent[s])));
    }
    t.pieces(parts, 4, "    ");
  }
  return t.take();
}

}  // namespace unpack
