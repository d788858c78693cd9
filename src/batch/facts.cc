#include "batch/facts.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "unpack/error.h"

namespace unpack {

namespace {

using Json = nlohmann::ordered_json;

// tokens, probability, then for traces: first, reached, and what reached each writer over all
// positions.
constexpr std::size_t kTokens = 0, kProbability = 1, kFirst = 2, kReached = 3, kCredit = 4;

double finite(double x) { return std::isfinite(x) ? x : 0.0; }  // null in JSON

double sum(const std::vector<double>& row) {
  double total = 0;
  for (const double x : row) total += finite(x);
  return total;
}

// Walks over a line that trace_prompts made. A member's name in its quotes cannot stand inside a
// text: there every quote has a backslash in front.
class Scanner {
 public:
  explicit Scanner(std::string_view line) : line_(line) {}

  bool find(std::string_view what) {
    const std::size_t at = line_.find(what, at_);
    if (at == std::string_view::npos) return false;
    at_ = at + what.size();
    return true;
  }
  void expect(std::string_view what) {
    if (!find(what)) throw InputError("a line of results.jsonl is not one of this version");
  }
  double number() {
    double value = 0;
    const char* begin = line_.data() + at_;
    const auto end = std::from_chars(begin, line_.data() + line_.size(), value);
    at_ += end.ec == std::errc() ? static_cast<std::size_t>(end.ptr - begin) : 4;  // null
    return finite(value);
  }
  std::size_t at() const { return at_; }
  char next() { return at_ < line_.size() ? line_[at_++] : '}'; }

 private:
  std::string_view line_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<double> facts_of(const TraceResult& result) {
  std::vector<double> facts = {static_cast<double>(result.tokens.size()),
                               finite(result.target.probability)};
  if (result.method != "unpack") return facts;
  facts.push_back(finite(result.conservation_first));
  facts.push_back(finite(result.conservation_reached));
  for (const auto& row : result.node_credit) facts.push_back(sum(row));
  return facts;
}

std::vector<double> facts_of(std::string_view line) {
  Scanner scan(line);
  Scanner tokens(line);
  scan.expect("\"target\":{\"position\":");
  double count = 0;
  while (tokens.find("{\"position\":") && tokens.at() < scan.at()) ++count;
  scan.expect("\"probability\":");
  std::vector<double> facts = {count, scan.number()};
  if (!scan.find("\"node_credit\":{")) return facts;
  std::vector<double> credit;
  // "emb":[1,2],"pos":[3,4]}
  do {
    scan.expect(":[");
    double total = 0;
    do {
      total += scan.number();
    } while (scan.next() == ',');
    credit.push_back(total);
  } while (scan.next() == ',');
  scan.expect("\"conservation\":{\"first\":");
  facts.push_back(scan.number());
  scan.expect("\"reached\":");
  facts.push_back(scan.number());
  facts.insert(facts.end(), credit.begin(), credit.end());
  return facts;
}

std::size_t index_of(std::string_view line) {
  constexpr std::string_view kBegin = "{\"index\":";
  std::size_t index = 0;
  if (!line.starts_with(kBegin) ||
      std::from_chars(line.data() + kBegin.size(), line.data() + line.size(), index).ec !=
          std::errc()) {
    throw InputError(
        "a line of the results does not begin with its index: it is not one of this version");
  }
  return index;
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
  const auto mean = [](double total, std::size_t n) {
    return n == 0 ? Json(nullptr) : Json(total / static_cast<double>(n));
  };
  Json out = {{"results", results_},
              {"errors", errors_},
              {"tokens",
               {{"total", static_cast<std::uint64_t>(tokens_)},
                {"shortest", static_cast<std::uint64_t>(shortest_)},
                {"longest", static_cast<std::uint64_t>(longest_)}}},
              {"mean_probability", mean(probability_, results_)},
              {"mean_conservation",
               {{"first", mean(first_, traces_)}, {"reached", mean(reached_, traces_)}}}};
  Json components = Json::object();
  for (std::size_t w = 0; w < credit_.size(); ++w)
    components[writers.at(w)] = {{"credit", mean(credit_[w], traces_)},
                                 {"absolute", mean(absolute_[w], traces_)}};
  out["components"] = std::move(components);
  return out;
}

}  // namespace unpack
