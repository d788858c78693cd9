// Information flow routes and the two forms of LRP by their definitions, over the plain pass.
#pragma once

#include <optional>
#include <vector>

#include "unit/naive/forward.h"

namespace unpack::naive {

inline double size_of(const Vec& x) {
  double sum = 0;
  for (const double v : x) sum += std::fabs(v);
  return sum;
}

// Row `position` of T_{L-1} ... T_0.
inline Vec ifr(const Forward& f, int position) {
  Vec row(f.S, 0.0);
  row[position] = 1;
  for (int l = f.c.n_layers - 1; l >= 0; --l) {
    const Layer& t = f.layers[l];
    const bool parallel = f.c.block == Block::parallel;
    Vec next(f.S, 0.0);
    for (int i = 0; i < f.S; ++i) {
      const Vec& whole = parallel ? t.x_out[i] : t.x_mid[i];
      const auto proximity = [&](const Vec& part_of) {
        Vec rest = whole;
        for (std::size_t d = 0; d < rest.size(); ++d) rest[d] -= part_of[d];
        return std::max(size_of(whole) - size_of(rest), 0.0);
      };
      Vec share(f.S, 0.0);
      share[i] = proximity(t.x_pre[i]) + (parallel ? proximity(t.o_mlp[i]) : 0);
      for (int h = 0; h < f.c.n_heads; ++h) {
        for (int s = 0; s <= i; ++s) {
          Vec z = product(t.u[h][s], t.behind1[i]);
          for (double& x : z) x *= t.alpha[h][i][s];
          share[s] += proximity(z);
        }
      }
      const double total = size_of(share);
      if (total == 0) share[i] = 1;
      for (int s = 0; s < f.S; ++s) next[s] += row[i] * share[s] / (total == 0 ? 1 : total);
    }
    row = next;
  }
  return row;
}

// The modified gradient of AttnLRP, or of CP-LRP.
class Lrp {
 public:
  Lrp(const Forward& f, int position, const std::vector<TokenId>& target,
      const std::optional<std::vector<TokenId>>& versus, bool cp)
      : f_(f), c_(f.c), cp_(cp), g_(f.S, Vec(f.c.d_model, 0.0)) {
    Vec seed(c_.vocab_size, versus ? 0.0 : -1.0 / c_.vocab_size);
    for (const TokenId id : target) seed[id] += 1.0 / static_cast<double>(target.size());
    if (versus) {
      for (const TokenId id : *versus) seed[id] -= 1.0 / static_cast<double>(versus->size());
    }
    Vec y(c_.d_model, 0.0);
    for (int id = 0; id < c_.vocab_size; ++id) {
      for (int d = 0; d < c_.d_model; ++d) y[d] += seed[id] * f.unembed[id][d];
    }
    g_[position] = back_norm(c_.norm, y, f.final_w, f.deviation(f.x_final[position]));
    for (int l = c_.n_layers - 1; l >= 0; --l) back_layer(l);
  }

  // Of the token (writer 0) or the position (1).
  Vec scores(int writer) const {
    Vec out;
    for (int s = 0; s < f_.S; ++s) out.push_back(dot(f_.vectors[writer][s], g_[s]));
    return out;
  }

 private:
  Vec back_norm(Norm kind, const Vec& g, const Vec& w, double dev) const {
    if (kind == Norm::none) return g;
    Vec x = product(g, w);
    if (kind == Norm::layer) x = f_.center(x);
    for (double& v : x) v /= dev;
    return x;
  }

  // W g of a matrix [in][out].
  static Vec back(const Mat& w, const Vec& g) {
    Vec x;
    for (const Vec& row : w) x.push_back(dot(row, g));
    return x;
  }

  static double ratio(Activation kind, double h) {
    if (std::fabs(h) < 1e-8) return kind == Activation::relu ? 0 : 0.5;
    return Forward::phi(kind, h) / h;
  }

  Vec back_mlp(int l, int s) const {
    const LayerConfig& shape = c_.layer(l);
    const Layer& t = f_.layers[l];
    const Vec y = product(g_[s], t.behind2[s]);
    Vec in(c_.d_model, 0.0);
    for (const int e : t.chosen[s]) {
      const Expert& expert = t.experts[e];
      Vec gate, up;
      for (int n = 0; n < shape.n_neurons; ++n) {
        const double a = t.weight[s][e] * dot(y, expert.w_out[n]);
        const double h = t.pre[s][e * shape.n_neurons + n], u = t.up[s][e * shape.n_neurons + n];
        if (!shape.gated()) {
          gate.push_back(a * ratio(shape.activation, h));
        } else {
          up.push_back((cp_ ? 1 : 0.5) * a * Forward::phi(shape.activation, h));
          gate.push_back(cp_ ? 0 : 0.5 * a * u * ratio(shape.activation, h));
        }
      }
      in = plus(in, back(expert.w_in, gate));
      if (shape.gated()) in = plus(in, back(expert.w_up, up));
    }
    return back_norm(shape.mlp_norm, in, t.norm2_w, t.dev2[s]);
  }

  // Out of the rotation and the norm of queries or keys.
  Vec back_head(int l, const Vec& g, int s, const Vec& w, int head, double dev) const {
    Vec x = f_.rotated(l, g, -s);
    const int from = c_.layer(l).qk_norm == QkNorm::projection ? head * c_.d_head : 0;
    for (int e = 0; e < c_.d_head && !w.empty(); ++e) x[e] *= w[from + e] / dev;
    return x;
  }

  void back_layer(int l) {
    const LayerConfig& shape = c_.layer(l);
    const Layer& t = f_.layers[l];
    const int H = c_.n_heads, G = c_.n_kv_heads, E = c_.d_head;
    Mat mlp;
    for (int s = 0; s < f_.S; ++s) mlp.push_back(back_mlp(l, s));
    if (c_.block == Block::sequential) add(mlp);
    Mat gq(f_.S, Vec(H * E, 0.0)), gk(f_.S, Vec(G * E, 0.0)), gv(gk);
    for (int h = 0; h < H; ++h) {
      const int g = f_.group(h);
      for (int q = 0; q < f_.S; ++q) {
        const Mat w_o(t.w_o.begin() + h * E, t.w_o.begin() + (h + 1) * E);
        const Vec z = back(w_o, product(g_[q], t.behind1[q]));
        double mean = 0;
        for (int s = 0; s <= q; ++s) mean += t.alpha[h][q][s] * dot(z, t.v[g][s]);
        for (int s = 0; s <= q; ++s) {
          const double alpha = t.alpha[h][q][s];
          for (int e = 0; e < E; ++e) gv[s][g * E + e] += (cp_ ? 1 : 0.5) * alpha * z[e];
          if (cp_) continue;
          const double logit = shape.attention_scale * dot(t.q[h][q], t.k[g][s]);
          double ds = 0.25 * shape.attention_scale * alpha * (dot(z, t.v[g][s]) - mean);
          if (shape.attention_cap > 0 && std::fabs(logit) >= 1e-8)
            ds *= shape.attention_cap * std::tanh(logit / shape.attention_cap) / logit;
          const Vec to_q = back_head(l, t.k[g][s], q, t.q_norm, h, t.q_dev[h][q]);
          const Vec to_k = back_head(l, t.q[h][q], s, t.k_norm, g, t.k_dev[g][s]);
          for (int e = 0; e < E; ++e) {
            gq[q][h * E + e] += ds * to_q[e];
            gk[s][g * E + e] += ds * to_k[e];
          }
        }
      }
    }
    Mat attention;
    for (int s = 0; s < f_.S; ++s) {
      const Vec in = plus(plus(back(t.w_q, gq[s]), back(t.w_k, gk[s])), back(t.w_v, gv[s]));
      attention.push_back(back_norm(shape.attn_norm, in, t.norm1_w, t.dev1[s]));
    }
    add(attention);
    if (c_.block == Block::parallel) add(mlp);
  }

  void add(const Mat& more) {
    for (int s = 0; s < f_.S; ++s) g_[s] = plus(g_[s], more[s]);
  }

  const Forward& f_;
  const ModelConfig& c_;
  bool cp_;
  Mat g_;  // [s][D] on the stream
};

}  // namespace unpack::naive
