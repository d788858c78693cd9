// What every refusal must be.
#pragma once

#include <cstddef>
#include <string_view>

inline void expect_one_line(std::string_view message) {
  constexpr std::size_t kLongest = 500;
  if (message.size() >= kLongest || message.find('\n') != std::string_view::npos) __builtin_trap();
}
