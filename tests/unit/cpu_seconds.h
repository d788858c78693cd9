// What work costs this process, however busy the machine is with others.
#pragma once

#include <ctime>

namespace unpack {

template <class Work>
double cpu_seconds(const Work& work) {
  const std::clock_t begin = std::clock();
  work();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

}  // namespace unpack
