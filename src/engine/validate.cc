// Closure: what the writers and the constants add up to, against what the model really formed.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/mlp_readers.h"
#include "base/center.h"
#include "base/index.h"
#include "engine/state.h"
#include "forward/block.h"
#include "model/weights.h"
#include "unpack/prepared.h"

namespace unpack {

namespace {

// Largest difference over largest value, collected over many comparisons.
struct Worst {
  double difference = 0;
  double largest = 0;

  void see(double got, double want) {
    const double d = std::fabs(got - want);
    difference = std::isfinite(d) ? std::max(difference, d) : INFINITY;
    largest = std::max(largest, std::fabs(want));
  }
  double relative() const {
    return difference == 0 ? 0.0 : (largest > 0 ? difference / largest : INFINITY);
  }
};

class Closure {
 public:
  explicit Closure(const engine::PreparedState& state)
      : state_(state),
        d_(*state.decomposition),
        backend_(d_.backend()),
        c_(d_.config()),
        length_(d_.length()),
        constants_(backend_.zeros(static_cast<Index>(d_.length()) * c_.d_model)) {
    vectors_ = get(d_.writer_vectors());
  }

  std::vector<ClosureCheck> run(const RunContext& context) {
    for (int l = 0; l < c_.n_layers; ++l) {
      context.report("layers", l, c_.n_layers);
      for (const forward::BlockStep& at : forward::block_steps(c_.block)) check(l, at);
    }
    stream(get(d_.pass().x_final), d_.writers().count());
    importance();
    const double limit = backend_.is_double() ? 1e-9 : 1e-4;
    return {
        {"residual", residual_.relative(), limit}, {"K", key_.relative(), limit},
        {"Q", query_.relative(), limit},           {"V", value_.relative(), limit},
        {"MLP", mlp_.relative(), limit},           {"importance", importance_.relative(), limit}};
  }

 private:
  void check(int l, const forward::BlockStep& at) {
    const forward::LayerPass& t = d_.pass().layers[l];
    const bool heads = at.sublayer == backend::Sublayer::attention;
    if (at.step == forward::Step::norm)
      stream(get(heads ? t.x_pre : t.x_mid),
             heads ? d_.writers().visible_to_attention(l) : d_.writers().visible_to_mlp(l));
    if (at.step == forward::Step::read && heads) attention(l, t);
    if (at.step == forward::Step::read && !heads) mlp(l, t);
    if (at.step == forward::Step::add) add_constants(l, at.sublayer, t);
  }

  std::vector<double> get(const backend::Array& a) const {
    std::vector<double> out(a.size());
    backend_.download(a, 0, out);
    return out;
  }

  void center(double* row) const { base::center(c_.norm, row, c_.d_model); }

  void add_constants(int l, backend::Sublayer sublayer, const forward::LayerPass& t) {
    const bool attention = sublayer == backend::Sublayer::attention;
    backend_.add_bias(l, sublayer, constants_, length_, attention ? t.attn_out_dev : t.mlp_out_dev,
                      attention ? nullptr : t.routing.get());
  }

  // Biases so far at every position, centred as the readers see them.
  std::vector<double> centered_constants() const {
    std::vector<double> rows = get(constants_);
    for (std::size_t at = 0; at < rows.size(); at += c_.d_model) center(rows.data() + at);
    return rows;
  }

  // sum_k c_k + (biases so far) = X, both sides centred as the readers see them.
  void stream(std::vector<double> x, int visible) {
    const std::size_t d = c_.d_model;
    const std::vector<double> bias = centered_constants();
    std::vector<double> sum(d);
    for (int s = 0; s < length_; ++s) {
      double* row = x.data() + s * d;
      center(row);
      const auto own = bias.begin() + static_cast<std::ptrdiff_t>(s) * c_.d_model;
      std::copy(own, own + c_.d_model, sum.begin());
      for (int k = 0; k < visible; ++k) {
        const double* from =
            vectors_.data() + (static_cast<std::size_t>(s) * d_.writers().count() + k) * d;
        for (std::size_t i = 0; i < d; ++i) sum[i] += from[i];
      }
      for (std::size_t i = 0; i < d; ++i) residual_.see(sum[i], row[i]);
    }
  }

  // center(b) / dev(s): what the norm makes of the constants alone.
  backend::Array constant_reads(const backend::Array& dev_array) const {
    const std::size_t d = c_.d_model;
    const std::vector<double> dev = get(dev_array);
    std::vector<double> rows = centered_constants();
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] /= dev[i / d];
    backend::Array out = backend_.zeros(std::ssize(rows));
    backend_.upload(out, 0, rows);
    return out;
  }

  void attention(int l, const forward::LayerPass& t) {
    const std::size_t e = c_.d_head;
    const std::size_t heads = c_.n_heads;
    const std::size_t groups = c_.n_kv_heads;
    const std::size_t length = length_;
    std::vector<int> positions(length);
    std::iota(positions.begin(), positions.end(), 0);
    backend::Array q = backend_.zeros(t.q.size()), k = backend_.zeros(t.k.size()),
                   v = backend_.zeros(t.v.size());
    backend::Array q_dev = backend_.zeros(t.q_dev.size()), k_dev = backend_.zeros(t.k_dev.size());
    backend_.qkv(l, constant_reads(t.dev_attn), positions, length_, q, k, v, q_dev, k_dev);
    std::vector<double> q_bias = get(q), k_bias = get(k);
    const std::vector<double> v_bias = get(v);
    // The per-head norm took the constants' own deviation; the realised one is to be held fixed.
    const auto rescale = [&](std::vector<double>& x, const backend::Array& own,
                             const backend::Array& realised) {
      if (own.empty()) return;
      const std::vector<double> a = get(own), b = get(realised);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] *= a[i / e] / b[i / e];
    };
    rescale(q_bias, q_dev, t.q_dev);
    rescale(k_bias, k_dev, t.k_dev);
    const std::vector<double> rq = get(t.q), rk = get(t.k), rv = get(t.v);
    const backend::AttentionSums& sums = d_.attention(l, Scores::raw);
    const std::vector<double> k_sum = get(sums.k_sum), q_sum = get(sums.q_sum),
                              v_sum = get(sums.v_sum);
    const auto dot = [&](const std::vector<double>& a, std::size_t i, const std::vector<double>& b,
                         std::size_t j) {
      double x = 0;
      for (std::size_t n = 0; n < e; ++n) x += a[i * e + n] * b[j * e + n];
      return x;
    };
    const LayerConfig& shape = c_.layer(l);
    const double scale = shape.attention_scale;
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t g = h / c_.group_size();
      for (std::size_t qi = 0; qi < length; ++qi) {
        for (std::size_t s = shape.first_source(qi); s <= qi; ++s) {
          const auto at = h * backend::tri(length_) + backend::tri(qi) + s;
          const double logit = scale * dot(rq, qi * heads + h, rk, s * groups + g);
          key_.see(k_sum[at] + scale * dot(rq, qi * heads + h, k_bias, s * groups + g), logit);
          query_.see(q_sum[at] + scale * dot(q_bias, qi * heads + h, rk, s * groups + g), logit);
        }
      }
    }
    for (std::size_t g = 0; g < groups; ++g) {
      for (std::size_t s = 0; s < length; ++s)
        value_.see(v_sum[g * length + s] + dot(v_bias, s * groups + g, rv, s * groups + g),
                   dot(rv, s * groups + g, rv, s * groups + g));
    }
  }

  void mlp(int l, const forward::LayerPass& t) {
    const backend::Array reads = constant_reads(t.dev_mlp);
    for (const backend::MlpReader& reader : backend::mlp_readers(c_.layer(l))) {
      const backend::MlpSide side = reader.side;
      const std::vector<double> constant = constant_parts(l, side, reads, t),
                                sum = get(d_.mlp(l, side).sum),
                                pre = get(d_.pre(l, side, Scores::raw));
      for (std::size_t i = 0; i < pre.size(); ++i) mlp_.see(sum[i] + constant[i], pre[i]);
    }
  }

  // What a side reads of the constants alone.
  std::vector<double> constant_parts(int l, backend::MlpSide side, const backend::Array& reads,
                                     const forward::LayerPass& t) const {
    if (side != backend::MlpSide::router) {
      backend::Array out = backend_.zeros(t.pre.size());
      backend_.mlp_in(l, side, reads, length_, t.routing.get(), out);
      return get(out);
    }
    const backend::Routing& routing = *t.routing;
    backend::Array out = backend_.zeros(static_cast<Index>(length_) * routing.experts);
    backend_.router(l, reads, length_, out);
    const std::vector<double> all = get(out);
    std::vector<double> chosen;
    for (int q = 0; q < length_; ++q) {
      for (int i = 0; i < routing.chosen; ++i)
        chosen.push_back(all[q * routing.experts + routing.expert[routing.slot(q, i)]]);
    }
    return chosen;
  }

  // Sum of importances and constants against the logit difference of the two likeliest tokens.
  void importance() {
    const int p = length_ - 1;
    const auto logits = state_.logits_at(p);
    if (logits->size() < 2) return;
    const std::vector<Prediction> top = engine::top_predictions(state_.model, *logits, 2);
    const std::vector<TokenId> target = {top[0].id}, versus = {top[1].id};
    backend::Array direction = backend_.zeros(c_.d_model);
    backend_.target_direction(d_.pass().x_final, p, target, &versus, false, direction);
    std::vector<double> parts;
    backend_.writer_dots(d_.writer_vectors(), d_.writers().count(), p, direction, parts);
    const std::vector<double> dt = get(direction);
    const std::vector<double> bias = centered_constants();
    double sum = std::accumulate(parts.begin(), parts.end(), 0.0);
    const std::size_t last = bias.size() - dt.size();
    for (std::size_t i = 0; i < dt.size(); ++i) sum += bias[last + i] * dt[i];
    const model::ModelWeights& weights = *engine::state_of(state_.model)->weights;
    if (weights[model::Role::final_norm_b]) {
      std::vector<double> b(dt.size()), row(dt.size());
      model::read_rows(weights[model::Role::final_norm_b], 0, 1, b.data());
      for (const auto& [id, sign] : {std::pair{top[0].id, 1.0}, std::pair{top[1].id, -1.0}}) {
        model::read_rows(weights[model::Role::unembed], id, 1, row.data());
        for (std::size_t i = 0; i < row.size(); ++i) sum += c_.logit_scale * sign * b[i] * row[i];
      }
    }
    const auto logit = [&](TokenId id) { return (*logits)[id]; };
    importance_.see(sum, logit(top[0].id) - logit(top[1].id));
    for (const double x : parts) importance_.largest = std::max(importance_.largest, std::fabs(x));
  }

  const engine::PreparedState& state_;
  const decompose::Decomposition& d_;
  backend::Backend& backend_;
  const ModelConfig& c_;
  int length_;
  backend::Array constants_;     // [S, D] b_O and b_out so far, as they reach the stream
  std::vector<double> vectors_;  // [S, C, D]
  Worst residual_, key_, query_, value_, mlp_, importance_;
};

}  // namespace

std::vector<ClosureCheck> Prepared::validate(const RunContext& context) const {
  return Closure(*state_).run(context);
}

}  // namespace unpack
