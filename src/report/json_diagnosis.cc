#include <nlohmann/json.hpp>

#include "unpack/about.h"

namespace unpack {

std::string diagnosis_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"subject", finding.subject},
                    {"found", finding.found},
                    {"problem", finding.problem},
                    {"remedy", finding.remedy},
                    {"fatal", finding.fatal}});
  }
  const nlohmann::ordered_json out = {{"version", 1}, {"findings", list}};
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace unpack
