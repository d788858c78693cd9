// What tokens are ranked by: settings of ours, other methods, controls.
#pragma once

#include <string>
#include <vector>

#include "experiments/flip_prompts.h"

namespace unpack::experiments {

struct TokenRanking {
  std::string name;
  std::vector<double> scores;  // [S]
};

// The run's own settings, and the preset that stands beside them.
inline constexpr const char* kOwnSettings = "unpack";
inline constexpr const char* kBestSettings = "unpack, best";

using RankTokens = std::vector<TokenRanking> (*)(const ModelSession& session,
                                                 const FlipPrompt& prompt);
std::vector<TokenRanking> rank_by_methods(const ModelSession& session, const FlipPrompt& prompt);
// Over the floor of the denominators: 0 to 2 with the run's settings, three values with best's.
std::vector<TokenRanking> rank_by_betas(const ModelSession& session, const FlipPrompt& prompt);

// The target's readout of the experiment.
double read_target(const std::vector<double>& logits, TokenId id, FaithfulnessReadout readout);

// [S] of the last position: mean over heads, half of the stream kept at every layer, layer by
// layer.
std::vector<double> attention_rollout(const Prepared& prepared);

}  // namespace unpack::experiments
