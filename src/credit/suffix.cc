#include "credit/suffix.h"

#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "credit/reach.h"

namespace unpack::credit {

// Partial result of a node, per slot, with the factor of its entry taken out.
struct SuffixPart {
  double all = 0;
  std::array<double, 4> mass{};
  std::array<double, 4> bound{};

  void add(const SuffixPart& row, double factor) {
    const double size = std::fabs(factor);
    if (size == 0) return;
    all += size * row.all;
    for (std::size_t i = 0; i < 4; ++i) {
      // A negative factor turns the sign of what is below.
      const std::size_t from = factor < 0 ? i ^ 1U : i;
      mass[i] += size * row.mass[from];
      bound[i] = std::max(bound[i], size * row.bound[from]);
    }
  }
};

template <typename T>
class SuffixBuilder {
 public:
  SuffixBuilder(const decompose::Decomposition& d, const SuffixFilter& filter)
      : d_(d), filter_(filter) {
    suffix_.filter_ = filter;
    suffix_.writers_ = d_.writers().count();
    const std::size_t size = d_.length() * suffix_.writers_;
    suffix_.all_.assign(size, 0.0);
    for (std::size_t i = 0; i < 4; ++i) {
      if (!used(i)) continue;
      suffix_.slots_[i].mass.assign(size, 0.0);
      suffix_.slots_[i].bound.assign(size, 0.0);
    }
  }

  Suffix build(const Edges<T>& edges, const RunContext& context) {
    if (edges.device() != nullptr && plain()) {
      if (edges.by_layer()) {
        terminals();
        for (int l = 0; l < d_.config().n_layers; ++l) {
          context.report("suffixes", l, d_.config().n_layers);
          add_layer(*edges.device(), edges.device_layer(l).layer, edges.options().scores);
        }
      } else {
        edges.device()->suffix(edges.device_layers(), edges.options().scores,
                               d_.writers().terminals(), false, suffix_.all_,
                               suffix_.slots_[0].bound);
        suffix_.slots_[0].mass = suffix_.all_;
      }
      return std::move(suffix_);
    }
    terminals();
    for (int l = 0; l < d_.config().n_layers; ++l) {
      context.report("suffixes", l, d_.config().n_layers);
      add_layer(edges, l, nullptr);
    }
    return std::move(suffix_);
  }

  // Step by step: the ends of all paths, then layer after layer, with what its keys lead to where
  // that is known.
  void terminals() {
    for (int s = 0; s < d_.length(); ++s) {
      for (int w = 0; w < d_.writers().terminals(); ++w) {
        const std::size_t i = suffix_.at(s, w);
        suffix_.all_[i] = 1.0;
        if (filter_.from && *filter_.from != s) continue;
        // The empty product is positive.
        suffix_.slots_[0].mass[i] = suffix_.slots_[0].bound[i] = 1.0;
        if (filter_.through && *filter_.through == w)
          suffix_.slots_[2].mass[i] = suffix_.slots_[2].bound[i] = 1.0;
      }
    }
  }
  void add_layer(const Edges<T>& edges, int l, const backend::Backend::PairReach* reach) {
    attention(edges, l, reach);
    mlp(edges, l);
  }
  // The same on a device, without a filter.
  void add_layer(backend::DeviceCredit& device, const backend::DeviceCredit::Layer& layer,
                 Scores scores) {
    device.suffix(std::span(&layer, 1), scores, d_.writers().terminals(), true, suffix_.all_,
                  suffix_.slots_[0].bound);
    suffix_.slots_[0].mass = suffix_.all_;
  }
  const std::vector<double>& mass() const { return suffix_.all_; }
  const std::vector<double>& bound() const { return suffix_.slots_[0].bound; }
  Suffix take() { return std::move(suffix_); }

 private:
  bool used(std::size_t slot) const {
    return (slot < 2 || filter_.through) && (slot % 2 == 0 || filter_.by_sign);
  }

  // Without a filter the mass is that of all paths.
  bool plain() const { return !filter_.any() && !filter_.by_sign; }
  static SuffixPart plain_part(double mass, double bound) {
    SuffixPart part;
    part.all = part.mass[0] = part.mass[1] = mass;
    part.bound[0] = part.bound[1] = bound;
    return part;
  }

  // Edges with factors row[j] to the writers j < n at position s.
  SuffixPart read(const T* row, int s, std::size_t n) const {
    const double* all = suffix_.all_.data() + suffix_.at(s, 0);
    if (plain()) {
      const Reach reach = reach_of(row, all, suffix_.slots_[0].bound.data() + suffix_.at(s, 0), n);
      return plain_part(reach.mass, reach.bound);
    }
    SuffixPart part;
    double sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum += std::fabs(row[j]) * all[j];
    part.all = sum;
    for (std::size_t state = 0; state < 4; state += 2) {
      if (!used(state)) continue;
      const auto& positive = suffix_.slots_[state];
      const double* mass = positive.mass.data() + suffix_.at(s, 0);
      const double* bound = positive.bound.data() + suffix_.at(s, 0);
      if (!filter_.by_sign) {
        double m = 0;
        double b = 0;
        for (std::size_t j = 0; j < n; ++j) {
          const double x = std::fabs(row[j]);
          m += x * mass[j];
          b = std::max(b, x * bound[j]);
        }
        // Both signs stand for each other, so that a negative factor changes nothing.
        part.mass[state] = part.mass[state + 1] = m;
        part.bound[state] = part.bound[state + 1] = b;
        continue;
      }
      const auto& negative = suffix_.slots_[state + 1];
      const double* mass_n = negative.mass.data() + suffix_.at(s, 0);
      const double* bound_n = negative.bound.data() + suffix_.at(s, 0);
      for (std::size_t j = 0; j < n; ++j) {
        const double x = row[j];
        const double size = std::fabs(x);
        const bool flip = x < 0;
        part.mass[state] += size * (flip ? mass_n[j] : mass[j]);
        part.mass[state + 1] += size * (flip ? mass[j] : mass_n[j]);
        part.bound[state] = std::max(part.bound[state], size * (flip ? bound_n[j] : bound[j]));
        part.bound[state + 1] =
            std::max(part.bound[state + 1], size * (flip ? bound[j] : bound_n[j]));
      }
    }
    return part;
  }

  void put(int layer, int writer, int position, SuffixPart part) {
    const std::size_t i = suffix_.at(position, writer);
    suffix_.all_[i] = part.all;
    if (filter_.min_layer && layer < *filter_.min_layer) return;
    if (filter_.through && *filter_.through == writer) {
      for (std::size_t s = 0; s < 2; ++s) {
        part.mass[s + 2] = part.mass[s];
        part.bound[s + 2] = part.bound[s];
      }
    }
    for (std::size_t s = 0; s < 4; ++s) {
      if (!used(s)) continue;
      suffix_.slots_[s].mass[i] = part.mass[s];
      suffix_.slots_[s].bound[i] = part.bound[s];
    }
  }

  void attention(const Edges<T>& edges, int l, const backend::Backend::PairReach* known) {
    const ModelConfig& c = d_.config();
    const LayerEdges<T>& e = edges.layer(l);
    const std::size_t length = d_.length();
    const std::size_t cl = d_.writers().visible_to_attention(l);
    const std::size_t pairs = backend::tri(d_.length());
    std::vector<SuffixPart> values(c.n_kv_heads * length);
    d_.backend().parallel_for(std::ssize(values), [&](Index i) {
      values[i] = read(e.value_edge.data() + i * cl, i % length, cl);
    });
    std::vector<SuffixPart> nodes(c.n_heads * length);
    const auto visit = [&](int h, int q, const T* rows) {
      const std::size_t hs = h;
      SuffixPart node;
      for (int s = 0; s <= q; ++s) {
        const std::size_t i = hs * pairs + (backend::tri(q) + s);
        const double k = e.key_coef[i];
        if (k != 0) node.add(read(rows + s * cl, s, cl), k);
        node.add(values[(h / c.group_size()) * length + s], e.entry[i]);
      }
      node.add(read(e.query_edge.data() + (hs * length + q) * cl, q, cl), 1.0);
      nodes[hs * length + q] = node;
    };
    // Of a long prompt the scores are not kept, and only what they lead to is wanted.
    std::vector<double> below(2 * values.size());  // [G, {mass, bound}, S]
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::size_t at = i / length * 2 * length + i % length;
      below[at] = values[i].all;
      below[at + length] = values[i].bound[0];
    }
    const auto meet = [&](int h, int q, const double* mass, const double* bound) {
      const std::size_t hs = h;
      const std::size_t row = hs * pairs + backend::tri(q);
      const std::size_t sources = q + 1;
      const double* value = below.data() + (h / c.group_size()) * 2 * length;
      const Reach keys = reach_of(e.key_coef.data() + row, mass, bound, sources);
      const Reach entries = reach_of(e.entry.data() + row, value, value + length, sources);
      const SuffixPart query = read(e.query_edge.data() + (hs * length + q) * cl, q, cl);
      nodes[hs * length + q] = plain_part(keys.mass + entries.mass + query.all,
                                          std::max({keys.bound, entries.bound, query.bound[0]}));
    };
    if (known != nullptr) {
      d_.backend().parallel_for(std::ssize(nodes), [&](Index i) {
        const auto h = static_cast<std::size_t>(i) / length,
                   q = static_cast<std::size_t>(i) % length;
        const std::size_t row = h * pairs + backend::tri(q);
        std::vector<double> mass(q + 1), bound(q + 1);
        for (std::size_t s = 0; s <= q; ++s) {
          mass[s] = known->mass[row + s] * known->unit[2 * s];
          bound[s] = known->bound[row + s] * known->unit[2 * s + 1];
        }
        meet(h, q, mass.data(), bound.data());
      });
    } else if (!plain() || edges.has_table() || edges.options().scores != Scores::raw ||
               !d_.backend().visit_key_reach(d_.attention_view(l), suffix_.all_,
                                             suffix_.slots_[0].bound, meet)) {
      edges.visit_keys(l, visit);
    }
    for (int h = 0; h < c.n_heads; ++h) {
      for (int q = 0; q < d_.length(); ++q)
        put(l, d_.writers().head(l, h), q, nodes[h * length + q]);
    }
  }

  void mlp(const Edges<T>& edges, int l) {
    const std::size_t cm = d_.writers().visible_to_mlp(l);
    for (int q = 0; q < d_.length(); ++q) {
      SuffixPart node;
      for (const auto& edge : edges.layer(l).mlp_edge) {
        if (!edge.empty()) node.add(read(edge.data() + q * cm, q, cm), 1.0);
      }
      put(l, d_.writers().mlp(l), q, node);
    }
  }

  const decompose::Decomposition& d_;
  SuffixFilter filter_;
  Suffix suffix_;
};

template <typename T>
Suffix Suffix::compute(const Edges<T>& edges, const SuffixFilter& filter,
                       const RunContext& context) {
  return SuffixBuilder<T>(edges.decomposition(), filter).build(edges, context);
}

template <typename T>
SuffixAlong<T>::SuffixAlong(const decompose::Decomposition& d)
    : d_(d), builder_(std::make_unique<SuffixBuilder<T>>(d, SuffixFilter{})) {
  builder_->terminals();
}

template <typename T>
SuffixAlong<T>::~SuffixAlong() = default;

template <typename T>
backend::AttentionSums SuffixAlong<T>::sums(int layer) {
  backend::AttentionSums made;
  known_ = d_.backend().sums_with_reach(d_.attention_view(layer), builder_->mass(),
                                        builder_->bound(), made, reach_);
  if (known_) return made;
  return d_.backend().attention_sums(d_.attention_view(layer), Scores::raw, false);
}

template <typename T>
void SuffixAlong<T>::built(const Edges<T>& edges, int layer) {
  builder_->add_layer(edges, layer, known_ ? &reach_ : nullptr);
  layers_ = layer + 1;
}

template <typename T>
void SuffixAlong<T>::built(backend::DeviceCredit& device, const backend::DeviceCredit::Layer& layer,
                           Scores scores) {
  builder_->add_layer(device, layer, scores);
  layers_ = layer.attention.layer + 1;
}

template <typename T>
std::shared_ptr<const Suffix> SuffixAlong<T>::take() {
  if (layers_ < d_.config().n_layers) return nullptr;
  return std::make_shared<const Suffix>(builder_->take());
}

template class SuffixAlong<float>;
template class SuffixAlong<double>;

template Suffix Suffix::compute<float>(const Edges<float>&, const SuffixFilter&, const RunContext&);
template Suffix Suffix::compute<double>(const Edges<double>&, const SuffixFilter&,
                                        const RunContext&);

}  // namespace unpack::credit
