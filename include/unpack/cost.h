// What a question will cost, said before it is asked.
#pragma once

#include <span>
#include <string>

#include "unpack/sources.h"

namespace unpack {

// The speed that a short part of the prompt is prepared at here, in GFLOP/s.
double measured_gflops(const Model& model, std::span<const TokenId> prompt,
                       const RunContext& context = {});
// "1200 tokens, 1 target: 512 GFLOP, 1.2 GiB of memory beside the weights, about 34 s"; without a
// speed the time is left out.
std::string cost_text(const QuestionCost& cost, int tokens, int rows);

// Throws InputError where a question about so many tokens needs more memory than is free: it would
// end in the middle, and take other programs with it.
void check_memory(const Model& model, int tokens, int rows = 1);

// The whole of a question about a prompt: one target, or an answer of so many tokens against
// another.
struct AskedCost {
  int tokens = 0;   // that are prepared
  int targets = 0;  // that are explained
  QuestionCost cost;
};
// At the speed that is measured here.
AskedCost asked_cost(const Model& model, std::span<const TokenId> prompt, std::size_t answer,
                     std::size_t other, const RunContext& context = {});
std::string to_json(const AskedCost& cost);

// The tokens of the prompt that a question about documents makes.
std::vector<TokenId> sources_tokens(const Model& model, const SourcesOptions& options);

}  // namespace unpack
