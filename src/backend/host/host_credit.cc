// Sums over pairs of positions as products of blocks, and folds over scores that are kept.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/question_tables.h"
#include "base/index.h"

namespace unpack::backend {

namespace {

constexpr Index kCreditRows = 64;  // queries, or sources, that share a product

// How many sources any of the queries sees.
Index farthest(std::span<const int> queries) {
  return Index{*std::max_element(queries.begin(), queries.end())} + 1;
}

}  // namespace

template <typename T>
void HostBackend<T>::sum_values(const AttentionView& view, const Rows& rows, const Array& pulled,
                                Array& out) {
  const Index heads = config_.n_heads, e = config_.d_head, kv_row = config_.n_kv_heads * e;
  const Index blocks = (rows.count + kCreditRows - 1) / kCreditRows;
  pool_.parallel_for(heads * blocks, [&](Index task) {
    const Index h = task / blocks, first = task % blocks * kCreditRows;
    const Index n = std::min(kCreditRows, rows.count - first);
    const Index reach = farthest(std::span(rows.host).subspan(first, n));
    base::Scratch scratch;
    T* products = scratch.of<T>(n * reach);
    gemm(true, n, reach, e, ptr(pulled) + (first * heads + h) * e, heads * e,
         ptr(*view.v) + h / config_.group_size() * e, kv_row, false, products, reach);
    for (Index i = first; i < first + n; ++i) {
      const int q = rows.host[i];
      const T* alpha = ptr(*view.pattern) + h * tri(view.length) + tri(q);
      const T* from = products + (i - first) * reach;
      T* to = ptr(out) + h * rows.total + rows.host_begin[i];
      for (int s = 0; s <= q; ++s) to[s] = alpha[s] * from[s];
    }
  });
}

template <typename T>
Array HostBackend<T>::sum_keys(const AttentionView& view, const Rows& rows, const Array& coef) {
  const Index heads = config_.n_heads, e = config_.d_head;
  Array out = uninitialized(rows.count * heads * e);
  const Index blocks = (rows.count + kCreditRows - 1) / kCreditRows;
  pool_.parallel_for(heads * blocks, [&](Index task) {
    const Index h = task / blocks, first = task % blocks * kCreditRows;
    const Index n = std::min(kCreditRows, rows.count - first);
    const Index reach = farthest(std::span(rows.host).subspan(first, n));
    base::Scratch coefficients;
    T* of = coefficients.of<T>(n * reach);
    for (Index i = 0; i < n; ++i) {
      const Index seen = rows.host[first + i] + 1;
      T* to = of + i * reach;
      std::copy_n(ptr(coef) + h * rows.total + rows.host_begin[first + i], seen, to);
      std::fill(to + seen, to + reach, T(0));
    }
    gemm(false, n, e, reach, of, reach, ptr(*view.k) + h / config_.group_size() * e,
         config_.n_kv_heads * e, false, ptr(out) + (first * heads + h) * e, heads * e);
  });
  return out;
}

template <typename T>
Array HostBackend<T>::sum_queries(const AttentionView& view, const Array& coef) {
  return weighed_queries(view, ptr(coef), nullptr, 1.0);
}

// sum[s, :] = sum_q coef[q, s] q[q, :], the other way round: queries [E, S] times coefficients
// [S, sources], whose rows lie as they come. Credit goes to the side of the queries, over a unit
// that keeps it within single precision.
template <typename T>
Array HostBackend<T>::weighed_queries(const AttentionView& view, const T* coef,
                                      const Credit* credit, double unit) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              length = view.length;
  Array out = uninitialized(length * groups * e);
  base::Scratch turned;
  T* queries = turned.of<T>(heads * e * length);
  struct Range {
    Index first, end;
  };
  std::vector<Range> active(heads, {0, length});  // queries with credit
  pool_.parallel_for(heads, [&](Index h) {
    T* to = queries + h * e * length;
    Range& range = active[h];
    if (credit != nullptr) range = {length, 0};
    for (Index q = 0; q < length; ++q) {
      const T* from = ptr(*view.q) + (q * heads + h) * e;
      T weight = 1;
      if (credit != nullptr) {
        weight = credit->credit[h * length + q] / unit;
        if (weight != 0) range = {std::min(range.first, q), q + 1};
      }
      for (Index x = 0; x < e; ++x) to[x * length + q] = weight * from[x];
    }
  });
  const Index blocks = (length + kCreditRows - 1) / kCreditRows;
  pool_.parallel_for(blocks * groups, [&](Index task) {
    const Index g = task % groups, begin = task / groups * kCreditRows;
    const Index n = std::min(kCreditRows, length - begin);
    base::Scratch coefficients, sums;
    T* rows = coefficients.of<T>((length - begin) * n);  // [queries, sources]
    T* sum = sums.of<T>(e * n);
    std::fill_n(sum, e * n, T(0));
    for (Index h = g * config_.group_size(); h < (g + 1) * config_.group_size(); ++h) {
      // Queries with any coefficient lie between these.
      Index first = length, end = begin;
      for (Index q = std::max(begin, active[h].first); q < active[h].end; ++q) {
        const T* c = coef + h * tri(length) + tri(q) + begin;
        const Index seen = std::min(n, q + 1 - begin);
        T* to = rows + (q - begin) * n;
        std::copy_n(c, seen, to);
        std::fill(to + seen, to + n, T(0));  // sources that the query does not see
        int any = 0;
        for (Index s = 0; s < seen; ++s) any |= c[s] != 0 ? 1 : 0;
        if (any == 0) continue;
        first = std::min(first, q);
        end = q + 1;
      }
      if (first < end)
        gemm(false, e, n, end - first, queries + h * e * length + first, length,
             rows + (first - begin) * n, n, true, sum, n);
      if (credit == nullptr || credit->own.empty() || credit->query < begin) continue;
      const T* query = ptr(*view.q) + (credit->query * heads + h) * e;
      const Index seen = std::min<Index>(n, credit->query + 1 - begin);
      for (Index s = 0; s < seen; ++s) {
        const T own = credit->own[h * (credit->query + 1) + begin + s] / unit;
        for (Index x = 0; x < e; ++x) sum[x * n + s] += own * query[x];
      }
    }
    for (Index s = 0; s < n; ++s) {
      T* to = ptr(out) + ((begin + s) * groups + g) * e;
      for (Index x = 0; x < e; ++x) to[x] = sum[x * n + s];
    }
  });
  return out;
}

template <typename T>
void HostBackend<T>::fold_keys_with(const AttentionView& view, const Credit& of,
                                    std::vector<double>& out) {
  double unit = 0;
  for (const auto& part : {of.credit, of.own}) {
    for (const double x : part) unit = std::max(unit, std::fabs(x));
  }
  const Index d = config_.d_model, cl = view.visible, length = view.length;
  out.assign(length * cl, 0.0);
  if (unit == 0) return;
  const Array folded = weighed_queries(view, static_cast<const T*>(of.coef), &of, unit);
  const auto w = layer(view.layer);
  const auto rope = rotary(view.layer, length, view.length);
  const auto pull = this->key_pull(view, *w, rope.get());
  const Index groups = config_.n_kv_heads;
  for (Index i = 0; pull.changes() && i < length * groups; ++i)
    pull(i / groups, i % groups, ptr(folded) + i * config_.d_head);
  Array vectors = uninitialized(length * d);
  multiply_transposed(w->matrix(model::Role::w_k), ptr(folded), length, ptr(vectors));
  pool_.parallel_for(length, [&](Index s) {
    const T* vector = ptr(vectors) + s * d;
    // Positions that no credit reaches.
    if (std::all_of(vector, vector + d, [](T x) { return x == 0; })) return;
    const double factor = unit * config_.layer(view.layer).attention_scale / ptr(*view.dev)[s];
    const T* writers = ptr(*view.writers) + s * view.n_writers * d;
    for (Index j = 0; j < cl; ++j) out[s * cl + j] = factor * dot(d, writers + j * d, vector);
  });
}

// Sums of the scores themselves, where they are kept.
template <typename T>
void HostBackend<T>::query_fold(const AttentionView& view, std::span<const int> queries,
                                std::span<const double> coef, std::vector<double>& out) {
  if (view.q_scores == nullptr || view.q_scores->empty())
    return Backend::query_fold(view, queries, coef, out);
  const Index heads = config_.n_heads, cl = view.visible;
  const Rows rows = this->rows_of(queries);
  out.assign(heads * rows.count * cl, 0.0);
  pool_.parallel_for(heads, [&](Index h) {
    std::vector<T> sum(cl);
    for (Index i = 0; i < rows.count; ++i) {
      const int q = queries[i];
      const double* c = coef.data() + h * rows.total + rows.host_begin[i];
      const T* scores = ptr(*view.q_scores) + (h * tri(view.length) + tri(q)) * cl;
      std::fill(sum.begin(), sum.end(), T(0));
      for (int s = 0; s <= q; ++s) axpy(cl, static_cast<T>(c[s]), scores + s * cl, sum.data());
      std::copy(sum.begin(), sum.end(), out.begin() + (h * rows.count + i) * cl);
    }
  });
}

// The same of the last position's neurons.
template <typename T>
void HostBackend<T>::mlp_fold(const MlpView& view, MlpSide side, Scores scores,
                              std::span<const int> queries, std::span<const double> coef,
                              std::vector<double>& out) {
  const int kept_at = view.last_at < 0 ? view.length - 1 : view.last_at;
  const bool kept = view.routing == nullptr && queries.size() == 1 && queries[0] == kept_at &&
                    view.last && !view.last->empty();
  if (!kept) return Backend::mlp_fold(view, side, scores, queries, coef, out);
  out.resize(view.visible);
  const std::vector<T> scaled(coef.begin(), coef.end());
  const Index n = scaled.size();
  pool_.parallel_for(view.visible,
                     [&](Index j) { out[j] = dot(n, ptr(*view.last) + j * n, scaled.data()); });
}

template class HostBackend<float>;

}  // namespace unpack::backend
