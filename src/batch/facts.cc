#include "batch/facts.h"

#include <algorithm>
#include <cmath>

namespace unpack {

namespace {

using Json = nlohmann::ordered_json;

// tokens, probability, then for traces: first, reached, and what reached each writer over all positions.
constexpr std::size_t kTokens = 0, kProbability = 1, kFirst = 2, kReached = 3, kCredit = 4;

double finite(double x) { return std::isfinite(x) ? x : 0.0; }  // null in JSON
double finite(const Json& x) { return x.is_number() ? x.get<double>() : 0.0; }

template <class Row>
double sum(const Row& row) {
  double total = 0;
  for (const auto& x : row) total += finite(x);
  return total;
}

}  // namespace

std::vector<double> facts_of(const TraceResult& result) {
  std::vector<double> facts = {static_cast<double>(result.tokens.size()), finite(result.target.probability)};
  if (result.method != "unpack") return facts;
  facts.push_back(finite(result.conservation_first));
  facts.push_back(finite(result.conservation_reached));
  for (const auto& row : result.node_credit) facts.push_back(sum(row));
  return facts;
}

std::vector<double> facts_of(const Json& line) {
  std::vector<double> facts = {static_cast<double>(line.at("tokens").size()), finite(line.at("target").at("probability"))};
  if (!line.contains("node_credit")) return facts;
  facts.push_back(finite(line.at("conservation").at("first")));
  facts.push_back(finite(line.at("conservation").at("reached")));
  for (const auto& row : line.at("node_credit")) facts.push_back(sum(row));
  return facts;
}

void Summary::add(const std::vector<double>& facts) {
  const double tokens = facts.at(kTokens);
  shortest_ = results_ == 0 ? tokens : std::min(shortest_, tokens);
  longest_ = std::max(longest_, tokens);
  tokens_ += tokens;
  probability_ += facts.at(kProbability);
  ++results_;
  if (facts.size() <= kCredit) return;
  ++traces_;
  first_ += facts[kFirst];
  reached_ += facts[kReached];
  credit_.resize(facts.size() - kCredit, 0.0);
  absolute_.resize(facts.size() - kCredit, 0.0);
  for (std::size_t w = 0; w < credit_.size(); ++w) {
    credit_[w] += facts[kCredit + w];
    absolute_[w] += std::fabs(facts[kCredit + w]);
  }
}

Json Summary::json(const std::vector<std::string>& writers) const {
  const auto mean = [](double total, std::size_t n) { return n == 0 ? Json(nullptr) : Json(total / static_cast<double>(n)); };
  Json out = {{"results", results_},
              {"errors", errors_},
              {"tokens",
               {{"total", static_cast<std::uint64_t>(tokens_)},
                {"shortest", static_cast<std::uint64_t>(shortest_)},
                {"longest", static_cast<std::uint64_t>(longest_)}}},
              {"mean_probability", mean(probability_, results_)},
              {"mean_conservation", {{"first", mean(first_, traces_)}, {"reached", mean(reached_, traces_)}}}};
  Json components = Json::object();
  for (std::size_t w = 0; w < credit_.size(); ++w)
    components[writers.at(w)] = {{"credit", mean(credit_[w], traces_)}, {"absolute", mean(absolute_[w], traces_)}};
  out["components"] = std::move(components);
  return out;
}

}  // namespace unpack
