#include "experiments/compiled/plain_model.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "unpack/error.h"

namespace unpack::experiments::compiled {

namespace {

using Vec = std::vector<double>;

Vec times(const Vec& x, const Matrix& w, int begin, int count) {
  Vec y(count, 0.0);
  for (int i = 0; i < w.rows; ++i) {
    const double xi = x[i];
    if (xi == 0) continue;
    const double* row = w.row(i) + begin;
    for (int o = 0; o < count; ++o) y[o] += xi * row[o];
  }
  return y;
}

// x += W[:, begin ..] g
void add_back(const Vec& g, const Matrix& w, int begin, Vec& x) {
  for (int i = 0; i < w.rows; ++i) {
    const double* row = w.row(i) + begin;
    double sum = 0;
    for (std::size_t o = 0; o < g.size(); ++o) sum += row[o] * g[o];
    x[i] += sum;
  }
}

void add_to(const Vec& from, Vec& to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

double dot(const Vec& a, const Vec& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// One pass, and the way back.
class Pass {
 public:
  Pass(const PlainModel& plain, const RunOptions& options, int length)
      : p_(plain), m_(plain.model()), o_(options), length_(length), d_(m_.d_model) {}

  Run run(const std::vector<TokenId>& ids, TokenId target, TokenId contrast) {
    out_.writers.assign(p_.writers(), Rows(length_, Vec(d_, 0.0)));
    x_ = Rows(length_, Vec(d_, 0.0));
    const Rows emb = o_.input ? *o_.input : p_.embeddings(ids);
    for (std::size_t s = 0; s < length_; ++s) {
      out_.writers[0][s] = emb[s];
      add_to(emb[s], x_[s]);
      if (m_.format != Format::gpt2) continue;
      const double* row = m_.pos.row(s);
      out_.writers[1][s].assign(row, row + d_);
      add_to(out_.writers[1][s], x_[s]);
    }
    layers_.resize(m_.n_layers());
    for (int l = 0; l < m_.n_layers(); ++l) forward(l);
    const Port port{m_.n_layers(), -1, Branch::none};
    const Rows in = input(port);
    const Vec y = normed(in[length_ - 1]);
    for (int t = 0; t < m_.vocabulary; ++t) {
      double sum = 0;
      for (std::size_t i = 0; i < d_; ++i) sum += y[i] * m_.unembed(t, i);
      out_.logits.push_back(sum);
    }
    out_.difference = out_.logits[target] - out_.logits[contrast];
    if (o_.gradients) {
      Vec g(d_);
      for (std::size_t i = 0; i < d_; ++i) g[i] = m_.unembed(target, i) - m_.unembed(contrast, i);
      Rows back(length_, Vec(d_, 0.0));
      back[length_ - 1] = norm_back(in[length_ - 1], g);
      out_.gradient[port] = back;
      for (int l = m_.n_layers() - 1; l >= 0; --l) backward(l, back);
      out_.gradient[kInputPort] = back;
    }
    return std::move(out_);
  }

 private:
  struct HeadState {
    Rows in_q, in_k, in_v, q, k, v;
  };
  struct LayerState {
    std::vector<HeadState> heads;
    Rows in_mlp, pre, up;
  };

  Rows input(const Port& port) const {
    Rows in = x_;
    if (o_.port && *o_.port == port) {
      for (std::size_t s = 0; s < length_; ++s) add_to((*o_.change)[s], in[s]);
    }
    return in;
  }

  Vec center(Vec x) const {
    if (m_.format != Format::gpt2) return x;
    double mean = 0;
    for (const double v : x) mean += v;
    mean /= d_;
    for (double& v : x) v -= mean;
    return x;
  }
  Vec normed(const Vec& x) const {
    Vec y = center(x);
    const double dev = std::sqrt(dot(y, y) / d_ + m_.eps);
    for (std::size_t i = 0; i < d_; ++i) y[i] *= m_.norm[i] / dev;
    return y;
  }
  Vec norm_back(const Vec& x, Vec g) const {
    const Vec y = center(x);
    const double dev = std::sqrt(dot(y, y) / d_ + m_.eps);
    for (std::size_t i = 0; i < d_; ++i) g[i] *= m_.norm[i];
    const double along = dot(g, y) / (d_ * dev * dev);
    for (std::size_t i = 0; i < d_; ++i) g[i] = (g[i] - along * y[i]) / dev;
    return center(std::move(g));
  }

  void rotate(Vec& x, std::size_t s, double sign) const {
    if (m_.format == Format::gpt2) return;
    const std::size_t half = x.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = sign * s * std::pow(m_.theta, -2.0 * i / x.size());
      const double a = x[i], b = x[i + half];
      x[i] = a * std::cos(angle) - b * std::sin(angle);
      x[i + half] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  Rows project(const Rows& in, const Matrix& w, int begin, bool rotated) const {
    Rows out;
    for (std::size_t s = 0; s < length_; ++s) {
      out.push_back(times(normed(in[s]), w, begin, m_.d_head));
      if (rotated) rotate(out.back(), s, 1);
    }
    return out;
  }

  void forward(int l) {
    const LayerMatrices& w = m_.layers[l];
    LayerState& t = layers_[l];
    const double scale = 1 / std::sqrt(m_.d_head);
    Rows sum(length_, Vec(d_, 0.0));
    out_.pattern.emplace_back();
    out_.value.emplace_back();
    for (int h = 0; h < m_.n_heads; ++h) {
      const int base = h * m_.d_head;
      HeadState& head = t.heads.emplace_back();
      head.in_q = input({l, h, Branch::Q});
      head.in_k = input({l, h, Branch::K});
      head.in_v = input({l, h, Branch::V});
      head.q = project(head.in_q, w.w_q, base, true);
      head.k = project(head.in_k, w.w_k, base, true);
      head.v = project(head.in_v, w.w_v, base, false);
      Rows& value = out_.value.back().emplace_back(length_, Vec(d_, 0.0));
      for (std::size_t s = 0; s < length_; ++s) {
        for (int e = 0; e < m_.d_head; ++e) {
          const double v = head.v[s][e];
          if (v == 0) continue;
          const double* row = w.w_o.row(base + e);
          for (std::size_t i = 0; i < d_; ++i) value[s][i] += v * row[i];
        }
      }
      Rows& alpha = out_.pattern.back().emplace_back();
      Rows& written = out_.writers[p_.head(l, h)];
      for (std::size_t q = 0; q < length_; ++q) {
        Vec a;
        double largest = -INFINITY, total = 0;
        for (std::size_t s = 0; s <= q; ++s) {
          a.push_back(scale * dot(head.q[q], head.k[s]));
          largest = std::max(largest, a.back());
        }
        for (double& x : a) total += x = std::exp(x - largest);
        for (std::size_t s = 0; s <= q; ++s) {
          a[s] /= total;
          for (std::size_t i = 0; i < d_; ++i) written[q][i] += a[s] * value[s][i];
        }
        alpha.push_back(std::move(a));
        add_to(written[q], sum[q]);
      }
    }
    for (std::size_t s = 0; s < length_; ++s) add_to(sum[s], x_[s]);
    t.in_mlp = input({l, -1, m_.format == Format::gpt2 ? Branch::mlp : Branch::G});
    const Rows in_up = m_.format == Format::gpt2 ? Rows() : input({l, -1, Branch::U});
    Rows& written = out_.writers[p_.mlp(l)];
    for (std::size_t s = 0; s < length_; ++s) {
      t.pre.push_back(times(normed(t.in_mlp[s]), w.w_in, 0, m_.d_mlp));
      if (m_.format == Format::gpt2) {
        add_to(w.b_in, t.pre.back());
      } else {
        t.up.push_back(times(normed(in_up[s]), w.w_up, 0, m_.d_mlp));
      }
      for (int n = 0; n < m_.d_mlp; ++n) {
        const std::size_t i = n;
        const double x = t.pre[s][i];
        const double a =
            m_.format == Format::gpt2 ? std::max(x, 0.0) : x / (1 + std::exp(-x)) * t.up[s][i];
        if (a == 0) continue;
        const double* row = w.w_out.row(n);
        for (std::size_t j = 0; j < d_; ++j) written[s][j] += a * row[j];
      }
    }
    in_up_.push_back(in_up);
    for (std::size_t s = 0; s < length_; ++s) add_to(written[s], x_[s]);
  }

  // `back` is the gradient by the stream behind the layer, and becomes that before it.
  void backward(int l, Rows& back) {
    const LayerMatrices& w = m_.layers[l];
    const LayerState& t = layers_[l];
    const bool gated = m_.format != Format::gpt2;
    Rows gate(length_, Vec(d_, 0.0)), up(length_, Vec(d_, 0.0));
    for (std::size_t s = 0; s < length_; ++s) {
      Vec g_pre(m_.d_mlp), g_up = g_pre;
      for (int n = 0; n < m_.d_mlp; ++n) {
        const std::size_t i = n;
        double g = 0;
        for (std::size_t j = 0; j < d_; ++j) g += back[s][j] * w.w_out(n, j);
        const double x = t.pre[s][i];
        const double sig = 1 / (1 + std::exp(-x));
        g_pre[i] = gated ? g * t.up[s][i] * sig * (1 + x * (1 - sig)) : (x > 0 ? g : 0.0);
        if (gated) g_up[i] = g * x * sig;
      }
      Vec y(d_, 0.0);
      add_back(g_pre, w.w_in, 0, y);
      gate[s] = norm_back(t.in_mlp[s], y);
      if (!gated) continue;
      y.assign(d_, 0.0);
      add_back(g_up, w.w_up, 0, y);
      up[s] = norm_back(in_up_[l][s], y);
    }
    out_.gradient[{l, -1, gated ? Branch::G : Branch::mlp}] = gate;
    if (gated) out_.gradient[{l, -1, Branch::U}] = up;
    for (std::size_t s = 0; s < length_; ++s) add_to(gate[s], back[s]), add_to(up[s], back[s]);

    const double scale = 1 / std::sqrt(m_.d_head);
    const Rows after = back;
    for (int h = 0; h < m_.n_heads; ++h) {
      const int base = h * m_.d_head;
      const HeadState& head = t.heads[h];
      const Rows& alpha = out_.pattern[l][h];
      const Rows& value = out_.value[l][h];
      const std::size_t e = m_.d_head;
      Rows g_q(length_, Vec(e, 0.0)), g_k = g_q, g_z(length_, Vec(d_, 0.0));
      for (std::size_t q = 0; q < length_; ++q) {
        Vec g_a;
        double mean = 0;
        for (std::size_t s = 0; s <= q; ++s) {
          g_a.push_back(dot(after[q], value[s]));
          mean += alpha[q][s] * g_a.back();
          for (std::size_t i = 0; i < d_; ++i) g_z[s][i] += alpha[q][s] * after[q][i];
        }
        for (std::size_t s = 0; s <= q; ++s) {
          const double g = scale * alpha[q][s] * (g_a[s] - mean);
          for (std::size_t i = 0; i < e; ++i) {
            g_q[q][i] += g * head.k[s][i];
            g_k[s][i] += g * head.q[q][i];
          }
        }
      }
      Rows in_q, in_k, in_v;
      for (std::size_t s = 0; s < length_; ++s) {
        const auto pull = [&](const Vec& g, const Matrix& matrix, const Vec& in) {
          Vec y(d_, 0.0);
          add_back(g, matrix, base, y);
          return norm_back(in, y);
        };
        rotate(g_q[s], s, -1);
        rotate(g_k[s], s, -1);
        Vec g_v(e, 0.0);
        for (std::size_t i = 0; i < e; ++i) {
          const double* row = w.w_o.row(base + i);
          for (std::size_t j = 0; j < d_; ++j) g_v[i] += row[j] * g_z[s][j];
        }
        in_q.push_back(pull(g_q[s], w.w_q, head.in_q[s]));
        in_k.push_back(pull(g_k[s], w.w_k, head.in_k[s]));
        in_v.push_back(pull(g_v, w.w_v, head.in_v[s]));
        add_to(in_q[s], back[s]), add_to(in_k[s], back[s]), add_to(in_v[s], back[s]);
      }
      out_.gradient[{l, h, Branch::Q}] = std::move(in_q);
      out_.gradient[{l, h, Branch::K}] = std::move(in_k);
      out_.gradient[{l, h, Branch::V}] = std::move(in_v);
    }
  }

  const PlainModel& p_;
  const CompiledModel& m_;
  const RunOptions& o_;
  std::size_t length_, d_;
  Run out_;
  Rows x_;
  std::vector<LayerState> layers_;
  std::vector<Rows> in_up_;
};

}  // namespace

Rows PlainModel::embeddings(const std::vector<TokenId>& ids) const {
  Rows out;
  for (const TokenId id : ids) {
    const double* row = m_.embed.row(id);
    out.emplace_back(row, row + m_.d_model);
  }
  return out;
}

Run PlainModel::run(const std::vector<TokenId>& ids, TokenId target, TokenId contrast,
                    const RunOptions& options) const {
  return Pass(*this, options, ids.size()).run(ids, target, contrast);
}

std::string PlainModel::name(int writer) const {
  if (writer < terminals()) return writer == 0 ? "emb" : "pos";
  const int layer = (writer - terminals()) / (m_.n_heads + 1);
  const int head = (writer - terminals()) % (m_.n_heads + 1);
  return head == m_.n_heads ? fmt::format("MLP{}", layer) : fmt::format("A{}.H{}", layer, head);
}

Port PlainModel::port(const EdgeName& edge) const {
  if (edge.reader == "target") return {m_.n_layers(), -1, Branch::none};
  int layer = 0, head = -1;
  if (std::sscanf(edge.reader.c_str(), "A%d.H%d", &layer, &head) != 2)
    std::sscanf(edge.reader.c_str(), "MLP%d", &layer);
  return {layer, head, edge.branch};
}

}  // namespace unpack::experiments::compiled
