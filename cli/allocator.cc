#include "allocator.h"

#include <cstdlib>  // tells which C library this is

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace unpack::cli {

void keep_freed_memory([[maybe_unused]] int mebibytes) {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, mebibytes << 20);
#endif
}

}  // namespace unpack::cli
