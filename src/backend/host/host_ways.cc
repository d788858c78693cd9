// Direction `read`: the ways down to every writer, over all edges of a layer's heads without
// writing one of them.
#include <algorithm>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "base/index.h"

namespace unpack::backend {

namespace {

constexpr Index kSourcesOfTask = 16;  // of a task: coefficients of pairs come a cache line at once

}  // namespace

// What all sources of a layer share, in the order in which the products want it.
template <typename T>
struct HostWays<T>::Shared {
  Index columns = 0;               // queries, in whole panels
  std::vector<T> queries, values;  // [H] panels of queries, and of directions of values
  std::vector<T> offsets;          // [H, Cl, columns] or empty
  std::vector<T> bounds;           // [2, H, columns] of ways that go on by K and by V
};

template <typename T>
typename HostWays<T>::Shared HostWays<T>::shared_by_sources(const AttentionView& view,
                                                            const HeadReads& reads,
                                                            const KeyOffsets& offsets,
                                                            const WaysAbove& above) {
  const Index heads = config_.n_heads, e = config_.d_head, length = view.length, cl = view.visible,
              used = reads.last + 1;
  Shared out;
  out.columns = padded_columns(used);
  const Index panels = e * out.columns;
  out.queries.resize(heads * panels);
  out.values.resize(out.queries.size());
  out.bounds.assign(2 * heads * out.columns, T(0));
  if (!offsets.raw.empty()) out.offsets.assign(heads * cl * out.columns, T(0));
  pool_.parallel_for(heads, [&](Index h) {
    pack_columns(true, e, used, ptr(*view.q) + h * e, heads * e, out.queries.data() + h * panels);
    pack_columns(true, e, used, ptr(reads.value) + h * e, heads * e,
                 out.values.data() + h * panels);
    for (Index q = 0; q < used; ++q) {
      for (const Index branch : {0, 1})  // of K, Q, V the first and the last
        out.bounds[(branch * heads + h) * out.columns + q] =
            above.bound[(2 * branch * heads + h) * length + q];
      if (out.offsets.empty()) continue;
      const T* from = ptr(offsets.raw) + (h * length + q) * cl;
      T* to = out.offsets.data() + h * cl * out.columns + q;
      for (Index j = 0; j < cl; ++j) to[j * out.columns] = from[j];
    }
  });
  return out;
}

template <typename T>
bool HostWays<T>::pass_ways(const AttentionView& view, const HeadReads& reads,
                            const KeyOffsets& offsets, const WaysAbove& above, WaysBelow& below) {
  if constexpr (sizeof(T) == sizeof(float)) {
    // Of short prompts the scores of keys are there already.
    if (above.filtered || above.slots > 1 || (reads.keys.empty() && !offsets.scores.empty()))
      return false;
    const auto w = layer(view.layer);
    const Index heads = config_.n_heads, e = config_.d_head, length = view.length,
                cl = view.visible, used = reads.last + 1, group = config_.group_size(),
                row = config_.n_kv_heads * e, ends = above.terminals;
    below.sum.assign(length * cl, 0.0);
    below.bound = below.sum;
    below.end_bound.assign(2 * length * ends, 0.0);
    if (used == 0) return true;
    const Shared shared = shared_by_sources(view, reads, offsets, above);
    const Index columns = shared.columns, panels = e * columns;
    const auto rope = rotary(view.layer, view.length, view.length);
    const bool projects = reads.keys.empty() || reads.values.empty();
    const auto k = reads.keys.empty() ? this->widened(w->matrix(model::Role::w_k)) : nullptr;
    const auto v = reads.values.empty() ? this->widened(w->matrix(model::Role::w_v)) : nullptr;
    pool_.parallel_for((used + kSourcesOfTask - 1) / kSourcesOfTask, [&](Index task) {
      const Index first = task * kSourcesOfTask, n = std::min(kSourcesOfTask, used - first);
      std::vector<T> factors(2 * n * heads * columns, T(0));
      const auto factor = [&](Index branch, Index h, Index s) {
        return factors.data() + ((branch * heads + h) * n + s - first) * columns;
      };
      for (Index h = 0; h < heads; ++h) {
        const auto [begin, count] = queries_from(reads, h, first);
        for (Index q = begin; q < begin + count; ++q) {
          const Index pair = h * tri(length) + tri(q);
          for (Index s = first; s < std::min(first + n, q + 1); ++s) {
            factor(0, h, s)[q] = ptr(reads.key_coef)[pair + s];
            factor(1, h, s)[q] = ptr(*view.pattern)[pair + s];
          }
        }
      }
      std::vector<T> keys(projects ? cl * row : 0), values = keys, most(cl);
      for (Index s = first; s < first + n; ++s) {
        const Sources all{s, 0, view.visible};
        if (reads.keys.empty()) this->project_keys(view, *w, *k, rope.get(), all, keys.data());
        if (reads.values.empty()) this->project_writers(view, *v, all, values.data());
        const T* own_keys = reads.keys.empty() ? keys.data() : ptr(reads.keys) + s * cl * row;
        const T* own_values =
            reads.values.empty() ? values.data() : ptr(reads.values) + s * cl * row;
        double* sum = below.sum.data() + s * cl;
        std::fill(most.begin(), most.end(), T(0));
        for (Index h = 0; h < heads; ++h) {
          const auto [begin, count] = queries_from(reads, h, s);
          if (count == 0) continue;
          const auto products = [&](Index branch, const T* written, const T* read, const T* taken) {
            edge_sums({cl, begin, begin + count, e, written + h / group * e, row, read + h * panels,
                       factor(branch, h, s), shared.bounds.data() + (branch * heads + h) * columns,
                       taken, columns, sum, most.data()});
          };
          products(0, own_keys, shared.queries.data(),
                   shared.offsets.empty() ? nullptr : shared.offsets.data() + h * cl * columns);
          products(1, own_values, shared.values.data(), nullptr);
          if (begin != s) continue;
          const T* query = ptr(reads.query_edges) + (s * heads + h) * cl;
          const T reach = above.bound[(heads + h) * length + s];
          for (Index j = 0; j < cl; ++j) {
            const T size = std::fabs(query[j]);
            sum[j] += size;
            T& largest = most[j];
            largest = std::max(largest, size * reach);
          }
        }
        std::copy(most.begin(), most.end(), below.bound.begin() + s * cl);
        std::copy_n(most.begin(), std::min(ends, cl), below.end_bound.begin() + s * ends);
      }
    });
    return true;
  }
  return false;
}

template class HostWays<float>;

}  // namespace unpack::backend
