#include "experiments/flip_prompts.h"

#include <algorithm>
#include <cctype>

#include "unpack/error.h"

namespace unpack::experiments {

namespace {

constexpr int kShortest = 8;                    // tokens of a prompt
constexpr int kLongest = 45, kLongestCut = 24;  // whole, cut
constexpr int kLongestSentence = 200;           // tokens of what it is cut from
constexpr double kConfident = 0.1;

bool letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

// Letters after a blank, or letters alone.
bool alphabetic(const std::string& text, bool blank_in_front) {
  const bool blank = text.starts_with(' ');
  return (blank || !blank_in_front) && text.size() > (blank ? 1U : 0U) &&
         std::all_of(text.begin() + (blank ? 1 : 0), text.end(), letter);
}

std::string lower_word(std::string text) {
  if (text.starts_with(' ')) text.erase(0, 1);
  for (char& c : text) c = std::tolower(static_cast<unsigned char>(c));
  return text;
}

}  // namespace

const char* to_string(TargetKind kind) {
  switch (kind) {
    case TargetKind::content:
      return "content";
    case TargetKind::function:
      return "function";
    case TargetKind::whole:
      return "whole";
  }
  throw InternalError("[to_string] a target of no kind");
}

FlipPrompts::FlipPrompts(ModelSession& session, TargetKind kind)
    : session_(session),
      kind_(kind),
      sentences_(shuffled_sentences(session, kShortest,
                                    kind == TargetKind::whole ? kLongest : kLongestSentence)) {
  if (kind == TargetKind::whole) return;
  for (const TextLine& line : read_text(data_file("function_words.txt"), true).lines)
    function_words_.insert(line.text);
}

// How many tokens of the sentence a prompt may take. In the middle: the sentence goes on with a new
// word, and what stands before it is a word or a comma, so that no sentence ends there.
std::vector<std::size_t> FlipPrompts::places(const CorpusSentence& sentence) const {
  if (kind_ == TargetKind::whole) return {sentence.ids.size()};
  std::vector<std::size_t> out;
  const std::size_t first = sentence.prefix + kShortest, last = sentence.prefix + kLongestCut;
  for (std::size_t k = first; k < sentence.ids.size() && k <= last; ++k) {
    const std::string next = session_.model.token_text(sentence.ids[k]),
                      before = session_.model.token_text(sentence.ids[k - 1]);
    if (next.size() > 1 && next[0] == ' ' && letter(next[1]) && !before.empty() &&
        (letter(before.back()) || before.back() == ','))
      out.push_back(k);
  }
  std::mt19937_64 generator(session_.options.seed * 1000003 + sentence.line);
  shuffle(out, generator);
  return out;
}

std::string FlipPrompts::kind_of(const CorpusSentence& sentence, std::size_t place,
                                 FlipPrompt& prompt) const {
  PredictOptions predict;
  predict.top = 1;
  predict.log_probabilities = false;
  const auto top = [&](const std::vector<TokenId>& ids) {
    return session_.model.predict(ids, predict, session_.context).predictions.at(0);
  };
  prompt = {sentence.line,
            {sentence.ids.begin(), sentence.ids.begin() + place},
            sentence.prefix,
            0,
            "",
            0};
  const Prediction best = top(prompt.ids);
  prompt.target = best.id;
  prompt.text = best.text;
  prompt.probability = best.probability;
  if (best.probability < kConfident) return "unsure";
  if (!alphabetic(best.text, kind_ != TargetKind::whole)) return "no word";
  if (kind_ == TargetKind::whole) return "whole";
  if (function_words_.contains(lower_word(best.text))) return "function";
  // A word is whole where the model does not go on with a letter.
  std::vector<TokenId> longer = prompt.ids;
  longer.push_back(best.id);
  const std::string after = top(longer).text;
  return after.empty() || letter(after[0]) ? "no word" : "content";
}

FlipChoice FlipPrompts::choose(const CorpusSentence& sentence) const {
  FlipChoice out;
  for (const std::size_t place : places(sentence)) {
    FlipPrompt prompt;
    const std::string kind = kind_of(sentence, place, prompt);
    out.tried[kind] = out.tried.value(kind, 0) + 1;
    if (kind != to_string(kind_)) continue;
    out.prompt = std::move(prompt);
    break;
  }
  return out;
}

}  // namespace unpack::experiments
