// Looking closer at a prepared prompt: what a node writes, what every layer would predict, which
// tokens a text may mean.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "unpack/prepared.h"

namespace unpack {

// What a vector added to the stream does to a token: the change of its logit against the mean of
// the vocabulary, with the final norm's deviation held fixed.
struct TokenEffect {
  TokenId id = 0;
  std::string text;
  double logit = 0;
};

struct NeuronWriting {
  int neuron = 0;
  double value = 0;  // its activation
  std::vector<TokenEffect> promoted;
};

struct Writing {
  Node node;
  std::vector<TokenEffect> promoted, lowered;  // the strongest first
  std::vector<NeuronWriting> neurons;          // of an MLP: those asked for
};

// Through the unembedding at the node's own position. `neurons`: of an MLP, whose own writing is
// wanted. Throws InputError for neurons that are not there.
Writing writing(const Prepared& prepared, const Node& node, int top,
                const std::vector<int>& neurons = {});

// The final norm and head on the stream before every layer, and on the last: [L + 1][S].
struct LensCell {
  Prediction top;
  double target = 0;  // probability of the token asked about
};
std::vector<std::vector<LensCell>> lens(const Prepared& prepared, TokenId target,
                                        const RunContext& context = {});

// The tokens that a typed text may mean, each with its probability at a position: those that spell
// it with and without a blank in front, then those that begin with it, the likeliest first. No
// text: the likeliest of all.
std::vector<Prediction> suggest(const Prepared& prepared, int position, std::string_view text,
                                int top);

}  // namespace unpack
