#include "unpack/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/plan.h"

namespace unpack {

double measured_gflops(const Model& model, std::span<const TokenId> prompt,
                       const RunContext& context) {
  constexpr std::size_t kPart = 32;  // tokens
  const auto part = prompt.first(std::min(prompt.size(), kPart));
  RunContext quiet = context;
  quiet.progress = {};
  const auto begin = std::chrono::steady_clock::now();
  (void)model.prepare(part, quiet);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  const double flop =
      prepare_cost(model.config(), model.writers(), static_cast<int>(part.size())).flop;
  return flop / 1e9 / std::max(taken.count(), 1e-6);
}

std::string cost_text(const QuestionCost& cost, int tokens, int rows) {
  const bool large = cost.memory_mib >= 1024;
  std::string text = fmt::format(
      "{} tokens, {} target{}: {:.3g} GFLOP, {:.1f} {} of memory beside "
      "the weights",
      tokens, rows, rows == 1 ? "" : "s", cost.gflop,
      large ? cost.memory_mib / 1024 : cost.memory_mib, large ? "GiB" : "MiB");
  if (cost.seconds > 0) text += fmt::format(", about {:.2g} s", cost.seconds);
  return text;
}

}  // namespace unpack
