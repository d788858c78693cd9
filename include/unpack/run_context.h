// Passed to every long call: how it may be stopped, how it reports progress, what it may use.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>
#include <string_view>

#include "unpack/error.h"

namespace unpack {

struct Progress {
  std::string_view what;  // "layers", "prompts", "paths"
  double done = 0;
  double total = 0;  // 0: unknown
};

struct RunContext {
  std::stop_token stop;
  std::function<void(const Progress&)> progress;  // called from the thread that made the call
  std::size_t memory_budget = std::size_t{2}
                              << 30;  // bytes that edge tables may take before they are streamed

  void check() const {
    if (stop.stop_requested()) throw Cancelled();
  }
  void report(std::string_view what, double done, double total) const {
    check();
    if (progress) progress({what, done, total});
  }
};

}  // namespace unpack
