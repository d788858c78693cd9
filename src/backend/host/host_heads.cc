// Writers, the scores of heads, and the sums behind their denominators.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "backend/fold_rule.h"
#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/question_tables.h"

namespace unpack {

namespace {

// Folded scores of a layer are held at once; past this many bytes the projected way is taken.
constexpr std::int64_t kFoldBytes = std::int64_t{96} << 20;
// Of one thread's scores, so that they stay in its cache.
constexpr std::int64_t kTileBytes = std::int64_t{2} << 20;

// Subtracts from every column of rows[n, c] its mean over the rows.
template <typename T>
void center_columns(T* rows, std::int64_t n, std::int64_t c) {
  std::vector<double> mean(static_cast<std::size_t>(c), 0.0);
  add_columns(rows, n, c, mean.data());
  for (auto& m : mean) m /= static_cast<double>(n);
  subtract_columns(rows, n, c, mean.data());
}

// Mean and population standard deviation from sums over n values and over their squares.
template <typename T>
void finish_moments(const double* sum, const double* square, std::int64_t n, std::int64_t c,
                    T* mean_out, T* out) {
  for (std::int64_t j = 0; j < c; ++j) {
    const double mean = sum[j] / static_cast<double>(n);
    mean_out[j] = static_cast<T>(mean);
    // Rounded by itself: within a multiply-add, which 64-bit ARM has, the difference of two equal
    // squares would be the product's rounding error, and the root of that is no small number.
    const volatile double mean_square = mean * mean;
    out[j] =
        static_cast<T>(std::sqrt(std::max(0.0, square[j] / static_cast<double>(n) - mean_square)));
  }
}

}  // namespace

// Writers
// -------------------------------------------------------------------------------------------------------------------------

template <typename T>
void HostHeads<T>::put_writer(const Array& rows, std::int64_t row, int length, Array& writers,
                              int n_writers, int index) {
  const std::int64_t d = config_.d_model;
  for (int s = 0; s < length; ++s) {
    T* to = ptr(writers) + (static_cast<std::int64_t>(s) * n_writers + index) * d;
    std::copy_n(ptr(rows) + (row + s) * d, d, to);
    center_row(to);
  }
}

template <typename T>
void HostHeads<T>::put_head_writers(int index, const Array& z, const Array& out_dev,
                                    std::int64_t row, int length, Array& writers, int n_writers,
                                    int first) {
  // c[s, h, d] = sum_e z[s, h, e] W_O[h, e, d]
  const auto w = layer(index);
  const std::int64_t d = config_.d_model;
  const std::int64_t e = config_.d_head;
  const std::int64_t z_row = config_.n_heads * e;
  pool_.parallel_for(config_.n_heads, [&](std::int64_t h) {
    T* to = ptr(writers) + (first + h) * d;
    for (std::int64_t p = 0; p < w->o.count(); ++p) {
      gemm(false, length, w->o.columns(p), e, ptr(z) + row * z_row + h * e, z_row,
           w->o.panel(p) + h * e * w->o.columns(p), w->o.columns(p), false, to + w->o.begin(p),
           n_writers * d);
    }
    for (int s = 0; s < length; ++s) {
      T* vector = to + static_cast<std::int64_t>(s) * n_writers * d;
      center_row(vector);
      if (w->attn_post.empty()) continue;
      const T inverse = T(1) / ptr(out_dev)[row + s];
      for (std::int64_t i = 0; i < d; ++i)
        vector[i] *= w->attn_post[static_cast<std::size_t>(i)] * inverse;
    }
  });
}

// Keys and queries
// ----------------------------------------------------------------------------------------------------------------

template <typename T>
void HostHeads<T>::PullBack::operator()(std::int64_t position, std::int64_t head, T* u) const {
  if (table != nullptr) HostBase<T>::rotate(*table, position, u, true);
  if (norm.empty()) return;
  const T inverse = T(1) / dev[position * heads + head];
  for (std::int64_t i = 0; i < e; ++i)
    u[i] *= norm[static_cast<std::size_t>(head * e + i)] * inverse;
}

template <typename T>
typename HostHeads<T>::PullBack HostHeads<T>::key_pull(const AttentionView& view,
                                                       const LayerPanels<T>& w,
                                                       const RotaryTable* table) {
  return {table, w.k_norm, view.k_dev ? ptr(*view.k_dev) : nullptr, config_.n_kv_heads,
          config_.d_head};
}

template <typename T>
typename HostHeads<T>::PullBack HostHeads<T>::query_pull(const AttentionView& view,
                                                         const LayerPanels<T>& w,
                                                         const RotaryTable* table) {
  return {table, w.q_norm, view.q_dev ? ptr(*view.q_dev) : nullptr, config_.n_heads,
          config_.d_head};
}

template <typename T>
bool HostHeads<T>::folds(const AttentionView& view) const {
  const std::int64_t bytes =
      tri(view.length) * config_.n_heads * view.visible * static_cast<std::int64_t>(sizeof(T));
  return fold_is_cheaper(config_, view.length) && bytes <= kFoldBytes;
}

// Sources outside the window have no scores.
template <typename T>
void HostHeads<T>::hide(const AttentionView& view, int query, T* rows) const {
  std::fill_n(rows, config_.layer(view.layer).first_source(query) * std::int64_t{view.visible},
              T(0));
}

// table[H, tri, Cl]: sK_j(q, s) = g / dev(s) < c_j(s), W_K n_K R_s^-1 q(q) >, a vector in D for
// every pair.
template <typename T>
void HostHeads<T>::folded_keys(const AttentionView& view, const LayerPanels<T>& w, T* table) {
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const int length = view.length;
  const auto rope = rotary(view.layer, length, length);
  const PullBack pull = key_pull(view, w, rope.get());
  const bool per_source = pull.changes();
  const double scale = config_.layer(view.layer).attention_scale;
  const auto vectors = [&](int s, T* scratch, T* out) {  // out[length - s, H, D]
    const std::int64_t n = length - s;
    for (int h = 0; h < heads; ++h) {
      const int g = h / config_.group_size();
      for (std::int64_t i = 0; i < n; ++i) {
        T* u = scratch + i * e;
        std::copy_n(ptr(*view.q) + ((s + i) * heads + h) * e, e, u);
        pull(s, g, u);
      }
      head_to_model(w.k, g, scratch, e, n, out + h * d, heads * d);
    }
  };
  std::vector<T> shared;  // [S, H, D] where a query looks the same from every source
  if (!per_source) {
    shared.resize(static_cast<std::size_t>(heads) * static_cast<std::size_t>(length) *
                  static_cast<std::size_t>(d));
    pool_.parallel_for(heads, [&](std::int64_t h) {
      head_to_model(w.k, static_cast<int>(h) / config_.group_size(), ptr(*view.q) + h * e,
                    heads * e, length, shared.data() + h * d, heads * d);
    });
  }
  pool_.parallel_for(length, [&](std::int64_t s) {
    const std::int64_t n = length - s;
    std::vector<T> own;
    if (per_source) {
      own.resize(static_cast<std::size_t>(heads * n * d));
      std::vector<T> scratch(static_cast<std::size_t>(n * e));
      vectors(static_cast<int>(s), scratch.data(), own.data());
    }
    std::vector<T> scores(static_cast<std::size_t>(heads * n * cl));
    gemm(true, heads * n, cl, d, per_source ? own.data() : shared.data() + s * heads * d, d,
         ptr(*view.writers) + s * view.n_writers * d, d, false, scores.data(), cl);
    const T factor = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[s]));
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t h = 0; h < heads; ++h) {
        T* to = table + (h * tri(length) + tri(s + i) + s) * cl;
        const T* from = scores.data() + (i * heads + h) * cl;
        for (std::int64_t j = 0; j < cl; ++j) to[j] = from[j] * factor;
      }
    }
  });
}

template <typename T>
void HostHeads<T>::folded_queries(const AttentionView& view, const LayerPanels<T>& w,
                                  const Rows& rows) {
  // sQ_j(q, s) = g / dev(q) < c_j(q), W_Q n_Q R_q^-1 k(s) >
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const auto rope = rotary(view.layer, view.length, view.length);
  const PullBack pull = query_pull(view, w, rope.get());
  const bool per_query = pull.changes();
  const double scale = config_.layer(view.layer).attention_scale;
  const auto fold = [&](int h, std::int64_t query, std::int64_t n,
                        T* out) {  // out[n, H, D], one head of it
    const int g = h / config_.group_size();
    std::vector<T> scratch(static_cast<std::size_t>(n * e));
    for (std::int64_t s = 0; s < n; ++s) {
      T* u = scratch.data() + s * e;
      std::copy_n(ptr(*view.k) + (s * config_.n_kv_heads + g) * e, e, u);
      if (per_query) pull(query, h, u);
    }
    head_to_model(w.q, h, scratch.data(), e, n, out + h * d, heads * d);
  };
  std::vector<T> shared;  // [S, H, D] where a key looks the same from every query
  if (!per_query) {
    shared.resize(static_cast<std::size_t>(heads) * static_cast<std::size_t>(view.length) *
                  static_cast<std::size_t>(d));
    pool_.parallel_for(
        heads, [&](std::int64_t h) { fold(static_cast<int>(h), 0, view.length, shared.data()); });
  }
  pool_.parallel_for(view.length, [&](std::int64_t at) {
    const std::int64_t q = view.length - 1 - at;  // the longest first
    const std::int64_t n = q + 1;
    std::vector<T> own(static_cast<std::size_t>(per_query ? heads * n * d : 0));
    for (int h = 0; per_query && h < heads; ++h) fold(h, q, n, own.data());
    std::vector<T> scores(static_cast<std::size_t>(2 * heads * n * cl));
    T* by_head = scores.data() + heads * n * cl;
    gemm(true, heads * n, cl, d, per_query ? own.data() : shared.data(), d,
         ptr(*view.writers) + q * view.n_writers * d, d, false, scores.data(), cl);
    const T factor = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[q]));
    for (std::int64_t s = 0; s < n; ++s) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const T* from = scores.data() + (s * heads + h) * cl;
        T* to = by_head + (h * n + s) * cl;
        for (std::int64_t j = 0; j < cl; ++j) to[j] = from[j] * factor;
      }
    }
    for (int h = 0; h < heads; ++h) {
      hide(view, static_cast<int>(q), by_head + h * n * cl);
      rows(h, static_cast<int>(q), by_head + h * n * cl);
    }
  });
}

// Every writer's key, then its product with every query. Rows of a query are handed out whole, or,
// where only their sums are wanted, added up source by source while they are in the cache.
template <typename T>
void HostHeads<T>::projected_keys(const AttentionView& view, const LayerPanels<T>& w,
                                  const Rows& rows, AttentionSums* sums, T* table) {
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const std::int64_t length = view.length;
  const auto rope = rotary(view.layer, length, view.length);
  const LayerConfig& shape = config_.layer(view.layer);
  const double scale = shape.attention_scale;
  // Whole rows of several queries are held at once where they are handed out.
  const std::int64_t queries =
      sums ? 64
           : std::clamp<std::int64_t>(
                 kTileBytes / (length * cl * static_cast<std::int64_t>(sizeof(T))), 8, 64);
  for (std::int64_t p = 0; p < w.k.count(); ++p) {
    const std::int64_t in_panel = w.k.columns(p) / e;
    const std::int64_t first = w.k.begin(p) / e;
    Array projected = uninitialized(in_panel * length * cl * e);
    pool_.parallel_for(length, [&](std::int64_t s) {
      std::vector<T> tile(static_cast<std::size_t>(cl * w.k.columns(p)));
      gemm(false, cl, w.k.columns(p), d, ptr(*view.writers) + s * view.n_writers * d, d,
           w.k.panel(p), w.k.columns(p), false, tile.data(), w.k.columns(p));
      const T base = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[s]));
      for (std::int64_t g = 0; g < in_panel; ++g) {
        const T inverse =
            w.k_norm.empty() ? T(1) : T(1) / ptr(*view.k_dev)[s * config_.n_kv_heads + first + g];
        for (std::int64_t j = 0; j < cl; ++j) {
          T* to = ptr(projected) + ((g * length + s) * cl + j) * e;
          const T* from = tile.data() + j * w.k.columns(p) + g * e;
          for (std::int64_t i = 0; i < e; ++i)
            to[i] = from[i] * base *
                    (w.k_norm.empty()
                         ? T(1)
                         : w.k_norm[static_cast<std::size_t>((first + g) * e + i)] * inverse);
          if (rope) rotate(*rope, s, to, false);
        }
      }
    });
    const std::int64_t group = config_.group_size();
    const std::int64_t blocks = (length + queries - 1) / queries;
    pool_.parallel_for(in_panel * group * blocks, [&](std::int64_t task) {
      const std::int64_t block = blocks - 1 - task % blocks;
      const std::int64_t g = task / blocks / group;
      const std::int64_t h = (first + g) * group + task / blocks % group;
      const std::int64_t begin = block * queries;
      const std::int64_t n = std::min(queries, length - begin);
      const std::int64_t reach = begin + n;
      const std::int64_t row = sums ? cl : reach * cl;
      std::vector<T> tile(static_cast<std::size_t>(n * row));
      std::vector<double> moments(static_cast<std::size_t>(sums ? 2 * n * cl : 0), 0.0);
      std::vector<T> sum(static_cast<std::size_t>(2 * n));
      for (std::int64_t s = 0; s < reach; ++s) {
        const std::int64_t skip = std::max<std::int64_t>(0, s - begin);
        T* to = tile.data() + skip * row + (sums ? 0 : s * cl);
        gemm(true, n - skip, cl, e, ptr(*view.q) + ((begin + skip) * heads + h) * e, heads * e,
             ptr(projected) + (g * length + s) * cl * e, e, false, to, row);
        const std::int64_t end =
            shape.window > 0 ? std::clamp<std::int64_t>(s + shape.window - begin, skip, n) : n;
        for (std::int64_t i = skip; sums && i < n; ++i) {
          if (i >= end) std::fill_n(tile.data() + i * cl, cl, T(0));  // outside the window
          double* column = moments.data() + 2 * i * cl;
          const std::int64_t pair = h * tri(length) + tri(begin + i) + s;
          reduce_rows(tile.data() + i * cl, 1, cl, ptr(sums->k_sum) + pair, ptr(sums->k_abs) + pair,
                      column, column + cl);
          if (table) std::copy_n(tile.data() + i * cl, cl, table + pair * cl);
        }
      }
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t q = begin + i;
        if (!sums) {
          hide(view, static_cast<int>(q), tile.data() + i * row);
          rows(static_cast<int>(h), static_cast<int>(q), tile.data() + i * row);
          continue;
        }
        const std::int64_t at = (h * length + q) * cl;
        finish_moments(moments.data() + 2 * i * cl, moments.data() + (2 * i + 1) * cl,
                       q + 1 - shape.first_source(static_cast<int>(q)), cl, ptr(sums->k_mean) + at,
                       ptr(sums->k_std) + at);
      }
    });
  }
}

template <typename T>
void HostHeads<T>::projected_queries(const AttentionView& view, const LayerPanels<T>& w,
                                     const Rows& rows) {
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const std::int64_t kv_row = static_cast<std::int64_t>(config_.n_kv_heads) * e;
  const auto rope = rotary(view.layer, view.length, view.length);
  const double scale = config_.layer(view.layer).attention_scale;
  for (std::int64_t p = 0; p < w.q.count(); ++p) {
    const std::int64_t in_panel = w.q.columns(p) / e;
    const std::int64_t first = w.q.begin(p) / e;
    pool_.parallel_for(view.length, [&](std::int64_t at) {
      const std::int64_t q = view.length - 1 - at;
      std::vector<T> tile(static_cast<std::size_t>(cl * w.q.columns(p)));
      gemm(false, cl, w.q.columns(p), d, ptr(*view.writers) + q * view.n_writers * d, d,
           w.q.panel(p), w.q.columns(p), false, tile.data(), w.q.columns(p));
      const T base = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[q]));
      std::vector<T> own(static_cast<std::size_t>(cl * e));
      std::vector<T> scores(static_cast<std::size_t>((q + 1) * cl));
      for (std::int64_t i = 0; i < in_panel; ++i) {
        const std::int64_t h = first + i;
        const T inverse = w.q_norm.empty() ? T(1) : T(1) / ptr(*view.q_dev)[q * heads + h];
        for (std::int64_t j = 0; j < cl; ++j) {
          T* to = own.data() + j * e;
          const T* from = tile.data() + j * w.q.columns(p) + i * e;
          for (std::int64_t x = 0; x < e; ++x)
            to[x] =
                from[x] * base *
                (w.q_norm.empty() ? T(1) : w.q_norm[static_cast<std::size_t>(h * e + x)] * inverse);
          if (rope) rotate(*rope, q, to, false);
        }
        gemm(true, q + 1, cl, e, ptr(*view.k) + h / config_.group_size() * e, kv_row, own.data(), e,
             false, scores.data(), cl);
        hide(view, static_cast<int>(q), scores.data());
        rows(static_cast<int>(h), static_cast<int>(q), scores.data());
      }
    });
  }
}

template <typename T>
void HostHeads<T>::key_pass(const AttentionView& view, T* table, const Rows& rows) {
  const auto w = layer(view.layer);
  const std::int64_t per_head = tri(view.length) * view.visible;
  if (!folds(view)) {
    const Rows kept = [&](int h, int q, T* scores) {
      if (table) {
        T* to = table + h * per_head + tri(q) * view.visible;
        std::copy_n(scores, static_cast<std::int64_t>(q + 1) * view.visible, to);
        scores = to;
      }
      rows(h, q, scores);
    };
    projected_keys(view, *w, kept, nullptr, nullptr);
    return;
  }
  Array scratch;
  if (!table) {
    scratch = uninitialized(config_.n_heads * per_head);
    table = ptr(scratch);
  }
  folded_keys(view, *w, table);
  pool_.parallel_for(static_cast<std::int64_t>(config_.n_heads) * view.length,
                     [&](std::int64_t task) {
                       const auto h = static_cast<int>(task / view.length);
                       const auto q = static_cast<int>(task % view.length);
                       T* at = table + h * per_head + tri(q) * view.visible;
                       hide(view, q, at);
                       rows(h, q, at);
                     });
}

template <typename T>
void HostHeads<T>::query_pass(const AttentionView& view, const Rows& rows) {
  const auto w = layer(view.layer);
  if (folds(view)) {
    folded_queries(view, *w, rows);
  } else {
    projected_queries(view, *w, rows);
  }
}

// sV_j(s) = < norm(c_j)(s), W_V v(s) >: the value folded back into the stream, a vector per
// key/value head.
template <typename T>
void HostHeads<T>::value_scores(const AttentionView& view, const LayerPanels<T>& w,
                                AttentionSums& sums) {
  const int groups = config_.n_kv_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const int length = view.length;
  sums.v_scores = uninitialized(static_cast<std::int64_t>(groups) * length * cl);
  sums.v_sum = uninitialized(static_cast<std::int64_t>(groups) * length);
  sums.v_abs = uninitialized(static_cast<std::int64_t>(groups) * length);
  pool_.parallel_for(length, [&](std::int64_t s) {
    std::vector<T> vectors(static_cast<std::size_t>(groups * d));
    for (int g = 0; g < groups; ++g)
      head_to_model(w.v, g, ptr(*view.v) + (s * groups + g) * e, e, 1, vectors.data() + g * d, d);
    std::vector<T> scores(static_cast<std::size_t>(groups * cl));
    gemm(true, groups, cl, d, vectors.data(), d, ptr(*view.writers) + s * view.n_writers * d, d,
         false, scores.data(), cl);
    const T inverse = T(1) / ptr(*view.dev)[s];
    for (int g = 0; g < groups; ++g) {
      T* to = ptr(sums.v_scores) + (static_cast<std::int64_t>(g) * length + s) * cl;
      for (std::int64_t j = 0; j < cl; ++j)
        to[j] = scores[static_cast<std::size_t>(g * cl + j)] * inverse;
      double sum = 0;
      double abs = 0;
      row_sums(to, cl, sum, abs);
      ptr(sums.v_sum)[g * length + s] = static_cast<T>(sum);
      ptr(sums.v_abs)[g * length + s] = static_cast<T>(abs);
    }
  });
}

template <typename T>
AttentionSums HostHeads<T>::attention_sums(const AttentionView& view, Scores scores,
                                           bool keep_key_scores) {
  const std::int64_t pairs = tri(view.length);
  const std::int64_t cl = view.visible;
  const int heads = config_.n_heads;
  const LayerConfig& shape = config_.layer(view.layer);
  AttentionSums sums;
  for (Array* a : {&sums.k_sum, &sums.k_abs, &sums.q_sum, &sums.q_abs})
    *a = uninitialized(heads * pairs);
  sums.k_std = uninitialized(static_cast<std::int64_t>(heads) * view.length * cl);
  sums.k_mean = uninitialized(sums.k_std.size());
  if (keep_key_scores) sums.k_scores = uninitialized(heads * pairs * cl);
  const bool keep_query_scores =
      keep_key_scores && keeps_query_scores(config_, writers_, view.length, sizeof(T));
  if (keep_query_scores) sums.q_scores = uninitialized(heads * pairs * cl);
  const auto add_up = [&](T* rows, int h, int q, Array& sum_out, Array& abs_out, double* column) {
    const std::int64_t at = h * pairs + tri(q);
    reduce_rows(rows, q + 1, cl, ptr(sum_out) + at, ptr(abs_out) + at, column,
                column ? column + cl : nullptr);
  };
  if (scores == Scores::raw && !folds(view)) {
    projected_keys(view, *layer(view.layer), {}, &sums,
                   keep_key_scores ? ptr(sums.k_scores) : nullptr);
  } else {
    key_pass(view, keep_key_scores ? ptr(sums.k_scores) : nullptr, [&](int h, int q, T* rows) {
      const std::int64_t at = (static_cast<std::int64_t>(h) * view.length + q) * cl;
      std::vector<double> moments(static_cast<std::size_t>(2 * cl), 0.0);
      add_up(rows, h, q, sums.k_sum, sums.k_abs, moments.data());
      const std::int64_t from = shape.first_source(q);
      finish_moments(moments.data(), moments.data() + cl, q + 1 - from, cl, ptr(sums.k_mean) + at,
                     ptr(sums.k_std) + at);
      if (scores == Scores::centered) {
        center_columns(rows + from * cl, q + 1 - from, cl);
        add_up(rows, h, q, sums.k_sum, sums.k_abs, nullptr);
      }
    });
  }
  query_pass(view, [&](int h, int q, T* rows) {
    const std::int64_t from = shape.first_source(q);
    if (scores == Scores::centered) center_columns(rows + from * cl, q + 1 - from, cl);
    add_up(rows, h, q, sums.q_sum, sums.q_abs, nullptr);
    if (keep_query_scores)
      std::copy_n(rows, (q + 1) * cl, ptr(sums.q_scores) + (h * pairs + tri(q)) * cl);
  });
  value_scores(view, *layer(view.layer), sums);
  return sums;
}

template <typename T>
void HostHeads<T>::visit_key_scores(const AttentionView& view, Scores scores,
                                    const Backend::KeyVisitor& visit) {
  key_pass(view, nullptr, [&](int h, int q, T* rows) {
    const std::int64_t from = config_.layer(view.layer).first_source(q);
    if (scores == Scores::centered)
      center_columns(rows + from * view.visible, q + 1 - from, view.visible);
    visit(h, q, rows);
  });
}

template <typename T>
void HostHeads<T>::key_scores(const AttentionView& view, Scores scores, int head, int query,
                              Array& out) {
  const auto w = layer(view.layer);
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const int g = head / config_.group_size();
  const auto rope = rotary(view.layer, view.length, view.length);
  const PullBack pull = key_pull(view, *w, rope.get());
  const bool per_source = pull.changes();
  const double scale = config_.layer(view.layer).attention_scale;
  const T* q = ptr(*view.q) + (static_cast<std::int64_t>(query) * config_.n_heads + head) * e;
  std::vector<T> shared(static_cast<std::size_t>(d));
  if (!per_source) head_to_model(w->k, g, q, e, 1, shared.data(), d);
  pool_.parallel_for(query + 1, [&](std::int64_t s) {
    std::vector<T> own;
    const T* vector = shared.data();
    if (per_source) {
      own.resize(static_cast<std::size_t>(d));
      std::vector<T> u(q, q + e);
      pull(s, g, u.data());
      head_to_model(w->k, g, u.data(), e, 1, own.data(), d);
      vector = own.data();
    }
    const T factor = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[s]));
    const T* writers = ptr(*view.writers) + s * view.n_writers * d;
    for (std::int64_t j = 0; j < cl; ++j)
      ptr(out)[s * cl + j] = factor * dot(d, writers + j * d, vector);
  });
  const std::int64_t from = config_.layer(view.layer).first_source(query);
  hide(view, query, ptr(out));
  if (scores == Scores::centered) center_columns(ptr(out) + from * cl, query + 1 - from, cl);
}

template <typename T>
void HostHeads<T>::query_scores(const AttentionView& view, Scores scores, int head, int query,
                                Array& out) {
  const auto w = layer(view.layer);
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const int g = head / config_.group_size();
  const std::int64_t n = query + 1;
  const auto rope = rotary(view.layer, view.length, view.length);
  const PullBack pull = query_pull(view, *w, rope.get());
  std::vector<T> pulled(static_cast<std::size_t>(n * e));
  for (std::int64_t s = 0; s < n; ++s) {
    T* u = pulled.data() + s * e;
    std::copy_n(ptr(*view.k) + (s * config_.n_kv_heads + g) * e, e, u);
    pull(query, head, u);
  }
  std::vector<T> vectors(static_cast<std::size_t>(n * d));
  head_to_model(w->q, head, pulled.data(), e, n, vectors.data(), d);
  gemm(true, n, cl, d, vectors.data(), d,
       ptr(*view.writers) + static_cast<std::int64_t>(query) * view.n_writers * d, d, false,
       ptr(out), cl);
  const LayerConfig& shape = config_.layer(view.layer);
  const T factor =
      static_cast<T>(shape.attention_scale / static_cast<double>(ptr(*view.dev)[query]));
  for (std::int64_t i = 0; i < n * cl; ++i) ptr(out)[i] *= factor;
  const std::int64_t from = shape.first_source(query);
  hide(view, query, ptr(out));
  if (scores == Scores::centered) center_columns(ptr(out) + from * cl, n - from, cl);
}

template class HostHeads<float>;
template class HostHeads<double>;

}  // namespace unpack
