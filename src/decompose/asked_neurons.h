// Neurons that nobody but a target reads, those of the last layer: the sums behind their
// denominators are made at the positions that are asked for.
#pragma once

#include <array>
#include <list>
#include <mutex>

#include "backend/backend.h"

namespace unpack::decompose {

class AskedNeurons {
 public:
  // sum, abs [entries], l2 [Cl]; with scores: last [Cl, entries] of that position. The last
  // positions of a side are kept.
  backend::MlpSums at(backend::Backend& backend, const backend::MlpView& view,
                      backend::MlpSide side, int query, bool scores);
  std::size_t numbers();  // in all arrays that are kept

 private:
  struct Kept {
    int query;
    backend::MlpSums sums;
  };
  std::mutex mutex_;
  std::array<std::list<Kept>, 2> kept_;  // by side, latest first
};

}  // namespace unpack::decompose
