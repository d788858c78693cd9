// Sums over projected keys and queries, whose scores nobody wants to see one by one.
#include <algorithm>
#include <cmath>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "base/index.h"

namespace unpack::backend {

// Projects every writer's key, and deals out the heads and some queries at once, the last first.
template <typename T>
void HostPairSums<T>::each_key_block(const AttentionView& view, const KeyBlocks& task) {
  constexpr Index kQueries = 64;
  const auto w = layer(view.layer);
  const Index e = config_.d_head, cl = view.visible, length = view.length;
  const Index group = config_.group_size(), blocks = (length + kQueries - 1) / kQueries;
  const auto rope = rotary(view.layer, length, view.length);
  const bool low_rank = this->plan_of(view.layer, view.length).keys.low_rank();
  Array keys;
  for (Index p = 0; p < w->matrix(model::Role::w_k).count(); ++p) {
    this->projected(view, w->matrix(model::Role::w_k), p, low_rank,
                    this->key_pull(view, *w, rope.get()), keys);
    const Index in_panel = w->matrix(model::Role::w_k).columns(p) / e,
                first = w->matrix(model::Role::w_k).begin(p) / e;
    pool_.parallel_for(in_panel * group * blocks, [&](Index i) {
      const Index begin = (blocks - 1 - i % blocks) * kQueries;
      const Index g = i / blocks / group;
      task({(first + g) * group + i / blocks % group, begin, std::min(kQueries, length - begin),
            ptr(keys) + g * length * cl * e});
    });
  }
}

template <typename T>
void HostPairSums<T>::key_sums(const AttentionView& view, AttentionSums& sums,
                               const KeyExtras& extras) {
  each_key_block(view, [&](const KeyBlock& block) {
    if constexpr (sizeof(T) == sizeof(float)) {
      summed_block(view, block, sums, extras);
    } else {
      tabled_block(view, block, sums, extras.table);
    }
  });
}

// A row of writers at a time, which is added up, and copied, while it is in the cache.
template <typename T>
void HostPairSums<T>::tabled_block(const AttentionView& view, const KeyBlock& block,
                                   AttentionSums& sums, T* table) {
  const Index e = config_.d_head, heads = config_.n_heads, cl = view.visible;
  const Index length = view.length, n = block.n, begin = block.begin;
  const LayerConfig& shape = config_.layer(view.layer);
  std::vector<T> tile(n * cl);
  std::vector<double> moments(2 * n * cl, 0.0);
  for (Index s = 0; s < begin + n; ++s) {
    const Index skip = std::max<Index>(0, s - begin);
    gemm(true, n - skip, cl, e, ptr(*view.q) + ((begin + skip) * heads + block.head) * e, heads * e,
         block.keys + s * cl * e, e, false, tile.data() + skip * cl, cl);
    const Index end = shape.window > 0 ? std::clamp<Index>(s + shape.window - begin, skip, n) : n;
    for (Index i = skip; i < n; ++i) {
      if (i >= end) std::fill_n(tile.data() + i * cl, cl, T(0));  // outside the window
      double* column = moments.data() + 2 * i * cl;
      const Index pair = block.head * tri(length) + tri(begin + i) + s;
      reduce_rows(tile.data() + i * cl, 1, cl, ptr(sums.k_sum) + pair, ptr(sums.k_abs) + pair,
                  column, column + cl);
      if (table) std::copy_n(tile.data() + i * cl, cl, table + pair * cl);
    }
  }
  for (Index i = 0; i < n; ++i) {
    const Index q = begin + i, at = (block.head * length + q) * cl;
    finish_moments(moments.data() + 2 * i * cl, moments.data() + (2 * i + 1) * cl,
                   q + 1 - shape.first_source(q), cl, ptr(sums.k_mean) + at, ptr(sums.k_std) + at);
  }
}

// A tile of writers and queries is added up in registers; the scores of a source go to the table
// from the cache, or nowhere. Moments are taken around the score of the query's own position, so
// that a spread that is small against the mean keeps its digits.
template <typename T>
void HostPairSums<T>::summed_block(const AttentionView& view, const KeyBlock& block,
                                   AttentionSums& sums, const KeyExtras& extras) {
  T* const table = extras.table;
  constexpr Index kSources = 32;  // whose moments are added before they go to double
  const Index e = config_.d_head, heads = config_.n_heads, cl = view.visible;
  const Index length = view.length, n = block.n, begin = block.begin;
  const Index padded = padded_columns(n), places = cl * padded;
  const LayerConfig& shape = config_.layer(view.layer);
  std::vector<T> queries(e * padded), work(3 * places, T(0)), own(cl), weight(padded, T(0)),
      scores(table ? places : 0);
  std::vector<T*> rows(table ? n : 0);
  std::vector<double> moments(2 * places, 0.0),
      pair(3 * padded);  // sums, absolute sums, masses
  std::vector<T> most(padded);
  const T* from = ptr(*view.q) + (begin * heads + block.head) * e;
  pack_columns(true, e, n, from, heads * e, queries.data());
  T* const origin = work.data();
  T* const first = origin + places;
  for (Index i = 0; i < n; ++i) {
    gemm(true, 1, cl, e, from + i * heads * e, e, block.keys + (begin + i) * cl * e, e, false,
         own.data(), cl);
    for (Index j = 0; j < cl; ++j) origin[j * padded + i] = own[j];
  }
  const Index reach = begin + n;
  for (Index s = 0; s < reach; ++s) {
    const Index skip = std::max<Index>(0, s - begin);  // queries before the source
    const Index end = shape.window > 0 ? std::clamp<Index>(s + shape.window - begin, skip, n) : n;
    std::fill(weight.begin(), weight.end(), T(0));
    std::fill(weight.begin() + skip, weight.begin() + end, T(1));
    std::fill(pair.begin(), pair.end(), 0.0);
    std::fill(most.begin(), most.end(), T(0));
    const T* below = extras.below ? extras.below->scaled.data() + 2 * s * cl : nullptr;
    if (end > skip) {
      const Index at = skip / kPanelColumns * kPanelColumns;
      pair_sums(PairProduct<T>{
          cl, padded_columns(end) - at, e, block.keys + s * cl * e, e, queries.data() + at * e,
          pair.data() + at, pair.data() + padded + at, weight.data() + at, origin + at, first + at,
          first + places + at, padded, table ? scores.data() + at : nullptr, below,
          below ? below + cl : nullptr, pair.data() + 2 * padded + at, most.data() + at});
    }
    if (table != nullptr) {
      for (Index i = skip; i < n; ++i) {
        T* to = table + (block.head * tri(length) + tri(begin + i) + s) * cl;
        rows[i] = to;
        if (i >= end) std::fill_n(to, cl, T(0));  // outside the window
      }
      if constexpr (sizeof(T) == sizeof(float))
        turn_rows(scores.data() + skip, padded, cl, end - skip, rows.data() + skip);
    }
    for (Index i = skip; i < n; ++i) {
      const Index to = block.head * tri(length) + tri(begin + i) + s;
      ptr(sums.k_sum)[to] = i < end ? pair[i] : T(0);
      ptr(sums.k_abs)[to] = i < end ? pair[padded + i] : T(0);
      if (extras.reach == nullptr) continue;
      const auto place = static_cast<std::size_t>(to), column = static_cast<std::size_t>(i);
      extras.reach->mass[place] = i < end ? pair[(2 * padded) + column] : 0.0F;
      extras.reach->bound[place] = i < end ? most[column] : 0.0F;
    }
    if (s % kSources != kSources - 1 && s != reach - 1) continue;
    for (std::size_t i = 0; i < moments.size(); ++i) moments[i] += first[i];
    std::fill_n(first, 2 * places, T(0));
  }
  for (Index i = 0; i < n; ++i) {
    const Index q = begin + i, at = (block.head * length + q) * cl;
    const double seen = q + 1 - shape.first_source(q);
    for (Index j = 0; j < cl; ++j) {
      const std::size_t place = j * padded + i;
      const double away = moments[place] / seen;
      const double square = moments[place + places] / seen;
      ptr(sums.k_mean)[at + j] = origin[place] + away;
      ptr(sums.k_std)[at + j] = std::sqrt(std::max(0.0, square - away * away));
    }
  }
}

template <typename T>
typename HostPairSums<T>::Weighed HostPairSums<T>::weighed(const AttentionView& view,
                                                           std::span<const double> mass,
                                                           std::span<const double> bound) {
  const Index cl = view.visible, length = view.length;
  Weighed out{std::vector<T>(2 * length * cl), std::vector<double>(2 * length)};
  for (Index i = 0; i < 2 * length; ++i) {
    const double* from = (i % 2 == 0 ? mass : bound).data() + i / 2 * view.n_writers;
    const double most = *std::max_element(from, from + cl);
    out.unit[i] = most;
    for (Index j = 0; j < cl; ++j) out.scaled[i * cl + j] = most > 0 ? from[j] / most : T(0);
  }
  return out;
}

template <typename T>
bool HostPairSums<T>::visit_key_reach(const AttentionView& view, std::span<const double> mass,
                                      std::span<const double> bound,
                                      const Backend::ReachVisitor& visit) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (this->folds(view)) return false;
    const Index e = config_.d_head, heads = config_.n_heads, cl = view.visible;
    const LayerConfig& shape = config_.layer(view.layer);
    const Weighed below = weighed(view, mass, bound);
    each_key_block(view, [&](const KeyBlock& block) {
      const Index n = block.n, begin = block.begin, padded = padded_columns(n);
      const Index reach = begin + n;
      std::vector<T> queries(e * padded), most(padded);
      std::vector<double> sum(padded), rows(2 * n * reach, 0.0);
      pack_columns(true, e, n, ptr(*view.q) + (begin * heads + block.head) * e, heads * e,
                   queries.data());
      for (Index s = 0; s < reach; ++s) {
        const Index skip = std::max<Index>(0, s - begin);
        const Index end =
            shape.window > 0 ? std::clamp<Index>(s + shape.window - begin, skip, n) : n;
        if (end == skip) continue;
        const Index at = skip / kPanelColumns * kPanelColumns;
        std::fill(sum.begin(), sum.end(), 0.0);
        std::fill(most.begin(), most.end(), T(0));
        reach_sums({cl, padded_columns(end) - at, e, block.keys + s * cl * e, e,
                    queries.data() + at * e, below.scaled.data() + 2 * s * cl,
                    below.scaled.data() + (2 * s + 1) * cl, sum.data() + at, most.data() + at});
        for (Index i = skip; i < end; ++i) {
          const std::size_t column = i;
          rows[2 * i * reach + s] = static_cast<float>(sum[column]) * below.unit[2 * s];
          rows[(2 * i + 1) * reach + s] = most[column] * below.unit[2 * s + 1];
        }
      }
      for (Index i = 0; i < n; ++i)
        visit(block.head, begin + i, rows.data() + 2 * i * reach,
              rows.data() + (2 * i + 1) * reach);
    });
    this->passed(view.layer);
    return true;
  }
  return false;
}

template <typename T>
void HostPairSums<T>::query_sums(const AttentionView& view, AttentionSums& sums) {
  if constexpr (sizeof(T) == sizeof(float)) {
    const auto w = layer(view.layer);
    const Index e = config_.d_head, cl = view.visible, length = view.length;
    const Index groups = config_.n_kv_heads, reach = padded_columns(length);
    const auto rope = rotary(view.layer, view.length, view.length);
    const bool low_rank = this->plan_of(view.layer, view.length).queries.low_rank();
    const LayerConfig& shape = config_.layer(view.layer);
    std::vector<T> keys(groups * e * reach);  // [G][panels of sources]
    pool_.parallel_for(groups, [&](Index g) {
      pack_columns(true, e, length, ptr(*view.k) + g * e, groups * e, keys.data() + g * e * reach);
    });
    Array own;
    for (Index p = 0; p < w->matrix(model::Role::w_q).count(); ++p) {
      this->projected(view, w->matrix(model::Role::w_q), p, low_rank,
                      this->query_pull(view, *w, rope.get()), own);
      const Index in_panel = w->matrix(model::Role::w_q).columns(p) / e,
                  first = w->matrix(model::Role::w_q).begin(p) / e;
      pool_.parallel_for(length * in_panel, [&](Index task) {
        const Index q = length - 1 - task / in_panel;
        const Index i = task % in_panel, h = first + i;
        const Index from = shape.first_source(q);
        const Index at = from / kPanelColumns * kPanelColumns;
        const Index columns = padded_columns(q + 1) - at;
        std::vector<double> pair(2 * columns, 0.0);
        pair_sums(PairProduct<T>{cl, columns, e, ptr(own) + (i * length + q) * cl * e, e,
                                 keys.data() + h / config_.group_size() * e * reach + at * e,
                                 pair.data(), pair.data() + columns});
        for (Index s = 0; s <= q; ++s) {
          const Index to = h * tri(length) + tri(q) + s;
          const std::size_t column = s - at;
          ptr(sums.q_sum)[to] = s < from ? T(0) : pair[column];
          ptr(sums.q_abs)[to] = s < from ? T(0) : pair[column + columns];
        }
      });
    }
    this->passed(view.layer);
  }
}

template class HostPairSums<float>;

}  // namespace unpack::backend
