#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace unpack {
namespace {

class Together : public ::testing::TestWithParam<int> {};

TEST_P(Together, EveryTaskOfEveryCallersLoopsIsDoneOnce) {
  base::ThreadPool pool(GetParam());
  constexpr std::int64_t kCallers = 5, kLoops = 20;
  std::vector<std::vector<std::atomic<int>>> done(kCallers);
  for (auto& loops : done) loops = std::vector<std::atomic<int>>(kLoops * 40);
  std::atomic<int> called = 0;
  pool.together(kCallers, [&](std::int64_t caller) {
    ++called;
    // Some have fewer loops than others, and shorter ones.
    for (std::int64_t loop = 0; loop < kLoops - caller; ++loop)
      pool.parallel_for(1 + (loop * 7 + caller) % 40,
                        [&](std::int64_t i) { ++done[caller][loop * 40 + i]; });
  });
  EXPECT_EQ(called, kCallers);
  for (std::int64_t caller = 0; caller < kCallers; ++caller) {
    for (std::int64_t loop = 0; loop < kLoops; ++loop) {
      for (std::int64_t i = 0; i < 40; ++i) {
        const bool wanted = loop < kLoops - caller && i < 1 + (loop * 7 + caller) % 40;
        ASSERT_EQ(done[caller][loop * 40 + i], wanted ? 1 : 0);
      }
    }
  }
}

TEST_P(Together, AnExceptionEndsItsOwnCallerAlone) {
  base::ThreadPool pool(GetParam());
  std::vector<int> ended(4, 0);
  EXPECT_THROW(pool.together(4,
                             [&](std::int64_t caller) {
                               for (int loop = 0; loop < 3; ++loop) {
                                 pool.parallel_for(9, [&](std::int64_t i) {
                                   if (caller == 2 && loop == 1 && i == 4)
                                     throw std::runtime_error("a task");
                                 });
                               }
                               ended[caller] = 1;
                             }),
               std::runtime_error);
  EXPECT_EQ(ended, (std::vector<int>{1, 1, 0, 1}));
}

TEST_P(Together, ALockHeldOverALoopKeepsNobodyForEver) {
  base::ThreadPool pool(GetParam());
  std::mutex mutex;
  std::atomic<int> tasks = 0;
  pool.together(3, [&](std::int64_t) {
    const std::lock_guard lock(mutex);
    pool.parallel_for(4, [&](std::int64_t) { ++tasks; });
  });
  EXPECT_EQ(tasks, 12);
}

TEST_P(Together, WhatOneDoesForAllWaitsForNobody) {
  base::ThreadPool pool(GetParam());
  std::mutex mutex;
  int made = 0;
  std::atomic<int> tasks = 0;
  const auto begin = std::chrono::steady_clock::now();
  pool.together(3, [&](std::int64_t) {
    EXPECT_TRUE(base::ThreadPool::joins_loops());
    {
      const std::lock_guard lock(mutex);
      if (made == 0) {
        const base::ThreadPool::Apart apart;
        EXPECT_FALSE(base::ThreadPool::joins_loops());
        for (; made < 400; ++made) pool.parallel_for(2, [&](std::int64_t) { ++tasks; });
      }
    }
    EXPECT_TRUE(base::ThreadPool::joins_loops());
    pool.parallel_for(4, [&](std::int64_t) { ++tasks; });
  });
  // Joined, each of these loops would wait 50 ms for those who wait for the lock.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
  EXPECT_EQ(tasks, 2 * 400 + 3 * 4);
  EXPECT_FALSE(base::ThreadPool::joins_loops());
}

TEST_P(Together, FromInsideATaskCallersComeOneAfterTheOther) {
  base::ThreadPool pool(GetParam());
  std::atomic<int> tasks = 0;
  pool.parallel_for(2, [&](std::int64_t) {
    pool.together(3, [&](std::int64_t) { pool.parallel_for(4, [&](std::int64_t) { ++tasks; }); });
  });
  EXPECT_EQ(tasks, 24);
}

INSTANTIATE_TEST_SUITE_P(Threads, Together, ::testing::Values(1, 2, 5));

}  // namespace
}  // namespace unpack
