// Text cut into sentences, lines or paragraphs.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace unpack::base {

enum class SegmentKind { sentence, line, paragraph };

// Bytes [begin, end); the pieces touch and cover the whole text. Blanks between two belong to the
// first.
struct TextSegment {
  std::size_t begin = 0, end = 0;
};
std::vector<TextSegment> cut_text(std::string_view text, SegmentKind kind);

}  // namespace unpack::base
