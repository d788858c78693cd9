// Tables and the plot of greater-than.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "experiments/number_text.h"
#include "experiments/plots.h"
#include "experiments/session.h"

namespace unpack::experiments {

namespace {

std::string pool_range(const Json& x) {
  const double low = x[0], high = x[1];
  return low == high ? short_text(low) : fmt::format("{} to {}", short_text(low), short_text(high));
}

std::string rank_cell(const Json& rank, const Json& interval) {
  if (rank.is_null()) return "-";
  if (interval[0].is_null()) return short_text(rank);
  return fmt::format("{} ({} to {})", short_text(rank), short_text(interval[0]),
                     short_text(interval[1]));
}

std::string found_cell(const Json& c) {
  const Json& ends = c.at("found_interval");
  return fmt::format("{} ({} to {})", percent_text(c.at("found_percent")), fixed_text(ends[0], 0),
                     fixed_text(ends[1], 0));
}

// What path patching found, stage by stage, and which heads read the year's digits.
std::string search_text(const Json& s) {
  std::map<std::string, std::string> lists;
  std::vector<std::string> order;
  std::vector<std::vector<std::string>> receivers = {
      {"head", "END to YY", "some MLP's values at YY count"}};
  for (const Json& e : s.at("search")) {
    if (e.contains("receiver")) {
      receivers.push_back(
          {e.at("receiver"),
           fmt::format("{}% ({} to {})", fixed_text(100 * e.at("attention").get<double>(), 1),
                       fixed_text(100 * e.at("interval")[0].get<double>(), 1),
                       fixed_text(100 * e.at("interval")[1].get<double>(), 1)),
           e.at("counts").get<bool>() ? "yes" : "no"});
      continue;
    }
    const std::string stage = e.at("stage");
    if (!lists.contains(stage)) order.push_back(stage);
    const Json& interval = e.at("interval");
    lists[stage] += fmt::format("{}{} {}% ({} to {})", lists[stage].empty() ? "" : ", ",
                                e.at("writer").get<std::string>(),
                                fixed_text(100 * e.at("effect").get<double>(), 1),
                                fixed_text(100 * interval[0].get<double>(), 1),
                                fixed_text(100 * interval[1].get<double>(), 1));
  }
  std::string out =
      "\nFound by path patching: what the logit difference loses, in percent of what the "
      "exchanged year changes in all, when one component's part in the named input\ncomes from "
      "the prompt with the other year (2% or more, with a 95% bootstrap interval over " +
      std::to_string(s.at("search_prompts").get<std::size_t>()) +
      " prompts that does not hold 0). Values: " +
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
      "it: {}; logit difference {} (95% intervals over prompts).\n",
      model, s.at("prompts").get<int>(), s.at("years").get<int>(),
      s.at("seed").get<std::uint64_t>(),
      signed_with_interval(s.at("probability_difference"), s.at("interval")[0], s.at("interval")[1],
                           3),
      signed_with_interval(s.at("logit_difference"), s.at("logit_interval")[0],
                           s.at("logit_interval")[1], 2));
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
                      rank_cell(c.at("rank_all"), c.at("interval_all")), found_cell(c),
                      rank_cell(c.at("rank_late"), c.at("interval_late")),
                      pool_range(c.at("pool_all")), pool_range(c.at("pool_late"))});
    }
    const Json& own = s.at("claims")[i].at("detail");
    const Json& best = s.at("claims_best")[i].at("detail");
    for (std::size_t k = 0; k < own.size(); ++k) {
      detail.push_back({own[k].at("receiver"), own[k].at("source"),
                        rank_cell(own[k].at("all"), own[k].at("interval_all")), found_cell(own[k]),
                        rank_cell(own[k].at("late"), own[k].at("interval_late")),
                        rank_cell(best[k].at("all"), best[k].at("interval_all")),
                        found_cell(best[k])});
    }
  }
  const auto counted = [&](const char* settings, const char* pool, const char* what) {
    const Json& circuit = s.at(settings).at(pool);
    return fmt::format("{}, n = {}",
                       rank_cell(circuit.at(what), circuit.at(fmt::format("{}_interval", what))),
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
      "interval of the median (1,000 resamples over prompts and receivers; named against the rest: "
      "100 "
      "over prompts; seed of the run); found: it sends 0.001 or more of the receiver's credit "
      "(ranks of "
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

}  // namespace unpack::experiments
