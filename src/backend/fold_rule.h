// How the scores of keys and queries are made: the one rule that all devices and plans follow.
#pragma once

#include <cstdint>

#include "unpack/config.h"

namespace unpack::backend {

// Multiplications that make the scores of a layer's keys and queries together: a vector in D per
// pair, times every writer; or the writers' own keys and queries, and a short product per pair.
struct ScoreWork {
  double pairs = 0;        // of a score: a head, a query, a source and a writer
  double vectors = 0;      // multiplications that make the vectors
  double projections = 0;  // those that make the keys and queries
};
inline double folded_work(const ModelConfig& c, const ScoreWork& work) {
  return work.vectors + 2 * work.pairs * c.d_model;
}
inline double projected_work(const ModelConfig& c, const ScoreWork& work) {
  return work.projections + 2 * work.pairs * c.d_head;
}
inline bool fold_is_cheaper(const ModelConfig& c, const ScoreWork& work) {
  return folded_work(c, work) <= projected_work(c, work);
}

// By writer, where the vectors take little and every writer is projected with the whole matrix.
// `gain`: how many times faster projections run than the rest.
inline bool fold_is_cheaper(const ModelConfig& c, int length, double gain = 1.0) {
  const double s = length;
  return fold_is_cheaper(
      c, {.pairs = s * (s + 1) / 2 * c.n_heads,
          .projections = s * c.d_model * (c.n_heads + c.n_kv_heads) * c.d_head / gain});
}

}  // namespace unpack::backend
