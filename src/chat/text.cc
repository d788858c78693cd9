#include "chat/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/utf8.h"

namespace unpack::chat {
namespace {

bool is_space(char32_t c) { return tokenizer::is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

// Upper and lower case of letters that become several: the ones that have a form of their own.
std::string mapped(std::string_view text, bool to_upper) {
  std::string out;
  for (const std::string_view piece : characters(text)) {
    const char32_t c = tokenizer::first_char(piece);
    if (c == 0xDF && to_upper) {
      out += "SS";
    } else if (c == 0x130 && !to_upper) {
      out += "i\xCC\x87";
    } else {
      const utf8proc_int32_t x = c;
      out += tokenizer::to_utf8(to_upper ? utf8proc_toupper(x) : utf8proc_tolower(x));
    }
  }
  return out;
}

bool is_letter(char32_t c) {
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return true;
    default:
      return false;
  }
}

bool is_cased(char32_t c) {
  const auto category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT;
}

template <class Drop>
std::string_view strip_if(std::string_view text, Side side, Drop drop) {
  if (side != Side::right) {
    while (!text.empty() && drop(text.substr(0, tokenizer::utf8_length(text[0]))))
      text.remove_prefix(tokenizer::utf8_length(text[0]));
  }
  if (side != Side::left) {
    while (!text.empty() && drop(text.substr(tokenizer::last_char_start(text))))
      text = text.substr(0, tokenizer::last_char_start(text));
  }
  return text;
}

}  // namespace

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = tokenizer::utf8_length(text[i]);
    out.push_back(text.substr(i, n));
    i += n;
  }
  return out;
}

std::int64_t length(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

std::string_view strip(std::string_view text, Side side) {
  return strip_if(text, side,
                  [](std::string_view c) { return is_space(tokenizer::first_char(c)); });
}

std::string_view strip(std::string_view text, Side side, std::string_view chars) {
  const std::vector<std::string_view> set = characters(chars);
  return strip_if(text, side, [&](std::string_view c) {
    return std::find(set.begin(), set.end(), c) != set.end();
  });
}

std::string upper(std::string_view text) { return mapped(text, true); }
std::string lower(std::string_view text) { return mapped(text, false); }

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  const std::size_t n = tokenizer::utf8_length(text[0]);
  return upper(text.substr(0, n)) + lower(text.substr(n));
}

std::string title(std::string_view text) {
  std::string out;
  bool inside = false;
  for (const std::string_view c : characters(text)) {
    out += inside ? lower(c) : upper(c);
    inside = is_cased(tokenizer::first_char(c));
  }
  return out;
}

std::string filter_title(std::string_view text) {
  std::string out, word;
  const auto flush = [&] {
    out += capitalize(word);
    word.clear();
  };
  for (const std::string_view c : characters(text)) {
    const bool parts = c == "-" || c == "(" || c == "{" || c == "[" || c == "<" ||
                       is_space(tokenizer::first_char(c));
    if (parts) flush();
    (parts ? out : word) += c;
  }
  flush();
  return out;
}

std::string replace(std::string_view text, std::string_view from, std::string_view to,
                    std::int64_t most) {
  std::string out;
  if (from.empty()) {
    for (const std::string_view c : characters(text)) {
      if (most != 0) out += to;
      if (most > 0) --most;
      out += c;
    }
    if (most != 0) out += to;
    return out;
  }
  for (;;) {
    const std::size_t at = most == 0 ? std::string_view::npos : text.find(from);
    if (at == std::string_view::npos) return out.append(text);
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
    if (most > 0) --most;
  }
}

std::vector<std::string> split(std::string_view text, std::string_view separator,
                               std::int64_t most) {
  std::vector<std::string> out;
  for (;;) {
    const std::size_t at = most == 0 ? std::string_view::npos : text.find(separator);
    if (at == std::string_view::npos) break;
    out.emplace_back(text.substr(0, at));
    text.remove_prefix(at + separator.size());
    if (most > 0) --most;
  }
  out.emplace_back(text);
  return out;
}

std::vector<std::string> split_from_right(std::string_view text, std::string_view separator,
                                          std::int64_t most) {
  std::vector<std::string> out;
  for (;;) {
    const std::size_t at = most == 0 ? std::string_view::npos : text.rfind(separator);
    if (at == std::string_view::npos) break;
    out.emplace_back(text.substr(at + separator.size()));
    text = text.substr(0, at);
    if (most > 0) --most;
  }
  out.emplace_back(text);
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> split_blanks(std::string_view text, std::int64_t most) {
  std::vector<std::string> out;
  text = strip(text, Side::left);
  while (!text.empty()) {
    if (most == 0) {
      out.emplace_back(strip(text, Side::right));
      break;
    }
    std::size_t n = 0;
    while (n < text.size() && !is_space(tokenizer::first_char(text.substr(n))))
      n += tokenizer::utf8_length(text[n]);
    out.emplace_back(text.substr(0, n));
    text = strip(text.substr(n), Side::left);
    if (most > 0) --most;
  }
  return out;
}

std::vector<std::string> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string> out;
  std::string line;
  const auto flush = [&] {
    out.push_back(line);
    line.clear();
  };
  const std::vector<std::string_view> all = characters(text);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const char32_t c = tokenizer::first_char(all[i]);
    const bool end = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                     c == 0x2028 || c == 0x2029;
    if (!end || keep_ends) line += all[i];
    if (end && c == 0x0D && i + 1 < all.size() && all[i + 1] == "\n") {
      ++i;
      if (keep_ends) line += all[i];
    }
    if (end) flush();
  }
  if (!line.empty()) flush();
  return out;
}

bool all_of_class(std::string_view text, std::string_view what) {
  if (text.empty()) return false;
  bool cased = false;
  for (const std::string_view piece : characters(text)) {
    const char32_t c = tokenizer::first_char(piece);
    const bool digit = utf8proc_category(c) == UTF8PROC_CATEGORY_ND;
    if (what == "digit" && !digit) return false;
    if (what == "alpha" && !is_letter(c)) return false;
    if (what == "alnum" && !is_letter(c) && !digit) return false;
    if (what == "space" && !is_space(c)) return false;
    if (what == "upper" || what == "lower") {
      const std::string same = what == "upper" ? upper(piece) : lower(piece);
      if (is_cased(c) && same != piece) return false;
      cased = cased || is_cased(c);
    }
  }
  return what == "upper" || what == "lower" ? cased : true;
}

std::string python_quoted(std::string_view text) {
  const bool use_double =
      text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  for (const std::string_view piece : characters(text)) {
    const char32_t c = tokenizer::first_char(piece);
    if (c == '\\' || c == static_cast<char32_t>(quote)) {
      out += '\\';
      out += piece;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      const auto category = utf8proc_category(c);
      const bool hidden =
          c != ' ' && (category == UTF8PROC_CATEGORY_CN || category >= UTF8PROC_CATEGORY_ZS);
      if (!hidden) {
        out += piece;
      } else if (c < 0x100) {
        out += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c));
      } else if (c < 0x10000) {
        out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
      } else {
        out += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c));
      }
    }
  }
  return out + quote;
}

}  // namespace unpack::chat
