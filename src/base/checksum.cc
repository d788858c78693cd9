#include "base/checksum.h"

#include <fmt/format.h>

#include <array>

namespace unpack::base {

namespace {

constexpr std::size_t kSlices = 8;
using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

// Table k steps a byte over k further ones, so that eight bytes are taken at once.
constexpr Tables make_tables() {
  Tables t{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t x = i;
    for (int bit = 0; bit < 8; ++bit) x = (x >> 1) ^ ((x & 1) != 0 ? 0xEDB88320U : 0U);
    t[0][i] = x;
  }
  for (std::size_t k = 1; k < kSlices; ++k) {
    for (std::size_t i = 0; i < 256; ++i) t[k][i] = (t[k - 1][i] >> 8) ^ t[0][t[k - 1][i] & 0xFF];
  }
  return t;
}
constexpr Tables kTables = make_tables();

}  // namespace

std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  const auto byte = [&](std::size_t i) {
    return static_cast<std::uint32_t>(static_cast<unsigned char>(bytes[i]));
  };
  std::size_t at = 0;
  for (; at + kSlices <= bytes.size(); at += kSlices) {
    const std::uint32_t low =
        crc ^ (byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24);
    crc = kTables[7][low & 0xFF] ^ kTables[6][low >> 8 & 0xFF] ^ kTables[5][low >> 16 & 0xFF] ^
          kTables[4][low >> 24] ^ kTables[3][byte(at + 4)] ^ kTables[2][byte(at + 5)] ^
          kTables[1][byte(at + 6)] ^ kTables[0][byte(at + 7)];
  }
  for (; at < bytes.size(); ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ byte(at)) & 0xFF];
  return ~crc;
}

std::string crc32_text(std::string_view bytes) { return fmt::format("{:08x}", crc32(bytes)); }

void Hash64::add(std::string_view bytes) {
  for (const char c : bytes) {
    state_ ^= static_cast<unsigned char>(c);
    state_ *= 0x100000001b3;
  }
}

std::string Hash64::text() const { return fmt::format("{:016x}", state_); }

}  // namespace unpack::base
