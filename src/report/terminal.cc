#include "report/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/labels.h"

namespace unpack::report {
namespace {

constexpr int kNarrowest = 40;
constexpr int kWidest = 160;

// Blue and orange: told apart by every kind of colour vision, on dark and on light terminals.
const char* code_of(Ink ink) {
  switch (ink) {
    case Ink::plain:
      return "";
    case Ink::bold:
      return "\x1b[1m";
    case Ink::dim:
      return "\x1b[2m";
    case Ink::positive:
      return "\x1b[38;5;33m";
    case Ink::negative:
      return "\x1b[38;5;208m";
    case Ink::alert:
      return "\x1b[1;38;5;208m";
  }
  return "";
}

std::string repeat(std::string_view piece, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += piece;
  return out;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const std::size_t end = text.find(' ', 1);
    words.emplace_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end);
  }
  return words;
}

std::string_view without_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

}  // namespace

Terminal::Terminal(const TerminalStyle& style)
    : style_(style), width_(std::clamp(style.width, kNarrowest, kWidest)) {}

std::string Terminal::paint(std::string_view text, Ink ink) const {
  if (!style_.color || ink == Ink::plain || text.empty()) return std::string(text);
  return fmt::format("{}{}\x1b[0m", code_of(ink), text);
}

std::string Terminal::bar(double share, int cells) const {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const double filled = std::isfinite(share) ? std::clamp(share, 0.0, 1.0) * cells : 0;
  if (!style_.unicode) return repeat("#", std::lround(filled));
  const int eighths = std::lround(filled * 8);
  return repeat("█", eighths / 8) + kEighths[eighths % 8];
}

std::string Terminal::signed_bar(double share, int half) const {
  const double size = std::isfinite(share) ? std::clamp(std::abs(share), 0.0, 1.0) : 0;
  const std::string blank(half, ' ');
  const std::string axis = paint(style_.unicode ? "│" : "|", Ink::dim);
  if (share >= 0 || size == 0)
    return blank + axis + paint(pad_right(bar(size, half), half), Ink::positive);
  // Only half blocks exist that stand at the right of their cell.
  const int halves = std::lround(size * half * 2);
  const std::string body = style_.unicode
                               ? std::string(halves % 2 ? "▐" : "") + repeat("█", halves / 2)
                               : repeat("=", halves / 2);
  return paint(pad_left(body, half), Ink::negative) + axis + blank;
}

void Terminal::heading(std::string_view text) {
  line();
  line(paint(clip(text, width_, style_.unicode), Ink::bold));
}

void Terminal::wrapped(std::string_view text, int indent, Ink ink, const std::string& first) {
  const std::string margin(indent, ' ');
  std::string row;
  bool opening = true;
  const auto flush = [&] {
    line((opening && !first.empty() ? pad_right(first, indent) : margin) + paint(row, ink));
    opening = false;
    row.clear();
  };
  for (const std::string& word : words_of(text)) {
    if (!row.empty() && indent + display_width(row) + display_width(word) > width_) flush();
    row += row.empty() ? without_blanks(word) : word;
    while (indent + display_width(row) > width_) {  // one word wider than the terminal
      row = clip(row, width_ - indent, style_.unicode);
    }
  }
  flush();
}

void Terminal::pieces(const std::vector<std::string>& list, int indent, const std::string& first) {
  const std::string margin(indent, ' ');
  std::string row;
  bool opening = true;
  for (const std::string& piece : list) {
    if (!row.empty() && indent + display_width(row) + display_width(piece) > width_) {
      line((opening ? first : margin) + row);
      opening = false;
      row = "   ";
    }
    row += clip(piece, width_ - indent - 3, style_.unicode);
  }
  line((opening ? first : margin) + row);
}

void print_predictions(Terminal& terminal, const std::vector<Prediction>& predictions,
                       const std::vector<TokenId>& marked) {
  const int cells = std::clamp(terminal.width() - 40, 8, 32);
  const int room = terminal.width() - cells - 26;
  double best = 0;
  for (const Prediction& p : predictions) best = std::max(best, p.probability);
  for (const Prediction& p : predictions) {
    const bool target = std::find(marked.begin(), marked.end(), p.id) != marked.end();
    const std::string filled = terminal.bar(best > 0 ? p.probability / best : 0, cells);
    terminal.line(fmt::format(
        "  {:>6}  {}{}  {}{}", probability_text(p.probability),
        terminal.paint(filled, target ? Ink::positive : Ink::dim),
        std::string(cells - display_width(filled), ' '),
        terminal.paint(clip(exact_token(p.text, terminal.text_style()), room, terminal.unicode()),
                       target ? Ink::bold : Ink::plain),
        target ? terminal.paint(terminal.unicode() ? "  ◂ target" : "  < target", Ink::positive)
               : ""));
  }
}

}  // namespace unpack::report
