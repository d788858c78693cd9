#include "base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

#include "base/index.h"
#include "base/system.h"
#include "unpack/error.h"

namespace unpack::base {

namespace {

thread_local bool inside_task = false;

// Waking a sleeping thread takes longer than many of our loops, and the next loop is rarely far:
// wait awake for a moment first.
template <typename Ready>
bool spin_until(const Ready& ready) {
  constexpr auto kPatience = std::chrono::microseconds(60);
  constexpr int kChecks = 32;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  do {
    for (int i = 0; i < kChecks; ++i) {
      if (ready()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

int available_threads() { return allowed_processors(); }

std::thread start_thread(std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    throw InputError(
        fmt::format("cannot start a thread ({}): take fewer threads, or raise the limit "
                    "on processes or memory (ulimit -u, ulimit -v)",
                    error.code().message()));
  }
}

struct ThreadPool::Loop {
  const std::function<void(Index)>* task = nullptr;
  Index count = 0;
  std::atomic<Index> next{0};
  std::atomic<Index> done{0};
  std::mutex mutex;
  std::condition_variable finished;
  std::exception_ptr error;
};

ThreadPool::ThreadPool(int threads) : threads_(threads > 0 ? threads : available_threads()) {
  workers_.reserve(threads_);
  try {
    for (int i = 1; i < threads_; ++i) workers_.push_back(start_thread([this] { work(); }));
  } catch (...) {
    end_workers();  // a thread that is destroyed while it runs ends the process
    throw;
  }
}

ThreadPool::~ThreadPool() {
  end_workers();
  while (spare_ != nullptr) delete std::exchange(spare_, spare_->next);
}

// Whoever calls parallel_for works on the loop as well, with scratch memory of the pool.
class ThreadPool::Caller {
 public:
  explicit Caller(ThreadPool& pool) : pool_(pool), blocks_(take(pool)), use_(*blocks_) {}
  ~Caller() {
    std::lock_guard lock(pool_.mutex_);
    blocks_->next = pool_.spare_;
    pool_.spare_ = blocks_;
  }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

 private:
  static ScratchBlocks* take(ThreadPool& pool) {
    {
      std::lock_guard lock(pool.mutex_);
      if (pool.spare_ != nullptr) return std::exchange(pool.spare_, pool.spare_->next);
    }
    return new ScratchBlocks;
  }

  ThreadPool& pool_;
  ScratchBlocks* blocks_;
  UseScratch use_;
};

// Callers whose loops are joined. One that finds all others waiting runs what they wait for.
class ThreadPool::Company {
 public:
  Company(ThreadPool& pool, Index callers) : pool_(pool), active_(callers) {
    waiting_.reserve(callers);
    now_.reserve(callers);
  }

  // Of this thread from now on; returns what it was.
  static Company* set_own(Company* company) { return std::exchange(own_, company); }
  static bool joins() { return !inside_task && own_ != nullptr; }

  // The company of this thread, if it is one of `pool`.
  static Company* of(const ThreadPool& pool) {
    return inside_task || own_ == nullptr || &own_->pool_ != &pool ? nullptr : own_;
  }

  void call(Index index, const std::function<void(Index)>& caller) {
    own_ = this;
    loops_ = 0;
    try {
      caller(index);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
    own_ = nullptr;
    leave(1);
  }

  void leave(Index callers) {
    const std::lock_guard lock(mutex_);
    active_ -= callers;
    changed_.notify_all();
  }

  void run(Index count, const std::function<void(Index)>& task) {
    // Somebody may wait for a lock that another holds who waits here.
    constexpr auto kPatience = std::chrono::milliseconds(50);
    Wanted mine{&task, count, loops_++};
    std::unique_lock lock(mutex_);
    waiting_.push_back(&mine);
    bool late = false;
    while (!mine.done) {
      if (!running_ && (late || std::ssize(waiting_) == active_)) {
        lead(lock);
      } else {
        late = changed_.wait_for(lock, kPatience) == std::cv_status::timeout;
      }
    }
    if (mine.error) std::rethrow_exception(mine.error);
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  struct Wanted {
    const std::function<void(Index)>* task;
    Index count;
    std::uint64_t number;  // of its caller's loops
    bool done = false;
    std::exception_ptr error = nullptr;
  };

  // Runs the loops of those that are behind.
  void lead(std::unique_lock<std::mutex>& lock) {
    std::uint64_t first = waiting_.front()->number;
    for (const Wanted* w : waiting_) first = std::min(first, w->number);
    now_.clear();
    Index most = 0;
    for (Wanted* w : waiting_) {
      if (w->number != first) continue;
      now_.push_back(w);
      most = std::max(most, w->count);
    }
    std::erase_if(waiting_, [&](const Wanted* w) { return w->number == first; });
    running_ = true;
    lock.unlock();
    std::exception_ptr failed;
    try {
      run_all(most);
    } catch (...) {
      failed = std::current_exception();  // no memory to begin with
    }
    lock.lock();
    for (Wanted* w : now_) {
      w->done = true;
      if (!w->error) w->error = failed;
    }
    running_ = false;
    changed_.notify_all();
  }

  void run_all(Index most) {
    const auto one = [&](Wanted& w, Index i) {
      if (i >= w.count) return;
      try {
        (*w.task)(i);
      } catch (...) {
        const std::lock_guard guard(mutex_);
        if (!w.error) w.error = std::current_exception();
      }
    };
    // All callers' tasks of one index by one thread, unless another would go short.
    constexpr Index kEach = 4;
    const Index callers = now_.size();
    if (most >= kEach * pool_.threads()) {
      pool_.run_loop(most, [&](Index i) {
        for (Wanted* w : now_) one(*w, i);
      });
    } else {
      pool_.run_loop(most * callers, [&](Index i) { one(*now_[i % callers], i / callers); });
    }
  }

  static thread_local Company* own_;
  static thread_local std::uint64_t loops_;

  ThreadPool& pool_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Index active_;
  std::vector<Wanted*> waiting_, now_;
  bool running_ = false;  // what is in now_
  std::exception_ptr error_;
};

thread_local ThreadPool::Company* ThreadPool::Company::own_ = nullptr;
thread_local std::uint64_t ThreadPool::Company::loops_ = 0;

bool ThreadPool::joins_loops() { return Company::joins(); }

ThreadPool::Apart::Apart() : company_(Company::set_own(nullptr)) {}
ThreadPool::Apart::~Apart() { Company::set_own(company_); }

void ThreadPool::together(Index count, const std::function<void(Index)>& caller) {
  if (count <= 1 || inside_task || Company::of(*this) != nullptr) {
    for (Index i = 0; i < count; ++i) caller(i);
    return;
  }
  Company company(*this, count);
  std::vector<std::thread> threads;
  threads.reserve(count);
  Index started = 1;
  try {
    for (; started < count; ++started)
      threads.push_back(start_thread([&, i = started] { company.call(i, caller); }));
  } catch (...) {
    company.leave(count - started);  // no thread, or no memory for it: the rest waits for this one
  }
  company.call(0, caller);
  for (std::thread& thread : threads) thread.join();
  company.rethrow();
  for (; started < count; ++started) caller(started);
}

void ThreadPool::end_workers() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(Loop& loop) {
  const bool outer = inside_task;
  inside_task = true;
  for (;;) {
    const Index i = loop.next.fetch_add(1);
    if (i >= loop.count) break;
    try {
      (*loop.task)(i);
    } catch (...) {
      std::lock_guard lock(loop.mutex);
      if (!loop.error) loop.error = std::current_exception();
    }
    if (loop.done.fetch_add(1) + 1 == loop.count) {
      std::lock_guard lock(loop.mutex);
      loop.finished.notify_all();
    }
  }
  inside_task = outer;
}

void ThreadPool::work() {
  ScratchBlocks blocks;
  const UseScratch use(blocks);
  std::uint64_t seen = 0;
  for (;;) {
    std::shared_ptr<Loop> loop;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !loops_.empty(); });
      if (stopping_) return;
      loop = loops_.back();
      if (loop->next.load() >= loop->count) {
        loops_.pop_back();
        continue;
      }
      seen = posted_.load();
    }
    run(*loop);
    spin_until([&] { return posted_.load(std::memory_order_relaxed) != seen; });
  }
}

void ThreadPool::parallel_for(Index count, const std::function<void(Index)>& task) {
  if (count <= 0) return;
  if (inside_task) {
    for (Index i = 0; i < count; ++i) task(i);
    return;
  }
  Company* company = count > 1 ? Company::of(*this) : nullptr;
  if (company != nullptr) {
    company->run(count, task);
  } else {
    run_loop(count, task);
  }
}

void ThreadPool::run_loop(Index count, const std::function<void(Index)>& task) {
  const Caller caller(*this);
  if (threads_ == 1 || count == 1) {
    inside_task = true;
    try {
      for (Index i = 0; i < count; ++i) task(i);
    } catch (...) {
      inside_task = false;
      throw;
    }
    inside_task = false;
    return;
  }
  const auto loop = std::make_shared<Loop>();
  loop->task = &task;
  loop->count = count;
  {
    std::lock_guard lock(mutex_);
    loops_.push_back(loop);
    ++posted_;
  }
  wake_.notify_all();
  run(*loop);
  const auto finished = [&] { return loop->done.load() == loop->count; };
  if (!spin_until(finished)) {
    std::unique_lock lock(loop->mutex);
    loop->finished.wait(lock, finished);
  }
  {
    std::lock_guard lock(mutex_);
    std::erase(loops_, loop);
  }
  if (loop->error) std::rethrow_exception(loop->error);
}

}  // namespace unpack::base
