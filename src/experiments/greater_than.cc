// Greater-than: rerooted at the components that a circuit names as receivers, where do its sources
// rank among what feeds them?
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/masses.h"
#include "engine/state.h"
#include "experiments/greater_than_claims.h"
#include "experiments/plots.h"
#include "experiments/statistics.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack {

namespace {

constexpr double kFound = 1e-3;
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
        mass += std::fabs(credit[w][static_cast<std::size_t>(s)]) *
                below[static_cast<std::size_t>(s) * result.writers.size() + w];
      }
    }
    if (mass > 0) order.emplace_back(static_cast<int>(w), mass);
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
  const YearReading reading = read_years(*prepared.state()->logits_at(prepared.length() - 1), p);
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
            masses_below(*prepared.state(), question, rooted, session.context);
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
    if (later(writers[w])) out.late[w] = static_cast<double>(out.late.size()) + 1;
    if (i == found) out.found_late = static_cast<int>(out.late.size());
  }
  out.found_all = found;
  return out;
}

Json middle(const std::vector<double>& ranks) {
  return ranks.empty() ? Json(nullptr) : Json(median(ranks));
}

// 95% bootstrap interval of a median.
Json middle_interval(const std::vector<double>& ranks, std::uint64_t seed) {
  if (ranks.empty()) return nullptr;
  const Interval interval = bootstrap_statistic(ranks.size(), seed, 1000, [&](const auto& draw) {
    std::vector<double> drawn;
    for (const std::size_t i : draw) drawn.push_back(ranks[i]);
    return median(drawn);
  });
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
                        {"late", middle(one_late[s])},
                        {"found_percent", 100.0 * static_cast<double>(one_all[s].size()) /
                                              static_cast<double>(prompts.size())}});
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
          {"found_percent", 100.0 * static_cast<double>(best_all.size()) / tested},
          {"pool_all", range(pool_all)},
          {"pool_late", range(pool_late)},
          {"detail", detail}};
}

// Median ranks of every component in every ranking, those that a claim names against the others.
Json circuit_summary(const std::vector<Claim>& claims, const Writers& writers,
                     const std::map<std::string, std::vector<Places>>& seen) {
  std::set<int> circuit;
  for (const Claim& claim : claims) {
    circuit.insert(claim.receivers.begin(), claim.receivers.end());
    circuit.insert(claim.sources.begin(), claim.sources.end());
  }
  Json out = Json::object();
  for (const char* pool : {"all", "late"}) {
    std::vector<double> inside, outside;
    for (const auto& [key, prompts] : seen) {
      for (int w = 0; w < writers.count(); ++w) {
        std::vector<double> ranks;
        for (const Places& p : prompts) {
          const auto& from = std::string(pool) == "all" ? p.all : p.late;
          const int found = std::string(pool) == "all" ? p.found_all : p.found_late;
          if (const auto at = from.find(w); at != from.end() && at->second <= found)
            ranks.push_back(at->second);
        }
        if (!ranks.empty()) (circuit.contains(w) ? inside : outside).push_back(median(ranks));
      }
    }
    out[pool] = {{"circuit", middle(inside)},
                 {"circuit_n", inside.size()},
                 {"rest", middle(outside)},
                 {"rest_n", outside.size()}};
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
    session.context.report("prompts", static_cast<double>(i), static_cast<double>(prompts.size()));
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
  const Interval interval = normal_interval(probability);
  Json summary = {{"prompts", session.n},
                  {"years", usable_years(session.model).size()},
                  {"probability_difference", mean(probability)},
                  {"interval", {interval.low, interval.high}},
                  {"logit_difference", mean(logit)},
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
    summary["circuit"] = circuit_summary(claims, writers, seen);
    summary["circuit_best"] = circuit_summary(claims, writers, seen_best);
  }
  return summary;
}

namespace {

std::string number(const Json& x) {
  return x.is_null() ? "-" : fmt::format("{:g}", x.get<double>());
}

std::string range(const Json& x) {
  const double low = x[0], high = x[1];
  return low == high ? fmt::format("{:g}", low) : fmt::format("{:g} to {:g}", low, high);
}

std::string rank_cell(const Json& rank, const Json& interval) {
  if (rank.is_null()) return "-";
  return fmt::format("{:g} ({:g} to {:g})", rank.get<double>(), interval[0].get<double>(),
                     interval[1].get<double>());
}

// What path patching found, stage by stage, and which heads read the year's digits.
std::string search_text(const Json& s) {
  std::map<std::string, std::string> lists;
  std::vector<std::string> order;
  std::vector<std::vector<std::string>> receivers = {
      {"head", "END to YY", "some MLP's values at YY count"}};
  for (const Json& e : s.at("search")) {
    if (e.contains("receiver")) {
      receivers.push_back({e.at("receiver"),
                           fmt::format("{:.1f}%", 100 * e.at("attention").get<double>()),
                           e.at("counts").get<bool>() ? "yes" : "no"});
      continue;
    }
    const std::string stage = e.at("stage");
    if (!lists.contains(stage)) order.push_back(stage);
    const Json& interval = e.at("interval");
    lists[stage] +=
        fmt::format("{}{} {:.0f}% ({:.0f} to {:.0f})", lists[stage].empty() ? "" : ", ",
                    e.at("writer").get<std::string>(), 100 * e.at("effect").get<double>(),
                    100 * interval[0].get<double>(), 100 * interval[1].get<double>());
  }
  std::string out =
      "\nFound by path patching: what the logit difference loses, in percent of what the "
      "exchanged year changes in all, when one component's part in the named input\ncomes from "
      "the prompt with the other year (2% or more, with a 95% bootstrap interval over prompts "
      "that does not hold 0). Values: " +
      std::string(s.at("narrow_paths").get<bool>() ? "directly alone (`--narrow-paths`)"
                                                   : "directly and through MLPs at YY") +
      ".\n\n";
  std::vector<std::vector<std::string>> rows = {{"into", "components"}};
  for (const std::string& stage : order) rows.push_back({stage, lists[stage]});
  out += order.empty() ? std::string("Nothing.\n") : markdown_table(rows);
  if (receivers.size() > 1)
    out += "\nHeads found above, each tested as a reader of values at YY:\n\n" +
           markdown_table(receivers);
  return out;
}

std::string model_report(const std::string& model, const Json& s) {
  std::string out = fmt::format(
      "\n## {}\n\n{} prompts from {} years, seed {}; probability above the year less that up to "
      "it: {:+.3f} ({:+.3f} to {:+.3f}); logit difference {:+.2f}.\n",
      model, s.at("prompts").get<int>(), s.at("years").get<int>(),
      s.at("seed").get<std::uint64_t>(), s.at("probability_difference").get<double>(),
      s.at("interval")[0].get<double>(), s.at("interval")[1].get<double>(),
      s.at("logit_difference").get<double>());
  if (!s.at("search").is_null()) out += search_text(s);
  if (s.at("claims").empty()) return out + "\nNo claim to test.\n";
  std::vector<std::vector<std::string>> rows = {{"claim", "receivers", "settings", "rank, all",
                                                 "found", "rank, layer >= 1", "pool, all",
                                                 "pool, layer >= 1"}};
  std::vector<std::vector<std::string>> detail = {
      {"receiver", "source", "rank, all", "found", "rank, layer >= 1", "best: rank, all", "found"}};
  for (std::size_t i = 0; i < s.at("claims").size(); ++i) {
    for (const char* settings : {"claims", "claims_best"}) {
      const Json& c = s.at(settings)[i];
      rows.push_back({c.at("claim"), std::to_string(c.at("receivers").get<int>()),
                      std::string(settings) == "claims" ? "the run's" : "best",
                      rank_cell(c.at("rank_all"), c.at("interval_all")),
                      fmt::format("{:.0f}%", c.at("found_percent").get<double>()),
                      rank_cell(c.at("rank_late"), c.at("interval_late")), range(c.at("pool_all")),
                      range(c.at("pool_late"))});
    }
    const Json& own = s.at("claims")[i].at("detail");
    const Json& best = s.at("claims_best")[i].at("detail");
    for (std::size_t k = 0; k < own.size(); ++k) {
      detail.push_back({own[k].at("receiver"), own[k].at("source"), number(own[k].at("all")),
                        fmt::format("{:.0f}%", own[k].at("found_percent").get<double>()),
                        number(own[k].at("late")), number(best[k].at("all")),
                        fmt::format("{:.0f}%", best[k].at("found_percent").get<double>())});
    }
  }
  const auto counted = [&](const char* settings, const char* pool, const char* what) {
    const Json& circuit = s.at(settings).at(pool);
    return fmt::format("{} (n = {})", number(circuit.at(what)),
                       circuit.at(fmt::format("{}_n", what)).get<int>());
  };
  std::vector<std::vector<std::string>> named = {{"pool", "settings", "named", "the rest"}};
  for (const auto& [pool, words] : {std::pair{"all", "all"}, std::pair{"late", "layer >= 1"}}) {
    for (const char* settings : {"circuit", "circuit_best"})
      named.push_back({words, std::string(settings) == "circuit" ? "the run's" : "best",
                       counted(settings, pool, "circuit"), counted(settings, pool, "rest")});
  }
  return out + "\n### Claims\n\n" + markdown_table(rows) + "\n### Single sources\n\n" +
         markdown_table(detail) + "\n### Named components against the rest\n\n" +
         markdown_table(named);
}

}  // namespace

std::string report_greater_than(const Json& summaries, std::vector<ReportFile>& files) {
  std::string out =
      "\"The {noun} lasted from the year XXYY to the year XX\", target the two-digit tokens above "
      "YY against those up to YY. Rerooted at a receiver at the end "
      "of the\nprompt, writers are ranked by the total of the routes whose last hop takes them, in "
      "the branch and at the position of the claim. Rank: median "
      "over "
      "prompts of the\nbest-placed source of a claim where it is found, with the 95% bootstrap "
      "interval of the median; found: it sends 0.001 or more of the receiver's credit (ranks of "
      "what sends less\ncount nowhere); pool: how many writers send as much (median over prompts, "
      "range over receivers).\n";
  std::vector<std::string> groups;
  std::vector<BarSeries> series = {{"named by a claim", {}, {}}, {"the rest", {}, {}}};
  for (const auto& [model, s] : summaries.items()) {
    if (!s.contains("circuit")) continue;
    for (const char* pool : {"all", "late"}) {
      groups.push_back(
          fmt::format("{}, {}", model, std::string(pool) == "all" ? "all" : "layer >= 1"));
      for (const std::size_t i : {0U, 1U}) {
        const Json& rank = s.at("circuit").at(pool).at(i == 0 ? "circuit" : "rest");
        series[i].values.push_back(rank.is_null() ? NAN : rank.get<double>());
      }
    }
  }
  if (!groups.empty()) {
    files.push_back({"greater-than.svg",
                     bar_plot("Named components against the rest", "median rank", groups, series)});
    out += "\n![Median ranks of named components and of the rest](greater-than.svg)\n";
  }
  for (const auto& [model, s] : summaries.items()) out += model_report(model, s);
  out +=
      "\n## GPT-2 small (paper)\n\n" +
      markdown_table(
          {{"claim", "receivers", "rank, all", "rank, layer >= 1", "pool, all", "pool, layer >= 1"},
           {"MLP 9 relies on a9.h1", "1", "9.5", "3.5", "69", "55"},
           {"MLP 8 relies on six heads of layers 5 to 8", "1", "10", "2", "74", "60"},
           {"MLPs 8 to 11 rely on the MLPs before them", "3", "4", "2", "60 to 69", "47 to 55"},
           {"seven heads read values from MLPs 1 to 3", "7", "9", "2", "31 to 39", "17 to 23"}}) +
      "\n" +
      markdown_table({{"pool", "named", "the rest"},
                      {"all", "10 (n = 246)", "22 (n = 661)"},
                      {"layer >= 1", "8 (n = 121)", "14 (n = 498)"}});
  return out;
}

}  // namespace unpack
