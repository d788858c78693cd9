// What the server has done and holds, in the text format of Prometheus.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace unpack::server {

class Metrics {
 public:
  void count(int status);

  // The counters, and gauges by name.
  std::string text(const std::vector<std::pair<std::string, double>>& gauges) const;

 private:
  static constexpr int kClasses = 6;  // 1xx to 5xx
  std::atomic<std::uint64_t> answers_[kClasses] = {};
  std::atomic<std::uint64_t> refused_ = 0;  // 429: too many waiting
};

}  // namespace unpack::server
