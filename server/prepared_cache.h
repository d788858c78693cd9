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

// What a prepared prompt takes at most: writers, denominators, patterns and an edge table within
// `edge_budget`.
std::size_t prepared_bytes(const ModelConfig& config, std::size_t length, std::size_t edge_budget);

class PreparedCache {
 public:
  explicit PreparedCache(std::size_t bytes) : limit_(bytes) {}

  // The kept one, or what `make` returns; a prompt larger than the whole bound is made and not
  // kept.
  Prepared get(const std::string& model, const std::vector<TokenId>& ids, std::size_t bytes,
               const std::function<Prepared()>& make);
  std::size_t bytes() const;
  std::size_t count() const;

 private:
  struct Entry {
    std::string model;
    std::vector<TokenId> ids;
    std::size_t bytes;
    Prepared prepared;
  };
  const std::size_t limit_;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;  // the latest used first
  std::size_t bytes_ = 0;
};

}  // namespace unpack::server
