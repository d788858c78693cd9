#include "task_threads.h"

#include <chrono>
#include <system_error>
#include <utility>

#include "unpack/error.h"

namespace unpack::server {
namespace {

constexpr std::size_t kLine = 1024;  // connections that wait for a thread

thread_local bool failed_before = false;

// The library leaves a connection open where it throws. Called again, it answers what is left of
// the request with an error, or waits a moment for more, and closes the connection.
void serve(const std::function<void()>& task) {
  constexpr int kTimes = 20;
  constexpr auto kPause = std::chrono::milliseconds(50);  // memory may come back
  for (int i = 0; i < kTimes; ++i) {
    failed_before = i > 0;
    try {
      task();
      return;
    } catch (...) {
      std::this_thread::sleep_for(i * kPause);
    }
  }
}

}  // namespace

TaskThreads::TaskThreads(std::size_t count) : tasks_(kLine) {
  threads_.reserve(count);
  try {
    while (threads_.size() < count) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    if (!threads_.empty()) return;
    throw InputError("cannot start a thread (" + error.code().message() +
                     "): raise the limit on processes or memory (ulimit -u, ulimit -v)");
  } catch (...) {
    shutdown();  // a thread that is destroyed while it runs ends the process
    throw;
  }
}

TaskThreads::~TaskThreads() { shutdown(); }

bool TaskThreads::again() { return failed_before; }

void TaskThreads::add(std::function<void()> task) {
  {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return waiting_ < tasks_.size(); });
    tasks_[(first_ + waiting_++) % tasks_.size()] = std::move(task);
  }
  wake_.notify_one();
}

void TaskThreads::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void TaskThreads::work() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return ending_ || waiting_ > 0; });
      if (waiting_ == 0) return;
      task = std::exchange(tasks_[first_], nullptr);
      first_ = (first_ + 1) % tasks_.size();
      --waiting_;
    }
    room_.notify_one();
    serve(task);
  }
}

}  // namespace unpack::server
