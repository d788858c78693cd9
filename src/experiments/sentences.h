// Sentences of the corpus in a seeded order.
#pragma once

#include "experiments/session.h"
#include "experiments/text_data.h"

namespace unpack::experiments {

struct CorpusSentence {
  int line = 0;
  std::vector<TokenId> ids;  // with the special tokens in front
  int prefix = 0;            // how many of these there are
};

// Every line of the corpus that has between `shortest` and `longest` tokens, shuffled.
std::vector<CorpusSentence> shuffled_sentences(ModelSession& session, int shortest, int longest);

}  // namespace unpack::experiments
