// What components write, replaced or scaled on its way into the stream: true ablation, where a cut
// only hides a component from its readers.
#pragma once

#include <vector>

#include "base/index.h"
#include "intervene/variants.h"

namespace unpack::interventions {

class OutputChanges {
 public:
  OutputChanges(const CleanRun& clean, const CleanRun* other) : clean_(clean), other_(other) {}

  // `row`: where the variant begins in the batch of the changed pass.
  void add(const OutputChange& change, std::size_t prompt, Index row);
  bool any() const { return !changes_.empty(); }
  bool change_embeddings() const;  // emb or pos: the pass begins at the embeddings

  // `values`: emb, pos or mlp_out [T, D], or z [T, H, E] of all heads of the layer.
  void apply(WriterKind kind, int layer, backend::Array& values) const;

 private:
  struct Placed {
    OutputChange change;
    std::size_t prompt = 0;
    Index row = 0;
  };
  // What a writer's part of a row is replaced by, one vector for every position of the prompt.
  std::vector<std::vector<double>> replacement(const Placed& placed) const;

  const CleanRun& clean_;
  const CleanRun* other_;
  std::vector<Placed> changes_;
};

}  // namespace unpack::interventions
