#include "unpack/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/message.h"
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

const char* to_string(Direction x) { return x == Direction::output ? "output" : "read"; }

const char* to_string(Keys x) { return x == Keys::source ? "source" : "spread"; }

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
  if (!(floor >= 0 && floor <= kMost))
    throw UsageError(
        fmt::format("floor takes a number between 0 and {:g}, not {:g}", kMost, floor));
}

std::string Options::settle() {
  std::string notice;
  if (direction == Direction::read && (dispatch == Dispatch::gate || mlp == MlpRule::l2)) {
    direction = Direction::output;
    notice = fmt::format("{} has no direction to pass on: direction output was taken",
                         dispatch == Dispatch::gate ? "dispatch gate" : "mlp l2");
  } else if (direction == Direction::read && keys == Keys::spread && scores == Scores::raw) {
    keys = Keys::source;
    notice = "raw scores have nothing to spread: key credit stays at its source";
  }
  if (direction == Direction::output) {
    floor = 0;
    keys = Keys::source;
  }
  return notice;
}

std::vector<std::string> preset_names() { return {"paper", "released", "best"}; }

Options preset_options(const std::string& name) {
  Options options;
  if (name == "paper") return options;
  if (name == "released") {
    options.scores = Scores::centered;
    options.mlp = MlpRule::linearized;
    options.reroot = Reroot::target;
    return options;
  }
  if (name == "best") {
    options.scores = Scores::centered;
    options.beta = 0.2;
    options.direction = Direction::read;
    options.floor = 1;
    options.keys = Keys::spread;
    return options;
  }
  throw UsageError(fmt::format("preset takes one of {}, not \"{}\"",
                               fmt::join(preset_names(), ", "), base::one_line(name, 60)));
}

}  // namespace unpack
