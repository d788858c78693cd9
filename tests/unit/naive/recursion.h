// Credit by the definition: Stage 1 and Stage 2 at every node, one node after the other from the
// top, without folding, tables or blocks.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <tuple>
#include <vector>

#include "unit/naive/forward.h"
#include "unpack/options.h"

namespace unpack::naive {

struct Sub {
  Branch branch = Branch::none;
  int writer = 0;
  int position = 0;
  double share = 0;  // of the entry's credit, the branch's weight inside
};

struct Entry {
  double share = 0;  // of the node's credit
  std::vector<Sub> subs;
};

struct Edge {
  Branch branch = Branch::none;
  int writer = 0;
  int position = 0;
  double factor = 0;
};

class Recursion {
 public:
  Recursion(const Forward& forward, const Options& options, Vec direction = {})
      : f_(forward), c_(forward.c), o_(options), direction_(std::move(direction)) {}

  // d_t of section 7.
  static Vec target_direction(const Forward& f, int position, const std::vector<TokenId>& target,
                              const std::optional<std::vector<TokenId>>& versus, bool raw) {
    const auto mean = [&](const std::vector<TokenId>& ids) {
      Vec sum(f.c.d_model, 0.0);
      for (const TokenId id : ids) sum = plus(sum, f.unembed[id]);
      for (double& x : sum) x /= static_cast<double>(ids.size());
      return sum;
    };
    std::vector<TokenId> all;
    for (int id = 0; id < f.c.vocab_size; ++id) all.push_back(id);
    Vec d = mean(target);
    const Vec other = raw ? Vec(f.c.d_model, 0.0) : mean(versus ? *versus : all);
    for (int i = 0; i < f.c.d_model; ++i)
      d[i] = (d[i] - other[i]) * f.final_w[i] / f.deviation(f.x_final[position]);
    return d;
  }

  // What a node's credit is shared into. Only per-neuron MLPs have entries of their own in Stage 2;
  // the other rules share the node's whole credit.
  std::vector<Entry> entries(const Node& node, bool direct) {
    const Writer& w = f_.writers[node.writer];
    return w.kind == WriterKind::head ? head_entries(w.layer, w.head, node.position, direct)
                                      : mlp_entries(w.layer, node.position, direct);
  }

  // Stage 1 shares of credit 1: over sources, or over neurons.
  Vec stage1(const Node& node, bool direct) {
    const Writer& w = f_.writers[node.writer];
    return w.kind == WriterKind::head ? source_shares(w.layer, w.head, node.position, direct)
                                      : neuron_shares(w.layer, node.position, direct);
  }

  // Neurons summed inside an MLP hop, sources inside a Q hop.
  const std::vector<Edge>& edges(const Node& node, bool direct) {
    auto [slot, fresh] = edges_.try_emplace({node.writer, node.position, direct});
    if (fresh) {
      std::map<std::tuple<Branch, int, int>, double> sum;
      for (const Entry& entry : entries(node, direct)) {
        for (const Sub& sub : entry.subs)
          sum[{sub.branch, sub.writer, sub.position}] += entry.share * sub.share;
      }
      for (const auto& [key, factor] : sum) {
        if (factor != 0)
          slot->second.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), factor});
      }
    }
    return slot->second;
  }

  // Credit of all nodes, [writer][s], direct and indirect together. `first` is direct credit at
  // `position`; `indirect_root` gets 1 of the other kind. `sizes`: every credit and every factor by
  // its size, so that nothing cancels.
  Mat sweep(int position, const Vec& first, const std::optional<Node>& indirect_root = {},
            bool sizes = false) {
    const auto part = [&](double x) { return sizes ? std::fabs(x) : x; };
    Mat indirect(f_.writers.count(), Vec(f_.S, 0.0));
    if (indirect_root) indirect[indirect_root->writer][indirect_root->position] = 1;
    const auto pass = [&](const Node& node, double credit, bool direct) {
      if (credit == 0) return;
      for (const Edge& e : edges(node, direct))
        indirect[e.writer][e.position] += credit * part(e.factor);
    };
    for (int w = f_.writers.count() - 1; w >= f_.writers.terminals(); --w) {
      for (int s = 0; s < f_.S; ++s) pass({w, s}, indirect[w][s], false);
      pass({w, position}, part(first[w]), true);
    }
    for (int w = 0; w < f_.writers.count(); ++w) indirect[w][position] += part(first[w]);
    return indirect;
  }

  Vec importance(int position) const {
    Vec first;
    for (int w = 0; w < f_.writers.count(); ++w)
      first.push_back(dot(f_.center(f_.vectors[w][position]), direction_));
    return first;
  }

  // Sum over the node's indirect edges of |factor| times what lies below.
  double mass(const Node& node) {
    if (f_.writers[node.writer].terminal()) return 1;
    const auto known = mass_.find({node.writer, node.position});
    if (known != mass_.end()) return known->second;
    double sum = 0;
    for (const Edge& e : std::vector<Edge>(edges(node, false)))
      sum += std::fabs(e.factor) * mass({e.writer, e.position});
    return mass_[{node.writer, node.position}] = sum;
  }

  // The smallest |sum| against its absolute sum that any denominator met: near 0 rounding decides
  // signs, and without a floor it blows up shares. Likewise where it decides which experts are
  // used, and where keys and queries cancel, or sources score alike, so that nothing but rounding
  // is left of (centred) scores.
  double conditioning() const { return std::min(conditioning_, f_.routing_margin); }

 private:
  Vec shares(Vec r) {
    double sum = 0, abs = 0;
    for (const double x : r) sum += x, abs += std::fabs(x);
    const double size = std::max(std::fabs(sum), o_.beta * abs);
    if (abs > 0) conditioning_ = std::min(conditioning_, std::fabs(sum) / abs);
    for (double& x : r) x = size == 0 ? 0 : x / (sum < 0 ? -size : size);
    return r;
  }

  Vec source_shares(int l, int h, int q, bool direct) {
    const Layer& t = f_.layers[l];
    if (!direct && o_.dispatch == Dispatch::gate) return t.alpha[h][q];
    const int first = f_.first(l, q);
    Vec r;
    for (int s = first; s <= q; ++s) {
      r.push_back(t.alpha[h][q][s] * dot(f_.center(product(t.u[h][s], t.behind1[q])),
                                         direct ? direction_ : t.o_attn[q]));
    }
    Vec out(first, 0.0);
    for (const double share : shares(r)) out.push_back(share);
    return out;
  }

  // Over [expert * N + n]; 0 for experts that are not in use.
  Vec neuron_terms(int l, int q, bool direct) const {
    const Layer& t = f_.layers[l];
    if (!direct && o_.dispatch == Dispatch::gate) return t.act[q];
    const int N = c_.layer(l).n_neurons;
    Vec r(t.act[q].size(), 0.0);
    for (const int e : t.chosen[q]) {
      for (int n = 0; n < N; ++n) {
        r[e * N + n] =
            t.act[q][e * N + n] * dot(f_.center(product(t.experts[e].w_out[n], t.behind2[q])),
                                      direct ? direction_ : t.o_mlp[q]);
      }
    }
    return r;
  }

  Vec neuron_shares(int l, int q, bool direct) { return shares(neuron_terms(l, q, direct)); }

  static void subtract_mean(Vec& row, std::size_t from = 0) {
    double mean = 0;
    for (std::size_t i = from; i < row.size(); ++i)
      mean += row[i] / static_cast<double>(row.size() - from);
    for (std::size_t i = from; i < row.size(); ++i) row[i] -= mean;
  }

  // What one unit of each dimension of the stream adds to a key or query, [d][e].
  const Mat& units(int l, int head, int s, bool keys) {
    Mat& out = units_[{l, head, s, keys}];
    for (int d = 0; out.size() < static_cast<std::size_t>(c_.d_model); ++d) {
      Vec one(c_.d_model, 0.0);
      one[d] = 1;
      out.push_back(keys ? f_.key(l, head, one, s) : f_.query(l, head, one, s));
    }
    return out;
  }

  // sum over d and e of |x_d W_de other_e|: a device may fold the weights into either side first,
  // so that what it rounds is of the size of these products, however little is left of their sum.
  static double products(const Mat& units, const Vec& x, const Vec& other) {
    double sum = 0;
    for (std::size_t d = 0; d < x.size(); ++d) {
      for (std::size_t e = 0; e < other.size(); ++e)
        sum += std::fabs(x[d] * units[d][e] * other[e]);
    }
    return sum;
  }

  // [writer][s <= q] key or query scores of one head and query, centred over the sources in sight
  // where asked; nothing is known of the others.
  Mat scores(int l, int h, int q, bool keys) {
    const Layer& t = f_.layers[l];
    const int g = f_.group(h), first = f_.first(l, q);
    Mat out;
    Vec terms(static_cast<std::size_t>(q) + 1, 0.0);  // [s] what the scores are sums of
    for (int j = 0; j < f_.writers.visible_to_attention(l); ++j) {
      Vec row(first, NAN);
      const Vec query = keys ? Vec() : f_.query(l, h, f_.vectors[j][q], q);
      for (int s = first; s <= q; ++s) {
        const double sum =
            keys ? dot(f_.key(l, g, f_.vectors[j][s], s), t.q[h][q]) : dot(query, t.k[g][s]);
        terms[s] += keys ? products(units(l, g, s, true), f_.vectors[j][s], t.q[h][q])
                         : products(units(l, h, q, false), f_.vectors[j][q], t.k[g][s]);
        row.push_back(c_.layer(l).attention_scale * sum);
      }
      if (o_.scores == Scores::centered) subtract_mean(row, static_cast<std::size_t>(first));
      out.push_back(row);
    }
    for (int s = first; s <= q; ++s) {
      double left = 0;
      for (const Vec& row : out) left += std::fabs(row[s]) / c_.layer(l).attention_scale;
      // A single source has nothing to differ from: exactly 0 where centred.
      const bool alone = o_.scores == Scores::centered && first == q;
      if (terms[s] > 0 && !alone) conditioning_ = std::min(conditioning_, left / terms[s]);
    }
    return out;
  }

  std::vector<Entry> head_entries(int l, int h, int q, bool direct) {
    const Layer& t = f_.layers[l];
    const int visible = f_.writers.visible_to_attention(l);
    const int g = f_.group(h);
    const Vec share = source_shares(l, h, q, direct);
    const Mat sk = scores(l, h, q, true), sq = scores(l, h, q, false);
    std::vector<Entry> out;
    for (int s = f_.first(l, q); s <= q; ++s) {
      Vec k, query, v;
      for (int j = 0; j < visible; ++j) {
        k.push_back(sk[j][s]);
        query.push_back(sq[j][s]);
        v.push_back(dot(
            part(times(f_.read_attention(l, f_.vectors[j][s], s), t.w_v), g * c_.d_head, c_.d_head),
            t.v[g][s]));
      }
      Entry entry{share[s], {}};
      const auto add = [&](Branch branch, double weight, int position, const Vec& r) {
        if (weight == 0) return;
        const Vec part_of = shares(r);
        for (int j = 0; j < visible; ++j)
          entry.subs.push_back({branch, j, position, weight * part_of[j]});
      };
      add(Branch::K, o_.weights[0], s, k);
      add(Branch::Q, o_.weights[1], q, query);
      add(Branch::V, o_.weights[2], s, v);
      out.push_back(entry);
    }
    return out;
  }

  // One way in which an MLP reads the stream.
  struct Side {
    Branch branch = Branch::mlp;
    double weight = 0;
    Mat scores;        // [writer][unit], units: [expert * N + n], of the router [expert]
    Mat w;             // [D][unit]
    Vec pre;           // [unit] what the units read
    Vec used;          // [unit] 1 where the unit's expert is in use
    int per_unit = 1;  // neurons a unit stands for
  };

  std::vector<Side> sides(int l, int q) const {
    const LayerConfig& shape = c_.layer(l);
    const Layer& t = f_.layers[l];
    const int N = shape.n_neurons, experts = static_cast<int>(t.experts.size());
    std::vector<Side> out;
    const auto add = [&](Branch branch, double weight, Mat w, Vec pre, int per_unit) {
      if (weight == 0) return;
      Side side{branch, weight, {}, std::move(w), std::move(pre), {}, per_unit};
      if (branch == Branch::R && o_.scores == Scores::centered) {
        for (Vec& row : side.w) subtract_mean(row);
        subtract_mean(side.pre);
      }
      side.used.assign(side.pre.size(), 0.0);
      for (const int e : t.chosen[q]) {
        for (int n = 0; n < N / per_unit; ++n) side.used[e * N / per_unit + n] = 1;
      }
      for (int j = 0; j < f_.writers.visible_to_mlp(l); ++j)
        side.scores.push_back(
            product(times(f_.read_mlp(l, f_.vectors[j][q], q), side.w), side.used));
      out.push_back(std::move(side));
    };
    const auto all_experts = [&](Mat Expert::*matrix) {
      Mat w(c_.d_model, Vec(experts * N));
      for (int e = 0; e < experts; ++e) {
        for (int d = 0; d < c_.d_model; ++d) {
          for (int n = 0; n < N; ++n) w[d][e * N + n] = (t.experts[e].*matrix)[d][n];
        }
      }
      return w;
    };
    if (shape.mixture()) {
      add(Branch::R, o_.expert_weights[0], t.w_r, t.router[q], N);
      add(Branch::G, o_.expert_weights[1], all_experts(&Expert::w_in), t.pre[q], 1);
      add(Branch::U, o_.expert_weights[2], all_experts(&Expert::w_up), t.up[q], 1);
    } else if (shape.gated()) {
      add(Branch::G, o_.mlp_weights[0], t.experts[0].w_in, t.pre[q], 1);
      add(Branch::U, o_.mlp_weights[1], t.experts[0].w_up, t.up[q], 1);
    } else {
      add(Branch::mlp, 1.0, t.experts[0].w_in, t.pre[q], 1);
    }
    return out;
  }

  std::vector<Entry> mlp_entries(int l, int q, bool direct) {
    const Layer& t = f_.layers[l];
    const int visible = f_.writers.visible_to_mlp(l), N = c_.layer(l).n_neurons;
    const std::vector<Side> sides = this->sides(l, q);
    std::vector<Entry> out;
    const auto add = [&](Entry& entry, const Side& from, const Vec& r) {
      const Vec part_of = shares(r);
      for (int j = 0; j < visible; ++j)
        entry.subs.push_back({from.branch, j, q, from.weight * part_of[j]});
    };
    if (o_.mlp == MlpRule::per_neuron) {
      const Vec share = neuron_shares(l, q, direct);
      for (const int e : t.chosen[q]) {
        for (int n = e * N; n < (e + 1) * N; ++n) {
          Entry entry{share[n], {}};
          for (const Side& from : sides) {
            Vec r;
            for (int j = 0; j < visible; ++j) r.push_back(from.scores[j][n / from.per_unit]);
            add(entry, from, r);
          }
          out.push_back(entry);
        }
      }
      return out;
    }
    Entry whole{1.0, {}};
    const Vec term = neuron_terms(l, q, direct);
    for (const Side& from : sides) {
      Vec unit_term(from.pre.size(), 0.0), r, direction(c_.d_model, 0.0);
      for (std::size_t n = 0; n < term.size(); ++n) unit_term[n / from.per_unit] += term[n];
      for (std::size_t n = 0; n < unit_term.size(); ++n) {
        if (from.used[n] == 0) continue;
        const double pre = std::fabs(from.pre[n]) < 1e-10 ? 1e-10 : from.pre[n];
        for (int d = 0; d < c_.d_model; ++d) direction[d] += from.w[d][n] * unit_term[n] / pre;
      }
      for (int j = 0; j < visible; ++j) {
        r.push_back(o_.mlp == MlpRule::l2 ? std::sqrt(dot(from.scores[j], from.scores[j]))
                                          : dot(f_.read_mlp(l, f_.vectors[j][q], q), direction));
      }
      add(whole, from, r);
    }
    return {whole};
  }

  const Forward& f_;
  const ModelConfig& c_;
  Options o_;
  Vec direction_;
  std::map<std::tuple<int, int, bool>, std::vector<Edge>> edges_;
  std::map<std::pair<int, int>, double> mass_;
  std::map<std::tuple<int, int, int, bool>, Mat> units_;
  double conditioning_ = std::numeric_limits<double>::infinity();
};

}  // namespace unpack::naive
