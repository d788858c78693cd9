// A second face of backends that add raw key scores up without writing them
// (Backend::sums_with_reach): of prompts that are long enough a table of them is not worth its
// memory.
#pragma once

namespace unpack {

class AddsKeysUp {
 public:
  virtual ~AddsKeysUp() = default;
  virtual bool adds_keys_up(int length) const = 0;
};

}  // namespace unpack
