// What all experiments write with.
#include "experiments/session.h"

#include <algorithm>

namespace unpack::experiments {

std::string markdown_table(const std::vector<std::vector<std::string>>& rows) {
  std::string out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (const std::string& cell : rows[r]) out += "| " + cell + " ";
    out += "|\n";
    if (r > 0) continue;
    for (std::size_t c = 0; c < rows[0].size(); ++c) out += c == 0 ? "|---" : "|---:";
    out += "|\n";
  }
  return out;
}

std::vector<double> numbers(const Json& array) { return array.get<std::vector<double>>(); }

std::string slug(const std::string& model) {
  std::string out;
  for (const char c : model)
    out += std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' ? c : '-';
  return out;
}

}  // namespace unpack::experiments
