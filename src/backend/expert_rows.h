// Rows of a batch sorted by the experts they use.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "backend/views.h"
#include "base/index.h"

namespace unpack::backend {

// Rows of a batch and the slots of theirs that one expert fills.
struct ExpertRows {
  int expert = 0;
  std::vector<Index> rows;  // index into the caller's list
  std::vector<int> slots;
};

// The experts that some rows use, each with those rows. `rows`: rows of the routing.
inline std::vector<ExpertRows> by_expert(const Routing& routing, std::span<const Index> rows) {
  std::map<int, ExpertRows> sorted;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    for (int slot = 0; slot < routing.chosen; ++slot) {
      const int expert = routing.expert[routing.slot(rows[i], slot)];
      ExpertRows& used = sorted[expert];
      used.expert = expert;
      used.rows.push_back(i);
      used.slots.push_back(slot);
    }
  }
  std::vector<ExpertRows> out;
  out.reserve(sorted.size());
  for (auto& [expert, used] : sorted) out.push_back(std::move(used));
  return out;
}

}  // namespace unpack::backend
