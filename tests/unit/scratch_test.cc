#include "base/scratch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <vector>

#include "base/thread_pool.h"

namespace unpack {
namespace {

TEST(Scratch, ScopesWithinScopesShareNothing) {
  base::ScratchBlocks blocks;
  const base::UseScratch use(blocks);
  // More scopes than a thread keeps blocks for: the last ones have memory of their own.
  base::Scratch scopes[10];
  std::vector<int*> pieces;
  for (int i = 0; i < 10; ++i) {
    pieces.push_back(scopes[i].of<int>(100));
    for (int j = 0; j < 100; ++j) pieces.back()[j] = 100 * i + j;
  }
  for (int i = 0; i < 10; ++i) {
    for (int j = 0; j < 100; ++j) ASSERT_EQ(pieces[i][j], 100 * i + j);
  }
}

TEST(Scratch, ATaskGetsTheMemoryOfTheOneBefore) {
  base::ScratchBlocks blocks;
  const base::UseScratch use(blocks);
  const auto first = [](std::int64_t count) {
    base::Scratch scratch;
    return scratch.of<double>(count);
  };
  const double* large = first(1000);
  EXPECT_EQ(first(1000), large);
  EXPECT_EQ(first(10), large);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large) % 64, 0U);
}

TEST(Scratch, AnExceptionGivesItBack) {
  base::ScratchBlocks blocks;
  const base::UseScratch use(blocks);
  const float* before = nullptr;
  try {
    base::Scratch scratch;
    before = scratch.of<float>(16);
    throw std::runtime_error("a task that fails");
  } catch (const std::runtime_error&) {
    base::Scratch scratch;
    EXPECT_EQ(scratch.of<float>(16), before);
  }
}

TEST(Scratch, OutsideOfAPoolItIsMemoryLikeAnyOther) {
  base::Scratch scratch;
  int* piece = scratch.of<int>(5);
  for (int i = 0; i < 5; ++i) piece[i] = i;
  EXPECT_EQ(piece[4], 4);
}

TEST(Scratch, TasksAtTheSameTimeNeverShareIt) {
  // Several callers of one pool, whose tasks write their own number and find it again.
  base::ThreadPool pool(3);
  std::atomic<int> wrong = 0;
  const auto call = [&] {
    for (int round = 0; round < 50; ++round) {
      pool.parallel_for(20, [&](std::int64_t task) {
        base::Scratch scratch;
        auto* mine = scratch.of<std::int64_t>(64 + task);
        for (std::int64_t i = 0; i < 64 + task; ++i) mine[i] = task;
        // A loop within a task runs in the same thread.
        pool.parallel_for(2, [&](std::int64_t) {
          base::Scratch inner;
          *inner.of<std::int64_t>(1) = -1;
        });
        for (std::int64_t i = 0; i < 64 + task; ++i) wrong += mine[i] != task;
      });
    }
  };
  std::thread first = base::start_thread(call), second = base::start_thread(call);
  call();
  first.join();
  second.join();
  EXPECT_EQ(wrong, 0);
}

TEST(Scratch, ThePoolKeepsTheMemoryOfItsCallers) {
  base::ThreadPool pool(1);
  std::set<const int*> seen;
  for (int i = 0; i < 5; ++i) {
    pool.parallel_for(1, [&](std::int64_t) {
      base::Scratch scratch;
      seen.insert(scratch.of<int>(1000));
    });
  }
  EXPECT_EQ(seen.size(), 1U);
}

}  // namespace
}  // namespace unpack
