// The threads that answer connections. The HTTP library's own pool ends the process where a thread
// cannot be started, or where memory runs out inside the library; this one answers with the threads
// it has, and ends such a connection alone.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace unpack::server {

class TaskThreads {
 public:
  explicit TaskThreads(std::size_t count);  // InputError where not one can be started
  ~TaskThreads();
  TaskThreads(const TaskThreads&) = delete;
  TaskThreads& operator=(const TaskThreads&) = delete;

  // Waits where very many are waiting already: the system keeps those that come next.
  void add(std::function<void()> task);
  void shutdown();  // what waits is done first

  // Whether this thread serves its connection for the second time, the first having failed: what is
  // read then is what was left of the request, and is not to be taken for one.
  static bool again();

 private:
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
