#include "credit/edges.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>

#include "base/index.h"
#include "base/thread_pool.h"
#include "credit/device_edges.h"
#include "credit/safe_denom.h"

namespace unpack::credit {

namespace {

std::vector<double> downloaded(const decompose::Decomposition& d, const backend::Array& a) {
  std::vector<double> out(a.size());
  d.backend().download(a, 0, out);
  return out;
}

std::vector<int> all_queries(int length) {
  std::vector<int> queries(length);
  std::iota(queries.begin(), queries.end(), 0);
  return queries;
}

// coef over s -> coef minus its mean: sum_s coef_s (x_s - mean x) = sum_s (coef_s - mean coef) x_s.
void center_coefficients(double* coef, std::size_t n) {
  const double mean = std::accumulate(coef, coef + n, 0.0) / n;
  for (std::size_t i = 0; i < n; ++i) coef[i] -= mean;
}

}  // namespace

backend::Array head_entries(const decompose::Decomposition& d, const Options& options, int layer) {
  return options.dispatch == Dispatch::gate ? d.kept_pass().layers[layer].pattern
                                            : d.head_numerators(layer);
}

backend::Array neuron_entries(const decompose::Decomposition& d, const Options& options,
                              int layer) {
  return options.dispatch == Dispatch::gate ? d.kept_pass().layers[layer].act
                                            : d.mlp_numerators(layer);
}

template <typename T>
Edges<T>::Edges(std::shared_ptr<const decompose::Decomposition> decomposition,
                const Options& options, const RunContext& context, const EdgesTarget* target,
                bool whole, EdgesCompanion<T>* companion)
    : decomposition_(std::move(decomposition)), options_(options) {
  const int layers = decomposition_->config().n_layers;
  layers_.resize(layers);
  if constexpr (std::is_same_v<T, float>)
    device_ = edges_on_device(*decomposition_, options_, context, target, companion, layers_,
                              device_layers_, towards_target_);
  if (target != nullptr) target_ = *target;
  if (device_ == nullptr) {
    const auto asked = [&](int l) { return !whole && decomposition_->neurons_when_asked(l); };
    for (int l = 0; options_.mlp != MlpRule::linearized && l < layers; ++l) {
      for (const backend::MlpReader& reader :
           backend::mlp_readers(decomposition_->config().layer(l))) {
        if (!asked(l)) {
          decomposition_->mlp(l, reader.side, options_.scores, context);
        } else if (target != nullptr) {
          decomposition_->mlp_at(l, reader.side, target->query);
        }
      }
    }
    const auto build_neurons = [&](int l, LayerEdges<T>& out) {
      if (asked(l)) {
        out.mlp_doubt.assign(decomposition_->length(), 0.0);
      } else {
        build_mlp(l, out, context);
      }
    };
    const bool together = companion != nullptr && !has_table() && options_.scores == Scores::raw &&
                          decomposition_->make_attention(options_.scores, [&](int l) {
                            context.report("layers", l, layers);
                            LayerEdges<T>& out = layers_[l];
                            backend::AttentionSums sums = companion->sums(l);
                            build_attention(l, sums, out);
                            build_neurons(l, out);
                            companion->built(*this, l);
                            return sums;
                          });
    // All threads are wanted for these, so that they come before the layers are dealt out.
    decomposition_->attention(0, options_.scores, context);
    if (options_.dispatch == Dispatch::aligned && has_table()) {
      decomposition_->head_numerators(0);
      if (options_.mlp != MlpRule::l2) decomposition_->mlp_numerators(0);
    }
    const auto build = [&](Index task) {
      context.check();
      const int l = task / 2;
      LayerEdges<T>& out = layers_[l];
      if (task % 2 == 0) {
        build_attention(l, decomposition_->attention(l, options_.scores, context), out);
      } else {
        build_neurons(l, out);
      }
    };
    constexpr int kShort = 64;  // tokens
    if (!together) each_layer(2 * layers, decomposition_->length() <= kShort, build);
  }
  double scores = 0;
  for (int l = 0; l < layers; ++l) {
    scores += static_cast<double>(backend::tri(decomposition_->length())) *
              decomposition_->config().n_heads * decomposition_->writers().visible_to_attention(l);
  }
  // A small table is fetched from the device at once, of a large one the rows that are asked for.
  if (!has_table() || (device_ != nullptr && scores > kFetchedAtOnce)) return;
  for (int l = 0; l < layers; ++l)
    tables_.push_back(
        decomposition_->backend().host(decomposition_->attention(l, options_.scores).k_scores));
}

// Small tasks run side by side, a thread each; larger ones use all threads themselves, and so do
// those of several prompts at once, whose loops over parts of a weight are joined.
template <typename T>
void Edges<T>::each_layer(int tasks, bool small, const std::function<void(Index)>& task) const {
  backend::Backend& backend = decomposition_->backend();
  if (small && backend.layers_side_by_side() && !base::ThreadPool::joins_loops()) {
    backend.parallel_for(tasks, task);
    return;
  }
  for (int i = 0; i < tasks; ++i) task(i);
}

template <typename T>
const LayerEdges<T>& Edges<T>::layer(int l) const {
  LayerEdges<T>& out = layers_[l];
  if constexpr (std::is_same_v<T, float>) {
    std::lock_guard lock(mutex_);
    if (device_ == nullptr || !out.entry.empty()) return out;
    const auto fetch = [&](const backend::Array& array, std::vector<T>& to) {
      const auto host = decomposition_->backend().host(array);
      const T* values = static_cast<const T*>(host.get());
      to.assign(values, values + array.size());
    };
    DeviceLayer made;
    if (by_layer()) {
      made = device_layer(l);
      if (whole_layer_ >= 0) {
        LayerEdges<T>& before = layers_[whole_layer_];
        before.entry = before.key_coef = before.query_edge = before.value_edge = {};
      }
      whole_layer_ = l;
      fetch(made.layer.heads.query_edge, out.query_edge);
      fetch(made.layer.heads.value_edge, out.value_edge);
    }
    const backend::DeviceCredit::HeadEdges& from =
        by_layer() ? made.layer.heads : device_layers_[l].heads;
    fetch(from.entry, out.entry);
    fetch(from.key_coef, out.key_coef);
  }
  return out;
}

template <typename T>
DeviceLayer Edges<T>::device_layer(int l) const {
  return remade_layer(*device_, *decomposition_, options_, device_layers_[l]);
}

template <typename T>
void Edges<T>::build_attention(int l, const backend::AttentionSums& sums,
                               LayerEdges<T>& out) const {
  const decompose::Decomposition& d = *decomposition_;
  const ModelConfig& c = d.config();
  const LayerConfig& shape = c.layer(l);
  const int length = d.length();
  const std::size_t pairs = backend::tri(length);
  const std::size_t heads = c.n_heads;
  backend::AttentionView view = d.attention_view(l);
  view.q_scores = &sums.q_scores;
  const std::size_t cl = view.visible;

  const std::size_t steps = length;
  const std::size_t group = c.group_size();
  const auto host = [&](const backend::Array& array) {
    return std::static_pointer_cast<const T>(d.backend().host(array));
  };
  const auto numerators = host(head_entries(d, options_, l));
  const auto k_sum = host(sums.k_sum), k_abs = host(sums.k_abs), q_sum = host(sums.q_sum),
             q_abs = host(sums.q_abs);
  const auto v_sum = host(sums.v_sum), v_abs = host(sums.v_abs), v_scores = host(sums.v_scores);
  const bool queries = options_.weights[1] != 0;
  std::vector<double> query_coef(queries ? heads * pairs : 0);
  out.entry.resize(heads * pairs);
  out.key_coef.resize(heads * pairs);
  out.head_doubt.assign(heads * steps, 0.0);
  d.backend().parallel_for(c.n_heads, [&](Index head) {
    const std::size_t h = head;
    const std::size_t v_row = h / group * steps;
    std::vector<double> entry(steps);
    for (std::size_t q = 0; q < steps; ++q) {
      const std::size_t row = h * pairs + backend::tri(q);
      double doubt = 0;
      for (std::size_t s = 0; s <= q; ++s) entry[s] = numerators.get()[row + s];
      if (options_.dispatch == Dispatch::aligned) to_shares(entry.data(), q + 1, options_.beta);
      const auto coefficient = [&](const std::shared_ptr<const T>& sum,
                                   const std::shared_ptr<const T>& abs, std::size_t s,
                                   double weight) {
        const double total = sum.get()[row + s];
        const double size = abs.get()[row + s];
        doubt += base::doubtful(weight, entry[s], total, size);
        return base::coefficient(weight, entry[s], base::inverse_denom(total, size, options_.beta));
      };
      for (std::size_t s = 0; s <= q; ++s) {
        out.entry[row + s] = entry[s];
        out.key_coef[row + s] = coefficient(k_sum, k_abs, s, options_.weights[0]);
        if (queries) query_coef[row + s] = coefficient(q_sum, q_abs, s, options_.weights[1]);
        doubt += base::doubtful(options_.weights[2], entry[s], v_sum.get()[v_row + s],
                                v_abs.get()[v_row + s]);
      }
      if (queries && options_.scores == Scores::centered) {
        const std::size_t from = shape.first_source(q);
        center_coefficients(query_coef.data() + row + from, q + 1 - from);
      }
      out.head_doubt[h * steps + q] = doubt;
    }
  });
  if (queries) {
    std::vector<double> folded;
    d.backend().query_fold(view, all_queries(length), query_coef, folded);
    out.query_edge.assign(folded.begin(), folded.end());
  } else {
    out.query_edge.assign(heads * steps * cl, T(0));
  }
  out.value_edge.resize(c.n_kv_heads * steps * cl);
  d.backend().parallel_for(c.n_kv_heads * length, [&](Index at) {
    const std::size_t i = at;
    // Of one unit of credit. A GPU takes the score in place of the unit, which rounds otherwise.
    const double by =
        base::coefficient(options_.weights[2], 1.0,
                          base::inverse_denom(v_sum.get()[i], v_abs.get()[i], options_.beta));
    for (std::size_t j = 0; j < cl; ++j)
      out.value_edge[i * cl + j] = v_scores.get()[i * cl + j] * by;
  });
}

namespace {

// What entries [rows, entries] give to the experts they belong to, [rows, k].
std::vector<double> by_slot(const std::vector<double>& entries, int neurons) {
  std::vector<double> out(entries.size() / neurons, 0.0);
  for (std::size_t i = 0; i < entries.size(); ++i) out[i / neurons] += entries[i];
  return out;
}

}  // namespace

// One query takes the sums of its position alone, also where those of all are there: the answer is
// the same to the last bit, whatever was asked before.
template <typename T>
typename Edges<T>::SideSums Edges<T>::side_sums(int l, backend::MlpSide side,
                                                std::span<const int> queries) const {
  if (queries.size() == 1 && decomposition_->neurons_when_asked(l))
    return {decomposition_->mlp_at(l, side, queries[0]), true};
  return {decomposition_->mlp(l, side, options_.scores), false};
}

template <typename T>
std::array<std::vector<double>, backend::kMostReaders> Edges<T>::mlp_edges(
    int l, std::span<const int> queries, std::vector<double> numerators,
    std::vector<double>* doubt) const {
  const decompose::Decomposition& d = *decomposition_;
  const LayerConfig& shape = d.config().layer(l);
  backend::MlpView view = d.mlp_view(l);
  const std::size_t cm = view.visible;
  std::array<std::vector<double>, backend::kMostReaders> edges;
  const std::vector<backend::MlpReader> readers = backend::mlp_readers(shape);
  if (doubt) doubt->assign(queries.size(), 0.0);
  const auto for_rows = [&](const std::function<void(std::size_t)>& task) {
    d.backend().parallel_for(std::ssize(queries), [&](Index i) { task(i); });
  };
  if (options_.mlp == MlpRule::per_neuron) {
    const std::size_t n = shape.entries();
    for_rows([&](std::size_t i) { to_shares(numerators.data() + i * n, n, options_.beta); });
  }
  for (std::size_t index = 0; index < readers.size(); ++index) {
    const backend::MlpSide side = readers[index].side;
    const std::size_t n = backend::reader_entries(shape, side);
    const double weight = backend::reader_weight(options_, shape, index);
    std::vector<double>& out = edges[index];
    if (weight == 0) {
      out.assign(queries.size() * cm, 0.0);
      continue;
    }
    const auto share_rows = [&] {
      for (std::size_t i = 0; i < queries.size(); ++i)
        to_shares(out.data() + i * cm, cm, options_.beta);
    };
    if (options_.mlp == MlpRule::l2) {
      const SideSums of = side_sums(l, side, queries);
      const std::vector<double> l2 =
          downloaded(d, of.sums.l2.empty() ? d.mlp_norms(l, side) : of.sums.l2);
      for (const int q : queries) {
        const auto from = l2.begin() + (of.one ? 0 : q * cm);
        out.insert(out.end(), from, from + cm);
      }
      share_rows();
    } else {
      const std::vector<double> routed = side == backend::MlpSide::router
                                             ? by_slot(numerators, shape.n_neurons)
                                             : std::vector<double>();
      const std::vector<double>& own = side == backend::MlpSide::router ? routed : numerators;
      std::vector<double> coef(queries.size() * n);
      const bool per_neuron = options_.mlp == MlpRule::per_neuron;
      const SideSums of = per_neuron ? side_sums(l, side, queries) : SideSums{};
      const backend::MlpSums* sums = per_neuron ? &of.sums : nullptr;
      const auto host = [&](const backend::Array& array) {
        return std::static_pointer_cast<const T>(d.backend().host(array));
      };
      const auto sum = sums ? host(sums->sum) : nullptr;
      const auto abs = sums ? host(sums->abs) : nullptr;
      const auto pre = sums ? nullptr : host(d.pre(l, side, options_.scores));
      for_rows([&](std::size_t i) {
        const std::size_t row = of.one ? 0 : queries[i] * n;
        const double* t = own.data() + i * n;
        double* to = coef.data() + i * n;
        double doubtful = 0;
        for (std::size_t k = 0; k < n; ++k) {
          if (sums) {
            const double total = sum.get()[row + k];
            const double size = abs.get()[row + k];
            to[k] = base::coefficient(1.0, t[k], base::inverse_denom(total, size, options_.beta));
            doubtful += base::doubtful(1.0, t[k], total, size);
          } else {
            to[k] = base::linear_coefficient(t[k], pre.get()[row + k]);
          }
        }
        if (doubt) (*doubt)[i] += weight * doubtful;
      });
      if (sums) {
        view.last = &sums->last;
        view.last_at = of.one ? queries[0] : -1;
      }
      d.backend().mlp_fold(view, side, options_.scores, queries, coef, out);
      if (!sums) share_rows();
    }
    if (weight != 1.0) {
      for (auto& x : out) x *= weight;
    }
  }
  return edges;
}

template <typename T>
void Edges<T>::build_mlp(int l, LayerEdges<T>& out, const RunContext& context) const {
  const decompose::Decomposition& d = *decomposition_;
  if (options_.mlp != MlpRule::linearized) {
    for (const backend::MlpReader& reader : backend::mlp_readers(d.config().layer(l)))
      d.mlp(l, reader.side, options_.scores, context);
  }
  std::vector<double> numerators;
  if (options_.mlp != MlpRule::l2) numerators = downloaded(d, neuron_entries(d, options_, l));
  const auto edges = mlp_edges(l, all_queries(d.length()), std::move(numerators), &out.mlp_doubt);
  for (std::size_t side = 0; side < edges.size(); ++side)
    out.mlp_edge[side].assign(edges[side].begin(), edges[side].end());
}

template <typename T>
std::vector<double> Edges<T>::neuron_shares(int layer, int query) const {
  const decompose::Decomposition& d = *decomposition_;
  d.enter(layer);
  const std::size_t n = d.config().layer(layer).entries();
  std::vector<double> t(n);
  d.backend().download(neuron_entries(d, options_, layer), query * n, t);
  to_shares(t.data(), n, options_.beta);
  return t;
}

template <typename T>
std::vector<DirectEdges> Edges<T>::direct(std::span<const int> layers, int query,
                                          const backend::Array& direction) const {
  if (layers.size() == towards_target_.size() && query == target_.query &&
      direction.raw() == target_.direction.raw())
    return towards_target_;
  std::vector<DirectEdges> out;
  if (direct_on_device(*decomposition_, options_, layers, query, direction, out)) return out;
  out.resize(layers.size());
  const auto one = [&](Index i) { out[i] = direct(layers[i], query, direction); };
  each_layer(layers.size(), true, one);
  return out;
}

template <typename T>
DirectEdges Edges<T>::direct(int layer, int query, const backend::Array& direction) const {
  const decompose::Decomposition& d = *decomposition_;
  backend::Backend& backend = d.backend();
  const ModelConfig& c = d.config();
  const std::size_t heads = c.n_heads;
  const std::size_t sources = query + 1;
  const std::size_t pairs = backend::tri(d.length());
  const backend::AttentionSums& sums = d.attention(layer, options_.scores);
  backend::AttentionView view = d.attention_view(layer);
  view.q_scores = &sums.q_scores;
  const std::vector<int> queries = {query};
  DirectEdges out;
  out.layer = layer;
  out.query = query;

  decompose::Decomposition::DirectNumerators numerators =
      d.direct_numerators(layer, query, direction);
  out.entry = std::move(numerators.heads);
  for (std::size_t h = 0; h < heads; ++h)
    to_shares(out.entry.data() + h * sources, sources, options_.beta);
  const auto coefficients = [&](const backend::Array& sum_array, const backend::Array& abs_array,
                                double weight) {
    std::vector<double> coef(heads * sources), sum(sources), abs(sources);
    for (std::size_t h = 0; h < heads; ++h) {
      const auto at = static_cast<Index>(h * pairs) + backend::tri(query);
      backend.download(sum_array, at, sum);
      backend.download(abs_array, at, abs);
      for (std::size_t s = 0; s < sources; ++s)
        coef[h * sources + s] = base::coefficient(
            weight, out.entry[h * sources + s], base::inverse_denom(sum[s], abs[s], options_.beta));
    }
    return coef;
  };
  out.key_coef = coefficients(sums.k_sum, sums.k_abs, options_.weights[0]);
  std::vector<double> query_coef = coefficients(sums.q_sum, sums.q_abs, options_.weights[1]);
  if (options_.scores == Scores::centered) {
    const std::size_t from = c.layer(layer).first_source(query);
    for (std::size_t h = 0; h < heads; ++h)
      center_coefficients(query_coef.data() + h * sources + from, sources - from);
  }
  backend.query_fold(view, queries, query_coef, out.query_edge);

  out.neuron_share = numerators.neurons;
  to_shares(out.neuron_share.data(), out.neuron_share.size(), options_.beta);
  out.mlp_edge = mlp_edges(layer, queries, std::move(numerators.neurons), nullptr);
  return out;
}

template class Edges<float>;
template class Edges<double>;

}  // namespace unpack::credit
