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

// In lanes: one maximum waits for the one before it.
double largest(const double* x, Index n) {
  constexpr Index kLanes = 8;
  double lanes[kLanes] = {};
  for (Index i = 0; i + kLanes <= n; i += kLanes) {
    for (Index j = 0; j < kLanes; ++j) {
      const double size = std::fabs(x[i + j]);
      lanes[j] = lanes[j] < size ? size : lanes[j];
    }
  }
  double most = *std::max_element(lanes, lanes + kLanes);
  for (Index i = n / kLanes * kLanes; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

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

// sum[s, :] = sum_q coef[q, s] q[q, :], with coefficients as they lie. Credit goes to the side of
// the queries, over a unit that keeps it within single precision.
template <typename T>
Array HostBackend<T>::weighed_queries(const AttentionView& view, const T* coef,
                                      const Credit* credit, double unit) {
  constexpr Index kSources = 128;
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              length = view.length, row = padded_columns(e);
  const Index window = config_.layer(view.layer).window;
  Array out = uninitialized(length * groups * e);
  base::Scratch weighed;
  T* queries = weighed.of<T>(heads * length * row);
  struct Range {
    Index first, end;
  };
  std::vector<Range> active(heads, {0, length});  // queries with credit
  pool_.parallel_for(heads, [&](Index h) {
    Range& range = active[h];
    const double* of = credit != nullptr ? credit->credit.data() + h * length : nullptr;
    if (of != nullptr) {
      const double* first = std::find_if(of, of + length, [](double x) { return x != 0; });
      range = {first - of, length};
      while (range.end > range.first && of[range.end - 1] == 0) --range.end;
    }
    for (Index q = range.first; q < range.end; ++q) {
      const T* from = ptr(*view.q) + (q * heads + h) * e;
      T* to = queries + (h * length + q) * row;
      const T weight = of != nullptr ? of[q] / unit : 1.0;
      for (Index x = 0; x < e; ++x) to[x] = weight * from[x];
      std::fill(to + e, to + row, T(0));
    }
  });
  const Index blocks = (length + kSources - 1) / kSources;
  pool_.parallel_for(blocks * groups, [&](Index task) {
    const Index g = task % groups, begin = task / groups * kSources;
    const Index n = std::min(kSources, length - begin), behind = begin + n;
    base::Scratch triangle, sums;
    T* own = triangle.of<T>(n * n);
    T* sum = sums.of<T>(n * row);
    std::fill_n(sum, n * row, T(0));
    for (Index h = g * config_.group_size(); h < (g + 1) * config_.group_size(); ++h) {
      const T* of = coef + h * tri(length) + begin;
      const T* from = queries + h * length * row;
      const Index end = window > 0 ? std::min(active[h].end, behind - 1 + window) : active[h].end;
      // Queries among the sources do not see all of them.
      if (const Index first = std::max(begin, active[h].first); first < std::min(end, behind)) {
        const Index count = std::min(end, behind) - first;
        for (Index i = 0; i < count; ++i) {
          const Index seen = first + i + 1 - begin;
          std::copy_n(of + tri(first + i), seen, own + i * n);
          std::fill(own + i * n + seen, own + (i + 1) * n, T(0));
        }
        triangle_product({n, row, count, own, n, 0, from + first * row, sum});
      }
      if (const Index first = std::max(behind, active[h].first); first < end)
        triangle_product(
            {n, row, end - first, of + tri(first), first + 1, 1, from + first * row, sum});
      if (credit == nullptr || credit->own.empty() || credit->query < begin) continue;
      const T* query = ptr(*view.q) + (credit->query * heads + h) * e;
      const Index seen = std::min<Index>(n, credit->query + 1 - begin);
      for (Index s = 0; s < seen; ++s) {
        const T share = credit->own[h * (credit->query + 1) + begin + s] / unit;
        axpy(e, share, query, sum + s * row);
      }
    }
    for (Index s = 0; s < n; ++s)
      std::copy_n(sum + s * row, e, ptr(out) + ((begin + s) * groups + g) * e);
  });
  return out;
}

template <typename T>
void HostBackend<T>::fold_keys_with(const AttentionView& view, const Credit& of,
                                    std::span<double> folded) {
  double unit = 0;
  for (const auto& part : {of.credit, of.own}) {
    for (const double x : part) unit = std::max(unit, std::fabs(x));
  }
  if (unit == 0) return;
  const Index d = config_.d_model, length = view.length;
  // No source behind the last query with credit is seen, and of a root one head has all of it.
  const Index heads = config_.n_heads;
  Index reach = std::ssize(of.own) / heads, some = 0, one = 0;
  for (Index h = 0; h < heads; ++h) {
    const double* credit = of.credit.data() + h * length;
    Index seen = length;
    while (seen > 0 && credit[seen - 1] == 0) --seen;
    reach = std::max(reach, seen);
    if (seen == 0 && of.own.empty()) continue;
    ++some;
    one = h;
  }
  const Array weighed = weighed_queries(view, static_cast<const T*>(of.coef), &of, unit);
  const auto w = layer(view.layer);
  const auto rope = rotary(view.layer, length, view.length);
  const auto pull = this->key_pull(view, *w, rope.get());
  const Index groups = config_.n_kv_heads;
  for (Index i = 0; pull.changes() && i < reach * groups; ++i)
    pull(i / groups, i % groups, ptr(weighed) + i * config_.d_head);
  Array vectors = uninitialized(reach * d);
  const Panels<T>& w_k = w->matrix(model::Role::w_k);
  if (some == 1) {
    const Index g = one / config_.group_size(), e = config_.d_head;
    pool_.parallel_for((reach + kRowBlock - 1) / kRowBlock, [&](Index task) {
      const Index first = task * kRowBlock;
      head_to_model(w_k, g, ptr(weighed) + (first * groups + g) * e, groups * e,
                    std::min(kRowBlock, reach - first), ptr(vectors) + first * d, d);
    });
  } else {
    multiply_transposed(w_k, ptr(weighed), reach, ptr(vectors));
  }
  pool_.parallel_for(reach, [&](Index s) {
    const double factor = unit * config_.layer(view.layer).attention_scale / ptr(*view.dev)[s];
    const T* from = ptr(vectors) + s * d;
    double* to = folded.data() + s * d;
    for (Index i = 0; i < d; ++i) to[i] += factor * from[i];
  });
}

// Over a unit of each position, too.
template <typename T>
void HostBackend<T>::read_folded(const Array& writers, int n_writers, int first, int end,
                                 std::span<const double> folded, std::vector<double>& out) {
  const Index d = config_.d_model, count = end - first, length = std::ssize(folded) / d;
  out.assign(length * count, 0.0);
  pool_.parallel_for(length, [&](Index s) {
    const double* from = folded.data() + s * d;
    const double most = largest(from, d);
    if (most == 0) return;         // no credit reaches the position
    constexpr int kLeast = -1000;  // whose inverse is a number
    const int power = std::max(std::ilogb(most), kLeast);
    const double unit = std::ldexp(1.0, power), inverse = std::ldexp(1.0, -power);
    base::Scratch scratch;
    T* vector = scratch.of<T>(d);
    for (Index i = 0; i < d; ++i) vector[i] = from[i] * inverse;
    const T* of = ptr(writers) + (s * n_writers + first) * d;
    for (Index j = 0; j < count; ++j) out[s * count + j] = unit * dot(d, of + j * d, vector);
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
