#include "unpack/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/plan.h"
#include "engine/state.h"
#include "unpack/error.h"
#include "unpack/models.h"

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
  const double flop = prepare_cost(model.config(), model.writers(), static_cast<int>(part.size()),
                                   products_of(*model.state()->backend))
                          .flop;
  return flop / 1e9 / std::max(taken.count(), 1e-6);
}

AskedCost asked_cost(const Model& model, std::span<const TokenId> prompt, std::size_t answer,
                     std::size_t other, const RunContext& context) {
  model.check(prompt);
  AskedCost out;
  // The last token of an answer predicts nothing that was asked for.
  out.tokens = static_cast<int>(prompt.size() + answer - (answer > 0 ? 1 : 0));
  out.targets = answer > 0 ? static_cast<int>(answer + other) : 1;
  out.cost =
      question_cost_of(model, out.tokens, out.targets, measured_gflops(model, prompt, context));
  return out;
}

namespace {

std::string memory_text(double mib) {
  return mib >= 1024 ? fmt::format("{:.1f} GiB", mib / 1024) : fmt::format("{:.1f} MiB", mib);
}

std::string time_text(double seconds) {
  if (seconds < 100) return fmt::format("{:.2g} s", seconds);
  if (seconds < 5400) return fmt::format("{:.0f} minutes", seconds / 60);
  return fmt::format("{:.1f} hours", seconds / 3600);
}

}  // namespace

void check_memory(const Model& model, int tokens, int rows) {
  if (model.program().device != "cpu") return;  // what is counted is the CPU's
  const double free = static_cast<double>(free_memory()) / (1 << 20);
  // What every question takes, however short, is not held against a prompt.
  const double always = question_cost_of(model, 1, 1, 0).memory_mib;
  const double needed = question_cost_of(model, tokens, rows, 0).memory_mib;
  if (free <= 0 || needed - always <= free) return;
  // The most tokens that would do, to the ten.
  int fits = 0;
  for (int step = 1 << 20; step >= 10; step /= 2) {
    if (fits + step < tokens &&
        question_cost_of(model, fits + step, 1, 0).memory_mib <= free + always)
      fits += step;
  }
  throw InputError(fmt::format(
      "{} tokens take about {} of memory beside the weights, and {} are free: up to some {} tokens "
      "would fit",
      tokens, memory_text(needed), memory_text(free), fits / 10 * 10));
}

std::string cost_text(const QuestionCost& cost, int tokens, int rows) {
  std::string text =
      fmt::format("{} tokens, {} target{}: {:.3g} GFLOP, {} of memory beside the weights", tokens,
                  rows, rows == 1 ? "" : "s", cost.gflop, memory_text(cost.memory_mib));
  if (cost.seconds > 0) text += ", about " + time_text(cost.seconds);
  return text;
}

}  // namespace unpack
