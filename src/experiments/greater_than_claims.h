// What feeds what in the greater-than task: from a table, or found by path patching.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "experiments/session.h"
#include "experiments/text_data.h"

namespace unpack::experiments {

struct Claim {
  std::string text;
  std::vector<int> receivers;    // heads and MLPs at the end of the prompt
  std::vector<int> sources;      // writers; those that a receiver can read count
  Branch branch = Branch::none;  // K, Q, V; none: all
  std::string where = "END";     // positions the sources are read at: END, YY, all
};

// `claim | receivers | sources | K, Q, V or all | END, YY or all` a line. Throws InputError with
// the line's number for what does not fit the model.
std::vector<Claim> read_claims(const Writers& writers, const std::filesystem::path& file);

// Path patching on some of the prompts, with the year's last digits exchanged. `search` gets the
// effects.
std::vector<Claim> find_claims(ModelSession& session, const std::vector<YearPrompt>& prompts,
                               Json& search);

std::size_t search_years(std::size_t prompts);  // how many of so many the search uses
bool reads(const Writers& writers, int receiver, int source);
// mean of the logits above YY less mean of those up to it, and the probability above less that up
// to it
struct YearReading {
  double logit_difference = 0, probability_difference = 0;
};
YearReading read_years(const std::vector<double>& logits, const YearPrompt& prompt);

}  // namespace unpack::experiments
