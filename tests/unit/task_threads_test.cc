#include "../../server/task_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>

namespace unpack::server {
namespace {

TEST(TaskThreads, ATaskThatThrowsIsCalledAgainAndKnowsIt) {
  std::atomic<int> first = 0, again = 0, next = 0;
  {
    TaskThreads threads(1);
    threads.add([&] {
      if (TaskThreads::again()) {
        ++again;
        return;
      }
      ++first;
      throw std::bad_alloc();
    });
    threads.add([&] { next += TaskThreads::again() ? 100 : 1; });
    threads.shutdown();
  }
  EXPECT_EQ(first, 1);
  EXPECT_EQ(again, 1);
  EXPECT_EQ(next, 1);
}

TEST(TaskThreads, EveryTaskOfALongLineIsDoneOnce) {
  constexpr int kTasks = 5000;  // more than may wait: whoever brings them waits in turn
  std::atomic<int> done = 0;
  TaskThreads threads(2);
  for (int i = 0; i < kTasks; ++i) {
    threads.add([&done, i] {
      if (i % 1000 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++done;
    });
  }
  threads.shutdown();
  EXPECT_EQ(done, kTasks);
}

}  // namespace
}  // namespace unpack::server
