// Raw scores of keys and queries, a row block at a time: folded into the stream or projected,
// as the plan of the length says.
#include <algorithm>
#include <cmath>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "base/index.h"

namespace unpack::backend {

namespace {

// Of one thread's scores, so that they stay in its cache.
constexpr Index kTileBytes = Index{2} << 20;

}  // namespace

// Keys and queries
// -------------------------------------------------------------------------------------------------

template <typename T>
void HostPairs<T>::PullBack::operator()(Index position, Index head, T* u) const {
  if (table != nullptr) HostBase<T>::rotate(*table, position, u, true);
  if (norm.empty()) return;
  const T inverse = T(1) / dev[position * heads + head];
  for (Index i = 0; i < e; ++i) u[i] *= norm[head * e + i] * inverse;
}

template <typename T>
typename HostPairs<T>::PullBack HostPairs<T>::key_pull(const AttentionView& view,
                                                       const RolePanels<T>& w,
                                                       const RotaryTable* table) {
  return {table, w.vector(model::Role::k_norm), view.k_dev ? ptr(*view.k_dev) : nullptr,
          config_.n_kv_heads, config_.d_head};
}

template <typename T>
typename HostPairs<T>::PullBack HostPairs<T>::query_pull(const AttentionView& view,
                                                         const RolePanels<T>& w,
                                                         const RotaryTable* table) {
  return {table, w.vector(model::Role::q_norm), view.q_dev ? ptr(*view.q_dev) : nullptr,
          config_.n_heads, config_.d_head};
}

template <typename T>
bool HostPairs<T>::folds(const AttentionView& view) const {
  return this->plan_of(view.layer, view.length).keys.way == Way::folded;
}

// Sources outside the window have no scores.
template <typename T>
void HostPairs<T>::hide(const AttentionView& view, int query, T* rows) const {
  std::fill_n(rows, config_.layer(view.layer).first_source(query) * Index{view.visible}, T(0));
}

// table[H, tri, Cl]: sK_j(q, s) = g / dev(s) < c_j(s), W_K n_K R_s^-1 q(q) >, a vector in D for
// every pair.
template <typename T>
void HostPairs<T>::folded_keys(const AttentionView& view, const RolePanels<T>& w, T* table) {
  const int heads = config_.n_heads;
  const Index e = config_.d_head;
  const Index d = config_.d_model;
  const Index cl = view.visible;
  const int length = view.length;
  const auto rope = rotary(view.layer, length, length);
  const PullBack pull = key_pull(view, w, rope.get());
  const bool per_source = pull.changes();
  const double scale = config_.layer(view.layer).attention_scale;
  const auto k = widened(w.matrix(model::Role::w_k));
  const auto vectors = [&](int s, T* scratch, T* out) {  // out[length - s, H, D]
    const Index n = length - s;
    for (int h = 0; h < heads; ++h) {
      const int g = h / config_.group_size();
      for (Index i = 0; i < n; ++i) {
        T* u = scratch + i * e;
        std::copy_n(ptr(*view.q) + ((s + i) * heads + h) * e, e, u);
        pull(s, g, u);
      }
      head_to_model(*k, g, scratch, e, n, out + h * d, heads * d);
    }
  };
  Array shared;  // [S, H, D] where a query looks the same from every source
  if (!per_source) {
    shared = uninitialized(static_cast<Index>(heads) * length * d);
    pool_.parallel_for(heads, [&](Index h) {
      head_to_model(*k, h / config_.group_size(), ptr(*view.q) + h * e, heads * e, length,
                    ptr(shared) + h * d, heads * d);
    });
  }
  pool_.parallel_for(length, [&](Index s) {
    const Index n = length - s;
    std::vector<T> own;
    if (per_source) {
      own.resize(heads * n * d);
      std::vector<T> scratch(n * e);
      vectors(s, scratch.data(), own.data());
    }
    base::Scratch made;
    T* scores = made.of<T>(heads * n * cl);
    gemm(true, heads * n, cl, d, per_source ? own.data() : ptr(shared) + s * heads * d, d,
         ptr(*view.writers) + s * view.n_writers * d, d, false, scores, cl);
    const T factor = scale / ptr(*view.dev)[s];
    for (Index i = 0; i < n; ++i) {
      for (Index h = 0; h < heads; ++h) {
        T* to = table + (h * tri(length) + tri(s + i) + s) * cl;
        const T* from = scores + (i * heads + h) * cl;
        for (Index j = 0; j < cl; ++j) to[j] = from[j] * factor;
      }
    }
  });
}

template <typename T>
void HostPairs<T>::folded_queries(const AttentionView& view, const RolePanels<T>& w,
                                  const Rows& rows) {
  // sQ_j(q, s) = g / dev(q) < c_j(q), W_Q n_Q R_q^-1 k(s) >
  const int heads = config_.n_heads;
  const Index e = config_.d_head;
  const Index d = config_.d_model;
  const Index cl = view.visible;
  const auto rope = rotary(view.layer, view.length, view.length);
  const PullBack pull = query_pull(view, w, rope.get());
  const bool per_query = pull.changes();
  const double scale = config_.layer(view.layer).attention_scale;
  const auto w_q = widened(w.matrix(model::Role::w_q));
  const auto fold = [&](int h, Index query, Index n,
                        T* out) {  // out[n, H, D], one head of it
    const int g = h / config_.group_size();
    base::Scratch before;
    T* scratch = before.of<T>(n * e);
    for (Index s = 0; s < n; ++s) {
      T* u = scratch + s * e;
      std::copy_n(ptr(*view.k) + (s * config_.n_kv_heads + g) * e, e, u);
      if (per_query) pull(query, h, u);
    }
    head_to_model(*w_q, h, scratch, e, n, out + h * d, heads * d);
  };
  Array shared;  // [S, H, D] where a key looks the same from every query
  if (!per_query) {
    shared = uninitialized(static_cast<Index>(heads) * view.length * d);
    pool_.parallel_for(heads, [&](Index h) { fold(h, 0, view.length, ptr(shared)); });
  }
  pool_.parallel_for(view.length, [&](Index at) {
    const Index q = view.length - 1 - at;  // the longest first
    const Index n = q + 1;
    std::vector<T> own(per_query ? heads * n * d : 0);
    for (int h = 0; per_query && h < heads; ++h) fold(h, q, n, own.data());
    base::Scratch made;
    T* scores = made.of<T>(2 * heads * n * cl);
    T* by_head = scores + heads * n * cl;
    gemm(true, heads * n, cl, d, per_query ? own.data() : ptr(shared), d,
         ptr(*view.writers) + q * view.n_writers * d, d, false, scores, cl);
    const T factor = scale / ptr(*view.dev)[q];
    for (Index s = 0; s < n; ++s) {
      for (Index h = 0; h < heads; ++h) {
        const T* from = scores + (s * heads + h) * cl;
        T* to = by_head + (h * n + s) * cl;
        for (Index j = 0; j < cl; ++j) to[j] = from[j] * factor;
      }
    }
    for (int h = 0; h < heads; ++h) {
      hide(view, q, by_head + h * n * cl);
      rows(h, q, by_head + h * n * cl);
    }
  });
}

template <typename T>
void HostPairs<T>::projected(const AttentionView& view, const Panels<T>& w, Index p, bool low_rank,
                             const PullBack& forth, Array& out) {
  constexpr Index kPositions = 192, kWriters = 16;
  const Index e = config_.d_head, d = config_.d_model, cl = view.visible;
  const Index length = view.length, columns = w.columns(p), heads = columns / e;
  const Index first = w.begin(p) / e;
  const Index padded = padded_columns(columns);
  const double scale = config_.layer(view.layer).attention_scale;
  // A head's columns that fill panels go where they belong at once.
  const bool straight = e % kPanelColumns == 0;
  Array products;
  if (low_rank) {
    const int sources = source_layers(writers_, view.visible);
    products =
        this->passing(this->product_size(w, sources), this->product_size(w, config_.n_layers));
    this->make_products(w, sources, p, 1, ptr(products));
  }
  if (out.size() < heads * length * cl * e)
    out = this->passing(heads * length * cl * e, heads * length * writers_.count() * e);
  const Index blocks = (length + kPositions - 1) / kPositions;
  const Index groups = (cl + kWriters - 1) / kWriters;
  const Panel<T> panel = w.panel(p);
  pool_.parallel_for(blocks * groups, [&](Index task) {
    const Index begin = task / groups * kPositions;
    const Index n = std::min(kPositions, length - begin);
    base::Scratch tiles, factors, packed;
    T* tile = tiles.of<T>(straight ? 0 : n * padded);
    T* factor = factors.of<T>(n);
    for (Index i = 0; i < n; ++i) factor[i] = scale / ptr(*view.dev)[begin + i];
    const InPanels<T> whole = this->in_panels(panel, d, columns, packed);
    for (Index j = task % groups * kWriters; j < std::min(cl, (task % groups + 1) * kWriters);
         ++j) {
      const Writer& writer = writers_[j];
      PackedProduct<T> product{n,
                               padded,
                               d,
                               ptr(*view.writers) + (begin * view.n_writers + j) * d,
                               view.n_writers * d,
                               whole,
                               false,
                               tile,
                               padded,
                               kPanelColumns,
                               factor};
      if (low_rank) this->through_weights(view.z, writer, begin, ptr(products), padded, product);
      const auto place = [&](Index g, Index i) {
        return ptr(out) + ((g * length + begin + i) * cl + j) * e;
      };
      if (straight) {
        PackedProduct<T> one = product;
        one.columns = e;
        one.ldc = cl * e;
        for (Index g = 0; g < heads; ++g) {
          one.b = product.b.from_panel(g * (e / kPanelColumns));
          one.c = place(g, 0);
          packed_product(one);
        }
      } else {
        packed_product(product);
      }
      for (Index i = 0; i < n; ++i) {
        const Index s = begin + i;
        for (Index g = 0; g < heads; ++g) {
          T* to = place(g, i);
          if (!straight) std::copy_n(tile + i * padded + g * e, e, to);
          if (!forth.norm.empty()) {
            const T inverse = T(1) / forth.dev[s * forth.heads + first + g];
            for (Index x = 0; x < e; ++x) to[x] *= forth.norm[(first + g) * e + x] * inverse;
          }
          if (forth.table != nullptr) rotate(*forth.table, s, to, false);
        }
      }
    }
  });
}

// Every writer's key, then its product with every query: whole rows of several queries at once.
template <typename T>
void HostPairs<T>::projected_keys(const AttentionView& view, const RolePanels<T>& w,
                                  const Rows& rows) {
  const Index e = config_.d_head, heads = config_.n_heads, cl = view.visible;
  const Index length = view.length, group = config_.group_size();
  const auto rope = rotary(view.layer, length, view.length);
  const bool low_rank = this->plan_of(view.layer, view.length).keys.low_rank();
  const Index queries =
      std::clamp<Index>(kTileBytes / (length * cl * static_cast<Index>(sizeof(T))), 8, 64);
  const Index blocks = (length + queries - 1) / queries;
  Array keys;
  for (Index p = 0; p < w.matrix(model::Role::w_k).count(); ++p) {
    projected(view, w.matrix(model::Role::w_k), p, low_rank, key_pull(view, w, rope.get()), keys);
    const Index in_panel = w.matrix(model::Role::w_k).columns(p) / e,
                first = w.matrix(model::Role::w_k).begin(p) / e;
    pool_.parallel_for(in_panel * group * blocks, [&](Index task) {
      const Index begin = (blocks - 1 - task % blocks) * queries;
      const Index g = task / blocks / group;
      const Index h = (first + g) * group + task / blocks % group;
      const Index n = std::min(queries, length - begin);
      const Index row = (begin + n) * cl;
      std::vector<T> tile(n * row);
      for (Index s = 0; s < begin + n; ++s) {
        const Index skip = std::max<Index>(0, s - begin);
        gemm(true, n - skip, cl, e, ptr(*view.q) + ((begin + skip) * heads + h) * e, heads * e,
             ptr(keys) + (g * length + s) * cl * e, e, false, tile.data() + skip * row + s * cl,
             row);
      }
      for (Index i = 0; i < n; ++i) {
        hide(view, begin + i, tile.data() + i * row);
        rows(h, begin + i, tile.data() + i * row);
      }
    });
  }
}

template <typename T>
void HostPairs<T>::projected_queries(const AttentionView& view, const RolePanels<T>& w,
                                     const Rows& rows) {
  const Index e = config_.d_head, cl = view.visible, length = view.length;
  const Index kv_row = config_.n_kv_heads * e;
  const auto rope = rotary(view.layer, view.length, view.length);
  const bool low_rank = this->plan_of(view.layer, view.length).queries.low_rank();
  Array own;
  for (Index p = 0; p < w.matrix(model::Role::w_q).count(); ++p) {
    projected(view, w.matrix(model::Role::w_q), p, low_rank, query_pull(view, w, rope.get()), own);
    const Index in_panel = w.matrix(model::Role::w_q).columns(p) / e,
                first = w.matrix(model::Role::w_q).begin(p) / e;
    pool_.parallel_for(length * in_panel, [&](Index task) {
      const Index q = length - 1 - task / in_panel;
      const Index i = task % in_panel, h = first + i;
      std::vector<T> scores((q + 1) * cl);
      gemm(true, q + 1, cl, e, ptr(*view.k) + h / config_.group_size() * e, kv_row,
           ptr(own) + (i * length + q) * cl * e, e, false, scores.data(), cl);
      hide(view, q, scores.data());
      rows(h, q, scores.data());
    });
  }
}

template <typename T>
void HostPairs<T>::key_pass(const AttentionView& view, T* table, const Rows& rows) {
  const auto w = layer(view.layer);
  const Index per_head = tri(view.length) * view.visible;
  if (!folds(view)) {
    const Rows kept = [&](int h, int q, T* scores) {
      if (table) {
        T* to = table + h * per_head + tri(q) * view.visible;
        std::copy_n(scores, static_cast<Index>(q + 1) * view.visible, to);
        scores = to;
      }
      rows(h, q, scores);
    };
    projected_keys(view, *w, kept);
    return;
  }
  Array scratch;
  if (!table) {
    scratch = uninitialized(config_.n_heads * per_head);
    table = ptr(scratch);
  }
  folded_keys(view, *w, table);
  pool_.parallel_for(static_cast<Index>(config_.n_heads) * view.length, [&](Index task) {
    const int h = task / view.length;
    const int q = task % view.length;
    T* at = table + h * per_head + tri(q) * view.visible;
    hide(view, q, at);
    rows(h, q, at);
  });
}

template <typename T>
void HostPairs<T>::query_pass(const AttentionView& view, const Rows& rows) {
  const auto w = layer(view.layer);
  if (folds(view)) {
    folded_queries(view, *w, rows);
  } else {
    projected_queries(view, *w, rows);
  }
}

template class HostPairs<float>;

}  // namespace unpack::backend
