// Direction `read` (docs/method.md, section 5) in plain loops over plain vectors: every edge with
// its credit, from the definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "unit/naive/forward.h"
#include "unpack/options.h"

namespace unpack::naive {

inline Vec direction_to(const Forward& f, int position, const std::vector<TokenId>& target,
                        const std::vector<TokenId>& versus) {
  Vec d(f.c.d_model, 0.0);
  for (int i = 0; i < f.c.d_model; ++i) {
    for (const TokenId id : target) d[i] += f.unembed[id][i] / static_cast<double>(target.size());
    for (const TokenId id : versus) d[i] -= f.unembed[id][i] / static_cast<double>(versus.size());
    d[i] *= f.final_w[i] / f.deviation(f.x_final[position]);
  }
  return d;
}

struct ReadEdge {
  Node reader;  // writer -1: the target
  Branch branch = Branch::none;
  Node writer;
  double credit = 0;
};

class ReadRecursion {
 public:
  ReadRecursion(const Forward& forward, const Options& options) : f_(forward), o_(options) {}

  std::vector<ReadEdge> edges;
  Mat credit;  // [writer][s]

  void from_target(int position, const Vec& direction) {
    start(position);
    start_direction_ = f_.center(direction);
    for (int w = 0; w < f_.writers.count(); ++w) {
      const double first = dot(f_.center(f_.vectors[w][position]), start_direction_);
      credit[w][position] += first;
      edges.push_back({{-1, position}, Branch::none, {w, position}, first});
    }
    run();
  }

  void from_root(const Node& root, const Vec& direction) {
    start(root.position);
    root_ = root;
    start_direction_ = f_.center(direction);
    credit[root.writer][root.position] = 1;
    run();
  }

 private:
  void start(int position) {
    position_ = position;
    credit.assign(f_.writers.count(), Vec(f_.S, 0.0));
    keyed_ = credit;
    linear_.assign(f_.S, Vec(f_.c.d_model, 0.0));
    keys_ = linear_;
  }

  void run() {
    for (int l = f_.c.n_layers - 1; l >= 0; --l) {
      const Mat linear = linear_, keys = keys_;
      for (int q = 0; q < f_.S; ++q) mlp(l, q, linear, keys);
      const Mat& heads_see = f_.c.block == Block::parallel ? linear : linear_;
      const Mat seen = heads_see;
      for (int h = 0; h < f_.c.n_heads; ++h) {
        for (int q = 0; q < f_.S; ++q) head(l, h, q, seen, keys);
      }
    }
  }

  // The directions of a node with what each one's products are multiplied by.
  std::vector<std::pair<Vec, double>> directions(int writer, int q, const Mat& linear,
                                                 const Mat& keys,
                                                 const std::vector<Vec>& parts) const {
    std::vector<std::pair<Vec, double>> out;
    const auto products = [&](const Vec& d) {
      Vec r;
      for (const Vec& part : parts) r.push_back(dot(f_.center(part), d));
      return r;
    };
    if (q == position_ && !root_) out.push_back({start_direction_, 1.0});
    if (root_ && root_->writer == writer && root_->position == q)
      out.push_back({start_direction_, 1.0 / denom(products(start_direction_), 0)});
    out.push_back({linear[q], 1.0});
    double sum = 0;
    for (const double r : products(keys[q])) sum += r;
    out.push_back({keys[q], sum == 0 ? 0.0 : std::clamp(keyed_[writer][q] / sum, 0.0, 1.0)});
    return out;
  }

  double denom(const Vec& r, double floor) const {
    double sum = 0, abs = 0;
    for (const double x : r) sum += x, abs += std::fabs(x);
    const double size = std::max({std::fabs(sum), o_.beta * abs, floor});
    return size == 0 ? INFINITY : (sum < 0 ? -size : size);
  }

  void give(const Node& reader, Branch branch, int writer, int s, double amount, bool by_key) {
    edges.push_back({reader, branch, {writer, s}, amount});
    credit[writer][s] += amount;
    if (by_key) keyed_[writer][s] += amount;
  }

  // A vector that a normed writer is multiplied with, as one over the stream.
  Vec through_norm(Norm kind, const Vec& x, const Vec& w, double dev) const {
    Vec y = x;
    for (std::size_t i = 0; i < y.size() && kind != Norm::none; ++i) y[i] *= w[i] / dev;
    return f_.center(y);
  }

  static Vec column(const Mat& w, int n) {
    Vec out;
    for (const Vec& row : w) out.push_back(row[n]);
    return out;
  }

  // One thing that an MLP reads: a neuron's gate or up, or how a router sees an expert.
  struct Read {
    Vec in;          // [D] what the normed stream is multiplied with
    double pre = 0;  // what was read
    double entry = 0;
  };

  // What an MLP reads through one branch, in the order of its entries.
  std::vector<Read> reads(int l, int q, Branch branch, const Vec& entry) const {
    const Layer& t = f_.layers[l];
    const int neurons = f_.c.layer(l).n_neurons;
    std::vector<Read> out;
    for (const int e : t.chosen[q]) {
      if (branch == Branch::R) {
        Read read{column(t.w_r, e), t.router[q][e], 0};
        if (o_.scores == Scores::centered) {
          const int experts = static_cast<int>(t.router[q].size());
          for (int x = 0; x < experts; ++x) {
            for (std::size_t i = 0; i < read.in.size(); ++i) read.in[i] -= t.w_r[i][x] / experts;
            read.pre -= t.router[q][x] / experts;
          }
        }
        for (int n = 0; n < neurons; ++n) read.entry += entry[e * neurons + n];
        out.push_back(read);
        continue;
      }
      for (int n = 0; n < neurons; ++n) {
        const bool up = branch == Branch::U;
        out.push_back({column(up ? t.experts[e].w_up : t.experts[e].w_in, n),
                       (up ? t.up : t.pre)[q][e * neurons + n], entry[e * neurons + n]});
      }
    }
    return out;
  }

  std::vector<std::pair<Branch, double>> branches(int l) const {
    if (!f_.c.layer(l).gated()) return {{Branch::mlp, 1.0}};
    if (!f_.c.layer(l).mixture())
      return {{Branch::G, o_.mlp_weights[0]}, {Branch::U, o_.mlp_weights[1]}};
    return {{Branch::R, o_.expert_weights[0]},
            {Branch::G, o_.expert_weights[1]},
            {Branch::U, o_.expert_weights[2]}};
  }

  void mlp(int l, int q, const Mat& linear, const Mat& keys) {
    const Layer& t = f_.layers[l];
    const Norm kind = f_.c.layer(l).mlp_norm;
    const int writer = f_.writers.mlp(l), visible = f_.writers.visible_to_mlp(l),
              neurons = f_.c.layer(l).n_neurons;
    std::vector<Vec> parts(t.act[q].size(), Vec(f_.c.d_model, 0.0));
    for (const int e : t.chosen[q]) {
      for (int n = 0; n < neurons; ++n) {
        Vec& part = parts[e * neurons + n];
        part = product(t.experts[e].w_out[n], t.behind2[q]);
        for (double& x : part) x *= t.act[q][e * neurons + n];
      }
    }
    Vec entry(parts.size(), 0.0);
    for (const auto& [d, by] : directions(writer, q, linear, keys, parts)) {
      for (std::size_t n = 0; n < parts.size(); ++n) entry[n] += by * dot(f_.center(parts[n]), d);
    }
    for (const auto& [branch, weight] : branches(l)) {
      Vec fold(f_.c.d_model, 0.0);
      for (const Read& read : reads(l, q, branch, entry)) {
        double by = 0;
        if (o_.mlp == MlpRule::linearized) {
          by = read.entry / (std::fabs(read.pre) < 1e-10 ? 1e-10 : read.pre);
        } else {
          Vec scores;
          for (int j = 0; j < visible; ++j)
            scores.push_back(dot(f_.read_mlp(l, f_.vectors[j][q], q), read.in));
          by = weight * read.entry / denom(scores, 0);
        }
        for (int i = 0; i < f_.c.d_model; ++i) fold[i] += by * read.in[i];
      }
      Vec read = through_norm(kind, fold, t.norm2_w, t.dev2[q]);
      if (o_.mlp == MlpRule::linearized) {
        Vec r;
        double total = 0;
        for (int j = 0; j < visible; ++j) r.push_back(dot(f_.vectors[j][q], read));
        for (const double x : entry) total += x;
        const double by = weight * total / denom(r, 0);
        for (double& x : read) x *= by;
      }
      for (int j = 0; j < visible; ++j)
        give({writer, q}, branch, j, q, dot(f_.vectors[j][q], read), false);
      linear_[q] = plus(linear_[q], read);
    }
  }

  double mean(const Vec& x) const {
    double sum = 0;
    for (const double v : x) sum += v;
    return sum / static_cast<double>(x.size());
  }

  // W times a head's vector, for the columns of one head or group.
  Vec back(const Mat& w, int at, const Vec& x) const {
    Vec out;
    for (const Vec& row : w) out.push_back(dot(part(row, at * f_.c.d_head, f_.c.d_head), x));
    return out;
  }

  // The transpose of rotary, from its images of the unit vectors, and of the norm before it.
  Vec unturned(int l, const Vec& x, int s, const Vec& norm, int h, double dev) const {
    Vec y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      Vec unit(x.size(), 0.0);
      unit[i] = 1;
      y[i] = dot(f_.rotated(l, unit, s), x);
    }
    const bool whole = f_.c.layer(l).qk_norm == QkNorm::projection;
    for (std::size_t i = 0; i < y.size() && !norm.empty(); ++i)
      y[i] *= norm[(whole ? static_cast<std::size_t>(h * f_.c.d_head) : 0) + i] / dev;
    return y;
  }

  void head(int l, int h, int q, const Mat& linear, const Mat& keys) {
    const Layer& t = f_.layers[l];
    const Norm kind = f_.c.layer(l).attn_norm;
    const int writer = f_.writers.head(l, h), visible = f_.writers.visible_to_attention(l),
              g = f_.group(h), from = f_.first(l, q);
    const double scale = f_.c.layer(l).attention_scale;
    std::vector<Vec> parts;
    for (int s = 0; s <= q; ++s) {
      Vec part = product(t.u[h][s], t.behind1[q]);
      for (double& x : part) x *= t.alpha[h][q][s];
      parts.push_back(part);
    }
    Vec entry(q + 1, 0.0), direction(f_.c.d_model, 0.0);
    for (const auto& [d, by] : directions(writer, q, linear, keys, parts)) {
      for (int s = 0; s <= q; ++s) entry[s] += by * dot(f_.center(parts[s]), d);
      for (int i = 0; i < f_.c.d_model; ++i) direction[i] += by * d[i];
    }
    Mat key_vector(q + 1), query_vector(q + 1);  // [s][D] of the sources in sight
    Mat x_key(q + 1, Vec(visible, 0.0)), x_query = x_key;
    for (int s = from; s <= q; ++s) {
      const double k_dev = t.k_norm.empty() ? 1.0 : t.k_dev[g][s];
      const double q_dev = t.q_norm.empty() ? 1.0 : t.q_dev[h][q];
      Vec k = back(t.w_k, g, unturned(l, t.q[h][q], s, t.k_norm, g, k_dev));
      Vec qv = back(t.w_q, h, unturned(l, t.k[g][s], q, t.q_norm, h, q_dev));
      for (double& x : k) x *= scale;
      for (double& x : qv) x *= scale;
      key_vector[s] = through_norm(kind, k, t.norm1_w, t.dev1[s]);
      query_vector[s] = through_norm(kind, qv, t.norm1_w, t.dev1[q]);
      for (int j = 0; j < visible; ++j) {
        x_key[s][j] = dot(f_.vectors[j][s], key_vector[s]);
        x_query[s][j] = dot(f_.vectors[j][q], query_vector[s]);
      }
    }
    const auto seen = [&](const Vec& x) { return part(x, from, q + 1 - from); };
    if (o_.scores == Scores::centered) {
      for (Mat* x : {&x_key, &x_query}) {
        for (int j = 0; j < visible; ++j) {
          const double m = mean(seen(column(*x, j)));
          for (int s = from; s <= q; ++s) (*x)[s][j] -= m;
        }
      }
    }
    Vec key_coef(q + 1, 0.0), query_coef(q + 1, 0.0);
    for (int s = from; s <= q; ++s) {
      key_coef[s] = o_.weights[0] * entry[s] / denom(x_key[s], o_.floor);
      query_coef[s] = o_.weights[1] * entry[s] / denom(x_query[s], o_.floor);
    }
    if (o_.scores == Scores::centered) {
      const double m = mean(seen(query_coef));
      for (int s = from; s <= q; ++s) query_coef[s] -= m;
    }
    Vec offset(visible, 0.0);
    if (o_.keys == Keys::spread) {
      const double m = mean(seen(key_coef));
      for (int s = from; s <= q; ++s) key_coef[s] -= m;
      for (int j = 0; j < visible; ++j) {
        Vec sorted = seen(column(x_key, j));
        std::sort(sorted.begin(), sorted.end());
        offset[j] = sorted[(q - from) / 2];
      }
    }
    Vec query_fold(f_.c.d_model, 0.0);
    const Vec in_head = times_transposed(t.w_o, h, product(f_.center(direction), t.behind1[q]));
    for (int s = from; s <= q; ++s) {
      Vec value = back(t.w_v, g, in_head);
      for (double& x : value) x *= o_.weights[2] * t.alpha[h][q][s];
      const Vec value_read = through_norm(kind, value, t.norm1_w, t.dev1[s]);
      for (int j = 0; j < visible; ++j) {
        give({writer, q}, Branch::K, j, s, key_coef[s] * (x_key[s][j] - offset[j]), true);
        give({writer, q}, Branch::V, j, s, dot(f_.vectors[j][s], value_read), false);
      }
      linear_[s] = plus(linear_[s], value_read);
      for (int i = 0; i < f_.c.d_model; ++i) {
        keys_[s][i] += key_coef[s] * key_vector[s][i];
        query_fold[i] += query_coef[s] * query_vector[s][i];
      }
    }
    for (int j = 0; j < visible; ++j)
      give({writer, q}, Branch::Q, j, q, dot(f_.vectors[j][q], query_fold), false);
    linear_[q] = plus(linear_[q], query_fold);
  }

  // W_O[h] times a direction of the stream: what the head's values are multiplied with.
  Vec times_transposed(const Mat& w_o, int h, const Vec& direction) const {
    Vec out;
    for (int e = 0; e < f_.c.d_head; ++e) out.push_back(dot(w_o[h * f_.c.d_head + e], direction));
    return out;
  }

  const Forward& f_;
  Options o_;
  int position_ = 0;
  std::optional<Node> root_;
  Vec start_direction_;
  Mat linear_, keys_;  // [s][D]
  Mat keyed_;          // [writer][s]
};

// Every path there is, by the shares of section 5.
inline std::map<std::vector<int>, double> read_paths(const std::vector<ReadEdge>& edges,
                                                     const Writers& writers) {
  using Key = std::pair<int, int>;
  std::map<Key, double> total;
  std::map<Key, std::vector<const ReadEdge*>> into;
  for (const ReadEdge& e : edges) {
    if (e.credit == 0) continue;
    total[{e.writer.writer, e.writer.position}] += std::fabs(e.credit);
    into[{e.writer.writer, e.writer.position}].push_back(&e);
  }
  std::map<std::vector<int>, double> out;
  // Upwards from a node, with the path so far (nodes and branches, the source first).
  const auto climb = [&](const auto& self, const ReadEdge& edge, std::vector<int> path,
                         double value) -> void {
    if (edge.reader.writer < 0) {
      out[path] += value;
      return;
    }
    path.insert(path.end(),
                {static_cast<int>(edge.branch), edge.reader.writer, edge.reader.position});
    const Key key{edge.reader.writer, edge.reader.position};
    for (const ReadEdge* above : into[key])
      self(self, *above, path, value * std::fabs(above->credit) / total[key]);
  };
  for (int w = 0; w < writers.terminals(); ++w) {
    for (const auto& [key, list] : into) {
      if (key.first != w) continue;
      for (const ReadEdge* e : list) climb(climb, *e, {key.first, key.second}, e->credit);
    }
  }
  return out;
}

}  // namespace unpack::naive
