#include "prepared_cache.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>

namespace unpack::server {
namespace {

// The allocator would keep what was freed, and the bound on memory would not be one.
void give_back() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace

void PreparedCache::evict(std::list<Entry>& gone) {
  bytes_ = 0;
  for (auto at = entries_.begin(); at != entries_.end();) {
    const std::size_t bytes = at->prepared.bytes();
    const auto next = std::next(at);
    if (bytes_ + bytes > limit_) {
      gone.splice(gone.end(), entries_, at);
    } else {
      bytes_ += bytes;
    }
    at = next;
  }
}

Prepared PreparedCache::get(const std::string& model, const std::vector<TokenId>& ids,
                            const std::function<Prepared()>& make) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.model == model && entry.ids == ids;
    });
    if (found != entries_.end()) {
      ++hits_;
      entries_.splice(entries_.begin(), entries_, found);
      return found->prepared;
    }
    ++misses_;
  }
  Prepared prepared = make();  // without the lock: other models go on
  std::list<Entry> gone;
  {
    const std::lock_guard lock(mutex_);
    entries_.push_front({model, ids, prepared});
    evict(gone);
  }
  return prepared;
}

void PreparedCache::settle() {
  std::list<Entry> gone;
  {
    const std::lock_guard lock(mutex_);
    evict(gone);
  }
  if (gone.empty()) return;
  gone.clear();
  give_back();
}

std::size_t PreparedCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::size_t PreparedCache::count() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

std::size_t PreparedCache::hits() const {
  const std::lock_guard lock(mutex_);
  return hits_;
}

std::size_t PreparedCache::misses() const {
  const std::lock_guard lock(mutex_);
  return misses_;
}

}  // namespace unpack::server
