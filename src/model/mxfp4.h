// MXFP4: blocks of 32 four-bit floats, two a byte, low half first, with one power of two a block.
#pragma once

#include <cstddef>
#include <memory>

#include "model/weights.h"

namespace unpack {

inline constexpr std::int64_t kMxfp4Block = 32;
// A block with its scale behind it.
inline constexpr std::int64_t kMxfp4Bytes = kMxfp4Block / 2 + 1;

// Elements in the order of the blocks; a block's scale stands for 2^(scale - 127).
std::shared_ptr<const Encoded> make_mxfp4(const std::byte* blocks, const std::byte* scales);

}  // namespace unpack
