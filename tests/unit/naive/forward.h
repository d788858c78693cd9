// The forward pass of a model in double precision, in plain loops: what the tests hold the engine
// against. Shares no code with it but the weights.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "model/weights.h"
#include "unpack/writers.h"

namespace unpack::naive {

using Vec = std::vector<double>;
using Mat = std::vector<Vec>;  // [row][column]
using Mats = std::vector<Mat>;

inline Mat matrix(const WeightView& w) {
  Mat m(w.in, Vec(w.out));
  for (std::int64_t i = 0; i < w.in; ++i) {
    for (std::int64_t o = 0; o < w.out; ++o) m[i][o] = w.at(i, o);
  }
  return m;
}

inline Vec vector_or_zero(const WeightView& w, int n) { return w ? matrix(w)[0] : Vec(n, 0.0); }

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

inline Vec part(const Vec& x, int begin, int n) {
  return Vec(x.begin() + begin, x.begin() + begin + n);
}

// Weights of one layer, and what the pass realised there.
struct Layer {
  Vec norm1_w, norm1_b, norm2_w, norm2_b, q_norm, k_norm;
  Mat w_q, w_k, w_v, w_o, w_in, w_up, w_out;
  Vec b_q, b_k, b_v, b_o, b_in, b_up, b_out;

  Vec dev1, dev2;     // [s]
  Mats q, k, v;       // [head or group][s][e], after biases, norms and rotary
  Mat q_dev, k_dev;   // [head or group][s]
  Mats alpha;         // [h][q][s]
  Mats u;             // [h][s][D] = v W_O[h]
  Mat pre, up, act;   // [s][n]
  Mat o_attn, o_mlp;  // [s][D] without bias
};

class Forward {
 public:
  Forward(const ModelWeights& weights, const std::vector<TokenId>& ids)
      : c(weights.config), writers(c), S(static_cast<int>(ids.size())) {
    const Mat embed = matrix(weights.embed);
    const Mat positions = c.has_pos_writer() ? matrix(weights.pos) : Mat();
    unembed = matrix(weights.unembed);
    final_w = matrix(weights.final_norm.w)[0];
    final_b = vector_or_zero(weights.final_norm.b, c.d_model);
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
      const Vec y = normed(x[s], final_w, final_b);
      Vec row;
      for (const Vec& token : unembed) row.push_back(dot(y, token));
      logits.push_back(row);
    }
  }

  Vec center(Vec x) const {
    if (c.norm == Norm::rms) return x;
    double mean = 0;
    for (const double v : x) mean += v;
    mean /= static_cast<double>(x.size());
    for (double& v : x) v -= mean;
    return x;
  }

  double deviation(const Vec& x) const {
    const Vec y = center(x);
    return std::sqrt(dot(y, y) / static_cast<double>(y.size()) + c.norm_eps);
  }

  // A part of the stream through a norm whose deviation is held fixed, without the norm's bias.
  Vec read(const Vec& part_of_stream, double dev, const Vec& w) const {
    Vec y = center(part_of_stream);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= w[i] / dev;
    return y;
  }

  Vec rotated(Vec x, int s) const {
    if (c.positions != Positions::rotary) return x;
    const int half = c.rope.dims / 2;
    for (int i = 0; i < half; ++i) {
      const double angle = s * frequency(i);
      const double a = x[i], b = x[i + half];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
    return x;
  }

  int group(int h) const { return h / (c.n_heads / c.n_kv_heads); }

  ModelConfig c;
  Writers writers;
  int S;
  Mats vectors;  // [writer][s][D]
  std::vector<Layer> layers;
  Mat x_final, logits, unembed;
  Vec final_w, final_b;

 private:
  Vec normed(const Vec& x, const Vec& w, const Vec& b) const {
    return plus(read(x, deviation(x), w), b);
  }

  double frequency(int i) const {
    const Rope& r = c.rope;
    const double f = std::pow(r.base, -2.0 * i / r.dims);
    if (r.scaling == RopeScaling::linear) return f / r.factor;
    if (r.scaling == RopeScaling::none) return f;
    const double wavelength = 2 * M_PI / f;
    if (wavelength > r.original_context / r.low_freq_factor) return f / r.factor;
    if (wavelength < r.original_context / r.high_freq_factor) return f;
    const double keep = (r.original_context / wavelength - r.low_freq_factor) /
                        (r.high_freq_factor - r.low_freq_factor);
    return keep * f + (1 - keep) * f / r.factor;
  }

  double phi(double x) const {
    switch (c.activation) {
      case Activation::gelu_erf:
        return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
      case Activation::gelu_tanh:
        return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      case Activation::relu:
        return x > 0 ? x : 0;
      case Activation::silu:
        return x / (1 + std::exp(-x));
    }
    return NAN;
  }

  // The head's part of a projection, normed per head where the model does so, then rotated.
  void put_heads(const Vec& projected, int n, const Vec& norm_w, int s, bool rotate, Mats& out,
                 Mat& dev) const {
    for (int h = 0; h < n; ++h) {
      Vec x = part(projected, h * c.d_head, c.d_head);
      if (!norm_w.empty()) {
        dev[h][s] = std::sqrt(dot(x, x) / c.d_head + c.norm_eps);
        for (int e = 0; e < c.d_head; ++e) x[e] *= norm_w[e] / dev[h][s];
      }
      out[h][s] = rotate ? rotated(x, s) : x;
    }
  }

  void run_layer(const LayerWeights& w, int l, Mat& x) {
    const int H = c.n_heads, G = c.n_kv_heads, E = c.d_head, D = c.d_model;
    Layer t;
    t.norm1_w = matrix(w.attn_norm.w)[0];
    t.norm1_b = vector_or_zero(w.attn_norm.b, D);
    t.norm2_w = matrix(w.mlp_norm.w)[0];
    t.norm2_b = vector_or_zero(w.mlp_norm.b, D);
    if (w.q_norm) t.q_norm = matrix(w.q_norm)[0];
    if (w.k_norm) t.k_norm = matrix(w.k_norm)[0];
    t.w_q = matrix(w.w_q), t.w_k = matrix(w.w_k), t.w_v = matrix(w.w_v), t.w_o = matrix(w.w_o);
    t.w_in = matrix(w.w_in), t.w_out = matrix(w.w_out);
    if (w.w_up) t.w_up = matrix(w.w_up);
    t.b_q = vector_or_zero(w.b_q, H * E), t.b_k = vector_or_zero(w.b_k, G * E),
    t.b_v = vector_or_zero(w.b_v, G * E), t.b_o = vector_or_zero(w.b_o, D);
    t.b_in = vector_or_zero(w.b_in, c.d_mlp), t.b_up = vector_or_zero(w.b_up, c.d_mlp),
    t.b_out = vector_or_zero(w.b_out, D);

    t.q.assign(H, Mat(S)), t.k.assign(G, Mat(S)), t.v.assign(G, Mat(S));
    t.q_dev.assign(H, Vec(S, 1.0)), t.k_dev.assign(G, Vec(S, 1.0));
    Mat none(G, Vec(S));
    for (int s = 0; s < S; ++s) {
      t.dev1.push_back(deviation(x[s]));
      const Vec y = normed(x[s], t.norm1_w, t.norm1_b);
      put_heads(plus(times(y, t.w_q), t.b_q), H, t.q_norm, s, true, t.q, t.q_dev);
      put_heads(plus(times(y, t.w_k), t.b_k), G, t.k_norm, s, true, t.k, t.k_dev);
      put_heads(plus(times(y, t.w_v), t.b_v), G, {}, s, false, t.v, none);
    }
    t.o_attn.assign(S, Vec(D, 0.0));
    for (int h = 0; h < H; ++h) {
      const Mat w_o(t.w_o.begin() + h * E, t.w_o.begin() + (h + 1) * E);
      t.u.emplace_back();
      for (int s = 0; s < S; ++s) t.u[h].push_back(times(t.v[group(h)][s], w_o));
      t.alpha.emplace_back();
      for (int q = 0; q < S; ++q) {
        Vec weight;
        double total = 0;
        for (int s = 0; s <= q; ++s)
          weight.push_back(
              std::exp(dot(t.q[h][q], t.k[group(h)][s]) / std::sqrt(static_cast<double>(E))));
        for (const double a : weight) total += a;
        Vec out(D, 0.0);
        for (int s = 0; s <= q; ++s) {
          weight[s] /= total;
          for (int d = 0; d < D; ++d) out[d] += weight[s] * t.u[h][s][d];
        }
        t.alpha[h].push_back(weight);
        vectors[writers.head(l, h)][q] = out;
        t.o_attn[q] = plus(t.o_attn[q], out);
      }
    }
    Mat after(S);
    for (int s = 0; s < S; ++s) after[s] = plus(plus(x[s], t.o_attn[s]), t.b_o);
    for (int s = 0; s < S; ++s) {
      const Vec& in = c.block == Block::parallel ? x[s] : after[s];
      t.dev2.push_back(deviation(in));
      const Vec y = normed(in, t.norm2_w, t.norm2_b);
      t.pre.push_back(plus(times(y, t.w_in), t.b_in));
      if (c.gated()) t.up.push_back(plus(times(y, t.w_up), t.b_up));
      Vec act;
      for (int n = 0; n < c.d_mlp; ++n)
        act.push_back(phi(t.pre[s][n]) * (c.gated() ? t.up[s][n] : 1.0));
      t.act.push_back(act);
      t.o_mlp.push_back(times(act, t.w_out));
      vectors[writers.mlp(l)][s] = t.o_mlp[s];
      x[s] = plus(plus(after[s], t.o_mlp[s]), t.b_out);
    }
    layers.push_back(std::move(t));
  }
};

}  // namespace unpack::naive
