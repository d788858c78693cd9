// TaskThreads as the HTTP library wants them.
#pragma once

#include <httplib.h>

#include <cstddef>
#include <functional>
#include <utility>

#include "task_threads.h"

namespace unpack::server {

class HttpTasks final : public httplib::TaskQueue {
 public:
  explicit HttpTasks(std::size_t threads) : threads_(threads) {}

  // Newer versions of the library ask whether the task was taken.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(std::function<void()>()));
  Taken enqueue(std::function<void()> task) override {
    threads_.add(std::move(task));
    return static_cast<Taken>(true);
  }

  void shutdown() override { threads_.shutdown(); }

 private:
  TaskThreads threads_;
};

}  // namespace unpack::server
