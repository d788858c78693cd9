// What this build is and what it can use here.
#pragma once

#include <string>
#include <vector>

namespace unpack {

struct About {
  std::string version;
  std::string build_type;
  std::string kernels;               // the CPU kernels in use
  std::vector<std::string> devices;  // "cpu: ...", "cuda: ..."
};
About about();

}  // namespace unpack
