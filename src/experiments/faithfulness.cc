// Input flipping: token embeddings zeroed one after the other, by rank, and what is left of the
// target's probability.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "experiments/plots.h"
#include "experiments/sentences.h"
#include "experiments/statistics.h"
#include "unpack/baselines.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack {

namespace {

constexpr int kShortest = 8, kLongest = 45;
constexpr double kConfident = 0.1;
constexpr int kCurvePoints = 21;

struct Ranking {
  std::string name;
  std::vector<double> scores;  // [S]
};

bool alphabetic(const std::string& text) {
  const std::size_t begin = text.starts_with(' ') ? 1 : 0;
  return text.size() > begin &&
         std::all_of(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(),
                     [](unsigned char c) { return std::isalpha(c); });
}

std::vector<double> unpack_scores(const Prepared& prepared, const Target& target,
                                  const Options& options, const RunContext& context) {
  Question question;
  question.target = target;
  question.options = options;
  question.paths.top = 0;
  return prepared.trace(question, context).token_credit;
}

// The run's own settings, and what is compared with them: one choice changed, or two.
constexpr const char* kPaper = "unpack";
struct Setting {
  const char* name;
  void (*change)(Options& options);
};
// What knows no direction goes with the paper's.
void along_output(Options& o) {
  o.direction = Direction::output;
  o.floor = 0;
  o.keys = Keys::source;
}

constexpr Setting kSettings[] = {
    {"unpack, centered", [](Options& o) { o.scores = Scores::centered; }},
    {"unpack, linearized", [](Options& o) { o.mlp = MlpRule::linearized; }},
    {"unpack, linearized + centered",
     [](Options& o) {
       o.mlp = MlpRule::linearized;
       o.scores = Scores::centered;
     }},
    {"unpack, l2",
     [](Options& o) {
       along_output(o);
       o.mlp = MlpRule::l2;
     }},
    {"unpack, gate dispatch",
     [](Options& o) {
       along_output(o);
       o.dispatch = Dispatch::gate;
     }},
    {"unpack, best", [](Options& o) { o = preset_options("best"); }},
};

// What is ranked in one prompt.
using Rank = std::vector<Ranking> (*)(const ModelSession& session, const Prepared& prepared,
                                      const Target& target, std::uint64_t seed);

std::vector<Ranking> rank_methods(const ModelSession& session, const Prepared& prepared,
                                  const Target& target, std::uint64_t seed) {
  const RunContext& context = session.context;
  std::vector<Ranking> out = {
      {kPaper, unpack_scores(prepared, target, session.options.options, context)}};
  for (const Setting& setting : kSettings) {
    Options options = session.options.options;
    setting.change(options);
    out.push_back({setting.name, unpack_scores(prepared, target, options, context)});
  }
  for (const auto& [name, method] :
       {std::pair{"IFR", Method::ifr}, std::pair{"AttnLRP", Method::attnlrp},
        std::pair{"CP-LRP", Method::cplrp}}) {
    out.push_back({name, baseline(prepared, target, method, context).token_credit});
  }
  out.push_back({"random", random_scores(prepared.length(), seed)});
  return out;
}

std::vector<Ranking> rank_betas(const ModelSession& session, const Prepared& prepared,
                                const Target& target, std::uint64_t) {
  std::vector<Ranking> out;
  for (const double beta : {0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0}) {
    Options options = session.options.options;
    options.beta = beta;
    out.push_back(
        {fmt::format("{:g}", beta), unpack_scores(prepared, target, options, session.context)});
  }
  return out;
}

double read_target(const std::vector<double>& logits, TokenId id, FaithfulnessReadout readout) {
  const double logit = logits[static_cast<std::size_t>(id)];
  if (readout == FaithfulnessReadout::logit) return logit;
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - largest);
  return std::exp(logit - largest) / sum;
}

// Both curves of every ranking; states that several of them pass through are computed once.
Json flip(const ModelSession& session, const CorpusSentence& sentence, TokenId target,
          const std::vector<Ranking>& rankings) {
  std::vector<std::vector<int>> sets;
  std::map<std::vector<int>, std::size_t> known;
  const auto state = [&](std::vector<int> zeroed) {
    std::sort(zeroed.begin(), zeroed.end());
    const auto [at, fresh] = known.try_emplace(zeroed, sets.size());
    if (fresh) sets.push_back(zeroed);
    return at->second;
  };
  const int length = static_cast<int>(sentence.ids.size());
  std::vector<std::vector<std::size_t>> curves;  // two per ranking: MoRF, LeRF
  for (const Ranking& ranking : rankings) {
    std::vector<int> order(static_cast<std::size_t>(length - sentence.prefix));
    std::iota(order.begin(), order.end(), sentence.prefix);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return ranking.scores[static_cast<std::size_t>(a)] >
             ranking.scores[static_cast<std::size_t>(b)];
    });
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
      zeroed_logits(session.model, sentence.ids, sets, -1, session.context);
  std::vector<double> value;
  value.reserve(logits.size());
  for (const auto& row : logits) value.push_back(read_target(row, target, session.options.readout));
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

// `reference` is the ranking that every other one is compared with, sentence by sentence.
Json run_flipping(ModelSession& session, Rank rank, const std::string& reference) {
  const std::vector<CorpusSentence> candidates = shuffled_sentences(session, kShortest, kLongest);
  std::map<std::string, std::vector<double>> areas;
  std::map<std::string, std::vector<std::vector<double>>> morf, lerf;
  std::vector<std::string> order;
  int used = 0;
  int looked_at = 0;
  for (const CorpusSentence& sentence : candidates) {
    if (used == session.n) break;
    session.context.report("sentences", used, session.n);
    ++looked_at;
    const std::string key = session.key(fmt::format("line {}", sentence.line));
    const Json* record = session.records.find(key);
    if (!record) {
      const bool mine = session.records.mine(static_cast<std::size_t>(looked_at) - 1);
      PredictOptions predict;
      predict.top = 1;
      predict.log_probabilities = false;
      const Prediction top =
          session.model.predict(sentence.ids, predict, session.context).predictions.at(0);
      if (top.probability < kConfident || !alphabetic(top.text)) {
        if (mine) session.records.add(key, {{"used", false}});
        continue;
      }
      // Every shard has to know where the last sentence lies.
      used += !mine;
      if (!mine) continue;
      const Prepared prepared = session.model.prepare(sentence.ids, session.context);
      Target target;
      target.ids = {top.id};
      target.raw = session.options.raw_logit;
      const std::uint64_t seed =
          session.options.seed * 1000003 + static_cast<std::uint64_t>(sentence.line);
      const Json methods = flip(session, sentence, top.id, rank(session, prepared, target, seed));
      record = &session.records.add(key, {{"used", true},
                                          {"tokens", sentence.ids.size()},
                                          {"target", top.text},
                                          {"probability", top.probability},
                                          {"methods", methods}});
    }
    if (!record->at("used").get<bool>()) continue;
    ++used;
    for (const auto& [name, values] : record->at("methods").items()) {
      if (!areas.contains(name)) order.push_back(name);
      areas[name].push_back(values.at("area"));
      morf[name].push_back(numbers(values.at("morf")));
      lerf[name].push_back(numbers(values.at("lerf")));
    }
  }
  if (session.records.partial()) return {};
  if (used == 0)
    throw InputError(
        "no sentence of the corpus fits: 8 to 45 tokens, an alphabetic top prediction with a "
        "probability of 0.1 or more");
  const auto mean_curve = [](const std::vector<std::vector<double>>& curves) {
    std::vector<double> out(curves[0].size(), 0.0);
    for (const auto& curve : curves) {
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] += curve[i] / static_cast<double>(curves.size());
    }
    return out;
  };
  Json methods = Json::object();
  for (const std::string& name : order) {
    const std::vector<double>& a = areas[name];
    const auto above =
        static_cast<double>(std::count_if(a.begin(), a.end(), [](double x) { return x > 0; }));
    const Interval normal = normal_interval(a),
                   resampled = bootstrap_interval(a, session.options.seed);
    std::vector<double> difference(a.size());
    std::transform(a.begin(), a.end(), areas.at(reference).begin(), difference.begin(),
                   std::minus<>());
    const Interval apart = bootstrap_interval(difference, session.options.seed);
    methods[name] = {{"area", mean(a)},
                     {"interval", {normal.low, normal.high}},
                     {"bootstrap", {resampled.low, resampled.high}},
                     {"difference", mean(difference)},
                     {"difference_bootstrap", {apart.low, apart.high}},
                     {"faithful_percent", 100 * above / static_cast<double>(a.size())},
                     {"morf", mean_curve(morf[name])},
                     {"lerf", mean_curve(lerf[name])}};
  }
  return {
      {"sentences", used},
      {"looked_at", looked_at},
      {"readout", session.options.readout == FaithfulnessReadout::logit ? "logit" : "probability"},
      {"raw_logit", session.options.raw_logit},
      {"reference", reference},
      {"methods", methods}};
}

std::string between(const Json& interval) {
  return fmt::format("{:+.4f} to {:+.4f}", interval[0].get<double>(), interval[1].get<double>());
}

std::string area_table(const Json& summary, const std::string& first,
                       const std::map<std::string, std::string>& paper) {
  const std::string reference = summary.at("reference");
  std::vector<std::vector<std::string>> rows = {{first, "area", "95% interval", "bootstrap",
                                                 "above 0",
                                                 fmt::format("less {} (bootstrap)", reference)}};
  if (!paper.empty()) rows[0].emplace_back("paper, GPT-2 (area / above 0)");
  for (const auto& [name, m] : summary.at("methods").items()) {
    rows.push_back(
        {name, fmt::format("{:+.4f}", m.at("area").get<double>()), between(m.at("interval")),
         between(m.at("bootstrap")), fmt::format("{:.0f}%", m.at("faithful_percent").get<double>()),
         name == reference ? ""
                           : fmt::format("{:+.4f} ({})", m.at("difference").get<double>(),
                                         between(m.at("difference_bootstrap")))});
    const auto known = paper.find(name);
    if (!paper.empty()) rows.back().push_back(known == paper.end() ? "" : known->second);
  }
  return markdown_table(rows);
}

// Which of the compared settings are best, and which of the differences are more than chance.
std::string verdict(const Json& summary, const std::string& what) {
  const std::string reference = summary.at("reference");
  std::string best = reference, better, worse, open;
  const Json& methods = summary.at("methods");
  for (const auto& [name, m] : methods.items()) {
    if (what == "settings" && !name.starts_with(kPaper))
      continue;  // another method, not a setting of this one
    if (m.at("area").get<double>() > methods.at(best).at("area").get<double>()) best = name;
    if (name == reference) continue;
    std::string& list = m.at("difference_bootstrap")[0].get<double>() > 0   ? better
                        : m.at("difference_bootstrap")[1].get<double>() < 0 ? worse
                                                                            : open;
    list += (list.empty() ? "" : "; ") + name;
  }
  const auto or_none = [](const std::string& list) {
    return list.empty() ? std::string("none") : list;
  };
  return fmt::format(
      "\nLargest area among the {}: {}. Compared with {}, by the bootstrap interval of the "
      "difference per sentence:\n\n- better: {}\n- worse: {}\n- not told "
      "apart: {}\n",
      what, best, reference, or_none(better), or_none(worse), or_none(open));
}

// All models side by side: a table and a plot.
std::string joined(const Json& summaries, std::vector<ReportFile>& files, const std::string& first,
                   const std::map<std::string, std::string>& paper, const std::string& stem) {
  std::vector<std::string> head = {first};
  std::vector<BarSeries> series;
  const Json& names = summaries.begin().value().at("methods");
  std::vector<std::string> groups;
  std::vector<std::vector<std::string>> rows;
  for (const auto& item : names.items()) {
    groups.push_back(item.key());
    rows.push_back({item.key()});
  }
  for (const auto& [model, s] : summaries.items()) {
    head.push_back(fmt::format("{} (area / above 0)", model));
    BarSeries bars{model, {}, {}};
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const Json& m = s.at("methods").at(groups[i]);
      rows[i].push_back(fmt::format("{:+.4f} / {:.0f}%", m.at("area").get<double>(),
                                    m.at("faithful_percent").get<double>()));
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
  files.push_back({file, bar_plot("Area between the curves", "area", groups, series)});
  return fmt::format("\n{}\n![Area by {}]({})\n\nWhiskers: bootstrap intervals.\n",
                     markdown_table(rows), first, file);
}

std::string report_flipping(const Json& summaries, std::vector<ReportFile>& files,
                            const std::string& first,
                            const std::map<std::string, std::string>& published,
                            const std::string& stem) {
  // Published figures are of the probability, with a contrast: nothing else is to be read beside
  // them.
  const Json& any = summaries.begin().value();
  const bool as_published = any.at("readout") == "probability" && !any.at("raw_logit").get<bool>();
  const std::map<std::string, std::string> paper =
      as_published ? published : std::map<std::string, std::string>();
  std::string out =
      "Token embeddings are set to zero one after the other, the least relevant first (LeRF) or "
      "the most relevant first (MoRF). Area: mean over the steps of "
      "the\n"
      "target's readout, LeRF less MoRF. Above 0: share of sentences with a positive area. BOS is "
      "neither ranked nor flipped.\n";
  if (summaries.size() > 1)
    out += joined(summaries, files, first, paper, first == "beta" ? "beta-areas" : stem);
  for (const auto& [model, s] : summaries.items()) {
    out += fmt::format("\n## {}\n\n{} sentences (of {} looked at), readout: {}{}.\n\n", model,
                       s.at("sentences").get<int>(), s.at("looked_at").get<int>(),
                       s.at("readout").get<std::string>(),
                       s.at("raw_logit").get<bool>() ? ", explained: raw logit" : "");
    out += area_table(s, first, paper);
    out += verdict(s, first == "beta" ? "values of beta" : "settings");
    std::vector<Series> series;
    for (const auto& [name, m] : s.at("methods").items()) {
      const std::vector<double> lerf = numbers(m.at("lerf")), morf = numbers(m.at("morf"));
      std::vector<double> share;
      for (std::size_t i = 0; i < lerf.size(); ++i)
        share.push_back(static_cast<double>(i) / static_cast<double>(lerf.size() - 1));
      const int color = static_cast<int>(series.size() / 2);
      series.push_back({name, share, lerf, color, false});
      series.push_back({"", share, morf, color, true});
    }
    const std::string file = fmt::format("{}-{}.svg", stem, slug(model));
    files.push_back({file, line_plot(fmt::format("Mean flipping curves, {}", model),
                                     "share of tokens zeroed", "readout of the target", series)});
    out += fmt::format("\n![Mean flipping curves]({})\n\nWhole lines: LeRF, dashed ones: MoRF.\n",
                       file);
  }
  return out;
}

}  // namespace

Json run_faithfulness(ModelSession& session) { return run_flipping(session, rank_methods, kPaper); }
Json run_beta(ModelSession& session) { return run_flipping(session, rank_betas, "0.8"); }

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
                                    "beta-curves");
  std::vector<Series> series;
  for (const auto& [model, s] : summaries.items()) {
    Series line;
    line.name = model;
    for (const auto& [name, m] : s.at("methods").items()) {
      line.x.push_back(std::stod(name));
      line.y.push_back(m.at("area"));
    }
    series.push_back(std::move(line));
  }
  files.push_back(
      {"beta.svg", line_plot("Area by the floor of the denominators", "beta", "area", series)});
  return out + "\n![Area by beta](beta.svg)\n";
}

}  // namespace unpack
