// Places in arrays, and their sizes.
#pragma once

#include <cstdint>

namespace unpack {

using Index = std::int64_t;

}  // namespace unpack
