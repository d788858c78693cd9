// How well a method's credit tells the program's edges and tokens from the rest.
#pragma once

#include <string>
#include <vector>

#include "experiments/compiled/program.h"

namespace unpack::experiments::compiled {

// Chance that a positive ranks above a negative, ties counted half; 1 where either is empty.
double auroc(const std::vector<double>& positive, const std::vector<double>& negative);
// Mean precision at each positive, ties counted against them; 1 without positives.
double average_precision(const std::vector<double>& positive, const std::vector<double>& negative);

struct Measures {
  double auroc = 0, auprc = 0;
  double smallest = 0;  // credit on the weakest true edge
  double largest_false = 0;
  double decoy = 0;  // the decoy's credit over that of the strongest true edge of its reader
  double dead = 0;   // most credit on an edge out of a dead writer
  double token_auroc = 0, token_auprc = 0, token_smallest = 0;  // NaN: says nothing about tokens
};

// `edges` holds sizes in the order of Program::edges(), the mean over prompts.
Measures measure_edges(const Program& program, const std::vector<double>& edges);
// Adds those of tokens, over prompts; `tokens` [prompt][S].
void measure_tokens(const Program& program, const std::vector<std::vector<double>>& tokens,
                    Measures& measures);

}  // namespace unpack::experiments::compiled
