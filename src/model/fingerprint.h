// A fast hash that tells checkpoints apart: names, shapes and types, and samples of the bytes of
// every tensor that is used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/checkpoint.h"

namespace unpack::model {

class Fingerprint {
 public:
  // `pattern` is the name in the family's table, so that shards and name prefixes make no
  // difference. Tensors may come in any order.
  void add(const Checkpoint::Entry& entry, std::string_view pattern, int layer);
  std::string text() const;  // 16 hexadecimal digits

 private:
  std::uint64_t sum_ = 0;
};

}  // namespace unpack::model
