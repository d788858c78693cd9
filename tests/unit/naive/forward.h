// The forward pass of a model in double precision, in plain loops: what the tests hold the engine
// against. Shares no code with it but the weights.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "model/weights.h"
#include "unpack/writers.h"

namespace unpack::naive {

using Vec = std::vector<double>;
using Mat = std::vector<Vec>;  // [row][column]
using Mats = std::vector<Mat>;

inline Mat matrix(const model::WeightView& w) {
  Mat m(w.in, Vec(w.out));
  for (std::int64_t i = 0; i < w.in; ++i) {
    for (std::int64_t o = 0; o < w.out; ++o) m[i][o] = w.at(i, o);
  }
  return m;
}

inline Vec vector_or_zero(const model::WeightView& w, int n) {
  return w ? matrix(w)[0] : Vec(n, 0.0);
}

inline double dot(const Vec& a, const Vec& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline Vec times(const Vec& x, const Mat& w) {
  Vec y(w[0].size(), 0.0);
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t o = 0; o < y.size(); ++o) y[o] += x[i] * w[i][o];
  }
  return y;
}

inline Vec plus(Vec a, const Vec& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline Vec product(Vec a, const Vec& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

inline Vec part(const Vec& x, int begin, int n) {
  return Vec(x.begin() + begin, x.begin() + begin + n);
}

// One expert of a mixture; a dense MLP is a single one that is always used.
struct Expert {
  Mat w_in, w_up, w_out;
  Vec b_in, b_up, b_out;
};

// Weights of one layer, and what the pass realised there.
struct Layer {
  Vec norm1_w, norm1_b, norm2_w, norm2_b, post1_w, post2_w, q_norm, k_norm, sinks;
  Mat w_q, w_k, w_v, w_o, w_r;
  Vec b_q, b_k, b_v, b_o, b_r;
  std::vector<Expert> experts;

  Vec dev1, dev2;                        // [s]
  Mats q, k, v;                          // [head or group][s][e], after biases, norms and rotary
  Mat q_dev, k_dev;                      // [head or group][s]
  Mats alpha;                            // [h][q][s], 0 for sources out of sight
  Mats u;                                // [h][s][D] = v W_O[h]
  Mat behind1, behind2;                  // [s][D] what the norm behind multiplies by; else 1
  Mat router;                            // [s][expert] its logits
  std::vector<std::vector<int>> chosen;  // [s] experts in use
  Mat weight;                            // [s][expert], 0 for those that are not
  Mat pre, up, act;                      // [s][expert * N + n]; act times its expert's weight
  Mat o_attn, o_mlp;                     // [s][D] the sum of the writers, without constants
  Mat x_pre, x_mid, x_out;               // [s][D] the stream before, inside and behind the layer
};

// A writer of a clean pass that the attention, or the MLPs, of all layers above it do not get.
struct Removed {
  const Mat* vectors = nullptr;  // [s][D]
  int writer = 0;
  bool from_mlps = false;
};

class Forward {
 public:
  Forward(const model::ModelWeights& weights, const std::vector<TokenId>& ids,
          const Removed& removed = {})
      : c(weights.config), writers(c), S(static_cast<int>(ids.size())), removed_(removed) {
    const Mat embed = matrix(weights[model::Role::embed]);
    const Mat positions = c.has_pos_writer() ? matrix(weights[model::Role::pos]) : Mat();
    unembed = matrix(weights[model::Role::unembed]);
    for (Vec& token : unembed) {
      for (double& x : token) x *= c.logit_scale;
    }
    final_w = matrix(weights[model::Role::final_norm_w])[0];
    final_b = vector_or_zero(weights[model::Role::final_norm_b], c.d_model);
    vectors.assign(writers.count(), Mat(S));
    Mat x(S);
    for (int s = 0; s < S; ++s) {
      vectors[0][s] = x[s] = embed[ids[s]];
      if (!c.has_pos_writer()) continue;
      vectors[1][s] = positions[s];
      x[s] = plus(x[s], positions[s]);
    }
    for (int l = 0; l < c.n_layers; ++l) run_layer(weights.layers[l], l, x);
    x_final = x;
    for (int s = 0; s < S; ++s) {
      const Vec y = normed(c.norm, x[s], final_w, final_b);
      Vec row;
      for (const Vec& token : unembed) row.push_back(dot(y, token));
      logits.push_back(row);
    }
  }

  Vec center(Vec x) const { return center(c.norm, std::move(x)); }
  double deviation(const Vec& x) const { return deviation(c.norm, x); }

  // A part of the stream through a norm whose deviation is held fixed, without the norm's bias.
  Vec read_attention(int l, const Vec& part_of_stream, int s) const {
    return read(c.layer(l).attn_norm, part_of_stream, layers[l].dev1[s], layers[l].norm1_w);
  }
  Vec read_mlp(int l, const Vec& part_of_stream, int s) const {
    return read(c.layer(l).mlp_norm, part_of_stream, layers[l].dev2[s], layers[l].norm2_w);
  }

  // A part of the stream as a key or query of one head: norms' deviations held fixed, rotated.
  Vec key(int l, int g, const Vec& part_of_stream, int s) const {
    const Layer& t = layers[l];
    const Vec x = part(times(read_attention(l, part_of_stream, s), t.w_k), g * c.d_head, c.d_head);
    return rotated(l, head_normed(l, x, t.k_norm, g, t.k_dev[g][s]), s);
  }
  Vec query(int l, int h, const Vec& part_of_stream, int s) const {
    const Layer& t = layers[l];
    const Vec x = part(times(read_attention(l, part_of_stream, s), t.w_q), h * c.d_head, c.d_head);
    return rotated(l, head_normed(l, x, t.q_norm, h, t.q_dev[h][s]), s);
  }

  Vec rotated(int l, Vec x, int s) const {
    const Rope& r = c.layer(l).rope;
    const int half = r.dims / 2;
    for (int i = 0; i < half; ++i) {
      const double angle = s * frequency(r, i);
      const double a = x[i] * r.amplitude, b = x[i + half] * r.amplitude;
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
    return x;
  }

  static double phi(Activation kind, double x) {
    switch (kind) {
      case Activation::gelu_erf:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
      case Activation::gelu_tanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      case Activation::relu:
        return x > 0 ? x : 0;
      case Activation::silu:
        return x / (1 + std::exp(-x));
      case Activation::clamped_swiglu:
        return std::min(x, 7.0) / (1 + std::exp(-1.702 * std::min(x, 7.0)));
    }
    return NAN;
  }

  int group(int h) const { return h / (c.n_heads / c.n_kv_heads); }
  // The first source in sight.
  int first(int l, int q) const {
    const int window = c.layer(l).window;
    return window == 0 ? 0 : std::max(0, q - window + 1);
  }

  ModelConfig c;
  Writers writers;
  int S;
  Mats vectors;  // [writer][s][D]
  std::vector<Layer> layers;
  Mat x_final, logits;  // logits before a soft cap
  Mat unembed;          // times the scale of logits
  Vec final_w, final_b;
  // How far the weakest chosen expert anywhere is from the strongest that was not, against the size
  // of the logits: near 0 rounding decides.
  double routing_margin = INFINITY;

 private:
  // What a sublayer that sees the first `visible` writers gets of the stream.
  Vec input(const Vec& x, int s, int visible, bool mlp) const {
    if (removed_.vectors == nullptr || removed_.from_mlps != mlp || removed_.writer >= visible)
      return x;
    Vec out = x;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] -= (*removed_.vectors)[s][d];
    return out;
  }

  static Vec center(Norm kind, Vec x) {
    if (kind != Norm::layer) return x;
    double mean = 0;
    for (const double v : x) mean += v;
    mean /= static_cast<double>(x.size());
    for (double& v : x) v -= mean;
    return x;
  }

  double deviation(Norm kind, const Vec& x) const {
    if (kind == Norm::none) return 1;
    const Vec y = center(kind, x);
    return std::sqrt(dot(y, y) / static_cast<double>(y.size()) + c.norm_eps);
  }

  static Vec read(Norm kind, const Vec& part_of_stream, double dev, const Vec& w) {
    Vec y = center(kind, part_of_stream);
    for (std::size_t i = 0; i < y.size() && kind != Norm::none; ++i) y[i] *= w[i] / dev;
    return y;
  }

  Vec normed(Norm kind, const Vec& x, const Vec& w, const Vec& b) const {
    return plus(read(kind, x, deviation(kind, x), w), b);
  }

  double frequency(const Rope& r, int i) const {
    const double f = std::pow(r.base, -2.0 * i / r.dims);
    if (r.scaling == RopeScaling::linear) return f / r.factor;
    if (r.scaling == RopeScaling::longrope)
      return f / (S > r.original_context ? r.long_factor : r.short_factor)[i];
    if (r.scaling == RopeScaling::yarn) {
      const auto bound = [&](double beta) {
        return r.dims * std::log(r.original_context / (2 * M_PI * beta)) / (2 * std::log(r.base));
      };
      double low = bound(r.beta_fast), high = bound(r.beta_slow);
      if (r.truncate) low = std::floor(low), high = std::ceil(high);
      low = std::max(low, 0.0), high = std::min(high, r.dims - 1.0);
      if (low == high) high += 0.001;
      const double ramp = std::min(1.0, std::max(0.0, (i - low) / (high - low)));
      return f / r.factor * ramp + f * (1 - ramp);
    }
    if (r.scaling == RopeScaling::none) return f;
    const double wavelength = 2 * M_PI / f;
    if (wavelength > r.original_context / r.low_freq_factor) return f / r.factor;
    if (wavelength < r.original_context / r.high_freq_factor) return f;
    const double keep = (r.original_context / wavelength - r.low_freq_factor) /
                        (r.high_freq_factor - r.low_freq_factor);
    return keep * f + (1 - keep) * f / r.factor;
  }

  static double gate_of(Activation kind, double up) {
    return kind == Activation::clamped_swiglu ? std::min(7.0, std::max(-7.0, up)) + 1 : up;
  }

  Vec head_normed(int l, Vec x, const Vec& w, int h, double dev) const {
    const int from = c.layer(l).qk_norm == QkNorm::projection ? h * c.d_head : 0;
    for (int e = 0; e < c.d_head && !w.empty(); ++e) x[e] *= w[from + e] / dev;
    return x;
  }

  // The heads' parts of a projection, normed each or all together where the layer does so, rotated.
  void put_heads(int l, const Vec& projected, int n, const Vec& norm_w, int s, bool rotate,
                 Mats& out, Mat& dev) const {
    for (int h = 0; h < n; ++h) {
      const Vec x = part(projected, h * c.d_head, c.d_head);
      if (!norm_w.empty()) {
        const Vec& over = c.layer(l).qk_norm == QkNorm::projection ? projected : x;
        dev[h][s] = std::sqrt(dot(over, over) / static_cast<double>(over.size()) + c.norm_eps);
      }
      const Vec y = head_normed(l, x, norm_w, h, dev[h][s]);
      out[h][s] = rotate ? rotated(l, y, s) : y;
    }
  }

  // What the norm behind a sublayer multiplies its output by.
  Vec behind(const Vec& y, const Vec& w) const {
    if (w.empty()) return Vec(y.size(), 1.0);
    Vec out = w;
    for (double& x : out) x /= deviation(Norm::rms, y);
    return out;
  }

  void take_weights(const model::LayerWeights& w, int l, Layer& t) const {
    const int H = c.n_heads, G = c.n_kv_heads, E = c.d_head, D = c.d_model;
    const LayerConfig& shape = c.layer(l);
    const auto vector = [&](model::Role role) { return w[role] ? matrix(w[role])[0] : Vec(); };
    const auto bias = [&](model::Role role, int n) { return vector_or_zero(w[role], n); };
    t.norm1_w = vector(model::Role::attn_norm_w), t.norm2_w = vector(model::Role::mlp_norm_w);
    t.norm1_b = bias(model::Role::attn_norm_b, D), t.norm2_b = bias(model::Role::mlp_norm_b, D);
    t.post1_w = vector(model::Role::attn_post_w), t.post2_w = vector(model::Role::mlp_post_w);
    t.q_norm = vector(model::Role::q_norm), t.k_norm = vector(model::Role::k_norm);
    t.sinks = vector(model::Role::sinks);
    t.w_q = matrix(w[model::Role::w_q]), t.w_k = matrix(w[model::Role::w_k]),
    t.w_v = matrix(w[model::Role::w_v]);
    t.w_o = matrix(w[model::Role::w_o]);
    t.b_q = bias(model::Role::b_q, H * E), t.b_k = bias(model::Role::b_k, G * E);
    t.b_v = bias(model::Role::b_v, G * E), t.b_o = bias(model::Role::b_o, D);
    if (shape.mixture()) {
      t.w_r = matrix(w[model::Role::w_r]);
      t.b_r = bias(model::Role::b_r, shape.n_experts);
    }
    for (int e = 0; e < std::max(1, shape.n_experts); ++e) {
      const model::RoleViews& from =
          shape.mixture() ? w.experts[e] : static_cast<const model::RoleViews&>(w);
      Expert expert{
          matrix(from[model::Role::w_in]), {}, matrix(from[model::Role::w_out]), {}, {}, {}};
      if (shape.gated()) expert.w_up = matrix(from[model::Role::w_up]);
      expert.b_in = vector_or_zero(from[model::Role::b_in], shape.n_neurons);
      expert.b_up = vector_or_zero(from[model::Role::b_up], shape.n_neurons);
      expert.b_out = vector_or_zero(from[model::Role::b_out], D);
      t.experts.push_back(std::move(expert));
    }
  }

  Vec attention_weights(const Layer& t, int l, int h, int q) const {
    const LayerConfig& shape = c.layer(l);
    Vec weight(q + 1, 0.0);
    double total = t.sinks.empty() ? 0 : std::exp(t.sinks[h]);
    for (int s = first(l, q); s <= q; ++s) {
      double logit = shape.attention_scale * dot(t.q[h][q], t.k[group(h)][s]);
      if (shape.attention_cap > 0)
        logit = shape.attention_cap * std::tanh(logit / shape.attention_cap);
      weight[s] = std::exp(logit);
      total += weight[s];
    }
    for (double& a : weight) a /= total;
    return weight;
  }

  // Which experts read y, and with what weight.
  void route(const LayerConfig& shape, const Vec& y, Layer& t) {
    const int experts = static_cast<int>(t.experts.size());
    Vec weight(experts, 0.0);
    if (!shape.mixture()) {
      t.router.push_back(Vec(1, 0.0));
      t.chosen.push_back({0});
      t.weight.push_back(Vec(1, 1.0));
      return;
    }
    const Vec r = plus(times(y, t.w_r), t.b_r);
    std::vector<int> chosen;
    for (int i = 0; i < shape.experts_per_token; ++i) {
      int best = -1;
      for (int e = 0; e < experts; ++e) {
        if (std::find(chosen.begin(), chosen.end(), e) != chosen.end()) continue;
        if (best < 0 || r[e] > r[best]) best = e;
      }
      chosen.push_back(best);
    }
    double all = 0, picked = 0, size = 0;
    for (int e = 0; e < experts; ++e) all += std::exp(r[e]), size = std::max(size, std::fabs(r[e]));
    for (const int e : chosen) picked += std::exp(r[e]);
    for (const int e : chosen)
      weight[e] = std::exp(r[e]) / (shape.expert_weights == ExpertWeights::all ? all : picked);
    for (int e = 0; e < experts; ++e) {
      if (weight[e] == 0)
        routing_margin = std::min(routing_margin, (r[chosen.back()] - r[e]) / size);
    }
    t.router.push_back(r);
    t.chosen.push_back(chosen);
    t.weight.push_back(weight);
  }

  void run_layer(const model::LayerWeights& w, int l, Mat& x) {
    const int H = c.n_heads, G = c.n_kv_heads, E = c.d_head, D = c.d_model;
    const LayerConfig& shape = c.layer(l);
    Layer t;
    take_weights(w, l, t);
    t.x_pre = x;
    t.q.assign(H, Mat(S)), t.k.assign(G, Mat(S)), t.v.assign(G, Mat(S));
    t.q_dev.assign(H, Vec(S, 1.0)), t.k_dev.assign(G, Vec(S, 1.0));
    Mat none(G, Vec(S));
    for (int s = 0; s < S; ++s) {
      const Vec in = input(x[s], s, writers.visible_to_attention(l), false);
      t.dev1.push_back(deviation(shape.attn_norm, in));
      const Vec y = normed(shape.attn_norm, in, t.norm1_w, t.norm1_b);
      put_heads(l, plus(times(y, t.w_q), t.b_q), H, t.q_norm, s, true, t.q, t.q_dev);
      put_heads(l, plus(times(y, t.w_k), t.b_k), G, t.k_norm, s, true, t.k, t.k_dev);
      put_heads(l, plus(times(y, t.w_v), t.b_v), G, {}, s, false, t.v, none);
    }
    Mat y_attn(S, t.b_o);
    for (int h = 0; h < H; ++h) {
      const Mat w_o(t.w_o.begin() + h * E, t.w_o.begin() + (h + 1) * E);
      t.u.emplace_back();
      for (int s = 0; s < S; ++s) t.u[h].push_back(times(t.v[group(h)][s], w_o));
      t.alpha.emplace_back();
      for (int q = 0; q < S; ++q) {
        t.alpha[h].push_back(attention_weights(t, l, h, q));
        Vec out(D, 0.0);
        for (int s = 0; s <= q; ++s) {
          for (int d = 0; d < D; ++d) out[d] += t.alpha[h][q][s] * t.u[h][s][d];
        }
        vectors[writers.head(l, h)][q] = out;
        y_attn[q] = plus(y_attn[q], out);
      }
    }
    Mat after(S);
    t.o_attn.assign(S, Vec(D, 0.0));
    for (int s = 0; s < S; ++s) {
      t.behind1.push_back(behind(y_attn[s], t.post1_w));
      for (int h = 0; h < H; ++h) {
        Vec& out = vectors[writers.head(l, h)][s];
        out = product(out, t.behind1[s]);
        t.o_attn[s] = plus(t.o_attn[s], out);
      }
      after[s] = plus(x[s], product(y_attn[s], t.behind1[s]));
    }
    for (int s = 0; s < S; ++s) {
      const Vec& stream = c.block == Block::parallel ? x[s] : after[s];
      run_mlp(l, input(stream, s, writers.visible_to_mlp(l), true), s, t);
    }
    for (int s = 0; s < S; ++s) {
      Vec constant(D, 0.0);
      for (const int e : t.chosen[s]) {
        for (int d = 0; d < D; ++d) constant[d] += t.weight[s][e] * t.experts[e].b_out[d];
      }
      t.behind2.push_back(behind(plus(t.o_mlp[s], constant), t.post2_w));
      t.o_mlp[s] = product(t.o_mlp[s], t.behind2[s]);
      vectors[writers.mlp(l)][s] = t.o_mlp[s];
      x[s] = plus(plus(after[s], t.o_mlp[s]), product(constant, t.behind2[s]));
    }
    t.x_mid = after;
    t.x_out = x;
    layers.push_back(std::move(t));
  }

  void run_mlp(int l, const Vec& in, int s, Layer& t) {
    const LayerConfig& shape = c.layer(l);
    const int N = shape.n_neurons, experts = static_cast<int>(t.experts.size());
    t.dev2.push_back(deviation(shape.mlp_norm, in));
    const Vec y = normed(shape.mlp_norm, in, t.norm2_w, t.norm2_b);
    route(shape, y, t);
    t.pre.emplace_back(experts * N, 0.0), t.up.emplace_back(experts * N, 0.0);
    t.act.emplace_back(experts * N, 0.0);
    t.o_mlp.emplace_back(c.d_model, 0.0);
    for (const int e : t.chosen[s]) {
      const Expert& expert = t.experts[e];
      const Vec pre = plus(times(y, expert.w_in), expert.b_in);
      const Vec up = shape.gated() ? plus(times(y, expert.w_up), expert.b_up) : Vec(N, 1.0);
      for (int n = 0; n < N; ++n) {
        const double a =
            phi(shape.activation, pre[n]) * (shape.gated() ? gate_of(shape.activation, up[n]) : 1);
        t.pre[s][e * N + n] = pre[n], t.up[s][e * N + n] = up[n];
        t.act[s][e * N + n] = t.weight[s][e] * a;
        for (int d = 0; d < c.d_model; ++d)
          t.o_mlp[s][d] += t.act[s][e * N + n] * expert.w_out[n][d];
      }
    }
  }

  Removed removed_;
};

}  // namespace unpack::naive
