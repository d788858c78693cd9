#include "unpack/baselines.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "engine/finite.h"
#include "engine/state.h"
#include "unpack/choice.h"

namespace unpack {

const char* to_string(Method method) {
  switch (method) {
    case Method::unpack:
      return "unpack";
    case Method::ifr:
      return "ifr";
    case Method::attnlrp:
      return "attnlrp";
    case Method::cplrp:
      return "cplrp";
  }
  return "";
}

Method parse_method(const std::string& name) {
  return read_word("method", text_field(name), words_of(kCreditMethods));
}

TraceResult baseline(const Prepared& prepared, const Target& target, Method method,
                     const RunContext& context) {
  const Model& model = prepared.model();
  TraceResult result;
  if (method == Method::unpack) throw UsageError("unpack is not a baseline: ask Prepared::trace");
  context.check();
  result.program = model.program();
  result.model = model.info();
  result.tokens = model.tokens(prepared.ids());
  result.layout = model.config();
  result.method = to_string(method);
  const int position = resolve_position(target.position, prepared.length());
  const auto logits = engine::state_of(prepared)->logits_at(position);
  result.target = engine::resolve_target(model, target, prepared.length(), *logits);
  result.predictions = engine::top_predictions(model, *logits, 10);
  result.token_credit =
      (method == Method::ifr ? ifr_scores(prepared, position)
                             : lrp_scores(prepared, result.target, method == Method::cplrp))
          .token;
  double positive = 0;
  for (const double x : result.token_credit) {
    positive += std::max(x, 0.0);
    result.conservation_reached += x;
  }
  for (const double x : result.token_credit)
    result.token_percent.push_back(positive > 0 ? x / positive * 100 : 0.0);
  if (result.conservation_reached < 0) {
    result.warnings.push_back(
        fmt::format("the credit of all tokens sums to {:.4g}, below zero: percentages of the "
                    "positive part mislead here",
                    result.conservation_reached));
  }
  engine::check_finite(result);
  return result;
}

std::vector<double> random_scores(int length, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<double> out;
  for (int i = 0; i < length; ++i) out.push_back((generator() >> 11) * 0x1.0p-53);
  return out;
}

}  // namespace unpack
