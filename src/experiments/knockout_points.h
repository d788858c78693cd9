// Scores of writers beside what their cuts change, of all sentences or of a draw of them, and the
// rank correlations between the two.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "experiments/records.h"
#include "unpack/intervene.h"
#include "unpack/writers.h"

namespace unpack::experiments {

struct KnockoutPoint {
  int writer = 0, layer = 0;
  bool head = false, five = false;  // five: among the few writers a layer that the paper cuts
  double score = 0, score_signed = 0, score_values = 0, size = 0;
  double change = 0;                  // in perplexity
  double score_a = 0, score_b = 0;    // on every second scored sentence
  double change_a = 0, change_b = 0;  // on every second held-out one
};

// What was measured, sentence by sentence.
struct KnockoutData {
  using Strengths = std::map<std::string, std::vector<double>>;  // name -> [C]
  std::vector<Strengths> scored;
  std::vector<double> tokens;  // predicted ones of every held-out sentence
  std::vector<double> clean;   // summed loss of every held-out sentence
  std::vector<Cut> cuts;
  std::vector<std::vector<double>> losses;  // [cuts][held-out]

  // Of a channel's cuts; draws are indices of sentences.
  std::vector<KnockoutPoint> points(const Writers& writers, Channel channel,
                                    const std::vector<std::size_t>& scored_draw,
                                    const std::vector<std::size_t>& held_draw) const;
};

// Every correlation of a channel: {"spearman": {"within", "cross", "layers", "within_interval",
// "cross_interval"}, ...}. Intervals are 95% bootstrap ones over scored and held-out sentences.
Json knockout_correlations(const KnockoutData& data, const Writers& writers, Channel channel,
                           const std::vector<int>& five, std::uint64_t seed);

}  // namespace unpack::experiments
