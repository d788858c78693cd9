// A part of a run over many prompts: prompt i (from 0) belongs to shard i mod count + 1.
#pragma once

#include <cstddef>
#include <string>

namespace unpack {

struct Shard {
  int index = 1;  // from 1
  int count = 1;

  bool whole() const { return count == 1; }
  bool owns(std::size_t i) const { return static_cast<int>(i % count) == index - 1; }
  bool operator==(const Shard&) const = default;
};

Shard parse_shard(const std::string& text);  // "2/4"; throws UsageError
std::string to_string(const Shard& shard);

}  // namespace unpack
