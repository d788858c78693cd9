// Messages are one line of UTF-8 of bounded length, whatever they quote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unpack::base {

inline constexpr std::size_t kLongestMessage = 460;  // bytes

// Control characters and bytes that are no UTF-8 as \xNN; the middle of a long text left out. Error
// does this to every message; it is here for what is printed otherwise.
std::string one_line(std::string_view message, std::size_t longest = kLongestMessage);

// A name or a text from outside inside a message: in quotes, escaped, its end left out where it is
// long.
std::string shown(std::string_view text);

// "a, b, c"
std::string joined(const std::vector<std::string>& texts);
std::string joined(const std::vector<std::int64_t>& numbers);

}  // namespace unpack::base
