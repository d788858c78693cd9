// Do interaction scores predict what happens when a writer is hidden from its readers?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "experiments/plots.h"
#include "experiments/sentences.h"
#include "experiments/statistics.h"
#include "experiments/strengths.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack {

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
    std::stable_sort(list.begin(), list.end(), [&](int a, int b) {
      return score[static_cast<std::size_t>(a)] < score[static_cast<std::size_t>(b)];
    });
    if (all || list.size() <= kPerLayer) {
      out.insert(out.end(), list.begin(), list.end());
    } else {
      for (std::size_t i = 0; i < kPerLayer; ++i)
        out.push_back(list[i * (list.size() - 1) / (kPerLayer - 1)]);
    }
  }
  return out;
}

Json correlations(const std::vector<Json>& points, const char* score,
                  const char* change = "change") {
  std::map<int, std::pair<std::vector<double>, std::vector<double>>> by_layer;
  std::vector<double> x, y;
  for (const Json& p : points) {
    auto& [a, b] = by_layer[p.at("layer").get<int>()];
    a.push_back(p.at(score));
    b.push_back(p.at(change));
    x.push_back(a.back());
    y.push_back(b.back());
  }
  std::vector<double> within;
  Json layers = Json::object();
  for (const auto& [layer, values] : by_layer) {
    // Two writers always agree or disagree wholly.
    const double rho = values.first.size() > 2 ? spearman(values.first, values.second) : NAN;
    if (!std::isnan(rho)) {
      within.push_back(rho);
      layers[std::to_string(layer)] = rho;
    }
  }
  const double cross = spearman(x, y);
  return {{"within", within.empty() ? Json(nullptr) : Json(mean(within))},
          {"cross", std::isnan(cross) ? Json(nullptr) : Json(cross)},
          {"layers", layers}};
}

}  // namespace

Json run_knockout(ModelSession& session) {
  std::vector<CorpusSentence> sentences = shuffled_sentences(session, 2, 200);
  if (sentences.size() < 2) throw InputError("knockout needs a corpus of at least two sentences");
  // Held-out sentences come first, so that they do not depend on n; a short corpus gives a fifth of
  // itself.
  const std::size_t held =
      std::min<std::size_t>(kHeldOut, std::max<std::size_t>(1, sentences.size() / 5));
  std::vector<std::vector<TokenId>> held_out;
  double tokens = 0;
  for (std::size_t i = 0; i < held; ++i) {
    held_out.push_back(sentences[i].ids);
    tokens += static_cast<double>(sentences[i].ids.size()) - 1;
  }
  const std::size_t scored = std::min(static_cast<std::size_t>(session.n), sentences.size() - held);
  const Writers& writers = session.model.writers();
  std::map<std::string, std::vector<double>> total, half[2];
  for (std::size_t i = 0; i < scored; ++i) {
    session.context.report("sentences", static_cast<double>(i), static_cast<double>(scored));
    const CorpusSentence& s = sentences[held + i];
    const std::string key = session.key(fmt::format("score|line {}", s.line));
    // Which writers are cut depends on all of these, so that every shard makes them itself.
    const Json* record = session.records.find(key);
    if (!record)
      record = &session.records.add(
          key, strengths(session.model.prepare(s.ids, session.context), session.context));
    for (const char* name : kStrengths) {
      const std::vector<double> values = numbers(record->at(name));
      for (std::vector<double>* sum : {&total[name], &half[i % 2][name]}) {
        sum->resize(values.size(), 0.0);
        for (std::size_t w = 0; w < values.size(); ++w)
          (*sum)[w] += values[w] / static_cast<double>(scored);
      }
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
    const std::vector<Cut> some(
        missing.begin() + static_cast<std::ptrdiff_t>(begin),
        missing.begin() + static_cast<std::ptrdiff_t>(std::min(begin + kAtOnce, missing.size())));
    const auto losses = knockout_losses(session.model, held_out, some, session.context);
    // Over every `step`th sentence from `first` on.
    const auto perplexity = [&](const std::vector<double>& row, std::size_t first,
                                std::size_t step) {
      double loss = 0, count = 0;
      for (std::size_t i = first; i < row.size(); i += step) {
        loss += row[i];
        count += static_cast<double>(held_out[i].size()) - 1;
      }
      return count > 0 ? std::exp(loss / count) : 0.0;
    };
    for (std::size_t i = 0; i < some.size(); ++i) {
      const auto change = [&](std::size_t first) {
        return perplexity(losses[i + 1], first, 2) - perplexity(losses[0], first, 2);
      };
      session.records.add(key_of(some[i]), {{"clean_ppl", perplexity(losses[0], 0, 1)},
                                            {"cut_ppl", perplexity(losses[i + 1], 0, 1)},
                                            {"halves", {change(0), change(1)}}});
    }
  }
  if (session.records.partial()) return {};
  Json summary = {{"scored", scored}, {"held_out", held}, {"tokens", tokens}};
  for (const Channel channel : {Channel::attention, Channel::mlp}) {
    std::vector<Json> points;
    int zero = 0, negative = 0;
    for (const Cut& cut : wanted) {
      if (cut.channel != channel) continue;
      const Json& record = *session.records.find(key_of(cut));
      const double change =
          record.at("cut_ppl").get<double>() - record.at("clean_ppl").get<double>();
      const auto w = static_cast<std::size_t>(cut.writer);
      Json point = {{"writer", writers.name(cut.writer)},
                    {"layer", writers[cut.writer].layer},
                    {"score", total[to_string(channel)][w]},
                    {"change", change}};
      point["change_size"] = std::fabs(change);
      point["size"] = total["size"][w];
      point["score_signed"] = total[std::string(to_string(channel)) + "_signed"][w];
      if (channel == Channel::attention) point["score_values"] = total["attention_values"][w];
      for (const std::size_t h : {0U, 1U}) {
        const std::vector<double>& scores = half[h][to_string(channel)];
        point[h == 0 ? "score_a" : "score_b"] = scores.empty() ? 0.0 : scores[w];
        point[h == 0 ? "change_a" : "change_b"] = record.at("halves")[h];
      }
      zero += total[to_string(channel)][w] == 0;
      negative += change < 0;
      points.push_back(std::move(point));
      summary["clean_ppl"] = record.at("clean_ppl");
    }
    Json& out = summary[to_string(channel)];
    out = {{"cuts", points.size()},
           {"score_zero", zero},
           {"change_negative", negative},
           {"spearman", correlations(points, "score")}};
    if (session.options.all) {
      const std::vector<int> few =
          chosen(writers, layers, total[to_string(channel)], channel, false);
      std::vector<Json> five;
      for (const Json& p : points) {
        if (std::find(few.begin(), few.end(), writers.parse(p.at("writer").get<std::string>())) !=
            few.end())
          five.push_back(p);
      }
      out["cuts_five"] = five.size();
      out["spearman_five"] = correlations(five, "score");
      out["spearman_five_signed"] = correlations(five, "score_signed");
    }
    out["spearman_size"] = correlations(points, "size");
    // What a low correlation comes from: the sign of the change, or the one strong MLP of a layer.
    out["spearman_change_size"] = correlations(points, "score", "change_size");
    std::vector<Json> raising, heads;
    std::copy_if(points.begin(), points.end(), std::back_inserter(raising),
                 [](const Json& p) { return p.at("change").get<double>() > 0; });
    std::copy_if(points.begin(), points.end(), std::back_inserter(heads), [&](const Json& p) {
      return writers[writers.parse(p.at("writer").get<std::string>())].kind == WriterKind::head;
    });
    out["spearman_raising"] = correlations(raising, "score");
    out["spearman_heads"] = correlations(heads, "score");
    out["halves_score"] = correlations(points, "score_a", "score_b");
    out["halves_change"] = correlations(points, "change_a", "change_b");
    out["spearman_signed"] = correlations(points, "score_signed");
    if (channel == Channel::attention)
      out["spearman_values"] = correlations(points, "score_values");
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
      "taken.\n\n";
  std::vector<std::vector<std::string>> rows = {
      {"model", "channel", "cuts", "within-layer", "cross-layer", "score 0", "change < 0"}};
  const auto number = [](const Json& x) {
    return x.is_null() ? std::string("n/a") : fmt::format("{:.2f}", x.get<double>());
  };
  std::vector<std::vector<std::string>> controls = {
      {"model", "channel", "what", "within-layer", "cross-layer"}};
  std::string details;
  for (const auto& item : summaries.items()) {
    const std::string& model = item.key();
    const Json& s = item.value();
    details += fmt::format(
        "\n## {}\n\n{} sentences scored, {} held out ({:.0f} tokens), clean perplexity {:.2f}.\n",
        model, s.at("scored").get<int>(), s.at("held_out").get<int>(), s.at("tokens").get<double>(),
        s.at("clean_ppl").get<double>());
    for (const char* channel : {"attention", "mlp"}) {
      const Json& c = s.at(channel);
      const auto row = [&](const std::string& name, const Json& rho) {
        rows.push_back({model, name, std::to_string(c.at("cuts").get<int>()),
                        number(rho.at("within")), number(rho.at("cross")),
                        std::to_string(c.at("score_zero").get<int>()),
                        std::to_string(c.at("change_negative").get<int>())});
      };
      row(channel, c.at("spearman"));
      row(fmt::format("{}, size of the mean signed score", channel), c.at("spearman_signed"));
      const auto five = [&](const std::string& name, const Json& rho) {
        rows.push_back({model, name, std::to_string(c.at("cuts_five").get<int>()),
                        number(rho.at("within")), number(rho.at("cross")), "", ""});
      };
      if (c.contains("spearman_five")) {
        five(fmt::format("{}, five a layer", channel), c.at("spearman_five"));
        five(fmt::format("{}, five a layer, size of the mean signed score", channel),
             c.at("spearman_five_signed"));
      }
      const auto control = [&](const std::string& what, const Json& rho) {
        controls.push_back(
            {model, channel, what, number(rho.at("within")), number(rho.at("cross"))});
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
      for (const auto& [layer, rho] : c.at("spearman").at("layers").items())
        by_layer.push_back({layer, number(rho)});
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

}  // namespace unpack
