// Places in arrays, and their sizes.
#pragma once

#include <cstdint>

namespace unpack::base {

using Index = std::int64_t;

}  // namespace unpack::base

namespace unpack {

using base::Index;

}  // namespace unpack
