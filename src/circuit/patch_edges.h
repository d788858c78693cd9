// Passes in which one edge alone is replaced and every other one kept, many of them side by side.
#pragma once

#include <span>
#include <vector>

#include "base/index.h"
#include "circuit/ablation.h"

namespace unpack::circuit {

class EdgePatcher {
 public:
  // What a batch can take: one edge stands for all positions, and no reader chooses experts.
  static bool fits(const Model& model, const EdgeTable& table);
  // shared_beginning: where a prompt begins as its counterfactual does, nothing is replaced there.
  EdgePatcher(const Model& model, const EdgeTable& table, const std::vector<TaskPrompt>& prompts,
              const PromptChunk& chunk, const std::vector<backend::Array>& replaced,
              bool shared_beginning, const RunContext& context);

  // Groups of edges (indices in `edges`) that go through the layers together: those of one
  // sublayer.
  std::vector<std::vector<std::size_t>> groups(const std::vector<std::size_t>& edges) const;
  // The difference of the logits with each edge replaced: [edge][prompt of the chunk], flat.
  std::vector<double> run(std::span<const std::size_t> edges, const RunContext& context) const;

 private:
  class Copies;
  struct Rows {                 // of one prompt that can differ from the plain pass
    Index from = 0, count = 0;  // in the chunk
    int past = 0;               // positions before them
  };

  const Model& model_;
  const EdgeTable& table_;
  const std::vector<TaskPrompt>& prompts_;
  const PromptChunk& chunk_;
  forward::ForwardPass pass_;
  std::vector<backend::Array> change_;  // [C] of [T, D]: what is replaced less what was written
  std::vector<Rows> rows_;              // [prompts of the chunk]
  Index count_ = 0;                     // of all of them
  int context_ = 0;
};

}  // namespace unpack::circuit
