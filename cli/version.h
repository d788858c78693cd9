#pragma once

#include <string>

namespace unpack::cli {

// Version, build type, CPU kernels in use, devices.
std::string version_text();

}  // namespace unpack::cli
