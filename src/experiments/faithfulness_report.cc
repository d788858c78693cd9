// Tables and curves of input flipping.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "experiments/number_text.h"
#include "experiments/plots.h"
#include "experiments/token_rankings.h"

namespace unpack::experiments {

namespace {

using Published = std::map<std::string, std::string>;

std::string ends_text(const Json& interval) {
  return fmt::format("{} to {}", signed_text(interval[0], 4), signed_text(interval[1], 4));
}

std::string words_for(const std::string& kind) {
  if (kind == "content") return "content words";
  if (kind == "function") return "function words";
  return "whole sentences";
}

std::string area_table(const Json& part, const Json& references, const std::string& first,
                       const Published& paper) {
  std::vector<std::vector<std::string>> rows = {
      {first, "area", "95% interval", "bootstrap", "above 0"}};
  for (const Json& reference : references)
    rows[0].push_back(fmt::format("less {} (bootstrap)", reference.get<std::string>()));
  if (!paper.empty()) rows[0].emplace_back("paper, GPT-2 (area / above 0)");
  for (const auto& [name, m] : part.at("methods").items()) {
    rows.push_back({name, signed_text(m.at("area"), 4), ends_text(m.at("interval")),
                    ends_text(m.at("bootstrap")),
                    fmt::format("{} ({} to {})", percent_text(m.at("faithful_percent")),
                                fixed_text(m.at("faithful_interval")[0], 0),
                                fixed_text(m.at("faithful_interval")[1], 0))});
    for (const Json& reference : references) {
      const Json& less = m.at("less").at(reference.get<std::string>());
      rows.back().push_back(name == reference.get<std::string>()
                                ? ""
                                : fmt::format("{} ({})", signed_text(less.at("difference"), 4),
                                              ends_text(less.at("bootstrap"))));
    }
    const auto known = paper.find(name);
    if (!paper.empty()) rows.back().push_back(known == paper.end() ? "" : known->second);
  }
  return markdown_table(rows);
}

// Which rankings are better than a reference, and which of the differences are more than chance.
std::string verdict(const Json& part, const std::string& reference) {
  std::string better, worse, open;
  for (const auto& [name, m] : part.at("methods").items()) {
    if (name == reference) continue;
    const Json& interval = m.at("less").at(reference).at("bootstrap");
    std::string& list = interval[0].get<double>() > 0   ? better
                        : interval[1].get<double>() < 0 ? worse
                                                        : open;
    list += (list.empty() ? "" : "; ") + name;
  }
  const auto or_none = [](const std::string& list) {
    return list.empty() ? std::string("none") : list;
  };
  return fmt::format(
      "\nCompared with `{}`, by the bootstrap interval of the difference per prompt:\n\n"
      "- better: {}\n- worse: {}\n- not told apart: {}\n",
      reference, or_none(better), or_none(worse), or_none(open));
}

std::string targets_text(const Json& part) {
  std::string out;
  for (const Json& target : part.at("targets"))
    out += fmt::format("{}`{}` {}", out.empty() ? "" : ", ", target[0].get<std::string>(),
                       target[1].get<int>());
  const int distinct = part.at("distinct_targets");
  return fmt::format("{} different targets{}: {}", distinct,
                     distinct > static_cast<int>(part.at("targets").size()) ? "; most often" : "",
                     out);
}

std::string tried_text(const Json& part) {
  int all = 0;
  for (const Json& count : part.at("tried")) all += count.get<int>();
  std::string out;
  for (const auto& [what, count] : part.at("tried").items())
    out += fmt::format("{}{} {}%", out.empty() ? "" : ", ", what,
                       fixed_text(100.0 * count.get<int>() / std::max(1, all), 0));
  return fmt::format("top predictions at the {} places tried: {}", all, out);
}

// All models side by side: a table and a plot.
std::string joined(const Json& summaries, const std::string& kind, std::vector<ReportFile>& files,
                   const std::string& first, const Published& paper, const std::string& stem) {
  std::vector<std::string> head = {first};
  std::vector<BarSeries> series;
  std::vector<std::string> groups;
  std::vector<std::vector<std::string>> rows;
  for (const auto& item : summaries.begin()->at("kinds").at(kind).at("methods").items()) {
    groups.push_back(item.key());
    rows.push_back({item.key()});
  }
  for (const auto& [model, s] : summaries.items()) {
    const Json& part = s.at("kinds").at(kind);
    if (!part.contains("methods")) continue;
    head.push_back(
        fmt::format("{} (area / above 0, n = {})", model, part.at("prompts").get<int>()));
    BarSeries bars{model, {}, {}};
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const Json& m = part.at("methods").at(groups[i]);
      rows[i].push_back(fmt::format("{} / {}", signed_text(m.at("area"), 4),
                                    percent_text(m.at("faithful_percent"))));
      bars.values.push_back(m.at("area"));
      bars.interval.emplace_back(m.at("bootstrap")[0], m.at("bootstrap")[1]);
    }
    series.push_back(std::move(bars));
  }
  if (!paper.empty()) head.emplace_back("GPT-2 small (paper)");
  for (auto& row : rows) {
    if (paper.empty()) break;
    const auto known = paper.find(row[0]);
    row.push_back(known == paper.end() ? "" : known->second);
  }
  rows.insert(rows.begin(), head);
  const std::string file = stem + ".svg";
  files.push_back({file, bar_plot(fmt::format("Area between the curves, {}", words_for(kind)),
                                  "area", groups, series)});
  return fmt::format("\n{}\n![Area by {}]({})\n\nWhiskers: bootstrap intervals.\n",
                     markdown_table(rows), first, file);
}

std::string curve_plots(const Json& part, const std::string& model, std::vector<ReportFile>& files,
                        const std::string& stem) {
  std::vector<Series> series;
  // As many as there are colours; the table has them all.
  const auto drawn = [](const std::string& name) {
    return (!name.starts_with("unpack, ") || name == kBestSettings) &&
           name != "length of the embedding" && name != "best, 0";
  };
  for (const auto& [name, m] : part.at("methods").items()) {
    if (!drawn(name)) continue;
    const std::vector<double> lerf = numbers(m.at("lerf")), morf = numbers(m.at("morf"));
    std::vector<double> share;
    for (std::size_t i = 0; i < lerf.size(); ++i)
      share.push_back(static_cast<double>(i) / (lerf.size() - 1));
    const int color = series.size() / 2;
    series.push_back({name, share, lerf, color, false});
    series.push_back({"", share, morf, color, true});
  }
  const std::string file = fmt::format("{}-{}.svg", stem, slug(model));
  files.push_back({file, line_plot(fmt::format("Mean flipping curves, {}", model),
                                   "share of tokens zeroed", "readout of the target", series)});
  return fmt::format("\n![Mean flipping curves]({})\n\nWhole lines: LeRF, dashed ones: MoRF.\n",
                     file);
}

std::string report_flipping(const Json& summaries, std::vector<ReportFile>& files,
                            const std::string& first, const Published& published,
                            const std::string& stem) {
  // Published figures are of the probability, with a contrast: nothing else is to be read beside
  // them.
  const Json& any = summaries.begin().value();
  const bool as_published = any.at("readout") == "probability" && !any.at("raw_logit").get<bool>();
  const Published paper = as_published ? published : Published();
  const bool whole = any.at("kinds").contains("whole");
  std::string out =
      "Token embeddings are set to zero one after the other, the least relevant first (LeRF) or "
      "the most relevant first (MoRF). Area: mean over the steps of "
      "the\n"
      "target's readout, LeRF less MoRF. Above 0: share of prompts with a positive area. BOS is "
      "neither ranked nor flipped. Intervals: 95%, over prompts (bootstrap: 2,000\n"
      "resamples, same seed as the run). ";
  out +=
      first == "beta"
          ? "Rows: floors of the denominators with the run's settings (the preset of the command "
            "above), `best, B` with those of `--preset best`.\n\n"
          : "Rankings named `unpack` have the run's settings (the preset of the command above, "
            "with the change named), `unpack, best` those of `--preset best`.\n\n";
  out += whole ? "Prompts: whole sentences of 8 to 45 tokens, in an order drawn by the seed, whose "
                 "top prediction is a word (letters alone) with a probability of 0.1 or more.\n"
               : "Prompts: sentences in an order drawn by the seed, each cut once. Places where a "
                 "cut may lie: 8 to 24 tokens stand before it, the sentence goes on with a new "
                 "word, and\nwhat stands before is a word or a comma, so that no sentence ends "
                 "there. They are tried in an order drawn by seed and line; the first one is taken "
                 "where the model's top\nprediction, the target, has a probability of 0.1 or more, "
                 "begins with a blank, is made of letters and is a whole word (the model does not "
                 "go on with a letter after\nit). A sentence without such a place is left out. "
                 "Content words are those not in `data/function_words.txt`; a third as many "
                 "prompts before function words stand apart.\n";
  for (const auto& item : any.at("kinds").items()) {
    const std::string& kind = item.key();
    if (summaries.size() < 2 || !item.value().contains("methods")) continue;
    out += fmt::format("\n## Targets: {}\n", words_for(kind));
    out += joined(summaries, kind, files, first, kind == "function" ? Published() : paper,
                  kind == "function" ? stem + "-function" : stem);
  }
  for (const auto& [model, s] : summaries.items()) {
    out += fmt::format("\n## {}\n", model);
    for (const auto& [kind, part] : s.at("kinds").items()) {
      out += fmt::format("\n### {}: {}\n\n", model, words_for(kind));
      if (!part.contains("methods")) {
        out += "No prompt.\n";
        continue;
      }
      out += fmt::format(
          "{} prompts (of {} sentences looked at; {:.1f} tokens on the mean), readout: {}{}, seed "
          "{}. {}; {}.\n\n",
          part.at("prompts").get<int>(), part.at("looked_at").get<int>(),
          part.at("tokens").get<double>(), s.at("readout").get<std::string>(),
          s.at("raw_logit").get<bool>() ? ", explained: raw logit" : "",
          s.at("seed").get<std::uint64_t>(), targets_text(part), tried_text(part));
      const bool first_kind = kind != "function";
      out += area_table(part, s.at("references"), first, first_kind ? paper : Published());
      for (const Json& reference : s.at("references"))
        out += verdict(part, reference.get<std::string>());
      if (first_kind) out += curve_plots(part, model, files, stem);
    }
  }
  return out;
}

}  // namespace

std::string report_faithfulness(const Json& summaries, std::vector<ReportFile>& files) {
  return report_flipping(summaries, files, "method",
                         {{"unpack", "+0.085 / 100%"},
                          {"IFR", "+0.084 / 99%"},
                          {"AttnLRP", "+0.066 / 99%"},
                          {"CP-LRP", "+0.049 / 91%"},
                          {"random", "-0.001 / 49%"}},
                         "faithfulness");
}

std::string report_beta(const Json& summaries, std::vector<ReportFile>& files) {
  std::string out = report_flipping(summaries, files, "beta",
                                    {{"0", "+0.002 / 53%"},
                                     {"0.2", "+0.046 / 100%"},
                                     {"0.4", "+0.045 / 100%"},
                                     {"0.6", "+0.060 / 100%"},
                                     {"0.8", "+0.046 / 100%"},
                                     {"1", "+0.053 / 100%"},
                                     {"1.5", "+0.045 / 100%"},
                                     {"2", "+0.045 / 100%"}},
                                    "beta-areas");
  std::vector<Series> series;
  for (const auto& [model, s] : summaries.items()) {
    const int color = series.size() / 2;
    Series own{model, {}, {}, color, false}, best{model + ", best", {}, {}, color, true};
    const std::string prefix = "best, ";
    for (const auto& [name, m] : s.at("kinds").begin()->at("methods").items()) {
      const bool is_best = name.starts_with(prefix);
      Series& line = is_best ? best : own;
      line.x.push_back(std::stod(is_best ? name.substr(prefix.size()) : name));
      line.y.push_back(m.at("area"));
    }
    series.push_back(std::move(own));
    series.push_back(std::move(best));
  }
  files.push_back(
      {"beta.svg", line_plot("Area by the floor of the denominators", "beta", "area", series)});
  return out + "\n![Area by beta](beta.svg)\n";
}

}  // namespace unpack::experiments
