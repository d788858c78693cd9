#include "unpack/cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "backend/device_memory.h"
#include "engine/plan.h"
#include "engine/state.h"
#include "unpack/error.h"
#include "unpack/models.h"

namespace unpack {
namespace {

constexpr double kMiB = 1 << 20;

// Operations of products that would take as long as the question. Sums, medians and shares over
// the scores of pairs are no products, and what a score takes there is worth that many operations
// of one, by what long and short prompts took.
double as_products(const Model& model, const Planned& planned) {
  constexpr double kOnce = 260, kTarget = 50, kPaths = 130, kAgain = 120;
  const ModelConfig& c = model.config();
  const Writers& writers = model.writers();
  const int tokens = planned.tokens;
  const double scores = engine::pair_scores(c, writers, tokens);
  const double again =
      engine::scores_again_cost(c, writers, tokens, RunContext{}.memory_budget).flop;
  const double prepare =
      engine::prepare_cost(c, writers, tokens,
                           engine::products_of(*engine::state_of(model)->backend))
          .flop +
      engine::question_cost(c, writers, tokens).flop + kOnce * scores + again;
  const double target = engine::read_target_cost(c, writers, tokens).flop + kTarget * scores;
  const double paths = (kPaths + (again > 0 ? kAgain : 0)) * scores;
  return planned.prompts * prepare + planned.targets * target + (planned.paths ? paths : 0);
}

// The question about the first tokens of the prompt, one target.
double seconds_of(const Model& model, std::span<const TokenId> part, const Planned& planned,
                  const RunContext& context) {
  const auto begin = std::chrono::steady_clock::now();
  Question question;
  question.options = planned.options;
  if (!planned.paths) question.paths.top = 0;
  (void)model.prepare(part, context).trace(question, context);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  return std::max(taken.count(), 1e-6);
}

std::string memory_text(double mib) {
  return mib >= 1024 ? fmt::format("{:.1f} GiB", mib / 1024) : fmt::format("{:.1f} MiB", mib);
}

std::string time_text(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.2g} s", seconds);
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  if (seconds < 600) return fmt::format("{:.1f} minutes", seconds / 60);
  if (seconds < 5400) return fmt::format("{:.0f} minutes", seconds / 60);
  return fmt::format("{:.1f} hours", seconds / 3600);
}

}  // namespace

Planned planned_trace(std::size_t prompt, const Options& options) {
  return {.tokens = static_cast<int>(prompt), .options = options};
}

Planned planned_answer(std::size_t prompt, std::size_t answer, std::size_t other,
                       const Options& options) {
  return {.tokens = static_cast<int>(prompt + std::max(answer, other)) - 1,
          .targets = static_cast<int>(answer + other),
          .prompts = other > 0 ? 2 : 1,
          .paths = false,
          .options = options};
}

QuestionCost counted_cost(const Model& model, const Planned& planned) {
  const ModelConfig& c = model.config();
  const Writers& writers = model.writers();
  const std::size_t budget = RunContext{}.memory_budget;
  const int tokens = planned.tokens;
  engine::Cost cost = engine::prepare_cost(c, writers, tokens,
                                           engine::products_of(*engine::state_of(model)->backend));
  cost += engine::question_cost(c, writers, tokens);
  cost += engine::read_once_cost(c, writers, tokens, budget);
  QuestionCost out;
  out.gflop = (planned.prompts * cost.flop +
               planned.targets * engine::read_target_cost(c, writers, tokens).flop) /
              1e9;
  const int threads = model.program().threads;
  const backend::DeviceMemory* device = engine::state_of(model)->backend->device_memory();
  const bool by_layer = device && engine::may_go_by_layer(*engine::state_of(model)->backend) &&
                        engine::device_memory_cost(c, writers, tokens, budget, device->in_parts()) >
                            engine::state_of(model)->backend->device_memory()->room_for_prompts();
  const double bytes =
      by_layer ? engine::by_layer_memory_cost(c, writers, tokens, device->in_parts(),
                                              planned.options.scores == Scores::raw)
      : device ? engine::device_memory_cost(c, writers, tokens, budget, device->in_parts())
               : engine::memory_cost(c, writers, tokens, budget, threads) -
                     engine::memory_slack(threads);
  out.memory_mib = bytes / kMiB;
  return out;
}

QuestionCost measured_cost(const Model& model, std::span<const TokenId> prompt,
                           const Planned& planned, const RunContext& context) {
  constexpr std::size_t kShortest = 64;  // tokens
  // Seconds, or this part of the whole; a device of its own works at full speed only later.
  const bool device = engine::state_of(model)->backend->device_memory() != nullptr;
  const double enough = device ? 1 : 0.5, share = device ? 0.1 : 0.05;
  model.check(prompt);
  RunContext quiet = context;
  quiet.progress = {};
  QuestionCost cost = counted_cost(model, planned);
  (void)model.prepare(prompt.first(1), quiet);  // weights are read and packed
  for (std::size_t length = kShortest;; length *= 2) {
    const auto part = prompt.first(std::min(length, prompt.size()));
    Planned shorter = planned_trace(part.size(), planned.options);
    shorter.paths = planned.paths;
    const double seconds = seconds_of(model, part, shorter, quiet);
    cost.seconds = seconds * as_products(model, planned) / as_products(model, shorter);
    if (part.size() == prompt.size() || seconds > std::min(enough, share * cost.seconds))
      return cost;
  }
}

void check_memory(const Model& model, const Planned& planned) {
  if (model.program().device != "cpu") return;  // what is counted is the CPU's
  const double free = free_memory() / kMiB;
  const auto needed_for = [&](int tokens) {
    Planned other = planned;
    other.tokens = tokens;
    return counted_cost(model, other).memory_mib;
  };
  const double needed = needed_for(planned.tokens);
  if (free <= 0 || needed <= free) return;
  // The most tokens that would do, to the ten.
  int fits = 0;
  for (int step = 1 << 20; step >= 10; step /= 2) {
    if (fits + step < planned.tokens && needed_for(fits + step) <= free) fits += step;
  }
  throw InputError(fmt::format(
      "{} tokens take about {} of memory beside the weights, and {} are free: up to some {} tokens "
      "would fit",
      planned.tokens, memory_text(needed), memory_text(free), fits / 10 * 10));
}

std::string cost_text(const QuestionCost& cost, const Planned& planned) {
  std::string text = fmt::format(
      "{} tokens, {} target{}: {:.3g} GFLOP, {} of memory beside the weights", planned.tokens,
      planned.targets, planned.targets == 1 ? "" : "s", cost.gflop, memory_text(cost.memory_mib));
  if (cost.seconds > 0) text += ", about " + time_text(cost.seconds);
  return text;
}

}  // namespace unpack
