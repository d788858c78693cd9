// Memory of the host backends.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>

namespace unpack::backend {

// From here on a block is mapped by itself, in large pages: of a heap's small ones, clearing takes
// a tenth of a long prompt's time and the faults as much again.
inline constexpr std::size_t kMapped = std::size_t{4} << 20;

// Throws where there is no room for it.
std::shared_ptr<void> aligned_block(std::size_t bytes);

// Blocks that somebody worked in and the next one may have, so that the system need not clear them
// again. Blocks that are lent may outlive it.
class PassingMemory {
 public:
  // The smallest that has so many bytes, or a new one of `most`: pages nobody touches take nothing.
  static std::shared_ptr<void> take(const std::shared_ptr<PassingMemory>& from, std::size_t bytes,
                                    std::size_t most);
  void clear();

 private:
  struct Block {
    std::shared_ptr<void> data;
    std::size_t bytes = 0;
  };
  // A list of one, which is hung into the others: where memory is given back, none is asked for.
  void put(std::list<Block>& one);

  std::mutex mutex_;
  std::list<Block> blocks_;
};

}  // namespace unpack::backend
