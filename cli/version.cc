#include "version.h"

#include <fmt/format.h>

#include "unpack/about.h"

namespace unpack::cli {

std::string version_text() {
  const About program = about();
  std::string text = fmt::format("unpack {} ({})\ninstalled: {}\nkernels: {}\n", program.version,
                                 program.build_type, program.installed, program.kernels);
  for (const std::string& device : program.devices) text += fmt::format("device: {}\n", device);
  text.pop_back();
  return text;
}

}  // namespace unpack::cli
