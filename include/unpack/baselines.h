// Other attribution methods on the same forward pass, for comparison.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "unpack/prepared.h"

namespace unpack {

enum class Method { unpack, ifr, attnlrp, cplrp };
const char* to_string(Method method);
inline constexpr std::array kCreditMethods = {Method::unpack, Method::ifr, Method::attnlrp,
                                              Method::cplrp};
Method parse_method(const std::string& name);  // throws UsageError

// Token scores of a baseline; `position` holds the part of the position embedding (LRP on models
// that have one), else nothing.
struct BaselineScores {
  std::vector<double> token;     // [S]
  std::vector<double> position;  // [S] or empty
};
BaselineScores ifr_scores(const Prepared& prepared, int position);
BaselineScores lrp_scores(const Prepared& prepared, const TargetInfo& target,
                          bool attention_constant);  // true: CP-LRP, false: AttnLRP

// The answer in the shape of a trace: tokens, target, predictions, token_credit, token_percent;
// `method` is set.
TraceResult baseline(const Prepared& prepared, const Target& target, Method method,
                     const RunContext& context = {});

// Gradients of the logit difference (no raw target) by the embeddings, times the embeddings: at the
// prompt as it is (steps 1), or the mean over that many points on the way to it from embeddings of
// zero from position `first` on (integrated gradients, midpoint rule). Throws InputError for models
// without known gradients.
std::vector<double> gradient_scores(const Model& model, std::span<const TokenId> ids,
                                    const Target& target, int first, int steps,
                                    const RunContext& context = {});
bool gradients_known(const ModelConfig& config);

// A seeded random score per token.
std::vector<double> random_scores(int length, std::uint64_t seed);

}  // namespace unpack
