// Direction `read`: what the heads and neurons of a layer read.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "base/formulas.h"
#include "base/index.h"

namespace unpack::backend {

namespace {

constexpr Index kQueryBlock = 64;

// Between which positions a head has a direction in directions[S, H, E].
std::vector<ReadOps::HeadReads::Positions> active_positions(std::span<const double> directions,
                                                            Index heads, Index e) {
  std::vector<ReadOps::HeadReads::Positions> out(heads);
  const Index rows = static_cast<Index>(directions.size()) / e;
  for (Index i = 0; i < rows; ++i) {
    const auto row = directions.subspan(i * e, e);
    if (std::all_of(row.begin(), row.end(), [](double x) { return x == 0; })) continue;
    auto& of = out[i % heads];
    const int position = i / heads;
    if (of.end == 0) of.first = position;
    of.end = position + 1;
  }
  return out;
}

}  // namespace

template <typename T>
ReadOps::HeadReads HostReads<T>::head_reads(const AttentionView& view, const AttentionSums& sums,
                                            const Options& options,
                                            std::span<const double> directions) {
  const auto w = layer(view.layer);
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              d = config_.d_model, length = view.length, pairs = tri(length);
  const LayerConfig& shape = config_.layer(view.layer);
  const bool centered = options.scores == Scores::centered,
             spread = options.keys == Keys::spread && centered;
  HeadReads reads;
  reads.key_coef = this->zeros(heads * pairs);
  reads.query = this->zeros(length * heads * e);
  reads.value = uninitialized(length * heads * e);
  this->upload(reads.value, 0, directions);
  reads.active = active_positions(directions, heads, e);
  for (const auto& of : reads.active) reads.last = std::max(reads.last, of.end - 1);
  std::vector<T> by_key(heads * length * e, T(0)), by_value = by_key;
  pool_.parallel_for(heads, [&](Index h) {
    const Index g = h / config_.group_size();
    std::vector<T> entry, query, key_turned, value_turned;
    std::vector<double> by_keys(length), by_queries = by_keys;
    const auto [active, used] = reads.active[h];
    for (Index begin = active / kQueryBlock * kQueryBlock; begin < used; begin += kQueryBlock) {
      const Index n = std::min(kQueryBlock, used - begin), reach = begin + n;
      const T* direction = ptr(reads.value) + (begin * heads + h) * e;
      entry.resize(n * reach);
      gemm(true, n, reach, e, direction, heads * e, ptr(*view.v) + g * e, groups * e, false,
           entry.data(), reach);
      query.assign(entry.size(), T(0));
      key_turned.assign(entry.size(), T(0));
      value_turned.assign(entry.size(), T(0));
      for (Index i = 0; i < n; ++i) {
        const Index q = begin + i, first = shape.first_source(q), pair = h * pairs + tri(q);
        const double sources = q + 1 - first;
        T* key = ptr(reads.key_coef) + pair;
        T* own = query.data() + i * reach;
        double key_mean = 0, query_mean = 0;
        floored_inverses(ptr(sums.k_sum) + pair, ptr(sums.k_abs) + pair, q + 1, options.beta,
                         options.floor, by_keys.data());
        floored_inverses(ptr(sums.q_sum) + pair, ptr(sums.q_abs) + pair, q + 1, options.beta,
                         options.floor, by_queries.data());
        for (Index s = first; s <= q; ++s) {
          const std::size_t at = s * n + i, source = s;
          const T alpha = ptr(*view.pattern)[pair + s];
          value_turned[at] = alpha;
          const double credit = static_cast<double>(alpha) * entry[i * reach + s];
          const double k = base::coefficient(options.weights[0], credit, by_keys[source]);
          const double x = base::coefficient(options.weights[1], credit, by_queries[source]);
          key[s] = k;
          own[s] = x;
          key_mean += k / sources;
          query_mean += x / sources;
        }
        for (Index s = first; s <= q; ++s) {
          if (spread) key[s] -= static_cast<T>(key_mean);
          if (centered) own[s] -= static_cast<T>(query_mean);
          key_turned[s * n + i] = key[s];
        }
      }
      gemm(false, n, e, reach, query.data(), reach, ptr(*view.k) + g * e, groups * e, false,
           ptr(reads.query) + (begin * heads + h) * e, heads * e);
      gemm(false, reach, e, n, key_turned.data(), n, ptr(*view.q) + (begin * heads + h) * e,
           heads * e, true, by_key.data() + h * length * e, e);
      gemm(false, reach, e, n, value_turned.data(), n, direction, heads * e, true,
           by_value.data() + h * length * e, e);
    }
  });
  const auto rope = rotary(view.layer, length, view.length);
  const auto key_pull = this->key_pull(view, *w, rope.get());
  const auto query_pull = this->query_pull(view, *w, rope.get());
  const T scale = shape.attention_scale;
  const T value_weight = options.weights[2];
  std::vector<T> keys(length * groups * e), values = keys;
  pool_.parallel_for(length, [&](Index s) {
    for (Index h = 0; h < heads; ++h) {
      T* u = ptr(reads.query) + (s * heads + h) * e;
      query_pull(s, h, u);
      T* v = ptr(reads.value) + (s * heads + h) * e;
      for (Index i = 0; i < e; ++i) {
        u[i] *= scale;
        v[i] *= value_weight;
      }
      const Index g = h / config_.group_size();
      axpy(e, scale, by_key.data() + (h * length + s) * e, keys.data() + (s * groups + g) * e);
      axpy(e, value_weight, by_value.data() + (h * length + s) * e,
           values.data() + (s * groups + g) * e);
    }
    for (Index g = 0; g < groups; ++g) key_pull(s, g, keys.data() + (s * groups + g) * e);
  });
  const auto to_stream = [&](std::span<const std::pair<const Panels<T>*, const T*>> parts,
                             std::vector<double>& out) {
    out.assign(length * d, 0.0);
    std::vector<T> read(out.size());
    for (const auto& [panels, from] : parts) {
      multiply_transposed(*panels, from, length, read.data());
      for (Index i = 0; i < length * d; ++i)
        out[i] += static_cast<double>(read[i]) / ptr(*view.dev)[i / d];
    }
  };
  using Folded = std::pair<const Panels<T>*, const T*>;
  to_stream(std::array<Folded, 2>{Folded{&w->matrix(model::Role::w_v), values.data()},
                                  Folded{&w->matrix(model::Role::w_q), ptr(reads.query)}},
            reads.linear);
  to_stream(std::array<Folded, 1>{Folded{&w->matrix(model::Role::w_k), keys.data()}}, reads.keyed);
  return reads;
}

template <typename T>
ReadOps::NeuronCredit HostReads<T>::neuron_credit(const Array& own, Index rows, const Array* pre,
                                                  const MlpSums* sums, double beta, double weight) {
  const Index n = own.size() / rows;
  NeuronCredit out;
  out.coef = uninitialized(own.size());
  out.credit.assign(rows, 0.0);
  std::vector<double> passed = out.credit, doubt = out.credit;  // by row, added up in order
  pool_.parallel_for(rows, [&](Index r) {
    const std::size_t row = r;
    const T* given = ptr(own) + r * n;
    T* coef = ptr(out.coef) + r * n;
    // Below a root, and in its own layer, many positions have none.
    if (std::all_of(given, given + n, [](T x) { return x == 0; })) {
      std::fill_n(coef, n, T(0));
      return;
    }
    double credit = 0, size = 0, doubtful = 0;
    if (pre != nullptr) {
      for (Index i = 0; i < n; ++i) {
        const double x = given[i];
        credit += x;
        coef[i] = base::linear_coefficient(x, ptr(*pre)[r * n + i]);
      }
    } else {
      const T* sum = ptr(sums->sum) + r * n;
      const T* abs = ptr(sums->abs) + r * n;
      std::vector<double> inverse(n);
      floored_inverses(sum, abs, n, beta, 0.0, inverse.data());
      for (Index i = 0; i < n; ++i) {
        const double x = given[i];
        credit += x;
        coef[i] = base::coefficient(weight, x, inverse[i]);
        size += std::fabs(x);
        doubtful += base::doubtful(1.0, x, sum[i], abs[i]);
      }
    }
    out.credit[row] = credit;
    passed[row] = size;
    doubt[row] = doubtful;
  });
  out.passed = std::accumulate(passed.begin(), passed.end(), 0.0);
  out.doubt = std::accumulate(doubt.begin(), doubt.end(), 0.0);
  return out;
}

// Below a root, and in its own layer, most positions read nothing: their rows are left out.
template <typename T>
void HostReads<T>::neuron_reads(const MlpView& view, MlpSide side, Scores scores, const Array& coef,
                                std::vector<double>& out) {
  const Index d = config_.d_model, n = coef.size() / view.length;
  std::vector<int> queries;  // those with anything
  for (int q = 0; q < view.length; ++q) {
    const T* row = ptr(coef) + q * n;
    if (std::any_of(row, row + n, [](T x) { return x != 0; })) queries.push_back(q);
  }
  out.assign(view.length * d, 0.0);
  if (queries.empty()) return;
  Array given = uninitialized(queries.size() * n);
  for (std::size_t i = 0; i < queries.size(); ++i)
    std::copy_n(ptr(coef) + queries[i] * n, n, ptr(given) + i * n);
  const Array vectors = this->neurons_to_model(view, side, scores, this->rows_of(queries), given);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    const double dev = ptr(*view.dev)[queries[i]];
    const T* from = ptr(vectors) + i * d;
    double* to = out.data() + queries[i] * d;
    for (Index j = 0; j < d; ++j) to[j] = from[j] / dev;
  }
}

template <typename T>
Array HostReads<T>::key_medians(const AttentionView& view, const AttentionSums& sums) {
  const Index cl = view.visible, length = view.length;
  Array out = uninitialized(config_.n_heads * length * cl);
  const auto take = [&](int h, int q, const T* rows) {
    const Index first = config_.layer(view.layer).first_source(q), at = (h * length + q) * cl;
    column_medians(rows + first * cl, q + 1 - first, cl, ptr(out) + at);
  };
  if (sums.k_scores.empty()) {
    this->visit_key_scores(view, Scores::centered, [&](int h, int q, const void* rows) {
      take(h, q, static_cast<const T*>(rows));
    });
    return out;
  }
  pool_.parallel_for(config_.n_heads * length, [&](Index task) {
    const auto h = static_cast<int>(task / length), q = static_cast<int>(task % length);
    take(h, q, ptr(sums.k_scores) + (h * tri(length) + tri(q)) * cl);
  });
  return out;
}

template <typename T>
void HostReads<T>::offset_fold(const AttentionView& view, const HeadReads& reads,
                               const Array& offsets, std::vector<double>& out) {
  const Index cl = view.visible, length = view.length, used = reads.last + 1,
              heads = config_.n_heads;
  out.assign(length * cl, 0.0);
  const Index blocks = (used + kQueryBlock - 1) / kQueryBlock;
  pool_.parallel_for(blocks, [&](Index block) {  // of sources
    const Index begin = block * kQueryBlock, n = std::min(kQueryBlock, used - begin);
    std::vector<T> turned, sum(n * cl);
    for (Index h = 0; h < heads; ++h) {
      const Index queries = used - begin;
      turned.assign(n * queries, T(0));
      for (Index q = begin; q < used; ++q) {
        const T* coef = ptr(reads.key_coef) + h * tri(length) + tri(q);
        for (Index s = begin; s < begin + n && s <= q; ++s)
          turned[(s - begin) * queries + q - begin] = coef[s];
      }
      gemm(false, n, cl, queries, turned.data(), queries, ptr(offsets) + (h * length + begin) * cl,
           cl, h > 0, sum.data(), cl);
    }
    std::copy(sum.begin(), sum.end(), out.begin() + begin * cl);
  });
}

template class HostReads<float>;

}  // namespace unpack::backend
