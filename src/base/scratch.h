// Memory that a task needs while it runs, kept by its thread for the next task.
#pragma once

#include <cstddef>
#include <memory>

#include "base/index.h"

namespace unpack::base {

// What one thread keeps. A pool owns it, and lends it to whoever works on its loops: a thread_local
// with a destructor would end the process where the system has no memory left to note it.
class ScratchBlocks {
 public:
  ScratchBlocks* next = nullptr;  // in a pool's list of those that nobody uses

 private:
  friend class Scratch;
  struct Free {
    void operator()(std::byte* data) const;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> data;
    std::size_t size = 0;
  };
  static constexpr int kBlocks = 6;  // scopes within scopes
  Block blocks_[kBlocks];
  int used_ = 0;
};

// While it lives, Scratch of this thread takes from `blocks`.
class UseScratch {
 public:
  explicit UseScratch(ScratchBlocks& blocks);
  ~UseScratch();
  UseScratch(const UseScratch&) = delete;
  UseScratch& operator=(const UseScratch&) = delete;

 private:
  ScratchBlocks* outer_;
};

// One piece of it, for a scope. Outside of a pool's tasks it is allocated and freed like any other.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` values, not initialised; what an earlier call of the same scope gave is gone.
  template <typename T>
  T* of(Index count) {
    return static_cast<T*>(bytes(count * sizeof(T)));
  }

 private:
  void* bytes(std::size_t size);

  ScratchBlocks* from_;
  ScratchBlocks::Block own_;
  ScratchBlocks::Block* block_;
};

}  // namespace unpack::base
