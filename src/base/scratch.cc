#include "base/scratch.h"

#include <new>

namespace unpack::base {

namespace {

constexpr std::align_val_t kLine{64};  // of a cache

thread_local ScratchBlocks* lent = nullptr;

}  // namespace

void ScratchBlocks::Free::operator()(std::byte* data) const { ::operator delete(data, kLine); }

UseScratch::UseScratch(ScratchBlocks& blocks) : outer_(lent) { lent = &blocks; }
UseScratch::~UseScratch() { lent = outer_; }

Scratch::Scratch() : from_(lent), block_(&own_) {
  if (from_ != nullptr && from_->used_ < ScratchBlocks::kBlocks)
    block_ = &from_->blocks_[from_->used_++];
}

Scratch::~Scratch() {
  if (block_ != &own_) --from_->used_;
}

void* Scratch::bytes(std::size_t size) {
  if (size > block_->size) {
    block_->size = 0;
    block_->data.reset();  // first: both at once would be twice the memory
    block_->data.reset(static_cast<std::byte*>(::operator new(size, kLine)));
    block_->size = size;
  }
  return block_->data.get();
}

}  // namespace unpack::base
