#include "base/installation.h"

#include <algorithm>
#include <fstream>

#include "base/system.h"

namespace unpack::base {
namespace fs = std::filesystem;
namespace {

// Prefixes of installations whose share/unpack may be ours.
std::vector<fs::path> prefixes() {
  std::vector<fs::path> out;
  const fs::path own = own_folder();
  if (!own.empty()) {
    out.push_back(own.parent_path());  // bin/unpack
    out.push_back(own);                // unpack_engine/_native.so of a wheel
  }
  return out;
}

void add(std::vector<fs::path>& paths, const fs::path& path) {
  const fs::path normal = path.lexically_normal();
  if (std::find(paths.begin(), paths.end(), normal) == paths.end()) paths.push_back(normal);
}

}  // namespace

std::vector<fs::path> resource_folders(const std::string& what) {
  std::vector<fs::path> out;
  for (const fs::path& prefix : prefixes()) add(out, prefix / "share" / "unpack" / what);
#ifdef UNPACK_SOURCE_TREE
  add(out, fs::path(UNPACK_SOURCE_TREE) / what);
#endif
#ifdef UNPACK_INSTALL_SHARE
  add(out, fs::path(UNPACK_INSTALL_SHARE) / what);
#endif
  return out;
}

std::string installed_as() {
  std::error_code error;
  for (const fs::path& prefix : prefixes()) {
    std::ifstream in(prefix / "share" / "unpack" / "installed_as");
    std::string line;
    if (std::getline(in, line) && !line.empty()) return line;
    if (fs::is_directory(prefix / "share" / "unpack" / "models", error)) return "make install";
  }
#ifdef UNPACK_INSTALL_SHARE
  // A Python module of a Debian package lies far from the prefix it belongs to.
  std::ifstream in(fs::path(UNPACK_INSTALL_SHARE) / "installed_as");
  std::string line;
  const bool inside = own_folder().string().starts_with(
      fs::path(UNPACK_INSTALL_SHARE).parent_path().parent_path().string());
  if (inside && std::getline(in, line) && !line.empty()) return line;
#endif
  return "built from source";
}

}  // namespace unpack::base
