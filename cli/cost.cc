#include "cost.h"

#include "unpack/cost.h"

namespace unpack::cli {

void CostArguments::add(Command& command) {
  command.flag("--cost", "Say what the question will cost (operations, memory, time), no more",
               only);
}

bool CostArguments::say(const Model& model, std::span<const TokenId> ids, int tokens, int rows,
                        const RunContext& run) const {
  constexpr double kSurelyQuick = 20;  // GFLOP: not worth measuring
  constexpr double kLong = 10;         // seconds
  model.check(ids);
  QuestionCost cost = question_cost_of(model, tokens, rows, 0);
  if (!only) {
    check_memory(model, tokens, rows);
    if (cost.gflop < kSurelyQuick) return false;
  }
  cost = question_cost_of(model, tokens, rows, measured_gflops(model, ids, run));
  if (only) {
    print(cost_text(cost, tokens, rows) + "\n");
  } else if (cost.seconds >= kLong) {
    clear_progress();
    warn(cost_text(cost, tokens, rows));
  }
  return only;
}

}  // namespace unpack::cli
