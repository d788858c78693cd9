// Do interaction scores predict what happens when a writer is hidden from its readers?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "experiments/knockout_points.h"
#include "experiments/number_text.h"
#include "experiments/plots.h"
#include "experiments/sentences.h"
#include "experiments/statistics.h"
#include "experiments/strengths.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack::experiments {

namespace {

constexpr int kHeldOut = 200;
constexpr std::size_t kPerLayer = 5;

bool has_reader(const Writers& writers, int layers, int writer, Channel channel) {
  return writer < (channel == Channel::attention ? writers.visible_to_attention(layers - 1)
                                                 : writers.visible_to_mlp(layers - 1));
}

// `kPerLayer` writers of every source layer, evenly spread over the order of their scores.
std::vector<int> chosen(const Writers& writers, int layers, const std::vector<double>& score,
                        Channel channel, bool all) {
  std::map<int, std::vector<int>> by_layer;
  for (int w = 0; w < writers.count(); ++w) {
    if (has_reader(writers, layers, w, channel)) by_layer[writers[w].layer].push_back(w);
  }
  std::vector<int> out;
  for (auto& [layer, list] : by_layer) {
    std::stable_sort(list.begin(), list.end(), [&](int a, int b) { return score[a] < score[b]; });
    if (all || list.size() <= kPerLayer) {
      out.insert(out.end(), list.begin(), list.end());
    } else {
      for (std::size_t i = 0; i < kPerLayer; ++i)
        out.push_back(list[i * (list.size() - 1) / (kPerLayer - 1)]);
    }
  }
  return out;
}

}  // namespace

Json run_knockout(ModelSession& session) {
  std::vector<CorpusSentence> sentences = shuffled_sentences(session, 2, 200);
  if (sentences.size() < 2) throw InputError("knockout needs a corpus of at least two sentences");
  // Held-out sentences come first, so that they do not depend on n; a short corpus gives a fifth of
  // itself.
  const std::size_t held =
      std::min<std::size_t>(kHeldOut, std::max<std::size_t>(1, sentences.size() / 5));
  KnockoutData data;
  std::vector<std::vector<TokenId>> held_out;
  for (std::size_t i = 0; i < held; ++i) {
    held_out.push_back(sentences[i].ids);
    data.tokens.push_back(static_cast<double>(sentences[i].ids.size()) - 1);
  }
  const std::size_t scored = std::min(static_cast<std::size_t>(session.n), sentences.size() - held);
  const Writers& writers = session.model.writers();
  std::map<std::string, std::vector<double>> total;
  for (std::size_t i = 0; i < scored; ++i) {
    session.context.report("sentences", i, scored);
    const CorpusSentence& s = sentences[held + i];
    const std::string key = session.key(fmt::format("score|line {}", s.line));
    // Which writers are cut depends on all of these, so that every shard makes them itself.
    const Json* record = session.records.find(key);
    if (!record)
      record = &session.records.add(
          key, strengths(session.model.prepare(s.ids, session.context), session.context));
    data.scored.emplace_back();
    for (const char* name : kStrengths) {
      std::vector<double> values = numbers(record->at(name)), &sum = total[name];
      sum.resize(values.size(), 0.0);
      for (std::size_t w = 0; w < values.size(); ++w) sum[w] += values[w] / scored;
      data.scored.back()[name] = std::move(values);
    }
  }
  // What is not known yet is cut in one go, sentence by sentence.
  std::vector<Cut> wanted, missing;
  const int layers = session.model.config().n_layers;
  for (const Channel channel : {Channel::attention, Channel::mlp}) {
    for (const int w :
         chosen(writers, layers, total[to_string(channel)], channel, session.options.all))
      wanted.push_back({w, channel});
  }
  const auto key_of = [&](const Cut& cut) {
    return session.key(fmt::format("cut|{}|{}", to_string(cut.channel), writers.name(cut.writer)));
  };
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!session.records.find(key_of(wanted[i])) && session.records.mine(i))
      missing.push_back(wanted[i]);
  }
  // A few at a time: each is on disk before the next ones begin.
  constexpr std::size_t kAtOnce = 16;
  for (std::size_t begin = 0; begin < missing.size(); begin += kAtOnce) {
    const std::vector<Cut> some(missing.begin() + begin,
                                missing.begin() + std::min(begin + kAtOnce, missing.size()));
    const auto losses = knockout_losses(session.model, held_out, some, session.context);
    for (std::size_t i = 0; i < some.size(); ++i)
      session.records.add(key_of(some[i]), {{"clean", losses[0]}, {"cut", losses[i + 1]}});
  }
  if (session.records.partial()) return {};
  data.cuts = wanted;
  for (const Cut& cut : wanted) {
    const Json& record = *session.records.find(key_of(cut));
    data.clean = numbers(record.at("clean"));
    data.losses.push_back(numbers(record.at("cut")));
    if (data.clean.size() != held || data.losses.back().size() != held)
      throw InputError(fmt::format("the record {} is of another corpus", key_of(cut)));
  }
  const double tokens = std::accumulate(data.tokens.begin(), data.tokens.end(), 0.0);
  Json summary = {
      {"scored", scored},
      {"held_out", held},
      {"tokens", tokens},
      {"seed", session.options.seed},
      {"clean_ppl", std::exp(std::accumulate(data.clean.begin(), data.clean.end(), 0.0) / tokens)}};
  std::vector<std::size_t> all_scored(scored), all_held(held);
  std::iota(all_scored.begin(), all_scored.end(), std::size_t{0});
  std::iota(all_held.begin(), all_held.end(), std::size_t{0});
  for (const Channel channel : {Channel::attention, Channel::mlp}) {
    session.context.report("bootstrap", channel == Channel::mlp, 2);
    Json points = Json::array();
    int zero = 0, negative = 0;
    for (const KnockoutPoint& p : data.points(writers, channel, all_scored, all_held)) {
      points.push_back({{"writer", writers.name(p.writer)},
                        {"layer", p.layer},
                        {"score", p.score},
                        {"change", p.change},
                        {"size", p.size},
                        {"score_signed", p.score_signed}});
      if (channel == Channel::attention) points.back()["score_values"] = p.score_values;
      zero += p.score == 0;
      negative += p.change < 0;
    }
    const std::vector<int> few = chosen(writers, layers, total[to_string(channel)], channel, false);
    Json& out = summary[to_string(channel)];
    out = {{"cuts", points.size()},
           {"cuts_five", few.size()},
           {"score_zero", zero},
           {"change_negative", negative}};
    out.update(knockout_correlations(data, writers, channel, few, session.options.seed));
    out["points"] = points;
  }
  return summary;
}

namespace {

// Writers whose place by change is furthest from their place by score among those of their layer.
std::string off_the_line(const Json& points) {
  std::map<int, std::vector<const Json*>> by_layer;
  for (const Json& p : points) by_layer[p.at("layer").get<int>()].push_back(&p);
  struct Row {
    double gap;
    std::vector<std::string> cells;
  };
  std::vector<Row> rows;
  for (const auto& [layer, list] : by_layer) {
    if (list.size() < 3) continue;
    std::vector<double> score, change;
    for (const Json* p : list) {
      score.push_back(-p->at("score").get<double>());
      change.push_back(-p->at("change").get<double>());
    }
    const std::vector<double> by_score = ranks(score), by_change = ranks(change);
    for (std::size_t i = 0; i < list.size(); ++i) {
      rows.push_back({std::fabs(by_score[i] - by_change[i]),
                      {list[i]->at("writer"), fmt::format("{:g} of {}", by_score[i], list.size()),
                       fmt::format("{:g}", by_change[i]), fmt::format("{:.3g}", -score[i]),
                       fmt::format("{:+.3g}", -change[i])}});
    }
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return a.gap > b.gap; });
  std::vector<std::vector<std::string>> table = {
      {"writer", "place by score in its layer", "by change", "score", "change in perplexity"}};
  for (std::size_t i = 0; i < std::min<std::size_t>(6, rows.size()); ++i)
    table.push_back(rows[i].cells);
  return markdown_table(table);
}

}  // namespace

std::string report_knockout(const Json& summaries, std::vector<ReportFile>& files) {
  std::string out =
      "Score: interaction score of a writer, summed over all readers of a kind and over queries, "
      "mean over sentences. Change: perplexity of held-out sentences "
      "when the\n"
      "writer's clean vector is subtracted at the norm inputs of all attention (or all MLP) "
      "sublayers that can read it, less the clean perplexity. "
      "Within-layer: mean of\n"
      "the rank correlations per source layer (three writers or more); cross-layer: all writers "
      "together. Size of the mean signed score: a head's scores are "
      "averaged\n"
      "over the sources of a query, an MLP's over the queries of a sentence, before the size is "
      "taken. Intervals: 95%, bootstrap over scored and held-out sentences\n"
      "(400 draws of each, as many as there are; seed of the run). The length of what is written "
      "is that of the "
      "vector as a norm sees it: centred where the model has LayerNorm, as it is where it has "
      "RMSNorm.\nHeads that share keys and values (grouped heads) count one by one, as readers and "
      "as writers: each has its own queries, and so its own scores. Interaction scores know no "
      "target, so that\nno preset changes them: what stands here is `--preset paper` and "
      "`--preset best` alike (`unpack experiment edges` holds credit against patching, by "
      "preset).\n\n";
  std::vector<std::vector<std::string>> rows = {
      {"model", "channel", "cuts", "within-layer", "cross-layer", "score 0", "change < 0"}};
  const auto number = [](const Json& x) {
    return x.is_null() ? std::string("n/a") : fixed_text(x, 2);
  };
  // "within" or "cross" of a correlation, with its interval.
  const auto both = [&](const Json& rho, const std::string& which) {
    const Json& ends = rho.at(which + "_interval");
    return ends.is_null() ? number(rho.at(which))
                          : fmt::format("{} ({} to {})", number(rho.at(which)), number(ends[0]),
                                        number(ends[1]));
  };
  std::vector<std::vector<std::string>> controls = {
      {"model", "channel", "what", "within-layer", "cross-layer"}};
  std::string details;
  for (const auto& item : summaries.items()) {
    const std::string& model = item.key();
    const Json& s = item.value();
    details += fmt::format(
        "\n## {}\n\n{} sentences scored, {} held out ({:.0f} tokens), seed {}, clean perplexity "
        "{:.2f}.\n",
        model, s.at("scored").get<int>(), s.at("held_out").get<int>(), s.at("tokens").get<double>(),
        s.at("seed").get<std::uint64_t>(), s.at("clean_ppl").get<double>());
    for (const char* channel : {"attention", "mlp"}) {
      const Json& c = s.at(channel);
      const auto row = [&](const std::string& name, const Json& rho) {
        rows.push_back({model, name, std::to_string(c.at("cuts").get<int>()), both(rho, "within"),
                        both(rho, "cross"), std::to_string(c.at("score_zero").get<int>()),
                        std::to_string(c.at("change_negative").get<int>())});
      };
      row(channel, c.at("spearman"));
      row(fmt::format("{}, size of the mean signed score", channel), c.at("spearman_signed"));
      const auto five = [&](const std::string& name, const Json& rho) {
        rows.push_back({model, name, std::to_string(c.at("cuts_five").get<int>()),
                        both(rho, "within"), both(rho, "cross"), "", ""});
      };
      if (c.at("cuts_five") != c.at("cuts")) {
        five(fmt::format("{}, five a layer", channel), c.at("spearman_five"));
        five(fmt::format("{}, five a layer, size of the mean signed score", channel),
             c.at("spearman_five_signed"));
      }
      const auto control = [&](const std::string& what, const Json& rho) {
        controls.push_back({model, channel, what, both(rho, "within"), both(rho, "cross")});
      };
      control("score on one half of the sentences against the other", c.at("halves_score"));
      control("change on one half of the held-out sentences against the other",
              c.at("halves_change"));
      control("score against the size of the change", c.at("spearman_change_size"));
      control("score against change, cuts that raise the perplexity", c.at("spearman_raising"));
      control("score against change, heads alone", c.at("spearman_heads"));
      control("length of what is written against change", c.at("spearman_size"));
      if (c.contains("spearman_values"))
        control("size of the value scores against change", c.at("spearman_values"));
      std::vector<ScatterPoint> points;
      for (const Json& p : c.at("points"))
        points.push_back({p.at("score"), p.at("change"), p.at("layer"), p.at("writer")});
      const std::string file = fmt::format("knockout-{}-{}.svg", channel, slug(model));
      files.push_back({file, scatter_plot(fmt::format("{}, cut-{}", model, channel), "score",
                                          "change in perplexity", points)});
      std::vector<std::vector<std::string>> by_layer = {
          {"source layer", "within-layer correlation"}};
      for (const auto& [layer, rho] : c.at("spearman").at("layers").items()) {
        const Json& interval = c.at("spearman").at("layer_intervals").at(layer);
        by_layer.push_back({layer, interval.is_null()
                                       ? number(rho)
                                       : with_interval(rho, interval[0], interval[1], 2)});
      }
      details += fmt::format("\n### cut-{}\n\n![Score against change]({})\n\n{}", channel, file,
                             markdown_table(by_layer));
      details += "\nFurthest from the line:\n\n" + off_the_line(c.at("points"));
    }
  }
  const std::vector<std::vector<std::string>> paper = {
      {"160M", "56", "0.72", "0.84", "0.96", "0.95"},
      {"410M", "116", "0.82", "0.88", "0.91", "0.87"},
      {"1.4B", "116", "0.73", "0.78", "0.86", "0.82"},
      {"2.8B", "156", "0.73", "0.67", "0.87", "0.86"},
      {"6.9B", "156", "0.86", "0.76", "0.90", "0.87"}};
  for (const auto& p : paper)
    rows.push_back({fmt::format("Pythia-{} (paper)", p[0]), "attention, five a layer", p[1], p[2],
                    p[3], "", ""});
  for (const auto& p : paper)
    rows.push_back(
        {fmt::format("Pythia-{} (paper)", p[0]), "mlp, five a layer", p[1], p[4], p[5], "", ""});
  return out + markdown_table(rows) +
         "\nHow far the figures can be trusted, and what else a cut removes:\n\n" +
         markdown_table(controls) + details +
         "\nHollow points at the edge have a score of 0 or a change of 0 or less, which a "
         "logarithmic axis cannot show.\n";
}

}  // namespace unpack::experiments
