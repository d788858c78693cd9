#include "engine/finite.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "unpack/error.h"

namespace unpack::engine {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw InputError(fmt::format(
      "{} is not a finite number: the weights or the options drive the arithmetic out of its range "
      "(device reference computes in double precision)",
      what));
}

// The name is made where it is needed only: there are many values and hardly ever a bad one.
template <class Name>
void check(double x, const Name& name) {
  if (std::isfinite(x)) return;
  if constexpr (std::is_invocable_v<Name>) {
    fail(name());
  } else {
    fail(name);
  }
}

}  // namespace

void check_finite(const TraceResult& r) {
  check(r.target.logit, "the target's logit");
  check(r.target.probability, "the target's probability");
  if (r.target.logit_difference) check(*r.target.logit_difference, "the target's logit difference");
  // From the last layer down: where credit first goes wrong, not where it is carried to.
  for (std::size_t w = std::min(r.node_credit.size(), r.writers.size()); w-- > 0;) {
    for (const double x : r.node_credit[w])
      check(x, [&] { return fmt::format("the credit of {}", r.writers[w]); });
  }
  for (std::size_t w = 0; w < r.importance.size(); ++w)
    check(r.importance[w], [&] { return fmt::format("the direct credit of {}", r.writers.at(w)); });
  for (std::size_t s = 0; s < r.token_credit.size(); ++s)
    check(r.token_credit[s], [&] { return fmt::format("the credit of token {}", s); });
  for (const double x : r.token_percent) check(x, "the share of a token");
  for (const auto& [branch, rows] : r.incoming) {
    for (const auto& row : rows) {
      for (const double x : row)
        check(x, [of = branch] { return fmt::format("the credit into branch {}", to_string(of)); });
    }
  }
  for (const double x : r.entries) check(x, "an entry of the root");
  for (const NeuronEntry& entry : r.neuron_entries)
    check(entry.credit, [&] { return fmt::format("the credit of neuron {}", entry.neuron); });
  for (const auto& [branch, entries] : r.composition) {
    for (const CompositionEntry& entry : entries) {
      check(entry.mass, "a mass of the composition");
      check(entry.credit, "a credit of the composition");
    }
  }
  for (const Path& path : r.paths) check(path.credit, "the credit of a path");
  check(r.coverage.absolute, "the credit of the listed paths");
  check(r.coverage.absolute_matching, "the credit of the matching paths");
  check(r.coverage.absolute_total, "the credit of all paths");
  check(r.conservation_first, "the sum of the first credit");
  check(r.conservation_reached, "the sum of the token credit");
}

void check_finite(const InteractionResult& r) {
  for (const auto* list : {&r.attention, &r.mlp}) {
    for (const Interaction& x : *list)
      check(x.score, [&] {
        return fmt::format("the score of {} at {}", r.writers.at(x.writer), r.writers.at(x.reader));
      });
  }
}

void check_logits(std::span<const double> logits) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i])) fail(fmt::format("the logit of token {}", i));
  }
}

}  // namespace unpack::engine
