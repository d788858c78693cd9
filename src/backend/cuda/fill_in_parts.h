// Memory filled by several threads: one does not fill the way to the device, nor new memory from
// it. Plain C++, so that tests need no GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <thread>

namespace unpack::backend::cuda {

inline constexpr std::size_t kMostFillers = 12;

// Calls fill(offset, n) for parts that are all of [0, bytes) together, at most `fillers` at a time.
// What no thread can be started for, the caller does itself: nothing is thrown but what `fill`
// throws in the caller's own parts. `start` makes a thread of a function and its argument.
template <typename Fill, typename Start>
void fill_in_parts(std::size_t bytes, std::size_t fillers, const Fill& fill, const Start& start) {
  constexpr std::size_t kWorthIt = std::size_t{1} << 20;
  const std::size_t parts =
      std::max<std::size_t>(1, std::min({kMostFillers, fillers, bytes / kWorthIt}));
  const std::size_t part = bytes / parts;
  const auto fill_part = [=, &fill](std::size_t i) {
    fill(i * part, i + 1 == parts ? bytes - i * part : part);
  };
  std::thread helpers[kMostFillers];
  std::size_t alone = 0;  // the parts that no helper could be started for
  for (std::size_t i = 1; i < parts; ++i) {
    try {
      helpers[i] = start(fill_part, i);
    } catch (const std::exception&) {  // too many threads, or no memory for one
      alone = i;
      break;
    }
  }
  fill_part(0);
  for (std::size_t i = alone; i > 0 && i < parts; ++i) fill_part(i);
  for (std::thread& helper : helpers) {
    if (helper.joinable()) helper.join();
  }
}

template <typename Fill>
void fill_in_parts(std::size_t bytes, const Fill& fill) {
  fill_in_parts(bytes, std::thread::hardware_concurrency() * 3 / 4, fill,
                [](const auto& part, std::size_t i) { return std::thread(part, i); });
}

}  // namespace unpack::backend::cuda
