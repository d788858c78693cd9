// The spelling of bytes in byte-level vocabularies: every byte is one printable character (a space
// is "Ġ").
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace unpack::tokenizer {

// How a vocabulary spells the byte.
const std::string& byte_spelling(unsigned char byte);

// The bytes that a spelling stands for; nothing where a character of it stands for no byte.
std::optional<std::string> spelled_bytes(std::string_view spelling);

}  // namespace unpack::tokenizer
