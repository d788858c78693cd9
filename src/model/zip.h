// The members of a zip archive that are stored as they are, in place.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>

namespace unpack::model {

// By name. Throws InputError for an archive that is damaged or cut short; compressed members are
// left out.
std::map<std::string, std::span<const std::byte>> read_zip(std::span<const std::byte> file,
                                                           const std::string& origin);

}  // namespace unpack::model
