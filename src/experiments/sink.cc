// The attention sink: how much credit the first position gets under the two dispatch rules.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "experiments/number_text.h"
#include "experiments/plots.h"
#include "experiments/sentences.h"
#include "experiments/statistics.h"
#include "unpack/prepared.h"

namespace unpack::experiments {

namespace {

struct SinkPrompt {
  std::string name;
  std::vector<TokenId> ids;
  Target target;
};

std::vector<SinkPrompt> prompts_of(ModelSession& session, const std::string& source) {
  std::vector<SinkPrompt> out;
  const std::size_t n = session.n;
  if (source == "corpus") {
    for (CorpusSentence& s : shuffled_sentences(session, 8, 45)) {
      if (out.size() < n) out.push_back({fmt::format("line {}", s.line), std::move(s.ids), {}});
    }
  } else if (source == "facts") {
    const TextFile file =
        read_text(session.options.prompts ? *session.options.prompts : data_file("facts.txt"),
                  session.options.stop_at_bad_line);
    session.warnings.insert(session.warnings.end(), file.problems.begin(), file.problems.end());
    for (const TextLine& line : file.lines) {
      if (out.size() < n)
        out.push_back(
            {fmt::format("line {}", line.line), session.model.encode_prompt(line.text), {}});
    }
  } else {
    int i = 0;
    for (const IoiPrompt& p : ioi_prompts(session.model, session.n, session.options.seed, false)) {
      Target target;
      target.ids = {session.model.single_token(" " + p.io)};
      target.versus = std::vector<TokenId>{session.model.single_token(" " + p.s)};
      out.push_back({fmt::format("prompt {}", i++), p.ids, target});
    }
  }
  return out;
}

constexpr const char* kRules[] = {"gate", "aligned", "best"};

Json measure(const Prepared& prepared, const Target& target, const Options& options,
             const RunContext& context) {
  Json out = Json::object();
  for (const std::string rules : kRules) {
    Question question;
    question.target = target;
    question.options = rules == "best" ? preset_options("best") : options;
    if (rules == "aligned") question.options.dispatch = Dispatch::aligned;
    if (rules == "gate") {  // it knows no direction
      question.options.dispatch = Dispatch::gate;
      question.options.direction = Direction::output;
      question.options.floor = 0;
      question.options.keys = Keys::source;
    }
    question.paths.top = 0;
    const std::vector<double> credit = prepared.trace(question, context).token_credit;
    double positive = 0;
    for (const double x : credit) positive += std::max(x, 0.0);
    const bool first = std::max_element(credit.begin(), credit.end()) == credit.begin();
    out[rules] = {{"share", positive > 0 ? 100 * std::max(credit[0], 0.0) / positive : 0.0},
                  {"top", first}};
  }
  return out;
}

constexpr const char* kSources[] = {"corpus", "facts", "ioi"};

}  // namespace

Json run_sink(ModelSession& session) {
  Json summary = Json::object();
  for (const char* source : kSources) {
    std::map<std::string, std::vector<double>> share, top;
    const std::vector<SinkPrompt> prompts = prompts_of(session, source);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      session.context.report(source, i, prompts.size());
      const std::string key = session.key(fmt::format("{}|{}", source, prompts[i].name));
      const Json* record = session.record(i, key, [&] {
        return measure(session.model.prepare(prompts[i].ids, session.context), prompts[i].target,
                       session.options.options, session.context);
      });
      if (!record) continue;
      for (const char* rules : kRules) {
        const Json& values = record->at(rules);
        share[rules].push_back(values.at("share"));
        top[rules].push_back(values.at("top").get<bool>() ? 100.0 : 0.0);
      }
    }
    if (session.records.partial()) continue;
    for (const char* rules : kRules) {
      const Interval interval = bootstrap_interval(share[rules], session.options.seed),
                     first = bootstrap_interval(top[rules], session.options.seed);
      summary[source][rules] = {{"prompts", share[rules].size()},
                                {"share", mean(share[rules])},
                                {"interval", {interval.low, interval.high}},
                                {"top_percent", mean(top[rules])},
                                {"top_interval", {first.low, first.high}}};
    }
  }
  return summary;
}

std::string report_sink(const Json& summaries, std::vector<ReportFile>& files) {
  std::string out =
      "Share: mean percentage of the positive token credit that lies on position 0. Top-1: share "
      "of prompts where position 0 has the most credit.\n"
      "The target is the model's own prediction (ioi: the indirect object against the subject). "
      "In brackets: 95% bootstrap intervals over prompts (2,000 resamples, seed of the run), and "
      "the "
      "number of prompts.\n`gate` and `aligned`: the run's settings with that dispatch; `best`: "
      "`--preset best`.\n";
  const std::vector<std::pair<std::string, std::vector<std::string>>> paper = {
      {"gate", {"9.2% / 4%", "22.3% / 18%", "28.9% / 32%"}},
      {"aligned", {"6.5% / 0%", "13.0% / 0%", "18.8% / 0%"}}};
  std::vector<std::vector<std::string>> rows = {
      {"model", "settings", "corpus: share / top-1", "facts", "ioi"}};
  for (const auto& [model, s] : summaries.items()) {
    for (const char* rules : kRules) {
      std::vector<std::string> row = {model, rules};
      for (const char* source : kSources) {
        const Json& v = s.at(source).at(rules);
        row.push_back(fmt::format(
            "{}% / {}% (n = {})",
            with_interval(v.at("share"), v.at("interval")[0], v.at("interval")[1], 1),
            with_interval(v.at("top_percent"), v.at("top_interval")[0], v.at("top_interval")[1], 0),
            v.at("prompts").get<int>()));
      }
      rows.push_back(row);
    }
  }
  for (const auto& [dispatch, cells] : paper)
    rows.push_back({"GPT-2 small (paper)", dispatch, cells[0], cells[1], cells[2]});
  std::vector<std::string> groups;
  std::vector<BarSeries> series;
  for (const char* rules : kRules) series.push_back({rules, {}, {}});
  for (const auto& [model, s] : summaries.items()) {
    for (const char* source : kSources) {
      groups.push_back(fmt::format("{}, {}", model, source));
      for (BarSeries& bars : series) {
        const Json& v = s.at(source).at(bars.name);
        bars.values.push_back(v.at("share"));
        bars.interval.emplace_back(v.at("interval")[0], v.at("interval")[1]);
      }
    }
  }
  files.push_back({"sink.svg", bar_plot("Credit on position 0", "percent of the positive credit",
                                        groups, series)});
  return out + "\n" + markdown_table(rows) +
         "\n![Credit on position 0](sink.svg)\n\nWhiskers: 95% intervals of the mean.\n";
}

}  // namespace unpack::experiments
