#include "unpack/options.h"

#include <fmt/format.h>

#include "unpack/error.h"

namespace unpack {

const char* to_string(Dispatch x) { return x == Dispatch::aligned ? "aligned" : "gate"; }

const char* to_string(MlpRule x) {
  switch (x) {
    case MlpRule::per_neuron:
      return "per-neuron";
    case MlpRule::linearized:
      return "linearized";
    case MlpRule::l2:
      return "l2";
  }
  throw InternalError("unknown MLP rule");
}

const char* to_string(Scores x) { return x == Scores::raw ? "raw" : "centered"; }

const char* to_string(Reroot x) { return x == Reroot::output ? "output" : "target"; }

const char* to_string(Branch x) {
  switch (x) {
    case Branch::none:
      return "";
    case Branch::K:
      return "K";
    case Branch::Q:
      return "Q";
    case Branch::V:
      return "V";
    case Branch::mlp:
      return "MLP";
    case Branch::G:
      return "G";
    case Branch::U:
      return "U";
    case Branch::R:
      return "R";
  }
  throw InternalError("unknown branch");
}

const char* to_string(TauRule x) { return x == TauRule::named ? "named" : "entry"; }

void Options::check() const {
  // Past these the products along a path leave the range of a double.
  constexpr double kMost = 1e6;
  if (!(beta >= 0 && beta <= kMost))
    throw UsageError(fmt::format("beta takes a number between 0 and {:g}, not {:g}", kMost, beta));
  const auto check_weights = [&](const auto& values, const char* field, const char* names) {
    double sum = 0;
    for (const double w : values) {
      if (!(w >= 0 && w <= kMost))
        throw UsageError(fmt::format(
            "{} takes numbers between 0 and {:g} for {} (0 switches a branch off), not {:g}", field,
            kMost, names, w));
      sum += w;
    }
    if (sum == 0)
      throw UsageError(
          fmt::format("{} takes at least one number above 0 for {}: with all of them 0 "
                      "no credit would pass",
                      field, names));
  };
  check_weights(weights, "weights", "K,Q,V");
  check_weights(mlp_weights, "mlp_weights", "G,U");
  check_weights(expert_weights, "expert_weights", "R,G,U");
}

}  // namespace unpack
