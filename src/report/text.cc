#include "report/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

namespace unpack::report {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

void append_utf8(std::string& out, char32_t c) {
  utf8proc_uint8_t buffer[4];
  const utf8proc_ssize_t n = utf8proc_encode_char(c, buffer);
  out.append(reinterpret_cast<const char*>(buffer), n);
}

template <class F>
void for_each_character(std::string_view text, F&& f) {
  auto at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  utf8proc_ssize_t left = text.size();
  while (left > 0) {
    utf8proc_int32_t c = -1;
    utf8proc_ssize_t used = utf8proc_iterate(at, left, &c);
    if (used <= 0 || c < 0) {
      used = 1;
      c = kReplacement;
    }
    f(static_cast<char32_t>(c));
    at += used;
    left -= used;
  }
}

// Marks that would move the cursor, hide, or turn the text around.
bool invisible(char32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return true;
    default:
      return false;
  }
}

int character_width(char32_t c) { return std::max(0, utf8proc_charwidth(c)); }

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c) { append_utf8(out, c); });
  return out;
}

std::string visible(std::string_view text, const TextStyle& style) {
  std::string out;
  for_each_character(text, [&](char32_t c) {
    if (c == U'\n') {
      out += style.unicode ? "↵" : "\\n";
    } else if (c == U'\t') {
      out += style.unicode ? "⇥" : "\\t";
    } else if (c == U'\r') {
      out += style.unicode ? "␍" : "\\r";
    } else if (c < 0x20 && style.unicode) {
      append_utf8(out, 0x2400 + c);
    } else if (invisible(c) || (c >= 0x80 && !style.unicode)) {
      out += fmt::format("\\u{{{:x}}}", static_cast<unsigned>(c));
    } else {
      append_utf8(out, c);
    }
  });
  return out;
}

bool is_special_token(std::string_view text) {
  return text.size() > 2 && text.front() == '<' && text.back() == '>';
}

std::string token_label(std::string_view text, const TextStyle& style) {
  const std::string_view kept = text.starts_with(' ') ? text.substr(1) : text;
  if (kept.find_first_not_of(' ') != std::string_view::npos) return visible(kept, style);
  std::string blanks;
  for (std::size_t i = 0; i < text.size(); ++i) blanks += style.unicode ? "␣" : "_";
  return blanks;
}

std::string quoted_token(std::string_view text, const TextStyle& style) {
  return '"' + token_label(text, style) + '"';
}

std::string exact_token(std::string_view text, const TextStyle& style) {
  return '"' + visible(text, style) + '"';
}

std::string figure_token(std::string_view text) {
  if (text.empty()) return "∅";
  if (valid_utf8(text) != text) {
    std::string hex;
    for (const char c : text)
      hex += fmt::format("{}0x{:02X}", hex.empty() ? "" : " ", static_cast<unsigned char>(c));
    return hex;
  }
  std::string out;
  for (const char c : text) {
    if (c == ' ') {
      out += "·";
    } else if (c == '\n') {
      out += "⏎";
    } else {
      out += c;
    }
  }
  return visible(out, {true});
}

double figure_width(std::string_view text, double size) {
  double width = 0;
  for_each_character(text, [&](char32_t c) {
    const auto one_of = [&](std::u32string_view letters) {
      return letters.find(c) != std::u32string_view::npos;
    };
    if ((c >= 0x1100 && c <= 0xffdc) || (c >= 0x1f000 && c <= 0x3ffff)) {
      width += 1;
    } else if (one_of(U"ijltfr.,·:;'|!()[]")) {
      width += 0.36;
    } else if (one_of(U"mwMW@%")) {
      width += 0.9;
    } else if ((c >= U'A' && c <= U'Z') || (c >= U'0' && c <= U'9')) {
      width += 0.68;
    } else {
      width += 0.58;
    }
  });
  return width * size;
}

int display_width(std::string_view text) {
  int width = 0;
  for_each_character(text, [&](char32_t c) { width += character_width(c); });
  return width;
}

std::string clip(std::string_view text, int width, bool unicode) {
  if (display_width(text) <= width) return std::string(text);
  const std::string mark = unicode ? "…" : "..";
  const int room = width - display_width(mark);
  std::string out;
  int used = 0;
  bool full = room < 0;
  for_each_character(text, [&](char32_t c) {
    used += character_width(c);
    full = full || used > room;
    if (!full) append_utf8(out, c);
  });
  return room < 0 ? std::string(std::max(width, 0), '.') : out + mark;
}

std::string pad_right(std::string text, int width) {
  text.append(std::max(0, width - display_width(text)), ' ');
  return text;
}

std::string pad_left(std::string text, int width) {
  return std::string(std::max(0, width - display_width(text)), ' ') + text;
}

std::string xml_escape(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c) {
    switch (c) {
      case U'&':
        out += "&amp;";
        break;
      case U'<':
        out += "&lt;";
        break;
      case U'>':
        out += "&gt;";
        break;
      case U'"':
        out += "&quot;";
        break;
      case U'\'':
        out += "&#39;";
        break;
      case U'\n':
      case U'\t':
      case U'\r':
        out += fmt::format("&#{};", static_cast<unsigned>(c));
        break;
      default:
        // XML 1.0 has no way to write the other control characters, nor U+FFFE and U+FFFF.
        append_utf8(out, c < 0x20 || c == 0xFFFE || c == 0xFFFF ? kReplacement : c);
    }
  });
  return out;
}

std::string tex_escape(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c) {
    static constexpr std::string_view kPlainlyEscaped = "#$%&_{}";
    if (c < 0x80 && kPlainlyEscaped.find(static_cast<char>(c)) != std::string_view::npos) {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == U'\\') {
      out += "\\textbackslash{}";
    } else if (c == U'^') {
      out += "\\textasciicircum{}";
    } else if (c == U'~') {
      out += "\\textasciitilde{}";
    } else if (c == U'"') {
      out += "\\symbol{34}";
    } else if (c == U'<') {
      out += "\\textless{}";
    } else if (c == U'>') {
      out += "\\textgreater{}";
    } else if (c == U'|') {
      out += "\\textbar{}";
    } else if (c == U'\'') {
      out += "{'}";
    } else if (c == U'`') {
      out += "\\symbol{96}";
    } else if (c == U'-' || c == U',' || c == U'?' || c == U'!') {
      // Braces keep TeX from joining "--", ",,", "?`" into one glyph.
      out += fmt::format("{{{}}}", static_cast<char>(c));
    } else if (c == U'↵' || c == U'⏎' || c == U'\n') {
      out += "\\ensuremath{\\hookleftarrow}";
    } else if (c == U'·') {
      out += "\\ensuremath{\\cdot}";
    } else if (c == U'−') {
      out += "\\ensuremath{-}";
    } else if (c == U'≈') {
      out += "\\ensuremath{\\approx}";
    } else if (c == U'∅') {
      out += "\\ensuremath{\\emptyset}";
    } else if (c == U'␣') {
      out += "\\textvisiblespace{}";
    } else if (c == U'…') {
      out += "\\ldots{}";
    } else if (c >= 0x20 && c < 0x7F) {
      out += static_cast<char>(c);
    } else if (c >= 0xC0 && c <= 0xFF && (c & 0x1F) != 0x10 && (c & 0x1F) != 0x17 &&
               (c & 0x1F) != 0x1E) {  // letters that TeX builds in any font
      append_utf8(out, c);
    } else {
      out += fmt::format("{{\\tiny U+{:04X}}}", static_cast<unsigned>(c));
    }
  });
  return out;
}

std::string dot_escape(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c) {
    if (c == U'"' || c == U'\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20 || c == 0x7F) {
      out += "\\\\x" + fmt::format("{:02x}", static_cast<unsigned>(c));
    } else {
      append_utf8(out, c);
    }
  });
  return out;
}

}  // namespace unpack::report
