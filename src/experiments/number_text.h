// Numbers as the reports print them.
#pragma once

#include <string>

namespace unpack::experiments {

// So many decimals, halves away from zero (what lies a rounding error below a half counts as one),
// never "-0". From 1,000 on none: single precision and a mean over prompts have no more to tell.
std::string fixed_text(double x, int decimals);
std::string signed_text(double x, int decimals);  // the same with a plus where it is due
// One decimal where there is one: "38", "38.5".
std::string short_text(double x);
std::string percent_text(double percent);  // the same: "38%", "38.5%"

// "0.52 (0.41 to 0.60)"
std::string with_interval(double x, double low, double high, int decimals);
std::string signed_with_interval(double x, double low, double high, int decimals);

}  // namespace unpack::experiments
