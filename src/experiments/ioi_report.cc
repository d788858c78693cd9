// Tables and plots of indirect-object identification.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "experiments/number_text.h"
#include "experiments/plots.h"
#include "experiments/session.h"

namespace unpack::experiments {

namespace {

std::string share_text(double share) { return fixed_text(100 * share, 0) + "%"; }

std::string role_table(const Json& s) {
  std::vector<std::vector<std::string>> rows = {{"role", "rerooted at", "heads"}};
  for (const Json& role : s.at("roles")) {
    std::string heads;
    for (const Json& head : role.at("heads"))
      heads += (heads.empty() ? "" : ", ") + head.get<std::string>();
    rows.push_back({role.at("name"),
                    role.at("root") == "-" ? "" : role.at("root").get<std::string>(),
                    heads.empty() ? "none found" : heads});
  }
  return markdown_table(rows);
}

std::string candidates_text(const Json& candidates) {
  if (candidates.empty()) return "";
  std::string names;
  for (const Json& head : candidates)
    names += (names.empty() ? "" : ", ") + head.get<std::string>();
  return fmt::format(
      "\nNo head is a name mover here. \"To name-mover queries\" is to those of {}, which look at "
      "the indirect object more than at the second mention and have 2% or more on the logits, with "
      "an interval that holds 0.\n",
      names);
}

std::string search_table(const Json& search) {
  std::vector<std::vector<std::string>> rows = {
      {"head", "role", "to the logits", "to name-mover queries", "to S-inhibition values",
       "to induction keys", "END to IO / S1 / S2", "S2 to S1", "S2 to S1+1", "S1+1 to S1"}};
  for (const Json& h : search) {
    const auto share = [&](const char* name) { return share_text(h.at(name).get<double>()); };
    const auto effect = [&](const char* name) {
      const Json& e = h.at(name);
      return fmt::format("{}% ({} to {})", fixed_text(100 * e[0].get<double>(), 1),
                         fixed_text(100 * e[1].get<double>(), 1),
                         fixed_text(100 * e[2].get<double>(), 1));
    };
    rows.push_back({h.at("head"), h.at("role").is_null() ? "" : h.at("role").get<std::string>(),
                    effect("logits"), effect("name-mover queries"), effect("S-inhibition values"),
                    effect("induction keys"),
                    fmt::format("{} / {} / {}", share("to IO"), share("to S1"), share("to S2")),
                    share("duplicate"), share("induction"), share("previous")});
  }
  return markdown_table(rows);
}

// How often each role is found (by mass) in each branch of each root; empty where no root has a
// head of any role below it.
std::string rank_plot(const std::string& model, const Json& s) {
  std::vector<std::string> groups;
  std::vector<BarSeries> series;
  for (const Json& role : s.at("roles")) series.push_back({role.at("name"), {}, {}});
  for (const auto& [branch, by_root] : s.at("tables").at("mass").items()) {
    for (const auto& [root, cells] : by_root.items()) {
      groups.push_back(fmt::format("{} {}", branch, root));
      for (BarSeries& bars : series) {
        const Json& cell = cells.at(bars.name);
        bars.values.push_back(cell.is_null() ? NAN : cell.at("found_percent").get<double>());
      }
    }
  }
  std::erase_if(series, [](const BarSeries& bars) {
    return std::all_of(bars.values.begin(), bars.values.end(),
                       [](double x) { return std::isnan(x); });
  });
  if (series.empty()) return "";
  return bar_plot(fmt::format("{}: roles found upstream of a root, by branch", model),
                  "found, percent of rerootings", groups, series);
}

std::string sign_table(const Json& summaries) {
  std::vector<std::vector<std::string>> rows = {{"model", "settings", "prompts", "IO above 0",
                                                 "first subject below 0",
                                                 "second subject above 0"}};
  for (const auto& [model, s] : summaries.items()) {
    for (const auto& [setting, names] : s.at("signs").items()) {
      rows.push_back({model, setting == "credit" ? "the run's" : "best",
                      std::to_string(s.at("prompts").get<int>())});
      for (const auto& value : names)
        rows.back().push_back(fmt::format("{} ({} to {})", percent_text(value.at("percent")),
                                          fixed_text(value.at("interval")[0], 0),
                                          fixed_text(value.at("interval")[1], 0)));
    }
  }
  return markdown_table(rows);
}

// "10 (8 to 12.5) / 66.7% (60 to 73)"
std::string rank_text(const Json& cell) {
  const auto ends = [&](const char* name, int decimals) {
    const Json& interval = cell.at(name);
    if (interval.is_null()) return std::string();
    const auto end = [&](std::size_t i) {
      return decimals == 0 ? fixed_text(interval[i], 0) : short_text(interval[i]);
    };
    return fmt::format(" ({} to {})", end(0), end(1));
  };
  return fmt::format(
      "{} / {}{}",
      cell.at("rank").is_null() ? "-" : short_text(cell.at("rank")) + ends("rank_interval", 1),
      percent_text(cell.at("found_percent")), ends("found_interval", 0));
}

std::string matrix(const Json& s, const char* notion) {
  std::vector<std::string> head = {"branch", "root"};
  for (const Json& role : s.at("roles")) head.push_back(role.at("name"));
  std::vector<std::vector<std::string>> rows = {head};
  for (const auto& [branch, by_root] : s.at("tables").at(notion).items()) {
    for (const auto& [root, cells] : by_root.items()) {
      std::vector<std::string> row = {branch, root};
      for (const auto& cell : cells) {
        row.push_back(cell.is_null() ? "-" : rank_text(cell));
      }
      rows.push_back(row);
    }
  }
  return markdown_table(rows);
}

}  // namespace

std::string report_ioi(const Json& summaries, std::vector<ReportFile>& files) {
  std::string out =
      "Rerooted at the heads of a role, the upstream heads of layer 1 and later are ranked by what "
      "they send into the root through a branch. A cell is the "
      "median\nrank of a role's best head where it is found, and the share of rerootings in which "
      "it is found, each with its 95% bootstrap interval over prompts (400 resamples, seed of the "
      "run). Two notions of found:\n\n"
      "- mass: the ranking of the exact totals over all routes; found means 0.001 or more of the "
      "root's credit;\n"
      "- paths: the paper's enumeration (entry by entry, threshold 0.001, the strongest 10,000 "
      "kept); found means that a kept path takes the head as its last "
      "hop,\n  and the rank is that of their summed size.\n\n"
      "Mass is given with the run's settings and with `--preset best`.\n\n"
      "## Signs of token credit\n\nTarget: the indirect object against the subject. Share of "
      "prompts in which the credit of a name has the sign given, with its 95% bootstrap interval "
      "over prompts (2,000 resamples).\n\n" +
      sign_table(summaries);
  for (const auto& [model, s] : summaries.items()) {
    const std::string plot = s.contains("tables") ? rank_plot(model, s) : "";
    if (!plot.empty()) files.push_back({fmt::format("ioi-{}.svg", slug(model)), plot});
    out += fmt::format(
        "\n## {}\n\n{} prompts, seed {}; the indirect object is the first prediction in {} ({} to "
        "{}), mean logit difference to the subject {}.\n\n{}",
        model, s.at("prompts").get<int>(), s.at("seed").get<std::uint64_t>(),
        percent_text(s.at("top_percent")), fixed_text(s.at("top_interval")[0], 0),
        fixed_text(s.at("top_interval")[1], 0),
        with_interval(s.at("logit_difference"), s.at("logit_interval")[0],
                      s.at("logit_interval")[1], 2),
        role_table(s));
    if (!s.at("search").is_null()) {
      out +=
          fmt::format(
              "\nHow the roles were found: loss of the logit difference (in percent of it, with "
              "its 95% bootstrap interval over {} prompts) when what the head sends along the "
              "edges named\ncomes from the same sentence with three other names, and what the "
              "head attends to. To the logits: directly and through MLPs, all other heads frozen. "
              "To queries, values and\nkeys: {}, all other heads frozen up to the reader. A head "
              "has a role only where its effect is 2% or more and the interval lies above 0, the "
              "strongest four of a role; heads "
              "without a role are listed where an\neffect of 2% or more has an interval without "
              "0. Attention: means over the same prompts, no 95% interval of which reaches further "
              "than {} points from its mean. An S-suppressor reads the second mention and lowers "
              "that name without a name "
              "mover; S-inhibition values are those of\nboth kinds.\n\n",
              s.at("search_prompts").get<std::size_t>(),
              s.at("narrow_paths").get<bool>() ? "directly alone (`--narrow-paths`)"
                                               : "directly and through MLPs",
              fixed_text(100 * s.at("attention_halfwidth").get<double>(), 0)) +
          search_table(s.at("search")) + candidates_text(s.at("candidates"));
    }
    if (!s.contains("tables")) {
      out += "\nNo role has a head to reroot at.\n";
      continue;
    }
    out += plot.empty()
               ? "\nNo head with a role lies below another one in layer 1 or later, so that "
                 "nothing can be ranked.\n"
               : fmt::format("\n![How often each role is found](ioi-{}.svg)\n", slug(model));
    out += "\n### Found by mass\n\n" + matrix(s, "mass") +
           "\n### Found by mass, `--preset best`\n\n" + matrix(s, "best") +
           "\n### Found by paths\n\n" + matrix(s, "paths");
  }
  out += "\n## GPT-2 small (paper), found by paths\n\n" +
         markdown_table(
             {{"branch", "root", "name mover", "S-inhibition", "induction", "duplicate token",
               "previous token"},
              {"all", "name mover", "6 / 33%", "4 / 100%", "14 / 84%", "22 / 29%", "21 / 77%"},
              {"all", "S-inhibition", "-", "20 / 32%", "4 / 96%", "2 / 97%", "20 / 52%"},
              {"all", "induction", "-", "-", "3 / 25%", "2 / 100%", "4 / 98%"},
              {"K", "name mover", "-", "10 / 48%", "14 / 27%", "13 / 19%", "14 / 46%"},
              {"K", "S-inhibition", "-", "-", "5 / 93%", "4 / 91%", "13 / 4%"},
              {"K", "induction", "-", "-", "21 / 3%", "8 / 10%", "3 / 98%"},
              {"Q", "name mover", "2 / 33%", "1 / 100%", "4 / 63%", "18 / 5%", "10 / 56%"},
              {"Q", "S-inhibition", "-", "9 / 32%", "3 / 66%", "13 / 35%", "11 / 42%"},
              {"Q", "induction", "-", "-", "2 / 25%", "1 / 100%", "10 / 36%"},
              {"V", "name mover", "-", "-", "4 / 24%", "6 / 10%", "6 / 9%"},
              {"V", "S-inhibition", "-", "-", "2 / 96%", "1 / 95%", "10 / 21%"},
              {"V", "induction", "-", "-", "8 / 10%", "11 / 32%", "9 / 88%"}});
  return out;
}

}  // namespace unpack::experiments
