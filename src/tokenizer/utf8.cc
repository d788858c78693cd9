#include "tokenizer/utf8.h"

#include <algorithm>
#include <cstring>

namespace unpack::tokenizer {
namespace {

struct Scan {
  std::size_t length;  // bytes to step over
  bool valid;
};

// One character, or the longest start of one that no valid character continues.
Scan scan_char(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {1, true};
  if (lead < 0xC2 || lead > 0xF4) return {1, false};
  const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range is what excludes overlong forms, surrogates and code points past
  // U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (at + i >= text.size()) return {i, false};
    const unsigned char next = byte(at + i);
    if (next < (i == 1 ? low : 0x80) || next > (i == 1 ? high : 0xBF)) return {i, false};
  }
  return {length, true};
}

}  // namespace

char32_t first_char(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  switch (utf8_length(text[0])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

std::size_t last_char_start(std::string_view text) {
  std::size_t at = text.size() - 1;
  while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

std::string to_utf8(char32_t code_point) {
  const auto tail = [&](int shift) {
    return static_cast<char>(0x80 | ((code_point >> shift) & 0x3F));
  };
  if (code_point < 0x80) return {static_cast<char>(code_point)};
  if (code_point < 0x800) return {static_cast<char>(0xC0 | code_point >> 6), tail(0)};
  if (code_point < 0x10000) return {static_cast<char>(0xE0 | code_point >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | code_point >> 18), tail(12), tail(6), tail(0)};
}

std::size_t first_invalid_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word;
    while (at + sizeof word <= text.size()) {  // most text is long runs of ASCII
      std::memcpy(&word, text.data() + at, sizeof word);
      if (word & 0x8080808080808080u) break;
      at += sizeof word;
    }
    if (at >= text.size()) break;
    const Scan scan = scan_char(text, at);
    if (!scan.valid) return at;
    at += scan.length;
  }
  return std::string_view::npos;
}

std::string repair_utf8(std::string_view bytes) {
  if (first_invalid_utf8(bytes) == std::string_view::npos) return std::string(bytes);
  std::string repaired;
  repaired.reserve(bytes.size() + 8);
  for (std::size_t at = 0; at < bytes.size();) {
    const Scan scan = scan_char(bytes, at);
    repaired += scan.valid ? bytes.substr(at, scan.length) : std::string_view("\xEF\xBF\xBD");
    at += scan.length;
  }
  return repaired;
}

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kShown = 48;
  std::string shown = repair_utf8(text.substr(0, kShown));
  std::replace_if(
      shown.begin(), shown.end(), [](unsigned char c) { return c < 0x20 || c == 0x7F; }, '?');
  return "\"" + shown + (text.size() > kShown ? "...\"" : "\"");
}

}  // namespace unpack::tokenizer
