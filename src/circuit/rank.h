// How much every edge matters by each method, over the prompts of a task.
#pragma once

#include "circuit/ablation.h"
#include "circuit/memory.h"

namespace unpack::circuit {

struct EdgeScores {
  std::vector<double> credit, absolute;  // [edges] means over prompts of the score and of its size
  double passes = 0;                     // forward passes; a backward pass counts as two
};

EdgeScores rank_ours(const Model& model, const EdgeTable& table, const Task& task,
                     const CircuitOptions& options, const RunContext& context,
                     CircuitMemory* memory = nullptr);
EdgeScores rank_ifr(const Model& model, const EdgeTable& table, const Task& task,
                    const RunContext& context, CircuitMemory* memory = nullptr);
// steps 1: the gradient at the prompt; more: its mean on the way from the counterfactual.
EdgeScores rank_gradients(const Model& model, const EdgeTable& table, const Task& task, int steps,
                          const RunContext& context, CircuitMemory* memory = nullptr);
EdgeScores rank_patching(const Model& model, const EdgeTable& table, const Task& task,
                         EdgeAblation ablation, const RunContext& context,
                         CircuitMemory* memory = nullptr);
EdgeScores rank_random(const EdgeTable& table, std::uint64_t seed);

// Adds one prompt's scores.
void add_scores(EdgeScores& scores, const std::vector<double>& of_prompt, double prompts);

}  // namespace unpack::circuit
