// Prompts for input flipping: sentences cut in the middle, before a word that the model is sure of,
// or whole ones.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "experiments/sentences.h"

namespace unpack::experiments {

// What a prompt's target is to be: a content word, a function word, or any word after a whole
// sentence.
enum class TargetKind { content, function, whole };
const char* to_string(TargetKind kind);

struct FlipPrompt {
  int line = 0;
  std::vector<TokenId> ids;  // with the special tokens in front
  int prefix = 0;            // how many of these there are
  TokenId target = 0;
  std::string text;
  double probability = 0;
};

// One sentence's answer.
struct FlipChoice {
  std::optional<FlipPrompt> prompt;
  // Top predictions at the places that were tried, by what they are: "unsure", "no word",
  // "function", "content" ("word" for whole sentences).
  Json tried = Json::object();
};

class FlipPrompts {
 public:
  FlipPrompts(ModelSession& session, TargetKind kind);

  const std::vector<CorpusSentence>& sentences() const { return sentences_; }
  // Places of a sentence are tried in a seeded order until one fits.
  FlipChoice choose(const CorpusSentence& sentence) const;

 private:
  std::vector<std::size_t> places(const CorpusSentence& sentence) const;
  std::string kind_of(const CorpusSentence& sentence, std::size_t place, FlipPrompt& prompt) const;

  ModelSession& session_;
  TargetKind kind_;
  std::vector<CorpusSentence> sentences_;
  std::set<std::string> function_words_;
};

}  // namespace unpack::experiments
