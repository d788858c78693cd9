#include "metrics.h"

#include <fmt/format.h>

namespace unpack::server {

void Metrics::count(int status) {
  constexpr int kTooMany = 429;
  const int kind = status / 100;
  if (kind > 0 && kind < kClasses) ++answers_[kind];
  if (status == kTooMany) ++refused_;
}

std::string Metrics::text(const std::vector<std::pair<std::string, double>>& gauges) const {
  std::string out = "# TYPE unpack_answers_total counter\n";
  for (int kind = 2; kind < kClasses; ++kind)
    out += fmt::format("unpack_answers_total{{status=\"{}xx\"}} {}\n", kind, answers_[kind].load());
  out += fmt::format("# TYPE unpack_refused_total counter\nunpack_refused_total {}\n",
                     refused_.load());
  for (const auto& [name, value] : gauges)
    out += fmt::format("# TYPE {0} gauge\n{0} {1}\n", name, value);
  return out;
}

}  // namespace unpack::server
