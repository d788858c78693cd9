#include "cost.h"

namespace unpack::cli {

void CostArguments::add(Command& command) {
  command.flag("--cost", "Say what the question will cost (operations, memory, time), no more",
               only);
}

bool CostArguments::say(const Model& model, std::span<const TokenId> prompt, const Planned& planned,
                        const RunContext& run) const {
  constexpr double kSurelyQuick = 50;  // GFLOP: not worth measuring
  constexpr double kLong = 10;         // seconds
  model.check(prompt);
  if (!only) {
    check_memory(model, planned);
    if (counted_cost(model, planned).gflop < kSurelyQuick) return false;
  }
  const QuestionCost cost = measured_cost(model, prompt, planned, run);
  if (only) {
    print(cost_text(cost, planned) + "\n");
  } else if (cost.seconds >= kLong) {
    clear_progress();
    warn(cost_text(cost, planned));
  }
  return only;
}

}  // namespace unpack::cli
