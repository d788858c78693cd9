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
  Vec through_norm(const Vec& x, const Vec& w, double dev) const {
    Vec y = x;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] *= w[i] / dev;
    return f_.center(y);
  }

  static Vec column(const Mat& w, int n) {
    Vec out;
    for (const Vec& row : w) out.push_back(row[n]);
    return out;
  }

  void mlp(int l, int q, const Mat& linear, const Mat& keys) {
    const Layer& t = f_.layers[l];
    const int writer = f_.writers.mlp(l), visible = f_.writers.visible_to_mlp(l),
              neurons = static_cast<int>(t.act[q].size());
    std::vector<Vec> parts;
    for (int n = 0; n < neurons; ++n) {
      Vec part = t.w_out[n];
      for (double& x : part) x *= t.act[q][n];
      parts.push_back(part);
    }
    Vec entry(neurons, 0.0);
    for (const auto& [d, by] : directions(writer, q, linear, keys, parts)) {
      for (int n = 0; n < neurons; ++n) entry[n] += by * dot(f_.center(parts[n]), d);
    }
    for (int side = 0; side < (f_.c.gated() ? 2 : 1); ++side) {
      const Mat& w_in = side == 0 ? t.w_in : t.w_up;
      const Branch branch = !f_.c.gated() ? Branch::mlp : (side == 0 ? Branch::G : Branch::U);
      const double weight = f_.c.gated() ? o_.mlp_weights[side] : 1.0;
      Vec fold(f_.c.d_model, 0.0);
      for (int n = 0; n < neurons; ++n) {
        const Vec in = column(w_in, n);
        double by = 0;
        if (o_.mlp == MlpRule::linearized) {
          const double pre = (side == 0 ? t.pre : t.up)[q][n];
          by = entry[n] / (std::fabs(pre) < 1e-10 ? 1e-10 : pre);
        } else {
          Vec scores;
          for (int j = 0; j < visible; ++j)
            scores.push_back(dot(f_.read(f_.vectors[j][q], t.dev2[q], t.norm2_w), in));
          by = weight * entry[n] / denom(scores, 0);
        }
        for (int i = 0; i < f_.c.d_model; ++i) fold[i] += by * in[i];
      }
      Vec read = through_norm(fold, t.norm2_w, t.dev2[q]);
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

  Vec unturned(Vec x, int s, const Vec& norm, double dev) const {
    if (f_.c.positions == Positions::rotary) {
      // The rotation is orthogonal: its transpose from its images of the unit vectors.
      Vec y(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        Vec unit(x.size(), 0.0);
        unit[i] = 1;
        y[i] = dot(f_.rotated(unit, s), x);
      }
      x = y;
    }
    if (!norm.empty()) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] *= norm[i] / dev;
    }
    return x;
  }

  void head(int l, int h, int q, const Mat& linear, const Mat& keys) {
    const Layer& t = f_.layers[l];
    const int writer = f_.writers.head(l, h), visible = f_.writers.visible_to_attention(l),
              g = f_.group(h);
    const double scale = 1 / std::sqrt(static_cast<double>(f_.c.d_head));
    std::vector<Vec> parts;
    for (int s = 0; s <= q; ++s) {
      Vec part = t.u[h][s];
      for (double& x : part) x *= t.alpha[h][q][s];
      parts.push_back(part);
    }
    Vec entry(q + 1, 0.0), direction(f_.c.d_model, 0.0);
    for (const auto& [d, by] : directions(writer, q, linear, keys, parts)) {
      for (int s = 0; s <= q; ++s) entry[s] += by * dot(f_.center(parts[s]), d);
      for (int i = 0; i < f_.c.d_model; ++i) direction[i] += by * d[i];
    }
    Mat key_vector, query_vector;  // [s][D]: what a writer at s, or at q, is multiplied with
    Mat x_key(q + 1, Vec(visible)), x_query = x_key;
    for (int s = 0; s <= q; ++s) {
      const double k_dev = t.k_norm.empty() ? 1.0 : t.k_dev[g][s];
      const double q_dev = t.q_norm.empty() ? 1.0 : t.q_dev[h][q];
      Vec k = back(t.w_k, g, unturned(t.q[h][q], s, t.k_norm, k_dev));
      Vec qv = back(t.w_q, h, unturned(t.k[g][s], q, t.q_norm, q_dev));
      for (double& x : k) x *= scale;
      for (double& x : qv) x *= scale;
      key_vector.push_back(through_norm(k, t.norm1_w, t.dev1[s]));
      query_vector.push_back(through_norm(qv, t.norm1_w, t.dev1[q]));
      for (int j = 0; j < visible; ++j) {
        x_key[s][j] = dot(f_.vectors[j][s], key_vector[s]);
        x_query[s][j] = dot(f_.vectors[j][q], query_vector[s]);
      }
    }
    if (o_.scores == Scores::centered) {
      for (Mat* x : {&x_key, &x_query}) {
        for (int j = 0; j < visible; ++j) {
          const double m = mean(column(*x, j));
          for (int s = 0; s <= q; ++s) (*x)[s][j] -= m;
        }
      }
    }
    Vec key_coef, query_coef;
    for (int s = 0; s <= q; ++s) {
      key_coef.push_back(o_.weights[0] * entry[s] / denom(x_key[s], o_.floor));
      query_coef.push_back(o_.weights[1] * entry[s] / denom(x_query[s], o_.floor));
    }
    if (o_.scores == Scores::centered) {
      const double m = mean(query_coef);
      for (double& x : query_coef) x -= m;
    }
    Vec offset(visible, 0.0);
    if (o_.keys == Keys::spread) {
      const double m = mean(key_coef);
      for (double& x : key_coef) x -= m;
      for (int j = 0; j < visible; ++j) {
        Vec sorted = column(x_key, j);
        std::sort(sorted.begin(), sorted.end());
        offset[j] = sorted[q / 2];
      }
    }
    Vec query_fold(f_.c.d_model, 0.0);
    const Vec in_head = times_transposed(t.w_o, h, direction);
    for (int s = 0; s <= q; ++s) {
      Vec value = back(t.w_v, g, in_head);
      for (double& x : value) x *= o_.weights[2] * t.alpha[h][q][s];
      const Vec value_read = through_norm(value, t.norm1_w, t.dev1[s]);
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
    const Vec d = f_.center(direction);
    for (int e = 0; e < f_.c.d_head; ++e) out.push_back(dot(w_o[h * f_.c.d_head + e], d));
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
