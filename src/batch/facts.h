// What of every line goes into summary.json and the arrays: the same numbers, whether taken from a
// result or read back from its line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "unpack/answer.h"
#include "unpack/batch.h"
#include "unpack/json.h"
#include "unpack/result.h"

namespace unpack::batch {

std::vector<double> facts_of(const TraceResult& result);
// Of an answer: the prompt's tokens, and the probability of the whole.
std::vector<double> facts_of(const AnswerResult& result);

// A line of results.jsonl or errors.jsonl, read back.
struct LineValues {
  std::size_t index = 0;
  bool error = false;                // it has a reason and no result
  std::vector<double> facts;         // as above
  std::vector<double> token_credit;  // [S]
  std::vector<std::string> writers;  // [C], none of a baseline
  std::vector<double> node_credit;   // [C, S]
};
// The line is foreign input: somebody may have written it. Throws InputError where something is
// missing, of another kind or no finite number. `whole`: the credit as well, not only the facts.
LineValues read_line(std::string_view line, const std::string& origin, bool whole = false);

// Sums over the lines, taken in the order of the prompts so that a merge gives the same bits.
class Summary {
 public:
  void add(const std::vector<double>& facts);
  void add_error() { ++errors_; }
  std::size_t results() const { return results_; }
  std::size_t errors() const { return errors_; }
  bool empty() const { return traces_ == 0; }  // of traces, which have components
  std::size_t tokens() const { return tokens_; }
  std::size_t writers() const { return credit_.size(); }
  OrderedJson json(const std::vector<std::string>& writers) const;

 private:
  std::size_t results_ = 0, errors_ = 0, traces_ = 0;
  double tokens_ = 0, shortest_ = 0, longest_ = 0, probability_ = 0, first_ = 0, reached_ = 0;
  std::vector<double> credit_, absolute_;  // [C]
};

}  // namespace unpack::batch
