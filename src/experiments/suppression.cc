// Copying against suppression: credit at the second mention of a name, beside that of a name that
// occurs once.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "experiments/number_text.h"
#include "experiments/plots.h"
#include "experiments/session.h"
#include "experiments/statistics.h"
#include "experiments/text_data.h"
#include "unpack/baselines.h"

namespace unpack::experiments {

namespace {

constexpr const char* kBest = "unpack, best";
constexpr const char* kMethods[] = {"ifr", "attnlrp", "cplrp", "unpack", kBest};
constexpr const char* kQuantities[] = {"C->C", "S2->S", "C->B", "S1->S"};

std::vector<double> percent(const Prepared& prepared, const Target& target,
                            const std::string& method, const ModelSession& session) {
  const bool best = method == kBest;
  if (!best && method != "unpack")
    return baseline(prepared, target, parse_method(method), session.context).token_percent;
  Question question;
  question.target = target;
  question.options = best ? preset_options("best") : session.options.options;
  question.paths.top = 0;
  return prepared.trace(question, session.context).token_percent;
}

Target against(const Model& model, const std::string& name, const std::string& other,
               bool contrast) {
  Target target;
  target.ids = {model.single_token(" " + name)};
  if (contrast) target.versus = std::vector<TokenId>{model.single_token(" " + other)};
  return target;
}

// The four quantities of one pair of prompts, by contrast and method.
Json measure(const ModelSession& session, const IoiPrompt& repeated, const IoiPrompt& three) {
  const Prepared twice = session.model.prepare(repeated.ids, session.context);
  const Prepared once = session.model.prepare(three.ids, session.context);
  Json out = Json::object();
  for (const bool contrast : {false, true}) {
    Json& table = out[contrast ? "names" : "vocabulary"];
    for (const char* method : kMethods) {
      // In a prompt of three names B is the one that stands where the repeated name stood first.
      const std::vector<double> copy =
          percent(once, against(session.model, three.third, three.s, contrast), method, session);
      const std::vector<double> other =
          percent(once, against(session.model, three.s, three.third, contrast), method, session);
      const std::vector<double> subject = percent(
          twice, against(session.model, repeated.s, repeated.io, contrast), method, session);
      table[method] = {{"C->C", copy[three.s2]},
                       {"S2->S", subject[repeated.s2]},
                       {"C->B", other[three.s2]},
                       {"S1->S", subject[repeated.s1]}};
    }
  }
  return out;
}

Json ends_json(const Interval& interval) {
  if (std::isnan(interval.low)) return {nullptr, nullptr};
  return {interval.low, interval.high};
}

// E of all prompts, or of a draw of them: how much of the copying is gone. Where nothing is copied,
// it says nothing: null.
Json suppressed(const std::map<std::string, std::vector<double>>& of,
                const std::vector<std::size_t>& draw) {
  const auto mean_of = [&](const char* quantity) {
    const std::vector<double>& list = of.at(quantity);
    if (draw.empty()) return mean(list);
    double sum = 0;
    for (const std::size_t i : draw) sum += list[i] / draw.size();
    return sum;
  };
  const double range = mean_of("C->C") - mean_of("C->B");
  if (range < 1e-6) return nullptr;
  return 1 - (mean_of("S2->S") - mean_of("C->B")) / range;
}

}  // namespace

Json run_suppression(ModelSession& session) {
  const std::vector<IoiPrompt> repeated =
      ioi_prompts(session.model, session.n, session.options.seed, false);
  const std::vector<IoiPrompt> three =
      ioi_prompts(session.model, session.n, session.options.seed, true);
  Json values = Json::object();
  for (int i = 0; i < session.n; ++i) {
    session.context.report("prompts", i, session.n);
    const std::size_t at = i;
    const std::string key = session.key(fmt::format("prompt {}", i));
    const Json* record =
        session.record(at, key, [&] { return measure(session, repeated[at], three[at]); });
    if (!record) continue;
    for (const char* contrast : {"vocabulary", "names"}) {
      for (const char* method : kMethods) {
        for (const char* quantity : kQuantities)
          values[contrast][method][quantity].push_back(
              record->at(contrast).at(method).at(quantity));
      }
    }
  }
  if (session.records.partial()) return {};
  Json summary = {{"prompts", session.n}, {"seed", session.options.seed}};
  for (const auto& [contrast, methods] : values.items()) {
    for (const auto& [method, quantities] : methods.items()) {
      Json& row = summary[contrast][method];
      std::map<std::string, std::vector<double>> of;
      for (const char* quantity : kQuantities) of[quantity] = numbers(quantities.at(quantity));
      std::vector<double>& gap = of["gap"];
      gap.resize(of["S1->S"].size());
      std::transform(of["S1->S"].begin(), of["S1->S"].end(), of["S2->S"].begin(), gap.begin(),
                     std::minus<>());
      for (const auto& [name, list] : of) {
        row[name] = mean(list);
        row[name + " interval"] = ends_json(bootstrap_interval(list, session.options.seed));
        row["median " + name] = median(list);
        row["median " + name + " interval"] =
            ends_json(median_interval(list, session.options.seed));
      }
      row["E"] = suppressed(of, {});
      if (!row["E"].is_null())
        row["E interval"] = ends_json(bootstrap_statistic(
            gap.size(), session.options.seed, 2000, [&](const std::vector<std::size_t>& draw) {
              const Json e = suppressed(of, draw);
              return e.is_null() ? NAN : e.get<double>();
            }));
    }
  }
  return summary;
}

std::string report_suppression(const Json& summaries, std::vector<ReportFile>& files) {
  std::string out =
      "Token credit in percent of the positive credit, mean over prompts. C->C: at the third "
      "name's slot of prompts with three names, target that name; C->B: "
      "at the\n"
      "same slot, target the second name; S2->S, S1->S: at the second and the first mention of the "
      "repeated name, target that name.\n"
      "E = 1 - (S2->S - C->B) / (C->C - C->B), n/a where its premise fails: where the name that "
      "occurs once is not copied (the mean of C->C not above that of C->B by 1e-6 or more).\nS1 is "
      "the first mention, S2 the second; the gap is S1->S less S2->S. In brackets: 95% bootstrap "
      "intervals of means, medians and E over prompts (2,000 resamples, seed of the run; for E "
      "of\nthe resamples in which its premise holds, `no interval` where that is fewer than "
      "half).\n";
  for (const auto& [model, s] : summaries.items())
    out += fmt::format("\n{}: {} pairs of prompts, seed {}.\n", model, s.at("prompts").get<int>(),
                       s.at("seed").get<std::uint64_t>());
  const std::vector<std::vector<std::string>> paper = {
      {"GPT-2 small (paper)", "ifr", "+7.2", "+4.8", "+7.2", "+11.2", "n/a", "+6.4"},
      {"GPT-2 small (paper)", "attnlrp", "+54.5", "+2.1", "-4.3", "+43.7", "+0.89", "+41.6"},
      {"GPT-2 small (paper)", "cplrp", "+73.9", "+26.2", "+2.5", "+51.9", "+0.67", "+25.7"},
      {"GPT-2 small (paper)", "unpack", "+23.9", "+7.3", "+8.7", "+22.2", "+1.09", "+14.9"}};
  const std::vector<std::vector<std::string>> scales = {
      {"Pythia-160M (paper)", "unpack", "+30.9", "+1.5", "+14.1", "+26.2", "", "+24.7"},
      {"Pythia-410M (paper)", "unpack", "+19.9", "-18.1", "+1.9", "+48.8", "", "+66.9"},
      {"Pythia-1.4B (paper)", "unpack", "+15.5", "-39.6", "+4.4", "+41.3", "", "+80.9"},
      {"Pythia-2.8B (paper)", "unpack", "+32.5", "+3.4", "+5.1", "+35.1", "", "+31.7"},
      {"Pythia-6.9B (paper)", "unpack", "+14.7", "-29.3", "+4.1", "+33.9", "", "+63.2"}};
  for (const char* contrast : {"vocabulary", "names"}) {
    const bool names = std::string(contrast) == "names";
    out += names ? "\n## Contrast: the other name (S2->S, S1->S: S less IO)\n\n"
                 : "\n## Contrast: the mean of the vocabulary\n\n";
    std::vector<std::vector<std::string>> rows = {
        {"model", "method", "C->C", "S2->S", "C->B", "S1->S", "E", "S1-S2 gap"}};
    for (const auto& [model, s] : summaries.items()) {
      for (const char* method : kMethods) {
        const Json& v = s.at(contrast).at(method);
        const auto number = [&](const std::string& name, int decimals = 1) {
          if (v.at(name).is_null()) return std::string("n/a");
          const Json& ends = v.at(name + " interval");
          if (ends[0].is_null()) return signed_text(v.at(name), decimals) + " (no interval)";
          return signed_with_interval(v.at(name), ends[0], ends[1], decimals);
        };
        rows.push_back({model, method, number("C->C"), number("S2->S"), number("C->B"),
                        number("S1->S"), number("E", 2), number("gap")});
      }
    }
    rows.insert(rows.end(), names ? paper.begin() : scales.begin(),
                names ? paper.end() : scales.end());
    out += markdown_table(rows);
    std::vector<std::vector<std::string>> middle = {
        {"model", "method", "C->C", "S2->S", "C->B", "S1->S", "gap"}};
    for (const auto& [model, s] : summaries.items()) {
      for (const char* method : kMethods) {
        const Json& v = s.at(contrast).at(method);
        middle.push_back({model, method});
        for (const char* quantity : {"C->C", "S2->S", "C->B", "S1->S", "gap"}) {
          const std::string name = fmt::format("median {}", quantity);
          const Json& ends = v.at(name + " interval");
          middle.back().push_back(signed_with_interval(v.at(name), ends[0], ends[1], 1));
        }
      }
    }
    std::vector<std::string> groups;
    std::vector<BarSeries> series;
    for (const char* quantity : kQuantities) series.push_back({quantity, {}, {}});
    for (const auto& [model, s] : summaries.items()) {
      for (const char* method : kMethods) {
        groups.push_back(summaries.size() > 1 ? fmt::format("{}, {}", model, method)
                                              : std::string(method));
        for (BarSeries& bars : series)
          bars.values.push_back(s.at(contrast).at(method).at("median " + bars.name));
      }
    }
    const std::string file = fmt::format("suppression-{}.svg", contrast);
    files.push_back({file, bar_plot(names ? "Credit against the other name, medians"
                                          : "Credit against the vocabulary, medians",
                                    "percent of the positive credit", groups, series)});
    out += fmt::format("\n![Medians]({})\n", file);
    out +=
        "\nMedians over prompts, which a few prompts with hardly any positive credit cannot "
        "move:\n\n" +
        markdown_table(middle);
  }
  return out;
}

}  // namespace unpack::experiments
