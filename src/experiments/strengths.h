// How strongly each writer of a prompt is read: the scores that knockouts are held against.
#pragma once

#include "experiments/records.h"
#include "unpack/prepared.h"
#include "unpack/run_context.h"

namespace unpack::experiments {

// Names of what `strengths` gives, each an array over writers.
constexpr const char* kStrengths[] = {"attention", "attention_signed", "attention_values",
                                      "mlp",       "mlp_signed",       "size"};

// Interaction scores of every writer in one prompt, summed over readers and queries. "signed": the
// size of a mean score in place of a score's size or spread, the mean over sources for a head, over
// queries (times their number) for an MLP. To see what a cut removes besides keys: "values", the
// size of the value scores, and "size", the length of what is written.
Json strengths(const Prepared& prepared, const RunContext& context);

}  // namespace unpack::experiments
