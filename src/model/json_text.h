// JSON as checkpoints need it: bad text becomes an InputError of one line, and a key may not occur
// twice.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace unpack {

nlohmann::json parse_json(std::string_view text, const std::string& origin);

// Names out of files, for messages: control characters escaped, shortened where very long.
std::string shown(std::string_view text);

// "a, b, c"
std::string joined(const std::vector<std::string>& texts);
std::string joined(const std::vector<std::int64_t>& numbers);

}  // namespace unpack
