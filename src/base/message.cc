#include "base/message.h"

#include <fmt/format.h>

#include <algorithm>

#include "unpack/error.h"

namespace unpack {
namespace {

constexpr std::size_t kLongestShown = 120;

// Bytes of the well-formed character at the start of `text`; 0 where there is none.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t n = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < n) return 0;
  for (std::size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  // No overlong forms, no surrogates, nothing past U+10FFFF.
  if ((lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) > 0x9F) ||
      (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) > 0x8F))
    return 0;
  return n;
}

// C0 and C1 controls, line and paragraph separators, and what turns the direction of text round:
// a terminal would obey them.
bool obeyed(std::string_view c) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(c[i]); };
  if (c.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7F;
  if (c.size() == 2) return byte(0) == 0xC2 && byte(1) < 0xA0;
  return c.size() == 3 && byte(0) == 0xE2 &&
         ((byte(1) == 0x80 && byte(2) >= 0xA8 && byte(2) <= 0xAE) ||
          (byte(1) == 0x81 && byte(2) >= 0xA6 && byte(2) <= 0xA9));
}

// Stops at the character that would pass `longest` bytes of output; says how much was taken.
std::string escaped(std::string_view text, std::size_t longest, std::size_t& taken) {
  std::string out;
  for (taken = 0; taken < text.size();) {
    const std::size_t n = character(text.substr(taken));
    const std::string_view raw = text.substr(taken, std::max<std::size_t>(n, 1));
    std::string piece(raw);
    if (n == 0 || obeyed(raw)) {
      piece.clear();
      for (const char c : raw) piece += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
    if (out.size() + piece.size() > longest) break;
    out += piece;
    taken += raw.size();
  }
  return out;
}

}  // namespace

std::string base::one_line(std::string_view message, std::size_t longest) {
  constexpr std::string_view kGap = " ... ";
  std::size_t taken = 0;
  std::string out = escaped(message, longest, taken);
  if (taken == message.size()) return out;
  // The beginning says what, the end mostly how to mend it.
  const std::size_t tail = longest / 3;
  out = escaped(message, longest - tail - kGap.size(), taken);
  std::size_t begin = message.size() - std::min(message.size() - taken, tail);
  for (;; ++begin) {
    while (begin < message.size() && (static_cast<unsigned char>(message[begin]) & 0xC0) == 0x80)
      ++begin;
    const std::string end = escaped(message.substr(begin), tail, taken);
    if (begin + taken == message.size()) return out + std::string(kGap) + end;
  }
}

std::string base::shown(std::string_view text) {
  std::size_t taken = 0;
  const std::string inside = escaped(text, kLongestShown, taken);
  return "'" + inside + (taken < text.size() ? "..." : "") + "'";
}

std::string base::joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out.append(out.empty() ? "" : ", ").append(text);
  return out;
}

std::string base::joined(const std::vector<std::int64_t>& numbers) {
  std::vector<std::string> texts;
  for (const std::int64_t number : numbers) texts.push_back(std::to_string(number));
  return base::joined(texts);
}

Error::Error(const std::string& message) : std::runtime_error(base::one_line(message)) {}

}  // namespace unpack
