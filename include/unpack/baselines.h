// Other attribution methods on the same forward pass, for comparison.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "unpack/prepared.h"

namespace unpack {

enum class Method { unpack, ifr, attnlrp, cplrp };
const char* to_string(Method method);
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

// A seeded random score per token.
std::vector<double> random_scores(int length, std::uint64_t seed);

}  // namespace unpack
