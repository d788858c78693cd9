// UTF-8 as the tokenizer needs it: strict checking, repair, and text that fits in a one-line
// message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace unpack::tokenizer {

// Length of the character that the lead byte opens. The text around it must be valid.
inline std::size_t utf8_length(char lead) {
  const unsigned char byte = lead;
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The character at the start of valid, non-empty text.
char32_t first_char(std::string_view text);
// Where the last character of valid, non-empty text starts.
std::size_t last_char_start(std::string_view text);

std::string to_utf8(char32_t code_point);

// Offset of the first byte that is not part of well-formed UTF-8 (no overlong forms, no
// surrogates), or npos.
std::size_t first_invalid_utf8(std::string_view text);

// Every ill-formed part becomes one U+FFFD, by the "maximal subpart" practice of the Unicode
// standard.
std::string repair_utf8(std::string_view bytes);

// Unicode White_Space, which is what \s means in tokenizer files.
bool is_white_space(char32_t code_point);

// In quotes, shortened, without control characters: fit for a one-line message.
std::string in_quotes(std::string_view text);

}  // namespace unpack::tokenizer
