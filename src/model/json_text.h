// JSON as checkpoints need it: bad text becomes an InputError of one line, and a key may not occur twice.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace unpack {

nlohmann::json parse_json(std::string_view text, const std::string& origin);

// Names out of files, for messages: control characters escaped, shortened where very long.
std::string shown(std::string_view text);

}  // namespace unpack
