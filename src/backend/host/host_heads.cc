// The scores of heads, and the sums behind their denominators.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/question_tables.h"
#include "base/center.h"
#include "base/index.h"

namespace unpack::backend {

namespace {

// Subtracts from every column of rows[n, c] its mean over the rows.
template <typename T>
void center_columns(T* rows, Index n, Index c) {
  std::vector<double> mean(c, 0.0);
  add_columns(rows, n, c, mean.data());
  for (auto& m : mean) m /= n;
  subtract_columns(rows, n, c, mean.data());
}

}  // namespace

// sV_j(s) = < norm(c_j)(s), W_V v(s) >: the value folded back into the stream, a vector per
// key/value head.
template <typename T>
void HostHeads<T>::value_scores(const AttentionView& view, const RolePanels<T>& w,
                                AttentionSums& sums) {
  const int groups = config_.n_kv_heads;
  const Index e = config_.d_head;
  const Index d = config_.d_model;
  const Index cl = view.visible;
  const int length = view.length;
  sums.v_scores = uninitialized(static_cast<Index>(groups) * length * cl);
  sums.v_sum = uninitialized(static_cast<Index>(groups) * length);
  sums.v_abs = uninitialized(static_cast<Index>(groups) * length);
  const auto v = widened(w.matrix(model::Role::w_v));
  // Some positions together, so that a head's columns are read once for all of them.
  constexpr Index kTogether = 16;
  pool_.parallel_for((length + kTogether - 1) / kTogether, [&](Index task) {
    const Index begin = task * kTogether;
    const Index n = std::min<Index>(kTogether, length - begin), row = groups * d;
    base::Scratch folded, made;
    T* vectors = folded.of<T>(n * row);  // [n, G, D]
    for (int g = 0; g < groups; ++g)
      head_to_model(*v, g, ptr(*view.v) + (begin * groups + g) * e, groups * e, n, vectors + g * d,
                    row);
    T* scores = made.of<T>(groups * cl);
    for (Index s = begin; s < begin + n; ++s) {
      gemm(true, groups, cl, d, vectors + (s - begin) * row, d,
           ptr(*view.writers) + s * view.n_writers * d, d, false, scores, cl);
      const T inverse = T(1) / ptr(*view.dev)[s];
      for (int g = 0; g < groups; ++g) {
        T* to = ptr(sums.v_scores) + (static_cast<Index>(g) * length + s) * cl;
        for (Index j = 0; j < cl; ++j) to[j] = scores[g * cl + j] * inverse;
        double sum = 0;
        double abs = 0;
        row_sums(to, cl, sum, abs);
        ptr(sums.v_sum)[g * length + s] = sum;
        ptr(sums.v_abs)[g * length + s] = abs;
      }
    }
  });
}

template <typename T>
AttentionSums HostHeads<T>::empty_sums(const AttentionView& view) {
  const Index heads = config_.n_heads;
  AttentionSums sums;
  for (Array* a : {&sums.k_sum, &sums.k_abs, &sums.q_sum, &sums.q_abs})
    *a = uninitialized(heads * tri(view.length));
  sums.k_std = uninitialized(heads * view.length * view.visible);
  sums.k_mean = uninitialized(sums.k_std.size());
  return sums;
}

template <typename T>
AttentionSums HostHeads<T>::attention_sums(const AttentionView& view, Scores scores,
                                           bool keep_key_scores) {
  const Index pairs = tri(view.length);
  const Index cl = view.visible;
  const int heads = config_.n_heads;
  const LayerConfig& shape = config_.layer(view.layer);
  AttentionSums sums = empty_sums(view);
  if (keep_key_scores) sums.k_scores = uninitialized(heads * pairs * cl);
  const bool keep_query_scores =
      keep_key_scores && keeps_query_scores(config_, writers_, view.length, sizeof(T));
  if (keep_query_scores) sums.q_scores = uninitialized(heads * pairs * cl);
  const auto add_up = [&](T* rows, int h, int q, Array& sum_out, Array& abs_out, double* column) {
    const Index at = h * pairs + tri(q);
    reduce_rows(rows, q + 1, cl, ptr(sum_out) + at, ptr(abs_out) + at, column,
                column ? column + cl : nullptr);
  };
  const bool summed = scores == Scores::raw && !this->folds(view);
  if (summed) {
    this->key_sums(view, sums, {keep_key_scores ? ptr(sums.k_scores) : nullptr});
  } else {
    this->key_pass(view, keep_key_scores ? ptr(sums.k_scores) : nullptr,
                   [&](int h, int q, T* rows) {
                     const Index at = (static_cast<Index>(h) * view.length + q) * cl;
                     std::vector<double> moments(2 * cl, 0.0);
                     add_up(rows, h, q, sums.k_sum, sums.k_abs, moments.data());
                     const Index from = shape.first_source(q);
                     finish_moments(moments.data(), moments.data() + cl, q + 1 - from, cl,
                                    ptr(sums.k_mean) + at, ptr(sums.k_std) + at);
                     if (scores == Scores::centered) {
                       center_columns(rows + from * cl, q + 1 - from, cl);
                       add_up(rows, h, q, sums.k_sum, sums.k_abs, nullptr);
                     }
                   });
  }
  if (summed && !keep_query_scores && sizeof(T) == sizeof(float)) {
    this->query_sums(view, sums);
    value_scores(view, *layer(view.layer), sums);
    return sums;
  }
  this->query_pass(view, [&](int h, int q, T* rows) {
    const Index from = shape.first_source(q);
    if (scores == Scores::centered) center_columns(rows + from * cl, q + 1 - from, cl);
    add_up(rows, h, q, sums.q_sum, sums.q_abs, nullptr);
    if (keep_query_scores)
      std::copy_n(rows, (q + 1) * cl, ptr(sums.q_scores) + (h * pairs + tri(q)) * cl);
  });
  value_scores(view, *layer(view.layer), sums);
  return sums;
}

// Layers that are converted over and over would be, for every row of scores that is made again.
template <typename T>
bool HostHeads<T>::adds_keys_up(int length) const {
  return sizeof(T) == sizeof(float) && this->layers_side_by_side() &&
         this->plan_of(config_.n_layers - 1, length).keys.way != Way::folded;
}

template <typename T>
bool HostHeads<T>::sums_with_reach(const AttentionView& view, std::span<const double> mass,
                                   std::span<const double> bound, AttentionSums& sums,
                                   Backend::PairReach& reach) {
  if constexpr (sizeof(T) == sizeof(float)) {
    if (this->folds(view)) return false;
    sums = empty_sums(view);
    auto below = HostPairSums<T>::weighed(view, mass, bound);
    const std::size_t places = sums.k_sum.size();
    reach.mass.resize(places);
    reach.bound.resize(places);
    this->key_sums(view, sums, {nullptr, &below, &reach});
    reach.unit = std::move(below.unit);
    this->query_sums(view, sums);
    value_scores(view, *layer(view.layer), sums);
    return true;
  }
  return false;
}

template <typename T>
void HostHeads<T>::visit_key_scores(const AttentionView& view, Scores scores,
                                    const Backend::KeyVisitor& visit) {
  this->key_pass(view, nullptr, [&](int h, int q, T* rows) {
    const Index from = config_.layer(view.layer).first_source(q);
    if (scores == Scores::centered)
      center_columns(rows + from * view.visible, q + 1 - from, view.visible);
    visit(h, q, rows);
  });
}

template <typename T>
void HostHeads<T>::key_scores(const AttentionView& view, Scores scores, int head, int query,
                              Array& out) {
  key_scores_of(view, scores, {head, 1}, query, ptr(out));
}

template <typename T>
void HostHeads<T>::key_scores_of_heads(const AttentionView& view, Scores scores, int query,
                                       Array& out) {
  key_scores_of(view, scores, {0, config_.n_heads}, query, ptr(out));
}

// Several heads read what the writers wrote once.
template <typename T>
void HostHeads<T>::key_scores_of(const AttentionView& view, Scores scores, HeadRange heads,
                                 int query, T* out) {
  const auto w = layer(view.layer);
  const Index e = config_.d_head, d = config_.d_model, cl = view.visible;
  const Index n = heads.count, sources = Index{query} + 1;
  const auto rope = rotary(view.layer, view.length, view.length);
  const auto pull = this->key_pull(view, *w, rope.get());
  const bool per_source = pull.changes();
  const double scale = config_.layer(view.layer).attention_scale;
  const T* q = ptr(*view.q) + (static_cast<Index>(query) * config_.n_heads + heads.first) * e;
  const auto group = [&](Index i) {
    return (heads.first + static_cast<int>(i)) / config_.group_size();
  };
  // One head needs its own columns alone.
  const auto k = n > 1 ? widened(w->matrix(model::Role::w_k)) : nullptr;
  const Panel<T> columns = head_columns(w->matrix(model::Role::w_k), group(0));
  const auto into_stream = [&](Index i, const T* u, T* to) {
    if (k != nullptr) {
      head_to_model(*k, group(i), u, e, 1, to, d);
    } else {
      gemm(true, 1, d, e, u, e, columns, columns.ld(), false, to, d);
    }
  };
  std::vector<T> shared(n * d);
  for (Index i = 0; !per_source && i < n; ++i) into_stream(i, q + i * e, shared.data() + i * d);
  // Where it is the same for all sources, and these are many, the vector is brought before W_O of
  // the layers below once, [head, source, H, E].
  const Index width = config_.n_heads * e;
  const Index below = source_layers(writers_, view.visible);
  std::vector<T> before;
  if (!per_source && this->plan_of(view.layer, query + 1).keys.low_rank()) {
    std::vector<T> centered = shared;
    for (Index i = 0; i < n; ++i) base::center(config_.norm, centered.data() + i * d, d);
    before.resize(n * below * width);
    pool_.parallel_for(below * n, [&](Index task) {
      const Index source = task / n, i = task % n;
      const auto from = layer(source);
      const Panels<T>& o = from->matrix(model::Role::w_o);
      for (Index p = 0; p < o.count(); ++p)
        gemm(true, 1, width, o.columns(p), centered.data() + i * d + o.begin(p), d, o.panel(p),
             o.columns(p), p > 0, before.data() + (i * below + source) * width, width);
    });
  }
  pool_.parallel_for(sources, [&](Index s) {
    std::vector<T> own;
    const T* vectors = shared.data();
    if (per_source) {
      own.resize(n * d);
      for (Index i = 0; i < n; ++i) {
        std::vector<T> u(q + i * e, q + (i + 1) * e);
        pull(s, group(i), u.data());
        into_stream(i, u.data(), own.data() + i * d);
      }
      vectors = own.data();
    }
    const T factor = scale / ptr(*view.dev)[s];
    const T* writers = ptr(*view.writers) + s * view.n_writers * d;
    for (Index j = 0; j < cl; ++j) {
      const Writer& writer = writers_[j];
      const Index at = writer.head * e;
      const bool whole = before.empty() || writer.kind != WriterKind::head;
      const T* z = whole ? nullptr : ptr(*view.z[writer.layer]) + s * width + at;
      for (Index i = 0; i < n; ++i)
        out[(i * sources + s) * cl + j] =
            factor * (whole ? dot(d, writers + j * d, vectors + i * d)
                            : dot(e, z, before.data() + (i * below + writer.layer) * width + at));
    }
  });
  const Index from = config_.layer(view.layer).first_source(query);
  for (Index i = 0; i < n; ++i) {
    T* rows = out + i * sources * cl;
    this->hide(view, query, rows);
    if (scores == Scores::centered) center_columns(rows + from * cl, sources - from, cl);
  }
}

template <typename T>
void HostHeads<T>::query_scores(const AttentionView& view, Scores scores, int head, int query,
                                Array& out) {
  const auto w = layer(view.layer);
  const Index e = config_.d_head;
  const Index d = config_.d_model;
  const Index cl = view.visible;
  const int g = head / config_.group_size();
  const Index n = query + 1;
  const auto rope = rotary(view.layer, view.length, view.length);
  const auto pull = this->query_pull(view, *w, rope.get());
  std::vector<T> pulled(n * e);
  for (Index s = 0; s < n; ++s) {
    T* u = pulled.data() + s * e;
    std::copy_n(ptr(*view.k) + (s * config_.n_kv_heads + g) * e, e, u);
    pull(query, head, u);
  }
  std::vector<T> vectors(n * d);
  head_to_model(w->matrix(model::Role::w_q), head, pulled.data(), e, n, vectors.data(), d);
  gemm(true, n, cl, d, vectors.data(), d,
       ptr(*view.writers) + static_cast<Index>(query) * view.n_writers * d, d, false, ptr(out), cl);
  const LayerConfig& shape = config_.layer(view.layer);
  const T factor = shape.attention_scale / ptr(*view.dev)[query];
  for (Index i = 0; i < n * cl; ++i) ptr(out)[i] *= factor;
  const Index from = shape.first_source(query);
  this->hide(view, query, ptr(out));
  if (scores == Scores::centered) center_columns(ptr(out) + from * cl, n - from, cl);
}

template class HostHeads<float>;

}  // namespace unpack::backend
