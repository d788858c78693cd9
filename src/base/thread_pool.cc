#include "base/thread_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <system_error>
#include <utility>

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
  const std::function<void(std::int64_t)>* task = nullptr;
  std::int64_t count = 0;
  std::atomic<std::int64_t> next{0};
  std::atomic<std::int64_t> done{0};
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
    const std::int64_t i = loop.next.fetch_add(1);
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

void ThreadPool::parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task) {
  if (count <= 0) return;
  if (inside_task) {
    for (std::int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  const Caller caller(*this);
  if (threads_ == 1 || count == 1) {
    inside_task = true;
    try {
      for (std::int64_t i = 0; i < count; ++i) task(i);
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
