
#include "unpack/about.h"
#include "unpack/json.h"

namespace unpack {

std::string diagnosis_json(const std::vector<Finding>& findings) {
  OrderedJson list = OrderedJson::array();
  for (const Finding& finding : findings) {
    list.push_back({{"subject", finding.subject},
                    {"found", finding.found},
                    {"problem", finding.problem},
                    {"remedy", finding.remedy},
                    {"fatal", finding.fatal}});
  }
  const OrderedJson out = {{"version", 1}, {"findings", list}};
  return out.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

}  // namespace unpack
