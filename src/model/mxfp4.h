// MXFP4: blocks of 32 four-bit floats, two a byte, low half first, with one power of two a block.
#pragma once

#include <cstddef>
#include <memory>

#include "base/formulas.h"
#include "model/weights.h"

namespace unpack::model {

// Elements in the order of the blocks; a block's scale stands for 2^(scale - 127).
std::shared_ptr<const Encoded> make_mxfp4(const std::byte* blocks, const std::byte* scales);

}  // namespace unpack::model
