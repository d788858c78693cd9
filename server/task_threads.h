// The threads that answer connections. The HTTP library's own pool ends the process where a thread
// cannot be started, or where memory runs out inside the library; this one answers with the threads
// it has, and ends such a connection alone.
#pragma once

#include <httplib.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace unpack::server {

class TaskThreads final : public httplib::TaskQueue {
 public:
  explicit TaskThreads(std::size_t count);  // InputError where not one can be started
  ~TaskThreads() override;

  // Newer versions of the library ask whether the task was taken.
  using Taken = decltype(std::declval<httplib::TaskQueue&>().enqueue(std::function<void()>()));
  // Waits where very many are waiting already: the system keeps those that come next.
  Taken enqueue(std::function<void()> task) override {
    wait_in_line(std::move(task));
    return static_cast<Taken>(true);
  }

  void shutdown() override;

  // Whether this thread serves its connection for the second time, the first having failed: what is
  // read then is what was left of the request, and is not to be taken for one.
  static bool again();

 private:
  void wait_in_line(std::function<void()> task);
  void work();

  std::mutex mutex_;
  std::condition_variable wake_, room_;
  // A ring that is made once: what it takes to accept a connection must not fail.
  std::vector<std::function<void()>> tasks_;
  std::size_t first_ = 0, waiting_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace unpack::server
