// How a long call runs under Python: the work on a thread of its own without the interpreter lock,
// while the calling thread listens for signals and hands progress to Python. Ctrl-C therefore stops
// the work wherever it looks at its stop token, and Python code never runs inside the engine.
#pragma once

#include <pybind11/pybind11.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "unpack/run_context.h"

namespace unpack::python {

namespace py = pybind11;

// Where the working thread leaves its news for the calling thread; the newest progress replaces
// what was not read yet.
class Desk {
 public:
  void post(const Progress& progress) {
    const std::lock_guard lock(mutex_);
    what_ = progress.what;
    done_ = progress.done;
    total_ = progress.total;
    news_ = true;
    changed_.notify_one();
  }
  void finish() {
    const std::lock_guard lock(mutex_);
    finished_ = true;
    changed_.notify_one();
  }

  // Returns when the work has ended; rethrows what a signal handler or the progress callback
  // raised, after the work was stopped for it.
  void attend(const py::object& on_progress, std::stop_source& stop) {
    constexpr auto kListenEvery = std::chrono::milliseconds(50);
    std::exception_ptr raised;
    for (;;) {
      std::optional<std::string> what;
      double done = 0, total = 0;
      bool finished = false;
      {
        const py::gil_scoped_release release;
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, kListenEvery, [this] { return news_ || finished_; });
        if (std::exchange(news_, false)) what = what_;
        done = done_;
        total = total_;
        finished = finished_;
      }
      if (!raised) {
        try {
          if (PyErr_CheckSignals() != 0) throw py::error_already_set();
          if (what) on_progress(*what, done, total);
        } catch (const py::error_already_set&) {
          raised = std::current_exception();
          stop.request_stop();
        }
      }
      if (finished) break;
    }
    if (raised) std::rethrow_exception(raised);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string what_;
  double done_ = 0, total_ = 0;
  bool news_ = false, finished_ = false;
};

// The calls that run now. When the interpreter ends, they are stopped and waited for: a thread that
// comes back to an interpreter that is gone would end the process.
class Running {
 public:
  explicit Running(std::stop_source& stop) : stop_(&stop) {
    const std::lock_guard lock(mutex());
    if (closing()) throw Cancelled();
    all().insert(stop_);
  }
  ~Running() {
    const std::lock_guard lock(mutex());
    all().erase(stop_);
    changed().notify_all();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  static void close_down() {
    constexpr auto kLongest = std::chrono::seconds(30);
    std::unique_lock lock(mutex());
    closing() = true;
    for (std::stop_source* stop : all()) stop->request_stop();
    changed().wait_for(lock, kLongest, [] { return all().empty(); });
  }

 private:
  static std::mutex& mutex() {
    static std::mutex it;
    return it;
  }
  static std::condition_variable& changed() {
    static std::condition_variable it;
    return it;
  }
  static std::set<std::stop_source*>& all() {
    static std::set<std::stop_source*> it;
    return it;
  }
  static bool& closing() {
    static bool it = false;
    return it;
  }
  std::stop_source* stop_;
};

inline void close_down() { Running::close_down(); }

// work(const RunContext&) -> value; on_progress(what, done, total) or None.
template <class Work>
auto interruptible(const py::object& on_progress, const Work& work) {
  using Result = decltype(work(std::declval<const RunContext&>()));
  std::optional<Result> result;
  std::exception_ptr failure;
  std::stop_source stop;
  const Running running(stop);
  Desk desk;
  RunContext context;
  context.stop = stop.get_token();
  if (!on_progress.is_none())
    context.progress = [&desk](const Progress& progress) { desk.post(progress); };
  std::thread worker([&] {
    try {
      result.emplace(work(std::as_const(context)));
    } catch (...) {
      failure = std::current_exception();
    }
    desk.finish();
  });
  const auto join = [&worker] {
    const py::gil_scoped_release release;
    worker.join();
  };
  try {
    desk.attend(on_progress, stop);
  } catch (...) {
    join();
    throw;
  }
  join();
  if (failure) std::rethrow_exception(failure);
  return std::move(*result);
}

}  // namespace unpack::python
