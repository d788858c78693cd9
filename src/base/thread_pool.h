// A small pool that runs loops of independent tasks. Which thread runs a task never changes its
// result: callers give every task its own output, so results are the same bits for any number of
// threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/index.h"
#include "base/scratch.h"

namespace unpack::base {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // including the calling thread; 0: as many as the machine has
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls task(0) .. task(count - 1), each once, and returns when all are done; the first exception
  // is thrown on. May be called from several threads at once; a call from inside a task runs
  // inline.
  void parallel_for(Index count, const std::function<void(Index)>& task);

  // Calls caller(0) .. caller(count - 1), each on a thread of its own, and joins the loops that
  // they run here: the n-th loops of all of them are one, task by task, so that what task i of each
  // reads is read while it is in the cache. Every task is what it would be alone. The first
  // exception is thrown on when all have ended; from inside a task they are called one after the
  // other.
  void together(Index count, const std::function<void(Index)>& caller);

  // Whether loops of this thread are joined with others' now.
  static bool joins_loops();

 private:
  struct Loop;
  class Caller;
  class Company;

 public:
  // While it lives loops of this thread are its own: of what one caller does for all, for which the
  // others wait and bring no loops to join.
  class Apart {
   public:
    Apart();
    ~Apart();
    Apart(const Apart&) = delete;
    Apart& operator=(const Apart&) = delete;

   private:
    Company* company_;
  };

 private:
  void run_loop(Index count, const std::function<void(Index)>& task);
  void work();
  void end_workers();
  static void run(Loop& loop);

  int threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Loop>> loops_;
  bool stopping_ = false;
  std::atomic<std::uint64_t> posted_{
      0};  // loops so far: what an idle thread watches for a moment before it sleeps
  ScratchBlocks* spare_ = nullptr;  // of callers: as many as ever called at once
  std::vector<std::thread> workers_;
};

// Throws InputError where the system does not give us one: the library never aborts for that.
std::thread start_thread(std::function<void()> work);

// How many CPUs this process may use.
int available_threads();

}  // namespace unpack::base
