// What a question will cost, said before it is asked.
#pragma once

#include <span>
#include <string>

#include "unpack/sources.h"

namespace unpack {

// What is going to be asked, as far as it costs.
struct Planned {
  int tokens = 0;     // that are prepared: the prompt, and an answer but for its last token
  int targets = 1;    // that are explained
  int prompts = 1;    // of so many tokens each: 2 where an answer is set against another
  bool paths = true;  // whether they are searched for
  Options options = default_options();
};
// A trace of a prompt of so many tokens, or the explanation of an answer against another.
Planned planned_trace(std::size_t prompt, const Options& options = default_options());
Planned planned_answer(std::size_t prompt, std::size_t answer, std::size_t other = 0,
                       const Options& options = default_options());

struct QuestionCost {
  double gflop = 0;
  double memory_mib = 0;  // beside the weights, where it is computed
  double seconds = 0;     // 0: not measured
};
// Counted from the model's shape, without a time.
QuestionCost counted_cost(const Model& model, const Planned& planned);
// With the time at which shorter and then longer parts of the prompt are answered here. Takes a
// twentieth of that time, or half a second to two (on a GPU up to twice that).
QuestionCost measured_cost(const Model& model, std::span<const TokenId> prompt,
                           const Planned& planned, const RunContext& context = {});
// "1200 tokens, 1 target: 512 GFLOP, 1.2 GiB of memory beside the weights, about 34 s"; without a
// measured time that is left out.
std::string cost_text(const QuestionCost& cost, const Planned& planned);
// {"tokens", "targets", "gflop", "memory_mib", "seconds", "text"}
std::string to_json(const QuestionCost& cost, const Planned& planned);

// On the CPU: throws InputError where a question needs more memory than is free. It would end in
// the middle, and take other programs with it.
void check_memory(const Model& model, const Planned& planned);

// The tokens of the prompt that a question about documents makes, and what explaining its
// answer takes.
std::vector<TokenId> sources_tokens(const Model& model, const SourcesOptions& options);
Planned planned_sources(const Model& model, std::size_t prompt, const SourcesOptions& options);

}  // namespace unpack
