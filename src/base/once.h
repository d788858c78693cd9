#pragma once

#include <atomic>
#include <mutex>

namespace unpack::base {

// Work that is done at most once, by whoever comes first; the others wait. If it throws, the
// next caller tries again. std::call_once promises the same, but an exception on its way through
// it unwinds through the C library, which then wants to open libgcc_s; where there is no memory
// left for that, the process ends instead of saying so.
class Once {
 public:
  template <typename Work>
  void operator()(const Work& work) {
    if (done_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    work();
    done_.store(true, std::memory_order_release);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> done_{false};
};

}  // namespace unpack::base
