// Checksums of lines and files. They find accidents (a torn write, another file), not forgeries.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace unpack::base {

std::uint32_t crc32(std::string_view bytes);     // as in zlib
std::string crc32_text(std::string_view bytes);  // 8 hexadecimal digits

// FNV-1a, fed piece by piece.
class Hash64 {
 public:
  void add(std::string_view bytes);
  std::string text() const;  // 16 hexadecimal digits

 private:
  std::uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace unpack::base
