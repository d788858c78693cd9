#include "backend/host/host_memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "base/system.h"
#include "unpack/error.h"

namespace unpack::backend {

std::shared_ptr<void> aligned_block(std::size_t bytes) {
  constexpr std::size_t kAlign = 64;
  const std::size_t padded = (std::max<std::size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  const bool mapped = padded >= kMapped;
  void* p = mapped ? base::map_memory(padded) : std::aligned_alloc(kAlign, padded);
  if (!p) {
    // So little is lacking to the machine, not because of the prompt.
    constexpr std::size_t kLittle = std::size_t{16} << 20;
    if (bytes < kLittle) throw std::bad_alloc();
    throw InputError("not enough memory for " + std::to_string(bytes >> 20) +
                     " MiB; use a shorter prompt or a smaller model");
  }
  if (mapped) return {p, [padded](void* q) { base::unmap_memory(q, padded); }};
  return {p, [](void* q) { std::free(q); }};
}

std::shared_ptr<void> PassingMemory::take(const std::shared_ptr<PassingMemory>& from,
                                          std::size_t bytes, std::size_t most) {
  std::list<Block> one;
  {
    const std::lock_guard lock(from->mutex_);
    auto best = from->blocks_.end();
    for (auto it = from->blocks_.begin(); it != from->blocks_.end(); ++it) {
      if (it->bytes >= bytes && (best == from->blocks_.end() || it->bytes < best->bytes)) best = it;
    }
    if (best != from->blocks_.end()) one.splice(one.begin(), from->blocks_, best);
  }
  if (one.empty()) {
    from->clear();  // what is too small now is so for the layers to come
    one.push_back({aligned_block(most), most});
  }
  void* place = one.front().data.get();
  return {place, [from, kept = std::move(one)](void*) mutable { from->put(kept); }};
}

void PassingMemory::clear() {
  std::list<Block> gone;
  const std::lock_guard lock(mutex_);
  gone.swap(blocks_);
}

void PassingMemory::put(std::list<Block>& one) {
  constexpr std::size_t kBlocks = 3;
  // What is larger, of very long prompts, would stand beside all else that a layer makes.
  constexpr std::size_t kLargest = std::size_t{192} << 20;
  const std::lock_guard lock(mutex_);
  if (blocks_.size() < kBlocks && one.front().bytes <= kLargest) blocks_.splice(blocks_.end(), one);
}

}  // namespace unpack::backend
