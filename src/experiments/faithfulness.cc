// Input flipping: token embeddings zeroed one after the other, by rank, and what is left of the
// target's probability.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "experiments/statistics.h"
#include "experiments/token_rankings.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack::experiments {

namespace {

constexpr int kCurvePoints = 21;
constexpr int kFunctionShare = 3;     // a prompt before a function word for so many before others
constexpr std::size_t kTargets = 10;  // listed in a summary

// Both curves of every ranking; states that several of them pass through are computed once.
Json flip(const ModelSession& session, const FlipPrompt& prompt,
          const std::vector<TokenRanking>& rankings) {
  std::vector<std::vector<int>> sets;
  std::map<std::vector<int>, std::size_t> known;
  const auto state = [&](std::vector<int> zeroed) {
    std::sort(zeroed.begin(), zeroed.end());
    const auto [at, fresh] = known.try_emplace(zeroed, sets.size());
    if (fresh) sets.push_back(zeroed);
    return at->second;
  };
  const int length = prompt.ids.size();
  std::vector<std::vector<std::size_t>> curves;  // two per ranking: MoRF, LeRF
  for (const TokenRanking& ranking : rankings) {
    std::vector<int> order(length - prompt.prefix);
    std::iota(order.begin(), order.end(), prompt.prefix);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return ranking.scores[a] > ranking.scores[b]; });
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<std::size_t> curve = {state({})};
      std::vector<int> zeroed;
      for (const int s : order) {
        zeroed.push_back(s);
        curve.push_back(state(zeroed));
      }
      curves.push_back(std::move(curve));
      std::reverse(order.begin(), order.end());
    }
  }
  const std::vector<std::vector<double>> logits =
      zeroed_logits(session.model, prompt.ids, sets, -1, session.context);
  std::vector<double> value;
  value.reserve(logits.size());
  for (const auto& row : logits)
    value.push_back(read_target(row, prompt.target, session.options.readout));
  Json methods = Json::object();
  for (std::size_t i = 0; i < rankings.size(); ++i) {
    std::vector<double> morf, lerf;
    for (const std::size_t at : curves[2 * i]) morf.push_back(value[at]);
    for (const std::size_t at : curves[2 * i + 1]) lerf.push_back(value[at]);
    methods[rankings[i].name] = {{"area", area_between(lerf, morf)},
                                 {"morf", resample(morf, kCurvePoints)},
                                 {"lerf", resample(lerf, kCurvePoints)}};
  }
  return methods;
}

// What the records of one kind of prompts add up to.
class FlipSums {
 public:
  void add(const Json& record) {
    ++used_;
    ++targets_[record.at("target").get<std::string>()];
    tokens_.push_back(record.at("tokens"));
    for (const auto& [name, values] : record.at("methods").items()) {
      if (!areas_.contains(name)) order_.push_back(name);
      areas_[name].push_back(values.at("area"));
      morf_[name].push_back(numbers(values.at("morf")));
      lerf_[name].push_back(numbers(values.at("lerf")));
    }
  }
  int used() const { return used_; }

  // Every ranking is compared with each of the references, prompt by prompt.
  Json summary(const std::vector<std::string>& references, std::uint64_t seed) const {
    Json methods = Json::object();
    for (const std::string& name : order_) {
      const std::vector<double>& a = areas_.at(name);
      std::vector<double> positive;
      positive.reserve(a.size());
      for (const double x : a) positive.push_back(x > 0 ? 100.0 : 0.0);
      const Interval share = bootstrap_interval(positive, seed);
      const Interval normal = normal_interval(a), resampled = bootstrap_interval(a, seed);
      methods[name] = {{"area", mean(a)},
                       {"interval", {normal.low, normal.high}},
                       {"bootstrap", {resampled.low, resampled.high}},
                       {"faithful_percent", mean(positive)},
                       {"faithful_interval", {share.low, share.high}},
                       {"morf", mean_curve(morf_.at(name))},
                       {"lerf", mean_curve(lerf_.at(name))}};
      for (const std::string& reference : references) {
        std::vector<double> difference(a.size());
        std::transform(a.begin(), a.end(), areas_.at(reference).begin(), difference.begin(),
                       std::minus<>());
        const Interval apart = bootstrap_interval(difference, seed);
        methods[name]["less"][reference] = {{"difference", mean(difference)},
                                            {"bootstrap", {apart.low, apart.high}}};
      }
    }
    std::vector<std::pair<std::string, int>> often(targets_.begin(), targets_.end());
    std::stable_sort(often.begin(), often.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    Json top = Json::array();
    for (std::size_t i = 0; i < std::min(kTargets, often.size()); ++i)
      top.push_back({often[i].first, often[i].second});
    return {{"prompts", used_},
            {"tokens", mean(tokens_)},
            {"distinct_targets", often.size()},
            {"targets", top},
            {"methods", methods}};
  }

 private:
  static std::vector<double> mean_curve(const std::vector<std::vector<double>>& curves) {
    std::vector<double> out(curves[0].size(), 0.0);
    for (const auto& curve : curves) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += curve[i] / curves.size();
    }
    return out;
  }

  std::map<std::string, std::vector<double>> areas_;
  std::map<std::string, std::vector<std::vector<double>>> morf_, lerf_;
  std::map<std::string, int> targets_;
  std::vector<double> tokens_;
  std::vector<std::string> order_;
  int used_ = 0;
};

// Nothing where other shards hold some of the records.
Json run_kind(ModelSession& session, TargetKind kind, int n, RankTokens rank,
              const std::vector<std::string>& references) {
  const FlipPrompts prompts(session, kind);
  FlipSums sums;
  std::map<std::string, int> tried;
  int used = 0, looked_at = 0;
  for (const CorpusSentence& sentence : prompts.sentences()) {
    if (used == n) break;
    session.context.report(fmt::format("sentences, {}", to_string(kind)), used, n);
    ++looked_at;
    const std::string key = session.key(fmt::format("{}|line {}", to_string(kind), sentence.line));
    const Json* record = session.records.find(key);
    if (!record) {
      const bool mine = session.records.mine(looked_at - 1);
      const FlipChoice choice = prompts.choose(sentence);
      // Every shard has to know where the last sentence lies.
      used += !mine && choice.prompt;
      if (!mine) continue;
      Json made = {{"used", choice.prompt.has_value()}, {"tried", choice.tried}};
      if (const auto& prompt = choice.prompt) {
        made.update({{"tokens", prompt->ids.size()},
                     {"target", prompt->text},
                     {"probability", prompt->probability},
                     {"methods", flip(session, *prompt, rank(session, *prompt))}});
      }
      record = &session.records.add(key, made);
    }
    for (const auto& [what, count] : record->at("tried").items()) tried[what] += count.get<int>();
    if (!record->at("used").get<bool>()) continue;
    ++used;
    sums.add(*record);
  }
  if (session.records.partial()) return {};
  if (sums.used() == 0) return {{"prompts", 0}};
  Json out = sums.summary(references, session.options.seed);
  out["looked_at"] = looked_at;
  out["tried"] = tried;
  return out;
}

Json run_flipping(ModelSession& session, RankTokens rank,
                  const std::vector<std::string>& references) {
  const bool whole = session.options.whole_sentences;
  Json kinds = Json::object();
  for (const TargetKind kind :
       whole ? std::vector<TargetKind>{TargetKind::whole}
             : std::vector<TargetKind>{TargetKind::content, TargetKind::function}) {
    const int n =
        kind == TargetKind::function ? std::max(1, session.n / kFunctionShare) : session.n;
    kinds[to_string(kind)] = run_kind(session, kind, n, rank, references);
  }
  if (session.records.partial()) return {};
  if (kinds.begin()->at("prompts") == 0)
    throw InputError(fmt::format(
        "no sentence of the corpus fits: {} as its top prediction, with a probability of 0.1 or "
        "more",
        whole ? "8 to 45 tokens, and a word" : "a word after 8 to 24 tokens, and a content word"));
  return {{"readout", to_string(session.options.readout)},
          {"raw_logit", session.options.raw_logit},
          {"seed", session.options.seed},
          {"references", references},
          {"kinds", kinds}};
}

}  // namespace

Json run_faithfulness(ModelSession& session) {
  return run_flipping(session, rank_by_methods, {kOwnSettings, kBestSettings});
}
Json run_beta(ModelSession& session) {
  return run_flipping(session, rank_by_betas, {"0.8", "best, 0.2"});
}

}  // namespace unpack::experiments
