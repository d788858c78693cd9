#include "unpack/shard.h"

#include <fmt/format.h>

#include <charconv>

#include "unpack/error.h"

namespace unpack {

namespace {

constexpr int kMostShards = 100'000;

}  // namespace

Shard parse_shard(const std::string& text) {
  Shard shard;
  const char* end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, shard.index);
  const bool slash = first.ec == std::errc() && first.ptr != end && *first.ptr == '/';
  const auto second = slash ? std::from_chars(first.ptr + 1, end, shard.count) : first;
  if (!slash || second.ec != std::errc() || second.ptr != end || shard.count < 1 ||
      shard.index < 1 || shard.index > shard.count) {
    throw UsageError(
        fmt::format("shard takes I/N with I from 1 to N, such as 2/4, not '{}'", text));
  }
  if (shard.count > kMostShards)
    throw UsageError(
        fmt::format("shard takes {} shards at most, not {}", kMostShards, shard.count));
  return shard;
}

std::string to_string(const Shard& shard) { return fmt::format("{}/{}", shard.index, shard.count); }

}  // namespace unpack
