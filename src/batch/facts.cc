#include "batch/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "base/json_reader.h"
#include "base/message.h"
#include "unpack/error.h"

namespace unpack::batch {

namespace {

using Json = OrderedJson;

// tokens, probability, then for traces: first, reached, and what reached each writer over all
// positions.
constexpr std::size_t kTokens = 0, kProbability = 1, kFirst = 2, kReached = 3, kCredit = 4;

double sum(const std::vector<double>& row) {
  double total = 0;
  for (const double x : row) total += x;
  return total;
}

// Picks the numbers out of a line as it goes by; no tree is built, for a merge or a resumed run
// reads all lines.
class LineEvents final : public base::JsonEvents {
 public:
  LineEvents(const std::string& origin, bool whole) : origin_(origin), whole_(whole) {}

  LineValues take() {
    if (!index_) fail("has no index");
    if (out_.error) return std::move(out_);
    // The credit of an answer belongs to the tokens of its prompt.
    const auto tokens = prompt_length_.value_or(tokens_);
    if (tokens == 0 || tokens > static_cast<std::size_t>(tokens_)) fail("has no tokens");
    if (!probability_) fail("has no target.probability");
    if (credit_size_ != tokens) fail("has no token_credit for every token");
    out_.facts = {static_cast<double>(tokens), *probability_};
    if (!sums_.empty()) {
      if (!first_ || !reached_) fail("has no conservation");
      out_.facts.insert(out_.facts.end(), {*first_, *reached_});
      out_.facts.insert(out_.facts.end(), sums_.begin(), sums_.end());
    }
    return std::move(out_);
  }

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(std::int64_t x) override {
    if (at("index")) fail("has an index below 0");
    return number(x);
  }
  bool number_unsigned(std::uint64_t x) override {
    if (at("index")) {
      out_.index = x;
      index_ = true;
    } else if (at("prompt_length")) {
      prompt_length_ = x;
    }
    return number(x);
  }
  bool number_float(double x, const std::string&) override { return number(x); }
  bool string(std::string&) override {
    if (at("reason")) out_.error = true;
    return scalar();
  }
  bool binary(JsonValue::binary_t&) override { return false; }
  bool key(std::string& name) override {
    path_.back() = std::move(name);
    if (path_.size() == 1 && !seen_.insert(path_[0]).second)
      fail(fmt::format("gives {} twice", base::shown(path_[0])));
    return true;
  }
  bool start_object(std::size_t) override {
    if (path_.empty() && begun_) return false;
    begun_ = true;
    if (inside("tokens", 2)) ++tokens_;
    if (inside("node_credit", 2)) fail("holds something else than numbers in node_credit");
    path_.emplace_back();
    return true;
  }
  bool start_array(std::size_t) override {
    if (!begun_) fail("is no object");
    if (inside("node_credit", 2)) {
      sums_.push_back(0);
      row_ = 0;
      if (whole_) out_.writers.push_back(path_[1]);
    } else if (inside("node_credit", 3)) {
      fail("holds something else than numbers in node_credit");
    }
    path_.emplace_back();
    return true;
  }
  bool end_object() override { return path_.pop_back(), true; }
  bool end_array() override {
    path_.pop_back();
    if (inside("node_credit", 2) && row_ != static_cast<std::size_t>(tokens_))
      fail("has no node_credit for every token");
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(
        fmt::format("{}: a line {}: it is not one of this version, or was changed", origin_, what));
  }
  // The member that is being read: a.b.c, elements of a list without a name.
  bool inside(const char* member, std::size_t depth) const {
    return path_.size() == depth && path_[0] == member;
  }
  bool at(const char* member) const { return inside(member, 1); }
  bool at(const char* member, const char* inner) const {
    return inside(member, 2) && path_[1] == inner;
  }
  bool scalar() {
    if (!begun_) fail("is no object");
    if (at("index") && !index_) fail("has an index that is no number");
    if (at("target", "probability") || at("answer", "log_probability") || at("prompt_length") ||
        at("conservation", "first") || at("conservation", "reached") || inside("token_credit", 2) ||
        inside("node_credit", 2) || inside("node_credit", 3) || at("node_credit") ||
        at("token_credit"))
      fail(fmt::format("holds something else than numbers in {}", path_[0]));
    return true;
  }
  bool number(double x) {
    if (!begun_) fail("is no object");
    if (at("target", "probability")) {
      probability_ = x;
    } else if (at("answer", "log_probability")) {
      probability_ = std::exp(x);
    } else if (at("conservation", "first")) {
      first_ = x;
    } else if (at("conservation", "reached")) {
      reached_ = x;
    } else if (inside("token_credit", 2)) {
      ++credit_size_;
      if (whole_) out_.token_credit.push_back(x);
    } else if (inside("node_credit", 3)) {
      sums_.back() += x;
      ++row_;
      if (whole_) out_.node_credit.push_back(x);
    } else if (at("node_credit") || inside("node_credit", 2) || at("token_credit")) {
      scalar();
    }
    return true;
  }

  const std::string& origin_;
  const bool whole_;
  LineValues out_;
  std::vector<std::string> path_;  // of the value that comes next
  std::set<std::string> seen_;
  std::vector<double> sums_;  // of node_credit, by writer
  std::optional<double> probability_, first_, reached_;
  std::optional<std::size_t> prompt_length_;
  std::size_t row_ = 0, credit_size_ = 0;
  int tokens_ = 0;
  bool begun_ = false, index_ = false;
};

}  // namespace

std::vector<double> facts_of(const TraceResult& result) {
  std::vector<double> facts = {static_cast<double>(result.tokens.size()),
                               result.target.probability};
  if (result.method != "unpack") return facts;
  facts.push_back(result.conservation_first);
  facts.push_back(result.conservation_reached);
  for (const auto& row : result.node_credit) facts.push_back(sum(row));
  return facts;
}

std::vector<double> facts_of(const AnswerResult& result) {
  return {static_cast<double>(result.prompt_length), std::exp(result.log_probability)};
}

LineValues read_line(std::string_view line, const std::string& origin, bool whole) {
  LineEvents events(origin, whole);
  base::scan_json(line, origin, events);
  return events.take();
}

void Summary::add(const std::vector<double>& facts) {
  const double tokens = facts.at(kTokens);
  shortest_ = results_ == 0 ? tokens : std::min(shortest_, tokens);
  longest_ = std::max(longest_, tokens);
  tokens_ += tokens;
  probability_ += facts.at(kProbability);
  ++results_;
  if (facts.size() <= kCredit) return;
  if (traces_ > 0 && facts.size() != credit_.size() + kCredit)
    throw InputError("the lines of one run have different components: they were changed");
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
    return n == 0 ? Json(nullptr) : Json(total / n);
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

}  // namespace unpack::batch
