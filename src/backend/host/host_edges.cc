// Direction `read`: what the heads of a layer pass on, edge by edge.
#include <algorithm>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "base/index.h"

namespace unpack::backend {

namespace {

constexpr Index kSourceBlock = 64;
constexpr Index kAhead = 6, kLine = 64 / sizeof(float);  // of prefetching

}  // namespace

// norm(c_j)(s) W, [count, W.out]: as the readers' heads see these writers before rotary.
template <typename T>
void HostEdges<T>::project_writers(const AttentionView& view, const Panels<T>& w, const Sources& of,
                                   T* out) {
  const Index d = config_.d_model;
  const T* writers = ptr(*view.writers) + (of.position * view.n_writers + of.first) * d;
  for (Index p = 0; p < w.count(); ++p)
    gemm(false, of.count, w.columns(p), d, writers, d, w.panel(p), w.columns(p), false,
         out + w.begin(p), w.out);
  const T inverse = T(1) / ptr(*view.dev)[of.position];
  for (Index i = 0; i < of.count * w.out; ++i) out[i] *= inverse;
}

// Their keys as queries meet them: with the norm of keys, rotary and the attention's scale.
template <typename T>
void HostEdges<T>::project_keys(const AttentionView& view, const RolePanels<T>& w,
                                const Panels<T>& k, const RotaryTable* rope, const Sources& of,
                                T* out) {
  const Index groups = config_.n_kv_heads, e = config_.d_head;
  project_writers(view, k, of, out);
  const T scale = config_.layer(view.layer).attention_scale;
  for (Index j = 0; j < of.count; ++j) {
    for (Index g = 0; g < groups; ++g) {
      T* key = out + (j * groups + g) * e;
      if (w.vector(model::Role::k_norm).empty()) {
        for (Index i = 0; i < e; ++i) key[i] *= scale;
      } else {
        const T inverse = scale / ptr(*view.k_dev)[of.position * groups + g];
        for (Index i = 0; i < e; ++i) key[i] *= w.vector(model::Role::k_norm)[g * e + i] * inverse;
      }
      if (rope != nullptr) this->rotate(*rope, of.position, key, false);
    }
  }
}

// tile[queries, count] = < from[q, h], projected[j] >
template <typename T>
void HostEdges<T>::products_with(const T* from, Index head, const Queries& queries,
                                 const Sources& of, const T* projected, T* tile) {
  const Index heads = config_.n_heads, e = config_.d_head;
  if (of.count == 1) {
    const T* to = projected + head / config_.group_size() * e;
    for (Index i = 0; i < queries.count; ++i)
      tile[i] = dot(e, from + ((queries.first + i) * heads + head) * e, to);
    return;
  }
  gemm(true, queries.count, of.count, e, from + (queries.first * heads + head) * e, heads * e,
       projected + head / config_.group_size() * e, config_.n_kv_heads * e, false, tile, of.count);
}

// tile[queries, count] = cK_s(q) (sK_j(q, s) - offset_j(q)); projected are needed only where scores
// are not kept.
template <typename T>
void HostEdges<T>::key_rows(const AttentionView& view, const HeadReads& reads,
                            const KeyOffsets& offsets, Index head, const Queries& queries,
                            const Sources& of, const T* projected, T* tile) {
  const Index length = view.length, cl = view.visible, s = of.position;
  const bool kept = !offsets.scores.empty();
  if (!kept) products_with(ptr(*view.q), head, queries, of, projected, tile);
  const Array& taken = kept ? offsets.kept : offsets.raw;
  for (Index i = 0; i < queries.count; ++i) {
    const Index q = queries.first + i, pair = head * tri(length) + tri(q) + s;
    const T factor = ptr(reads.key_coef)[pair];
    T* row = tile + i * of.count;
    const T* scores = kept ? ptr(offsets.scores) + pair * cl + of.first : row;
    if (kept) {  // rows of later queries lie far apart: ask for them in time
      const T* later = scores + (tri(q + kAhead) - tri(q)) * cl;
      for (Index j = 0; i + kAhead < queries.count && j < of.count; j += kLine)
        __builtin_prefetch(later + j);
    }
    if (taken.empty()) {
      for (Index j = 0; j < of.count; ++j) row[j] = factor * scores[j];
    } else {
      const T* offset = ptr(taken) + (head * length + q) * cl + of.first;
      for (Index j = 0; j < of.count; ++j) row[j] = factor * (scores[j] - offset[j]);
    }
  }
}

// tile[queries, count] = alpha[h, q, s] < value direction of q, value of j >
template <typename T>
void HostEdges<T>::value_rows(const AttentionView& view, const HeadReads& reads, Index head,
                              const Queries& queries, const Sources& of, const T* projected,
                              T* tile) {
  products_with(ptr(reads.value), head, queries, of, projected, tile);
  for (Index i = 0; i < queries.count; ++i) {
    const T alpha =
        ptr(*view.pattern)[head * tri(view.length) + tri(queries.first + i) + of.position];
    for (Index j = 0; j < of.count; ++j) tile[i * of.count + j] *= alpha;
  }
}

// What heads read by rows[S, H, E] of theirs at positions begin .. begin + n - 1, as vectors over
// the stream, [n, H, D].
template <typename T>
std::vector<T> HostEdges<T>::to_model(const Panels<T>& w, bool grouped, const T* rows, Index begin,
                                      Index n) {
  const Index heads = config_.n_heads, e = config_.d_head, d = config_.d_model;
  std::vector<T> out(n * heads * d);
  if (n == 0) return out;
  pool_.parallel_for(heads, [&](Index h) {
    const int column = grouped ? h / config_.group_size() : h;
    this->head_to_model(w, column, rows + (begin * heads + h) * e, heads * e, n, out.data() + h * d,
                        heads * d);
  });
  return out;
}

template <typename T>
Array HostEdges<T>::writer_values(const AttentionView& view) {
  const auto w = layer(view.layer);
  const Index cl = view.visible;
  Array out = uninitialized(view.length * cl * w->matrix(model::Role::w_v).out);
  const auto v = this->widened(w->matrix(model::Role::w_v));
  pool_.parallel_for(view.length, [&](Index s) {
    project_writers(view, *v, {s, 0, view.visible},
                    ptr(out) + s * cl * w->matrix(model::Role::w_v).out);
  });
  return out;
}

template <typename T>
Array HostEdges<T>::writer_keys(const AttentionView& view) {
  const auto w = layer(view.layer);
  const Index cl = view.visible;
  const auto rope = rotary(view.layer, view.length, view.length);
  Array out = uninitialized(view.length * cl * w->matrix(model::Role::w_k).out);
  const auto k = this->widened(w->matrix(model::Role::w_k));
  pool_.parallel_for(view.length, [&](Index s) {
    project_keys(view, *w, *k, rope.get(), {s, 0, view.visible},
                 ptr(out) + s * cl * w->matrix(model::Role::w_k).out);
  });
  return out;
}

// What heads read by their queries: products with the writers at their own position.
template <typename T>
void HostEdges<T>::keep_for_edges(const AttentionView& view, HeadReads& reads) {
  const auto w = layer(view.layer);
  const Index heads = config_.n_heads, d = config_.d_model, cl = view.visible,
              used = reads.last + 1;
  reads.query_edges = this->zeros(view.length * heads * cl);
  for (Index begin = 0; begin < used; begin += kSourceBlock) {
    const Index n = std::min(kSourceBlock, used - begin);
    const std::vector<T> queries =
        to_model(w->matrix(model::Role::w_q), false, ptr(reads.query), begin, n);
    pool_.parallel_for(n, [&](Index i) {
      const Index s = begin + i;
      T* to = ptr(reads.query_edges) + s * heads * cl;
      gemm(true, heads, cl, d, queries.data() + i * heads * d, d,
           ptr(*view.writers) + s * view.n_writers * d, d, false, to, cl);
      const T inverse = T(1) / ptr(*view.dev)[s];
      for (Index j = 0; j < heads * cl; ++j) to[j] *= inverse;
    });
  }
}

template <typename T>
void HostEdges<T>::visit_edges(const AttentionView& view, const HeadReads& reads,
                               const KeyOffsets& offsets, const EdgeVisitor& visit) {
  const auto w = layer(view.layer);
  const Index heads = config_.n_heads, e = config_.d_head, d = config_.d_model,
              used = reads.last + 1;
  const int cl = view.visible;
  const auto rope = rotary(view.layer, view.length, view.length);
  // Few queries see the last sources: a vector over the stream for each costs less than the values
  // of all writers, where these are not kept.
  const Index few = !reads.values.empty() ? 0
                    : d > e
                        ? std::min(used, w->matrix(model::Role::w_v).out * d / (heads * (d - e)))
                        : used;
  const auto k = reads.keys.empty() && offsets.scores.empty()
                     ? this->widened(w->matrix(model::Role::w_k))
                     : nullptr;
  const auto v = reads.values.empty() ? this->widened(w->matrix(model::Role::w_v)) : nullptr;
  const std::vector<T> directions =
      v == nullptr ? std::vector<T>() : to_model(*v, true, ptr(reads.value), used - few, few);
  pool_.parallel_for(used, [&](Index s) {
    const Sources all{s, 0, cl};
    const Index n = used - s;
    const T* writers = ptr(*view.writers) + s * view.n_writers * d;
    const T inverse = T(1) / ptr(*view.dev)[s];
    std::vector<T> projected(static_cast<std::size_t>(cl) * w->matrix(model::Role::w_k).out);
    std::vector<T> tile(static_cast<std::size_t>(n) * cl);
    const auto show = [&](Index h, Branch branch, const Queries& of, const T* credit) {
      visit({static_cast<int>(s), static_cast<int>(h), branch, static_cast<int>(of.first),
             static_cast<int>(of.count), credit});
    };
    const T* keys = kept_of(reads.keys, cl, s, 0);
    if (offsets.scores.empty() && keys == nullptr) {
      project_keys(view, *w, *k, rope.get(), all, projected.data());
      keys = projected.data();
    }
    for (Index h = 0; h < heads; ++h) {
      const Queries of = queries_from(reads, h, s);
      if (of.count == 0) continue;
      key_rows(view, reads, offsets, h, of, all, keys, tile.data());
      show(h, Branch::K, of, tile.data());
    }
    const bool fold = n <= few;
    const T* values = kept_of(reads.values, cl, s, 0);
    std::vector<T> products(fold ? n * heads * cl : 0);
    if (fold) {
      gemm(true, n * heads, cl, d, directions.data() + (few - n) * heads * d, d, writers, d, false,
           products.data(), cl);
    } else if (values == nullptr) {
      project_writers(view, *v, all, projected.data());
      values = projected.data();
    }
    for (Index h = 0; h < heads; ++h) {
      const Queries of = queries_from(reads, h, s);
      if (of.count == 0) continue;
      for (Index i = 0; fold && i < of.count; ++i) {
        const Index q = of.first + i;
        const T factor = inverse * ptr(*view.pattern)[h * tri(view.length) + tri(q) + s];
        const T* from = products.data() + ((q - s) * heads + h) * cl;
        for (Index c = 0; c < cl; ++c) tile[i * cl + c] = factor * from[c];
      }
      if (!fold) value_rows(view, reads, h, of, all, values, tile.data());
      show(h, Branch::V, of, tile.data());
    }
    for (Index h = 0; h < heads; ++h) {
      const Queries of = queries_from(reads, h, s);
      if (of.first == s && of.count > 0)
        show(h, Branch::Q, {s, 1}, ptr(reads.query_edges) + (s * heads + h) * cl);
    }
  });
}

template <typename T>
ReadOps::EdgesFrom HostEdges<T>::edges_from(const AttentionView& view, const HeadReads& reads,
                                            const KeyOffsets& offsets, int head, int query) {
  const auto w = layer(view.layer);
  const Index cl = view.visible;
  EdgesFrom out;
  out.k.assign(view.length * cl, 0.0);
  out.q = out.v = out.k;
  const auto rope = rotary(view.layer, view.length, view.length);
  const auto k = reads.keys.empty() && offsets.scores.empty()
                     ? this->widened(w->matrix(model::Role::w_k))
                     : nullptr;
  const auto v = reads.values.empty() ? this->widened(w->matrix(model::Role::w_v)) : nullptr;
  pool_.parallel_for(query + 1, [&](Index s) {
    const Sources all{s, 0, view.visible};
    std::vector<T> projected(cl * w->matrix(model::Role::w_k).out);
    std::vector<T> tile(cl);
    const auto put = [&](std::vector<double>& to) {
      std::copy(tile.begin(), tile.end(), to.begin() + s * cl);
    };
    const T* keys = kept_of(reads.keys, view.visible, s, 0);
    if (offsets.scores.empty() && keys == nullptr) {
      project_keys(view, *w, *k, rope.get(), all, projected.data());
      keys = projected.data();
    }
    key_rows(view, reads, offsets, head, {query, 1}, all, keys, tile.data());
    put(out.k);
    const T* values = kept_of(reads.values, view.visible, s, 0);
    if (values == nullptr) {
      project_writers(view, *v, all, projected.data());
      values = projected.data();
    }
    value_rows(view, reads, head, {query, 1}, all, values, tile.data());
    put(out.v);
    if (s != query) return;
    std::copy_n(ptr(reads.query_edges) + (s * config_.n_heads + head) * cl, cl, tile.begin());
    put(out.q);
  });
  return out;
}

template <typename T>
std::vector<ReadOps::EdgesInto> HostEdges<T>::edges_into(std::span<const LayerReads> layers,
                                                         int writer, int source) {
  std::vector<EdgesInto> out(layers.size());
  pool_.parallel_for(layers.size(), [&](Index i) {
    const LayerReads& from = layers[i];
    out[i] = edges_into(from.view, *from.reads, *from.offsets, writer, source);
  });
  return out;
}

template <typename T>
ReadOps::EdgesInto HostEdges<T>::edges_into(const AttentionView& view, const HeadReads& reads,
                                            const KeyOffsets& offsets, int writer, int source) {
  const auto w = layer(view.layer);
  const Index heads = config_.n_heads;
  EdgesInto out;
  out.queries = std::max(0, reads.last + 1 - source);
  if (out.queries == 0) return out;
  const Sources one{source, writer, 1};
  const auto rope = rotary(view.layer, view.length, view.length);
  std::vector<T> projected(w->matrix(model::Role::w_k).out);
  // Most heads of a root's own layer pass nothing on.
  std::vector<T> tile;
  const auto each_head = [&](std::vector<double>& to, const auto& rows) {
    for (Index h = 0; h < heads; ++h) {
      const Queries of = queries_from(reads, h, source);
      tile.assign(out.queries, T(0));
      if (of.count > 0) rows(h, of, tile.data() + of.first - source);
      to.insert(to.end(), tile.begin(), tile.end());
    }
  };
  const T* keys = kept_of(reads.keys, view.visible, source, writer);
  if (offsets.scores.empty() && keys == nullptr) {
    project_keys(view, *w, w->matrix(model::Role::w_k), rope.get(), one, projected.data());
    keys = projected.data();
  }
  each_head(out.k, [&](Index h, const Queries& of, T* to) {
    key_rows(view, reads, offsets, h, of, one, keys, to);
  });
  const T* values = kept_of(reads.values, view.visible, source, writer);
  if (values == nullptr) {
    project_writers(view, w->matrix(model::Role::w_v), one, projected.data());
    values = projected.data();
  }
  each_head(out.v, [&](Index h, const Queries& of, T* to) {
    value_rows(view, reads, h, of, one, values, to);
  });
  for (Index h = 0; h < heads; ++h)
    out.q.push_back(ptr(reads.query_edges)[(source * heads + h) * view.visible + writer]);
  return out;
}

template class HostEdges<float>;

}  // namespace unpack::backend
