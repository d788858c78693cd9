// What this build is and what it can use here.
#pragma once

#include <string>
#include <vector>

namespace unpack {

struct About {
  std::string version;
  std::string build_type;
  std::string installed;             // "Debian package unpack-engine", "wheel", "built from source"
  std::string kernels;               // the CPU kernels in use
  std::vector<std::string> devices;  // "cpu (8 threads)", "cuda (...)"
};
// Opens no device and fixes no choice that a later call could make: cheap enough for --version and
// an import. Whether a GPU really answers is what diagnose() finds out.
About about();
std::string version();

// One thing that was looked at.
struct Finding {
  std::string subject;  // "processor", "GPU"
  std::string found;
  std::string problem;  // what is missing or wrong, or ""
  std::string remedy;   // the command that mends it, or ""
  bool fatal = false;   // nothing works before it is mended
};
// Tries everything out: products, the GPU, every model that is found.
std::vector<Finding> diagnose();

// {"findings": [{"subject", "found", "problem", "remedy", "fatal"}]}
std::string diagnosis_json(const std::vector<Finding>& findings);

}  // namespace unpack
