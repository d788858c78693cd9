#include "model/fingerprint.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

namespace unpack::model {
namespace {

constexpr std::size_t kSamples = 16;
constexpr std::size_t kSampleBytes = 256;

// FNV-1a.
std::uint64_t hash_bytes(std::uint64_t hash, const void* data, std::size_t n) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < n; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3ull;
  return hash;
}

std::uint64_t hash_number(std::uint64_t hash, std::uint64_t number) {
  return hash_bytes(hash, &number, sizeof(number));
}

}  // namespace

void Fingerprint::add(const Checkpoint::Entry& entry, std::string_view pattern, int layer) {
  const StoredTensor& stored = entry.tensor.stored;
  std::uint64_t hash = hash_bytes(0xCBF29CE484222325ull, pattern.data(), pattern.size());
  hash = hash_number(hash, layer + 1);
  hash = hash_number(hash, static_cast<std::uint64_t>(stored.dtype));
  for (const std::int64_t size : stored.shape) hash = hash_number(hash, size);
  std::array<std::byte, kSamples * kSampleBytes> buffer;
  if (stored.bytes <= buffer.size()) {
    hash = hash_bytes(hash, Checkpoint::fetch(entry, 0, stored.bytes, buffer.data()), stored.bytes);
  } else {
    for (std::size_t i = 0; i < kSamples; ++i) {
      const std::size_t at = (stored.bytes - kSampleBytes) / (kSamples - 1) * i;
      hash =
          hash_bytes(hash, Checkpoint::fetch(entry, at, kSampleBytes, buffer.data()), kSampleBytes);
    }
  }
  // A sum does not depend on the order; the last mixing keeps equal low bits of two tensors from
  // cancelling.
  hash ^= hash >> 33;
  hash *= 0xFF51AFD7ED558CCDull;
  sum_ += hash ^ (hash >> 33);
}

std::string Fingerprint::text() const { return fmt::format("{:016x}", sum_); }

}  // namespace unpack::model
