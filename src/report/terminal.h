// What the terminal views share: colour, wrapped lines, bars.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/text.h"
#include "unpack/report.h"

namespace unpack::report {

enum class Ink { plain, bold, dim, positive, negative, alert };

class Terminal {
 public:
  explicit Terminal(const TerminalStyle& style);

  int width() const { return width_; }
  bool unicode() const { return style_.unicode; }
  TextStyle text_style() const { return {style_.unicode}; }

  std::string paint(std::string_view text, Ink ink) const;
  Ink ink_of(double value) const {
    return value < 0 ? Ink::negative : value > 0 ? Ink::positive : Ink::dim;
  }

  // A bar from the left; `share` of `cells` filled.
  std::string bar(double share, int cells) const;
  // A signed bar around an axis: negative to the left, positive to the right, `share` in [-1, 1];
  // exactly 2 * half + 1 cells.
  std::string signed_bar(double share, int half) const;

  void line(std::string_view text = {}) { out_.append(text).append("\n"); }
  void heading(std::string_view text);
  // Breaks at blanks, the first line after `first`, the others after `indent` blanks.
  void wrapped(std::string_view text, int indent, Ink ink, const std::string& first = {});
  // The same for pieces that may only be broken between them.
  void pieces(const std::vector<std::string>& pieces, int indent, const std::string& first);

  std::string take() { return std::move(out_); }

 private:
  TerminalStyle style_;
  int width_;
  std::string out_;
};

// Predictions with bars; `marked` are the target's ids.
void print_predictions(Terminal& terminal, const std::vector<Prediction>& predictions,
                       const std::vector<TokenId>& marked);

}  // namespace unpack::report
