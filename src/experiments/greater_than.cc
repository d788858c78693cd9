// Greater-than: rerooted at the components that a circuit names as receivers, where do its sources
// rank among what feeds them?
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "engine/masses.h"
#include "engine/state.h"
#include "experiments/greater_than_claims.h"
#include "experiments/statistics.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack::experiments {

namespace {

constexpr double kFound = 1e-3;
constexpr int kRankDraws = 1000, kNamedDraws = 100;  // of the bootstrap
constexpr const char* kPublishedClaims = "greater_than_claims_gpt2.txt";

// One ranking: a receiver read through a branch at some positions.
struct View {
  int receiver = 0;
  Branch branch = Branch::none;
  std::string where;
  auto operator<=>(const View&) const = default;
  std::string key(const Writers& writers) const {
    return fmt::format("{}|{}|{}", writers.name(receiver),
                       branch == Branch::none ? "all" : to_string(branch), where);
  }
};

std::vector<View> views_of(const std::vector<Claim>& claims) {
  std::set<View> out;
  for (const Claim& claim : claims) {
    for (const int r : claim.receivers) out.insert({r, claim.branch, claim.where});
  }
  return {out.begin(), out.end()};
}

// Writers by what they send into the receiver, largest first, and how many of them send a
// thousandth or more.
Json rank(const TraceResult& result, const std::vector<double>& below, const View& view, int yy) {
  std::vector<std::pair<int, double>> order;
  for (std::size_t w = 0; w < result.writers.size(); ++w) {
    double mass = 0;
    for (const auto& [branch, credit] : result.incoming) {
      if (view.branch != Branch::none && branch != view.branch) continue;
      for (int s = 0; s < result.length(); ++s) {
        if ((view.where == "END" && s != result.length() - 1) || (view.where == "YY" && s != yy))
          continue;
        mass += std::fabs(credit[w][s]) * below[s * result.writers.size() + w];
      }
    }
    if (mass > 0) order.emplace_back(w, mass);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  Json out = {{"order", Json::array()}, {"found", 0}};
  int found = 0;
  for (const auto& [w, mass] : order) {
    out["order"].push_back(w);
    found += mass >= kFound;
  }
  out["found"] = found;
  return out;
}

Json measure(const ModelSession& session, const YearPrompt& p, const std::vector<View>& views) {
  const Writers& writers = session.model.writers();
  const Prepared prepared = session.model.prepare(p.ids, session.context);
  const YearReading reading =
      read_years(*engine::state_of(prepared)->logits_at(prepared.length() - 1), p);
  Question question;
  question.target.ids = p.above;
  question.target.versus = p.up_to;
  question.paths.top = 0;
  const auto rank_all = [&](const Options& options) {
    question.options = options;
    Json rankings = Json::object();
    std::map<int, std::pair<TraceResult, std::vector<double>>> traced;
    for (const View& view : views) {
      if (!traced.contains(view.receiver)) {
        question.root = fmt::format("{}@-1", writers.name(view.receiver));
        TraceResult rooted = prepared.trace(question, session.context);
        std::vector<double> below =
            engine::masses_below(*engine::state_of(prepared), question, rooted, session.context);
        traced.emplace(view.receiver, std::pair{std::move(rooted), std::move(below)});
      }
      const auto& [rooted, below] = traced.at(view.receiver);
      rankings[view.key(writers)] = rank(rooted, below, view, p.yy);
    }
    return rankings;
  };
  return {{"text", p.text},
          {"year", p.year},
          {"logit_difference", reading.logit_difference},
          {"probability_difference", reading.probability_difference},
          {"rankings", rank_all(session.options.options)},
          {"rankings_best", rank_all(preset_options("best"))}};
}

bool later(const Writer& w) { return w.layer >= 1; }

// Places in one prompt's ranking, among all writers and among those of layer 1 and later.
struct Places {
  std::map<int, double> all, late;
  int found_all = 0, found_late = 0;
};
Places places(const Json& ranking, const Writers& writers) {
  Places out;
  const int found = ranking.at("found");
  int i = 0;
  for (const int w : ranking.at("order")) {
    ++i;
    out.all[w] = i;
    if (later(writers[w])) out.late[w] = out.late.size() + 1;
    if (i == found) out.found_late = out.late.size();
  }
  out.found_all = found;
  return out;
}

Json middle(const std::vector<double>& ranks) {
  return ranks.empty() ? Json(nullptr) : Json(median(ranks));
}

Json middle_interval(const std::vector<double>& ranks, std::uint64_t seed) {
  if (ranks.empty()) return nullptr;
  const Interval interval = median_interval(ranks, seed, kRankDraws);
  return {interval.low, interval.high};
}

// Of the share of prompts in which something is found.
Json found_interval(double found, double tested, std::uint64_t seed) {
  std::vector<double> values(tested, 0.0);
  std::fill_n(values.begin(), found, 100.0);
  const Interval interval = bootstrap_interval(values, seed, kRankDraws);
  return {interval.low, interval.high};
}

// Ranks of writers that send less than the threshold count nowhere.
Json claim_summary(const Claim& claim, const Writers& writers,
                   const std::map<std::string, std::vector<Places>>& seen, std::uint64_t seed) {
  std::vector<double> best_all, best_late, pool_all, pool_late;
  Json detail = Json::array();
  int receivers = 0;
  double tested = 0;
  for (const int r : claim.receivers) {
    std::vector<int> sources;
    for (const int s : claim.sources) {
      if (reads(writers, r, s)) sources.push_back(s);
    }
    if (sources.empty()) continue;
    ++receivers;
    const std::vector<Places>& prompts = seen.at(View{r, claim.branch, claim.where}.key(writers));
    std::vector<double> found_all, found_late;
    std::map<int, std::vector<double>> one_all, one_late;
    for (const Places& p : prompts) {
      found_all.push_back(p.found_all);
      found_late.push_back(p.found_late);
      double first = 0, first_late = 0;
      for (const int s : sources) {
        if (const auto at = p.all.find(s); at != p.all.end() && at->second <= p.found_all) {
          one_all[s].push_back(at->second);
          if (first == 0 || at->second < first) first = at->second;
        }
        if (const auto at = p.late.find(s); at != p.late.end() && at->second <= p.found_late) {
          one_late[s].push_back(at->second);
          if (first_late == 0 || at->second < first_late) first_late = at->second;
        }
      }
      tested += 1;
      if (first > 0) best_all.push_back(first);
      if (first_late > 0) best_late.push_back(first_late);
    }
    pool_all.push_back(median(found_all));
    pool_late.push_back(median(found_late));
    for (const int s : sources) {
      detail.push_back({{"receiver", writers.name(r)},
                        {"source", writers.name(s)},
                        {"all", middle(one_all[s])},
                        {"interval_all", middle_interval(one_all[s], seed)},
                        {"late", middle(one_late[s])},
                        {"interval_late", middle_interval(one_late[s], seed)},
                        {"found_interval", found_interval(one_all[s].size(), prompts.size(), seed)},
                        {"found_percent", 100.0 * one_all[s].size() / prompts.size()}});
    }
  }
  const auto range = [](const std::vector<double>& v) {
    return Json({*std::min_element(v.begin(), v.end()), *std::max_element(v.begin(), v.end())});
  };
  return {{"claim", claim.text},
          {"receivers", receivers},
          {"rank_all", middle(best_all)},
          {"rank_late", middle(best_late)},
          {"interval_all", middle_interval(best_all, seed)},
          {"interval_late", middle_interval(best_late, seed)},
          {"found_percent", 100.0 * best_all.size() / tested},
          {"found_interval", found_interval(best_all.size(), tested, seed)},
          {"pool_all", range(pool_all)},
          {"pool_late", range(pool_late)},
          {"detail", detail}};
}

// Median ranks of every component in every ranking, those that a claim names against the others.
Json circuit_summary(const std::vector<Claim>& claims, const Writers& writers,
                     const std::map<std::string, std::vector<Places>>& seen, std::uint64_t seed) {
  std::set<int> circuit;
  for (const Claim& claim : claims) {
    circuit.insert(claim.receivers.begin(), claim.receivers.end());
    circuit.insert(claim.sources.begin(), claim.sources.end());
  }
  Json out = Json::object();
  for (const char* pool : {"all", "late"}) {
    const bool late = std::string(pool) == "late";
    // Ranks of one component in one ranking, prompt by prompt; 0: below the threshold.
    std::vector<std::pair<bool, std::vector<double>>> ranks;
    std::vector<std::size_t> in_order(seen.begin()->second.size());
    std::iota(in_order.begin(), in_order.end(), std::size_t{0});
    for (const auto& [key, prompts] : seen) {
      for (int w = 0; w < writers.count(); ++w) {
        std::vector<double> of_prompts;
        for (const Places& p : prompts) {
          const auto& from = late ? p.late : p.all;
          const auto at = from.find(w);
          const bool found = at != from.end() && at->second <= (late ? p.found_late : p.found_all);
          of_prompts.push_back(found ? at->second : 0.0);
        }
        ranks.emplace_back(circuit.contains(w), std::move(of_prompts));
      }
    }
    const auto medians = [&](bool named, const std::vector<std::size_t>& draw) {
      std::vector<double> of_components;
      for (const auto& [inside, of_prompts] : ranks) {
        if (inside != named) continue;
        std::vector<double> drawn;
        for (const std::size_t i : draw) {
          if (of_prompts[i] > 0) drawn.push_back(of_prompts[i]);
        }
        if (!drawn.empty()) of_components.push_back(median(drawn));
      }
      return of_components;
    };
    for (const bool named : {true, false}) {
      const std::string what = named ? "circuit" : "rest";
      const std::vector<double> whole = medians(named, in_order);
      const Interval interval = bootstrap_statistic(
          in_order.size(), seed, kNamedDraws, [&](const std::vector<std::size_t>& draw) {
            const std::vector<double> drawn = medians(named, draw);
            return drawn.empty() ? NAN : median(drawn);
          });
      out[pool][what] = middle(whole);
      out[pool][what + "_n"] = whole.size();
      out[pool][what + "_interval"] =
          std::isnan(interval.low) ? Json({nullptr, nullptr}) : Json({interval.low, interval.high});
    }
  }
  return out;
}

std::vector<Claim> claims_of(ModelSession& session, const std::vector<YearPrompt>& prompts,
                             Json& search) {
  const ExperimentOptions& o = session.options;
  const Writers& writers = session.model.writers();
  // The model that the published claims are about needs no search.
  const ModelInfo info = session.model.info();
  const bool published = (info.name == "gpt2" || info.name.ends_with("/gpt2")) &&
                         info.layers == 12 && info.heads == 12;
  if ((!o.claims && published) || (o.claims && *o.claims == "gpt2"))
    return read_claims(writers, data_file(kPublishedClaims));
  if (o.claims && *o.claims != "find") return read_claims(writers, *o.claims);
  return find_claims(session, prompts, search);
}

}  // namespace

Json run_greater_than(ModelSession& session) {
  const Writers& writers = session.model.writers();
  const std::vector<YearPrompt> prompts =
      year_prompts(session.model, session.n, session.options.seed);
  Json search;
  const std::vector<Claim> claims = claims_of(session, prompts, search);
  const std::vector<View> views = views_of(claims);
  std::map<std::string, std::vector<Places>> seen, seen_best;
  std::vector<double> logit, probability;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    session.context.report("prompts", i, prompts.size());
    const std::string key = session.key(fmt::format("prompt {}", i));
    const Json* record =
        session.record(i, key, [&] { return measure(session, prompts[i], views); });
    if (!record) continue;
    logit.push_back(record->at("logit_difference"));
    probability.push_back(record->at("probability_difference"));
    for (const auto& [view, ranking] : record->at("rankings").items())
      seen[view].push_back(places(ranking, writers));
    for (const auto& [view, ranking] : record->at("rankings_best").items())
      seen_best[view].push_back(places(ranking, writers));
  }
  if (session.records.partial()) return {};
  const Interval interval = normal_interval(probability), logit_interval = normal_interval(logit);
  Json summary = {{"prompts", session.n},
                  {"years", usable_years(session.model).size()},
                  {"probability_difference", mean(probability)},
                  {"interval", {interval.low, interval.high}},
                  {"logit_difference", mean(logit)},
                  {"logit_interval", {logit_interval.low, logit_interval.high}},
                  {"search_prompts", search_years(prompts.size())},
                  {"search", search},
                  {"seed", session.options.seed},
                  {"narrow_paths", session.options.narrow_paths},
                  {"claims", Json::array()},
                  {"claims_best", Json::array()}};
  for (const Claim& claim : claims) {
    summary["claims"].push_back(claim_summary(claim, writers, seen, session.options.seed));
    summary["claims_best"].push_back(
        claim_summary(claim, writers, seen_best, session.options.seed));
  }
  if (!claims.empty()) {
    summary["circuit"] = circuit_summary(claims, writers, seen, session.options.seed);
    summary["circuit_best"] = circuit_summary(claims, writers, seen_best, session.options.seed);
  }
  return summary;
}

}  // namespace unpack::experiments
