// What the CUDA plugin does with threads, of which a GPU knows nothing.
#include "backend/cuda/fill_in_parts.h"

#include <gtest/gtest.h>

#include <atomic>
#include <system_error>
#include <vector>

namespace unpack {
namespace {

constexpr std::size_t kBytes = (std::size_t{5} << 20) + 77;

TEST(FillInParts, EveryByteIsFilledOnceByTheThreadsThereAre) {
  for (const std::size_t fillers : {0, 1, 3, 8, 100}) {
    std::vector<unsigned char> bytes(kBytes);
    std::atomic<int> calls = 0;
    backend::cuda::fill_in_parts(
        kBytes, fillers,
        [&](std::size_t offset, std::size_t n) {
          for (std::size_t i = 0; i < n; ++i) ++bytes[offset + i];
          ++calls;
        },
        [](const auto& part, std::size_t i) { return std::thread(part, i); });
    EXPECT_EQ(bytes, std::vector<unsigned char>(kBytes, 1)) << fillers;
    EXPECT_EQ(calls, fillers < 2 ? 1 : fillers == 3 ? 3 : 5) << "parts of a MiB at least";
  }
}

// It is called through a table of C functions, which no exception may leave.
TEST(FillInParts, AThreadThatCannotBeStartedIsNoError) {
  for (int started = 0; started < 4; ++started) {
    std::vector<unsigned char> bytes(kBytes);
    int left = started;
    backend::cuda::fill_in_parts(
        kBytes, 5,
        [&](std::size_t offset, std::size_t n) {
          for (std::size_t i = 0; i < n; ++i) ++bytes[offset + i];
        },
        [&](const auto& part, std::size_t i) {
          if (left-- == 0)
            throw std::system_error(
                std::make_error_code(std::errc::resource_unavailable_try_again));
          return std::thread(part, i);
        });
    EXPECT_EQ(bytes, std::vector<unsigned char>(kBytes, 1)) << "after " << started;
  }
}

TEST(FillInParts, ALittleIsNotWorthAThread) {
  int calls = 0;
  backend::cuda::fill_in_parts(1000, [&](std::size_t offset, std::size_t n) {
    EXPECT_EQ(offset, 0U);
    EXPECT_EQ(n, 1000U);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace unpack
