#include "base/segments.h"

#include <algorithm>
#include <array>

namespace unpack::base {
namespace {

constexpr std::array<std::string_view, 22> kAbbreviations = {
    "Mr",  "Mrs", "Ms", "Dr",  "Prof", "St", "Sr",  "Jr",  "vs", "etc",    "e.g",
    "i.e", "cf",  "al", "Fig", "fig",  "No", "Inc", "Ltd", "Co", "approx", "U.S"};

bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }

// The word before the full stop at `dot`: an abbreviation or an initial does not end a sentence.
bool abbreviates(std::string_view text, std::size_t dot) {
  std::size_t begin = dot;
  while (begin > 0 && !blank(text[begin - 1]) && text[begin - 1] != '(') --begin;
  const std::string_view word = text.substr(begin, dot - begin);
  if (word.size() == 1 && is_upper(word[0]) && word[0] != 'I') return true;
  return std::find(kAbbreviations.begin(), kAbbreviations.end(), word) != kAbbreviations.end();
}

// Length of what ends a sentence at i with its closing quotes; 0 where none ends.
std::size_t sentence_end(std::string_view text, std::size_t i) {
  for (const std::string_view wide : {"\xE3\x80\x82", "\xEF\xBC\x81", "\xEF\xBC\x9F"}) {
    if (text.substr(i).starts_with(wide)) return wide.size();
  }
  if (text[i] != '.' && text[i] != '!' && text[i] != '?') return 0;
  std::size_t end = i + 1;
  while (end < text.size() && (text[end] == '.' || text[end] == '!' || text[end] == '?')) ++end;
  while (end < text.size() &&
         (text[end] == '"' || text[end] == '\'' || text[end] == ')' || text[end] == ']'))
    ++end;
  if (end < text.size() && !blank(text[end])) return 0;
  std::size_t next = end;
  while (next < text.size() && blank(text[next])) ++next;
  if (next < text.size() && is_lower(text[next])) return 0;
  if (text[i] == '.' && end == i + 1 && next < text.size() && abbreviates(text, i)) return 0;
  return end - i;
}

}  // namespace

std::vector<TextSegment> cut_text(std::string_view text, SegmentKind kind) {
  std::vector<TextSegment> segments;
  std::size_t begin = 0;
  const auto close = [&](std::size_t end) {
    // Blank space alone is no segment: it goes with what stands before it.
    const bool empty = std::all_of(text.begin() + begin, text.begin() + end, blank);
    if (empty && !segments.empty()) {
      segments.back().end = end;
    } else if (!empty || end == text.size()) {
      if (end > begin) segments.push_back({begin, end});
    } else {
      return;  // blanks in front of the first segment belong to it
    }
    begin = end;
  };
  for (std::size_t i = 0; i < text.size();) {
    std::size_t n = 1;
    bool ends = false;
    if (text[i] == '\n') {
      std::size_t next = i + 1, breaks = 1;
      while (next < text.size() && blank(text[next])) breaks += text[next++] == '\n';
      ends = kind != SegmentKind::paragraph || breaks > 1;
      n = next - i;
    } else if (kind == SegmentKind::sentence) {
      if (const std::size_t length = sentence_end(text, i)) {
        ends = true;
        std::size_t next = i + length;
        while (next < text.size() && blank(text[next])) ++next;
        n = next - i;
      }
    }
    i += n;
    if (ends) close(i);
  }
  if (begin < text.size()) close(text.size());
  return segments;
}

}  // namespace unpack::base
