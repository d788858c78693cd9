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

// The tokens of the prompt that a question about documents makes.
std::vector<TokenId> sources_tokens(const Model& model, const SourcesOptions& options);

}  // namespace unpack
