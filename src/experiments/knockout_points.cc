#include "experiments/knockout_points.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "experiments/statistics.h"

namespace unpack::experiments {

namespace {

constexpr int kBootstrapDraws = 400;

using Points = std::vector<KnockoutPoint>;

struct Relation {
  const char* name;
  double (*x)(const KnockoutPoint& p);
  double (*y)(const KnockoutPoint& p);
  bool (*takes)(const KnockoutPoint& p);
};

bool every(const KnockoutPoint&) { return true; }
bool among_five(const KnockoutPoint& p) { return p.five; }
double score_of(const KnockoutPoint& p) { return p.score; }
double signed_of(const KnockoutPoint& p) { return p.score_signed; }
double change_of(const KnockoutPoint& p) { return p.change; }

constexpr Relation kRelations[] = {
    {"spearman", score_of, change_of, every},
    {"spearman_signed", signed_of, change_of, every},
    {"spearman_five", score_of, change_of, among_five},
    {"spearman_five_signed", signed_of, change_of, among_five},
    {"halves_score", [](const KnockoutPoint& p) { return p.score_a; },
     [](const KnockoutPoint& p) { return p.score_b; }, every},
    {"halves_change", [](const KnockoutPoint& p) { return p.change_a; },
     [](const KnockoutPoint& p) { return p.change_b; }, every},
    // What a low correlation comes from: the sign of the change, or the one strong MLP of a layer.
    {"spearman_change_size", score_of, [](const KnockoutPoint& p) { return std::fabs(p.change); },
     every},
    {"spearman_raising", score_of, change_of, [](const KnockoutPoint& p) { return p.change > 0; }},
    {"spearman_heads", score_of, change_of, [](const KnockoutPoint& p) { return p.head; }},
    {"spearman_size", [](const KnockoutPoint& p) { return p.size; }, change_of, every},
    {"spearman_values", [](const KnockoutPoint& p) { return p.score_values; }, change_of, every},
};

struct Correlation {
  double within = NAN, cross = NAN;
  std::map<int, double> layers;
};

Correlation correlate(const Points& points, const Relation& relation) {
  std::map<int, std::pair<std::vector<double>, std::vector<double>>> by_layer;
  std::vector<double> x, y, within;
  for (const KnockoutPoint& p : points) {
    if (!relation.takes(p)) continue;
    auto& [a, b] = by_layer[p.layer];
    a.push_back(relation.x(p));
    b.push_back(relation.y(p));
    x.push_back(a.back());
    y.push_back(b.back());
  }
  Correlation out;
  for (const auto& [layer, values] : by_layer) {
    // Two writers always agree or disagree wholly.
    const double rho = values.first.size() > 2 ? spearman(values.first, values.second) : NAN;
    if (std::isnan(rho)) continue;
    within.push_back(rho);
    out.layers[layer] = rho;
  }
  if (!within.empty()) out.within = mean(within);
  out.cross = spearman(x, y);
  return out;
}

Json rho_or_null(double x) { return std::isnan(x) ? Json(nullptr) : Json(x); }

std::vector<std::size_t> in_order(std::size_t n) {
  std::vector<std::size_t> out(n);
  std::iota(out.begin(), out.end(), std::size_t{0});
  return out;
}

}  // namespace

std::vector<KnockoutPoint> KnockoutData::points(const Writers& writers, Channel channel,
                                                const std::vector<std::size_t>& scored_draw,
                                                const std::vector<std::size_t>& held_draw) const {
  const std::string name = to_string(channel);
  const double n = scored_draw.size();
  const auto mean_of = [&](const std::string& strength, int half) {
    std::vector<double> sum(writers.count(), 0.0);
    for (const std::size_t i : scored_draw) {
      if (half >= 0 && static_cast<int>(i % 2) != half) continue;
      const std::vector<double>& values = scored[i].at(strength);
      for (std::size_t w = 0; w < sum.size(); ++w) sum[w] += values[w] / n;
    }
    return sum;
  };
  const std::vector<double> score = mean_of(name, -1), score_a = mean_of(name, 0),
                            score_b = mean_of(name, 1), size = mean_of("size", -1),
                            mean_signed = mean_of(name + "_signed", -1),
                            values = mean_of("attention_values", -1);
  const auto perplexity = [&](const std::vector<double>& row, int half) {
    double loss = 0, count = 0;
    for (const std::size_t i : held_draw) {
      if (half >= 0 && static_cast<int>(i % 2) != half) continue;
      loss += row[i];
      count += tokens[i];
    }
    return count > 0 ? std::exp(loss / count) : 0.0;
  };
  std::vector<KnockoutPoint> out;
  const double whole = perplexity(clean, -1), first = perplexity(clean, 0),
               second = perplexity(clean, 1);
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i].channel != channel) continue;
    const std::size_t w = cuts[i].writer;
    const Writer& writer = writers[cuts[i].writer];
    out.push_back({cuts[i].writer, writer.layer, writer.kind == WriterKind::head, false, score[w],
                   mean_signed[w], values[w], size[w], perplexity(losses[i], -1) - whole,
                   score_a[w], score_b[w], perplexity(losses[i], 0) - first,
                   perplexity(losses[i], 1) - second});
  }
  return out;
}

Json knockout_correlations(const KnockoutData& data, const Writers& writers, Channel channel,
                           const std::vector<int>& five, std::uint64_t seed) {
  const auto points = [&](const std::vector<std::size_t>& scored,
                          const std::vector<std::size_t>& held) {
    Points out = data.points(writers, channel, scored, held);
    for (KnockoutPoint& p : out)
      p.five = std::find(five.begin(), five.end(), p.writer) != five.end();
    return out;
  };
  const std::size_t n = data.scored.size(), m = data.clean.size();
  const Points all = points(in_order(n), in_order(m));
  std::mt19937_64 generator(seed);
  const auto draw = [&](std::size_t count) {
    std::vector<std::size_t> out(count);
    for (std::size_t& i : out) i = generator() % count;
    return out;
  };
  std::vector<Points> drawn;
  for (int i = 0; i < kBootstrapDraws; ++i) {
    const std::vector<std::size_t> scored = draw(n);
    drawn.push_back(points(scored, draw(m)));
  }
  Json out = Json::object();
  for (const Relation& relation : kRelations) {
    if (channel == Channel::mlp && std::string(relation.name) == "spearman_values") continue;
    const Correlation base = correlate(all, relation);
    std::vector<double> within, cross;
    std::map<int, std::vector<double>> of_layer;
    for (const Points& p : drawn) {
      const Correlation one = correlate(p, relation);
      for (const auto& [layer, rho] : one.layers) of_layer[layer].push_back(rho);
      if (!std::isnan(one.within)) within.push_back(one.within);
      if (!std::isnan(one.cross)) cross.push_back(one.cross);
    }
    const auto interval = [](const std::vector<double>& values) {
      if (2 * values.size() < static_cast<std::size_t>(kBootstrapDraws)) return Json(nullptr);
      const Interval ends = percentile_interval(values);
      return Json({ends.low, ends.high});
    };
    Json layers = Json::object(), layer_intervals = Json::object();
    for (const auto& [layer, rho] : base.layers) {
      layers[std::to_string(layer)] = rho;
      layer_intervals[std::to_string(layer)] = interval(of_layer[layer]);
    }
    out[relation.name] = {{"within", rho_or_null(base.within)},
                          {"within_interval", interval(within)},
                          {"cross", rho_or_null(base.cross)},
                          {"cross_interval", interval(cross)},
                          {"layers", layers},
                          {"layer_intervals", layer_intervals}};
  }
  return out;
}

}  // namespace unpack::experiments
