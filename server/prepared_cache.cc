#include "prepared_cache.h"

#include <algorithm>

namespace unpack::server {

std::size_t prepared_bytes(const ModelConfig& config, std::size_t length, std::size_t edge_budget) {
  const auto s = length, l = static_cast<std::size_t>(config.n_layers),
             h = static_cast<std::size_t>(config.n_heads);
  const auto d = static_cast<std::size_t>(config.d_model),
             n = static_cast<std::size_t>(config.most_entries());
  const std::size_t writers = 2 + l * (h + 1);
  const std::size_t vectors = sizeof(float) * writers * s * d;
  // Per (head, query, source): the pattern and two sums for K and Q; per (head, source) two for V;
  // per (neuron, query) two for each branch.
  const std::size_t sums =
      sizeof(double) * (l * h * s * s * 5 + l * h * s * 2 + l * n * s * (config.gated() ? 6 : 3));
  const std::size_t edges = sizeof(float) * l * (h + 1) * (writers / 2) * (s * s + s);
  return vectors + sums + std::min(edges, edge_budget);
}

Prepared PreparedCache::get(const std::string& model, const std::vector<TokenId>& ids,
                            std::size_t bytes, const std::function<Prepared()>& make) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      return entry.model == model && entry.ids == ids;
    });
    if (found != entries_.end()) {
      entries_.splice(entries_.begin(), entries_, found);
      return found->prepared;
    }
  }
  Prepared prepared = make();  // without the lock: other models go on
  const std::lock_guard lock(mutex_);
  if (bytes > limit_) return prepared;
  entries_.push_front({model, ids, bytes, prepared});
  bytes_ += bytes;
  while (bytes_ > limit_) {
    bytes_ -= entries_.back().bytes;
    entries_.pop_back();
  }
  return prepared;
}

std::size_t PreparedCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::size_t PreparedCache::count() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace unpack::server
