// How much freed memory this process keeps for itself.
#pragma once

namespace unpack::cli {

// Up to so many MiB; where the C library has no such setting, what it does anyway.
void keep_freed_memory(int mebibytes);

}  // namespace unpack::cli
