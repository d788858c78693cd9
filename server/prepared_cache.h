// Prepared prompts, the latest used kept while they fit a bound on memory.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "unpack/prepared.h"

namespace unpack::server {

class PreparedCache {
 public:
  explicit PreparedCache(std::size_t bytes) : limit_(bytes) {}

  // The kept one, or what `make` returns; a prompt larger than the whole bound is made and not
  // kept.
  Prepared get(const std::string& model, const std::vector<TokenId>& ids,
               const std::function<Prepared()>& make);
  // Questions leave something behind for the next one: to be called after each. Counts again and
  // lets go what no longer fits.
  void settle();
  std::size_t bytes() const;
  std::size_t count() const;
  std::size_t hits() const;
  std::size_t misses() const;

 private:
  struct Entry {
    std::string model;
    std::vector<TokenId> ids;
    Prepared prepared;
  };
  // Moves what does not fit to `gone`: freed without the lock.
  void evict(std::list<Entry>& gone);

  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the latest used first
  std::size_t bytes_ = 0, hits_ = 0, misses_ = 0;
};

}  // namespace unpack::server
