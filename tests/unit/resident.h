// Memory of this process that is in use.
#pragma once

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <unistd.h>

#include <fstream>

namespace unpack::testing {

inline double resident_mib() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  std::ifstream file("/proc/self/statm");
  double pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

}  // namespace unpack::testing
