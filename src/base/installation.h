// Where this copy of the program keeps its files, and how it came here.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace unpack::base {

// Folders that may hold the program's `what` ("models", "data"), the likeliest first: beside the
// program or the Python module, the source tree, where `make install` puts them.
std::vector<std::filesystem::path> resource_folders(const std::string& what);

// "Debian package unpack-engine", "wheel", "portable folder": what the packager wrote into
// share/unpack/installed_as; else "make install" or "built from source".
std::string installed_as();

}  // namespace unpack::base
