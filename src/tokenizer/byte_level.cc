#include "tokenizer/byte_level.h"

#include <array>

#include "tokenizer/utf8.h"

namespace unpack::tokenizer {
namespace {

struct Tables {
  std::array<std::string, 256> spelling;
  std::array<int, 512> byte_of;  // by code point; -1 where it spells no byte

  Tables() {
    byte_of.fill(-1);
    // Printable bytes of Latin-1 spell themselves; the others take the code points from 256 on, in
    // order.
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool printable =
          (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      const char32_t code_point = printable ? static_cast<char32_t>(byte) : next++;
      spelling[byte] = to_utf8(code_point);
      byte_of[code_point] = byte;
    }
  }
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

}  // namespace

const std::string& byte_spelling(unsigned char byte) { return tables().spelling[byte]; }

std::optional<std::string> spelled_bytes(std::string_view spelling) {
  const Tables& known = tables();
  std::string bytes;
  bytes.reserve(spelling.size());
  while (!spelling.empty()) {
    const char32_t code_point = first_char(spelling);
    if (code_point >= known.byte_of.size() || known.byte_of[code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(known.byte_of[code_point]);
    spelling.remove_prefix(utf8_length(spelling[0]));
  }
  return bytes;
}

}  // namespace unpack::tokenizer
