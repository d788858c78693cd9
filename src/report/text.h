// Token texts made safe and measured for terminals and pictures.
#pragma once

#include <string>
#include <string_view>

namespace unpack::report {

struct TextStyle {
  bool unicode = true;  // false: ASCII only, other characters as \u{4e2d}
};

// Control characters, newlines and lone bytes become visible marks; spaces at either end stay.
std::string visible(std::string_view text, const TextStyle& style);
// For a token strip: the leading space dropped (words are apart anyway), a token of nothing but
// blanks shown as such.
// Whether a token's text says that it stands for no text: <|endoftext|>, </s>.
bool is_special_token(std::string_view text);

std::string token_label(std::string_view text, const TextStyle& style);
std::string quoted_token(std::string_view text,
                         const TextStyle& style);  // "John", the leading blank dropped
std::string exact_token(std::string_view text,
                        const TextStyle& style);  // " John", as it must be typed
// As figures spell it: a space is a dot, a line's end an arrow, bytes that are no text are hex.
std::string figure_token(std::string_view text);
double figure_width(std::string_view text, double size);  // in the figure's face, about

int display_width(std::string_view text);  // terminal cells
std::string clip(std::string_view text, int width,
                 bool unicode);  // at most `width` cells, an ellipsis where cut
std::string pad_right(std::string text, int width);
std::string pad_left(std::string text, int width);

std::string xml_escape(std::string_view text);  // valid in XML text and attributes, and in HTML
std::string tex_escape(
    std::string_view text);  // safe for pdflatex in any font, whatever the script
std::string dot_escape(std::string_view text);  // inside a double-quoted DOT string
std::string valid_utf8(std::string_view text);  // lone bytes become U+FFFD

}  // namespace unpack::report
