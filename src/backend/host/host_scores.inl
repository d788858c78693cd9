// Writers, scores and the sums behind every denominator. Part of host_backend.cc.

namespace unpack {

namespace {

// Folded scores of a layer are held at once; past this many bytes the projected way is taken.
constexpr std::int64_t kFoldBytes = std::int64_t{96} << 20;

// Subtracts from every column of rows[n, c] its mean over the rows.
template <typename T>
void center_columns(T* rows, std::int64_t n, std::int64_t c) {
  std::vector<double> mean(static_cast<std::size_t>(c), 0.0);
  for (std::int64_t s = 0; s < n; ++s) {
    for (std::int64_t j = 0; j < c; ++j) mean[static_cast<std::size_t>(j)] += static_cast<double>(rows[s * c + j]);
  }
  for (auto& m : mean) m /= static_cast<double>(n);
  for (std::int64_t s = 0; s < n; ++s) {
    for (std::int64_t j = 0; j < c; ++j) rows[s * c + j] = static_cast<T>(static_cast<double>(rows[s * c + j]) - mean[static_cast<std::size_t>(j)]);
  }
}

// Mean and population standard deviation of every column of rows[n, c].
template <typename T>
void column_moments(const T* rows, std::int64_t n, std::int64_t c, T* mean_out, T* out) {
  std::vector<double> mean(static_cast<std::size_t>(c), 0.0);
  std::vector<double> square(static_cast<std::size_t>(c), 0.0);
  for (std::int64_t s = 0; s < n; ++s) {
    for (std::int64_t j = 0; j < c; ++j) mean[static_cast<std::size_t>(j)] += static_cast<double>(rows[s * c + j]);
  }
  for (auto& m : mean) m /= static_cast<double>(n);
  for (std::int64_t s = 0; s < n; ++s) {
    for (std::int64_t j = 0; j < c; ++j) {
      const double d = static_cast<double>(rows[s * c + j]) - mean[static_cast<std::size_t>(j)];
      square[static_cast<std::size_t>(j)] += d * d;
    }
  }
  for (std::int64_t j = 0; j < c; ++j) {
    mean_out[j] = static_cast<T>(mean[static_cast<std::size_t>(j)]);
    out[j] = static_cast<T>(std::sqrt(square[static_cast<std::size_t>(j)] / static_cast<double>(n)));
  }
}

}  // namespace

// Writers -------------------------------------------------------------------------------------------------------------------------

template <typename T>
void HostBackend<T>::center_row(T* row) const {
  if (config_.norm == Norm::rms) return;
  const std::int64_t d = config_.d_model;
  double mean = 0;
  for (std::int64_t i = 0; i < d; ++i) mean += static_cast<double>(row[i]);
  const T shift = static_cast<T>(mean / static_cast<double>(d));
  for (std::int64_t i = 0; i < d; ++i) row[i] -= shift;
}

template <typename T>
void HostBackend<T>::put_writer(const Array& rows, std::int64_t row, int length, Array& writers, int n_writers, int index) {
  const std::int64_t d = config_.d_model;
  for (int s = 0; s < length; ++s) {
    T* to = ptr(writers) + (static_cast<std::int64_t>(s) * n_writers + index) * d;
    std::copy_n(ptr(rows) + (row + s) * d, d, to);
    center_row(to);
  }
}

template <typename T>
void HostBackend<T>::put_head_writers(int index, const Array& z, std::int64_t row, int length, Array& writers, int n_writers, int first) {
  // c[s, h, d] = sum_e z[s, h, e] W_O[h, e, d]
  const auto w = layer(index);
  const std::int64_t d = config_.d_model;
  const std::int64_t e = config_.d_head;
  const std::int64_t z_row = config_.n_heads * e;
  pool_.parallel_for(config_.n_heads, [&](std::int64_t h) {
    T* to = ptr(writers) + (first + h) * d;
    for (std::int64_t p = 0; p < w->o.count(); ++p) {
      gemm(false, length, w->o.columns(p), e, ptr(z) + row * z_row + h * e, z_row, w->o.panel(p) + h * e * w->o.columns(p), w->o.columns(p), false,
           to + w->o.begin(p), n_writers * d);
    }
    for (int s = 0; s < length; ++s) center_row(to + static_cast<std::int64_t>(s) * n_writers * d);
  });
}

// Keys and queries ----------------------------------------------------------------------------------------------------------------

template <typename T>
void HostBackend<T>::pull_back(const RotaryTable* table, std::int64_t position, const std::vector<T>& norm, const Array* dev, std::int64_t dev_index,
                               T* u) const {
  if (table) rotate(*table, position, u, true);
  if (!norm.empty()) {
    const T inverse = T(1) / ptr(*dev)[dev_index];
    for (int e = 0; e < config_.d_head; ++e) u[e] *= norm[static_cast<std::size_t>(e)] * inverse;
  }
}

template <typename T>
bool HostBackend<T>::fold_is_cheaper(const AttentionView& view) const {
  // Multiplications per writer, key and query side together: a vector in D per pair, against a projection per head and a short dot product per pair.
  const double pairs = static_cast<double>(tri(view.length)) * config_.n_heads;
  const double fold = 2 * pairs * config_.d_model;
  const double project = static_cast<double>(view.length) * config_.d_model * (config_.n_heads + config_.n_kv_heads) * config_.d_head +
                         2 * pairs * config_.d_head;
  const auto bytes = static_cast<std::int64_t>(pairs) * view.visible * static_cast<std::int64_t>(sizeof(T));
  return fold <= project && bytes <= kFoldBytes;
}

// table[H, tri, Cl]: sK_j(q, s) = g / dev(s) < c_j(s), W_K n_K R_s^-1 q(q) >, a vector in D for every pair.
template <typename T>
void HostBackend<T>::folded_keys(const AttentionView& view, const LayerPanels<T>& w, T* table) {
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const int length = view.length;
  const auto rope = rotary(length);
  const bool per_source = rope != nullptr || !w.k_norm.empty();
  const double scale = 1.0 / std::sqrt(static_cast<double>(e));
  const auto vectors = [&](int s, T* scratch, T* out) {  // out[H, length - s, D]
    const std::int64_t n = length - s;
    for (int h = 0; h < heads; ++h) {
      const int g = h / config_.group_size();
      for (std::int64_t i = 0; i < n; ++i) {
        T* u = scratch + i * e;
        std::copy_n(ptr(*view.q) + ((s + i) * heads + h) * e, e, u);
        if (per_source) pull_back(rope.get(), s, w.k_norm, view.k_dev, static_cast<std::int64_t>(s) * config_.n_kv_heads + g, u);
      }
      head_to_model(w.k, g, scratch, e, n, out + h * n * d, d);
    }
  };
  std::vector<T> shared;  // [H, S, D] where a query looks the same from every source
  if (!per_source) {
    shared.resize(static_cast<std::size_t>(heads) * static_cast<std::size_t>(length) * static_cast<std::size_t>(d));
    pool_.parallel_for(heads, [&](std::int64_t h) {
      head_to_model(w.k, static_cast<int>(h) / config_.group_size(), ptr(*view.q) + h * e, heads * e, length, shared.data() + h * length * d, d);
    });
  }
  pool_.parallel_for(length, [&](std::int64_t s) {
    const std::int64_t n = length - s;
    const T* writers = ptr(*view.writers) + s * view.n_writers * d;
    std::vector<T> own;
    std::vector<T> scores(static_cast<std::size_t>(heads * n * cl));
    if (per_source) {
      own.resize(static_cast<std::size_t>(heads * n * d));
      std::vector<T> scratch(static_cast<std::size_t>(n * e));
      vectors(static_cast<int>(s), scratch.data(), own.data());
      gemm(true, heads * n, cl, d, own.data(), d, writers, d, false, scores.data(), cl);
    } else {
      for (std::int64_t h = 0; h < heads; ++h) {
        gemm(true, n, cl, d, shared.data() + (h * length + s) * d, d, writers, d, false, scores.data() + h * n * cl, cl);
      }
    }
    const T factor = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[s]));
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < n; ++i) {
        T* to = table + (h * tri(length) + tri(s + i) + s) * cl;
        const T* from = scores.data() + (h * n + i) * cl;
        for (std::int64_t j = 0; j < cl; ++j) to[j] = from[j] * factor;
      }
    }
  });
}

template <typename T>
void HostBackend<T>::folded_queries(const AttentionView& view, const LayerPanels<T>& w, const Rows& rows) {
  // sQ_j(q, s) = g / dev(q) < c_j(q), W_Q n_Q R_q^-1 k(s) >
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const auto rope = rotary(view.length);
  const double scale = 1.0 / std::sqrt(static_cast<double>(e));
  pool_.parallel_for(view.length, [&](std::int64_t at) {
    const std::int64_t q = view.length - 1 - at;  // the longest first
    const std::int64_t n = q + 1;
    std::vector<T> scratch(static_cast<std::size_t>(n * e));
    std::vector<T> vectors(static_cast<std::size_t>(heads * n * d));
    for (int h = 0; h < heads; ++h) {
      const int g = h / config_.group_size();
      for (std::int64_t s = 0; s < n; ++s) {
        T* u = scratch.data() + s * e;
        std::copy_n(ptr(*view.k) + (s * config_.n_kv_heads + g) * e, e, u);
        pull_back(rope.get(), q, w.q_norm, view.q_dev, q * heads + h, u);
      }
      head_to_model(w.q, h, scratch.data(), e, n, vectors.data() + h * n * d, d);
    }
    std::vector<T> scores(static_cast<std::size_t>(heads * n * cl));
    gemm(true, heads * n, cl, d, vectors.data(), d, ptr(*view.writers) + q * view.n_writers * d, d, false, scores.data(), cl);
    const T factor = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[q]));
    for (auto& x : scores) x *= factor;
    for (int h = 0; h < heads; ++h) rows(h, static_cast<int>(q), scores.data() + h * n * cl);
  });
}

// P[head of the panel, s, j, E]: every writer's own key (query), rotated and scaled; then a short product per pair.
template <typename T>
void HostBackend<T>::projected_keys(const AttentionView& view, const LayerPanels<T>& w, const Rows& rows) {
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const std::int64_t length = view.length;
  const auto rope = rotary(length);
  const double scale = 1.0 / std::sqrt(static_cast<double>(e));
  constexpr std::int64_t kQueries = 8;
  for (std::int64_t p = 0; p < w.k.count(); ++p) {
    const std::int64_t in_panel = w.k.columns(p) / e;
    const std::int64_t first = w.k.begin(p) / e;
    Array projected = uninitialized(in_panel * length * cl * e);
    pool_.parallel_for(length, [&](std::int64_t s) {
      std::vector<T> tile(static_cast<std::size_t>(cl * w.k.columns(p)));
      gemm(false, cl, w.k.columns(p), d, ptr(*view.writers) + s * view.n_writers * d, d, w.k.panel(p), w.k.columns(p), false, tile.data(), w.k.columns(p));
      const T base = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[s]));
      for (std::int64_t g = 0; g < in_panel; ++g) {
        const T inverse = w.k_norm.empty() ? T(1) : T(1) / ptr(*view.k_dev)[s * config_.n_kv_heads + first + g];
        for (std::int64_t j = 0; j < cl; ++j) {
          T* to = ptr(projected) + ((g * length + s) * cl + j) * e;
          const T* from = tile.data() + j * w.k.columns(p) + g * e;
          for (std::int64_t i = 0; i < e; ++i) to[i] = from[i] * base * (w.k_norm.empty() ? T(1) : w.k_norm[static_cast<std::size_t>(i)] * inverse);
          if (rope) rotate(*rope, s, to, false);
        }
      }
    });
    const std::int64_t group = config_.group_size();
    const std::int64_t blocks = (length + kQueries - 1) / kQueries;
    pool_.parallel_for(in_panel * group * blocks, [&](std::int64_t task) {
      const std::int64_t block = blocks - 1 - task % blocks;
      const std::int64_t g = task / blocks / group;
      const std::int64_t h = (first + g) * group + task / blocks % group;
      const std::int64_t begin = block * kQueries;
      const std::int64_t n = std::min(kQueries, length - begin);
      const std::int64_t reach = begin + n;
      std::vector<T> tile(static_cast<std::size_t>(n * reach * cl));
      for (std::int64_t s = 0; s < reach; ++s) {
        const std::int64_t skip = std::max<std::int64_t>(0, s - begin);
        gemm(true, n - skip, cl, e, ptr(*view.q) + ((begin + skip) * heads + h) * e, heads * e, ptr(projected) + (g * length + s) * cl * e, e, false,
             tile.data() + (skip * reach + s) * cl, reach * cl);
      }
      for (std::int64_t i = 0; i < n; ++i) rows(static_cast<int>(h), static_cast<int>(begin + i), tile.data() + i * reach * cl);
    });
  }
}

template <typename T>
void HostBackend<T>::projected_queries(const AttentionView& view, const LayerPanels<T>& w, const Rows& rows) {
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const std::int64_t kv_row = static_cast<std::int64_t>(config_.n_kv_heads) * e;
  const auto rope = rotary(view.length);
  const double scale = 1.0 / std::sqrt(static_cast<double>(e));
  for (std::int64_t p = 0; p < w.q.count(); ++p) {
    const std::int64_t in_panel = w.q.columns(p) / e;
    const std::int64_t first = w.q.begin(p) / e;
    pool_.parallel_for(view.length, [&](std::int64_t at) {
      const std::int64_t q = view.length - 1 - at;
      std::vector<T> tile(static_cast<std::size_t>(cl * w.q.columns(p)));
      gemm(false, cl, w.q.columns(p), d, ptr(*view.writers) + q * view.n_writers * d, d, w.q.panel(p), w.q.columns(p), false, tile.data(), w.q.columns(p));
      const T base = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[q]));
      std::vector<T> own(static_cast<std::size_t>(cl * e));
      std::vector<T> scores(static_cast<std::size_t>((q + 1) * cl));
      for (std::int64_t i = 0; i < in_panel; ++i) {
        const std::int64_t h = first + i;
        const T inverse = w.q_norm.empty() ? T(1) : T(1) / ptr(*view.q_dev)[q * heads + h];
        for (std::int64_t j = 0; j < cl; ++j) {
          T* to = own.data() + j * e;
          const T* from = tile.data() + j * w.q.columns(p) + i * e;
          for (std::int64_t x = 0; x < e; ++x) to[x] = from[x] * base * (w.q_norm.empty() ? T(1) : w.q_norm[static_cast<std::size_t>(x)] * inverse);
          if (rope) rotate(*rope, q, to, false);
        }
        gemm(true, q + 1, cl, e, ptr(*view.k) + h / config_.group_size() * e, kv_row, own.data(), e, false, scores.data(), cl);
        rows(static_cast<int>(h), static_cast<int>(q), scores.data());
      }
    });
  }
}

template <typename T>
void HostBackend<T>::key_pass(const AttentionView& view, T* table, const Rows& rows) {
  const auto w = layer(view.layer);
  const std::int64_t per_head = tri(view.length) * view.visible;
  if (!fold_is_cheaper(view)) {
    projected_keys(view, *w, [&](int h, int q, T* scores) {
      if (table) {
        T* to = table + h * per_head + tri(q) * view.visible;
        std::copy_n(scores, static_cast<std::int64_t>(q + 1) * view.visible, to);
        scores = to;
      }
      rows(h, q, scores);
    });
    return;
  }
  Array scratch;
  if (!table) {
    scratch = uninitialized(config_.n_heads * per_head);
    table = ptr(scratch);
  }
  folded_keys(view, *w, table);
  pool_.parallel_for(static_cast<std::int64_t>(config_.n_heads) * view.length, [&](std::int64_t task) {
    const auto h = static_cast<int>(task / view.length);
    const auto q = static_cast<int>(task % view.length);
    rows(h, q, table + h * per_head + tri(q) * view.visible);
  });
}

template <typename T>
void HostBackend<T>::query_pass(const AttentionView& view, const Rows& rows) {
  const auto w = layer(view.layer);
  if (fold_is_cheaper(view)) {
    folded_queries(view, *w, rows);
  } else {
    projected_queries(view, *w, rows);
  }
}

// sV_j(s) = < norm(c_j)(s), W_V v(s) >: the value folded back into the stream, a vector per key/value head.
template <typename T>
void HostBackend<T>::value_scores(const AttentionView& view, const LayerPanels<T>& w, AttentionSums& sums) {
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
    for (int g = 0; g < groups; ++g) head_to_model(w.v, g, ptr(*view.v) + (s * groups + g) * e, e, 1, vectors.data() + g * d, d);
    std::vector<T> scores(static_cast<std::size_t>(groups * cl));
    gemm(true, groups, cl, d, vectors.data(), d, ptr(*view.writers) + s * view.n_writers * d, d, false, scores.data(), cl);
    const T inverse = T(1) / ptr(*view.dev)[s];
    for (int g = 0; g < groups; ++g) {
      T* to = ptr(sums.v_scores) + (static_cast<std::int64_t>(g) * length + s) * cl;
      for (std::int64_t j = 0; j < cl; ++j) to[j] = scores[static_cast<std::size_t>(g * cl + j)] * inverse;
      double sum = 0;
      double abs = 0;
      row_sums(to, cl, sum, abs);
      ptr(sums.v_sum)[g * length + s] = static_cast<T>(sum);
      ptr(sums.v_abs)[g * length + s] = static_cast<T>(abs);
    }
  });
}

template <typename T>
AttentionSums HostBackend<T>::attention_sums(const AttentionView& view, Scores scores, bool keep_key_scores) {
  const std::int64_t pairs = tri(view.length);
  const std::int64_t cl = view.visible;
  const int heads = config_.n_heads;
  AttentionSums sums;
  for (Array* a : {&sums.k_sum, &sums.k_abs, &sums.q_sum, &sums.q_abs}) *a = uninitialized(heads * pairs);
  sums.k_std = uninitialized(static_cast<std::int64_t>(heads) * view.length * cl);
  sums.k_mean = uninitialized(sums.k_std.size());
  if (keep_key_scores) sums.k_scores = uninitialized(heads * pairs * cl);
  const auto add_up = [&](T* rows, int h, int q, Array& sum_out, Array& abs_out) {
    for (int s = 0; s <= q; ++s) {
      double sum = 0;
      double abs = 0;
      row_sums(rows + s * cl, cl, sum, abs);
      ptr(sum_out)[h * pairs + tri(q) + s] = static_cast<T>(sum);
      ptr(abs_out)[h * pairs + tri(q) + s] = static_cast<T>(abs);
    }
  };
  key_pass(view, keep_key_scores ? ptr(sums.k_scores) : nullptr, [&](int h, int q, T* rows) {
    const std::int64_t at = (static_cast<std::int64_t>(h) * view.length + q) * cl;
    column_moments(rows, q + 1, cl, ptr(sums.k_mean) + at, ptr(sums.k_std) + at);
    if (scores == Scores::centered) center_columns(rows, q + 1, cl);
    add_up(rows, h, q, sums.k_sum, sums.k_abs);
  });
  query_pass(view, [&](int h, int q, T* rows) {
    if (scores == Scores::centered) center_columns(rows, q + 1, cl);
    add_up(rows, h, q, sums.q_sum, sums.q_abs);
  });
  value_scores(view, *layer(view.layer), sums);
  return sums;
}

template <typename T>
void HostBackend<T>::visit_key_scores(const AttentionView& view, Scores scores, const KeyVisitor& visit) {
  key_pass(view, nullptr, [&](int h, int q, T* rows) {
    if (scores == Scores::centered) center_columns(rows, q + 1, view.visible);
    visit(h, q, rows);
  });
}

template <typename T>
void HostBackend<T>::key_scores(const AttentionView& view, Scores scores, int head, int query, Array& out) {
  const auto w = layer(view.layer);
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const int g = head / config_.group_size();
  const auto rope = rotary(view.length);
  const bool per_source = rope != nullptr || !w->k_norm.empty();
  const double scale = 1.0 / std::sqrt(static_cast<double>(e));
  const T* q = ptr(*view.q) + (static_cast<std::int64_t>(query) * config_.n_heads + head) * e;
  std::vector<T> shared(static_cast<std::size_t>(d));
  if (!per_source) head_to_model(w->k, g, q, e, 1, shared.data(), d);
  pool_.parallel_for(query + 1, [&](std::int64_t s) {
    std::vector<T> own;
    const T* vector = shared.data();
    if (per_source) {
      own.resize(static_cast<std::size_t>(d));
      std::vector<T> u(q, q + e);
      pull_back(rope.get(), s, w->k_norm, view.k_dev, s * config_.n_kv_heads + g, u.data());
      head_to_model(w->k, g, u.data(), e, 1, own.data(), d);
      vector = own.data();
    }
    const T factor = static_cast<T>(scale / static_cast<double>(ptr(*view.dev)[s]));
    const T* writers = ptr(*view.writers) + s * view.n_writers * d;
    for (std::int64_t j = 0; j < cl; ++j) ptr(out)[s * cl + j] = factor * dot(d, writers + j * d, vector);
  });
  if (scores == Scores::centered) center_columns(ptr(out), query + 1, cl);
}

template <typename T>
void HostBackend<T>::query_scores(const AttentionView& view, Scores scores, int head, int query, Array& out) {
  const auto w = layer(view.layer);
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const int g = head / config_.group_size();
  const std::int64_t n = query + 1;
  const auto rope = rotary(view.length);
  std::vector<T> pulled(static_cast<std::size_t>(n * e));
  for (std::int64_t s = 0; s < n; ++s) {
    T* u = pulled.data() + s * e;
    std::copy_n(ptr(*view.k) + (s * config_.n_kv_heads + g) * e, e, u);
    pull_back(rope.get(), query, w->q_norm, view.q_dev, static_cast<std::int64_t>(query) * config_.n_heads + head, u);
  }
  std::vector<T> vectors(static_cast<std::size_t>(n * d));
  head_to_model(w->q, head, pulled.data(), e, n, vectors.data(), d);
  gemm(true, n, cl, d, vectors.data(), d, ptr(*view.writers) + static_cast<std::int64_t>(query) * view.n_writers * d, d, false, ptr(out), cl);
  const T factor = static_cast<T>(1.0 / std::sqrt(static_cast<double>(e)) / static_cast<double>(ptr(*view.dev)[query]));
  for (std::int64_t i = 0; i < n * cl; ++i) ptr(out)[i] *= factor;
  if (scores == Scores::centered) center_columns(ptr(out), n, cl);
}

// MLPs ----------------------------------------------------------------------------------------------------------------------------

template <typename T>
MlpSums HostBackend<T>::mlp_sums(const MlpView& view, MlpSide side) {
  // sM_j(q, n) = norm(c_j)(q) . W_in[:, n]: a tile of writers x neurons at a time, reduced at once.
  const auto w = layer(view.layer);
  const Panels<T>& in = side == MlpSide::gate ? w->in : w->up;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const std::int64_t length = view.length;
  MlpSums sums;
  sums.sum = uninitialized(length * in.out);
  sums.abs = uninitialized(length * in.out);
  sums.l2 = uninitialized(length * cl);
  std::vector<double> squares(static_cast<std::size_t>(in.count() * length * cl), 0.0);
  pool_.parallel_for(in.count() * length, [&](std::int64_t task) {
    const std::int64_t p = task / length;
    const std::int64_t q = task % length;
    const std::int64_t n = in.columns(p);
    thread_local std::vector<T> tile;
    tile.resize(static_cast<std::size_t>(cl * n));
    gemm(false, cl, n, d, ptr(*view.writers) + q * view.n_writers * d, d, in.panel(p), n, false, tile.data(), n);
    std::vector<double> sum(static_cast<std::size_t>(2 * n), 0.0);
    reduce_writers(tile.data(), cl, n, n, sum.data(), sum.data() + n, squares.data() + (p * length + q) * cl);
    const double inverse = 1.0 / static_cast<double>(ptr(*view.dev)[q]);
    for (std::int64_t i = 0; i < n; ++i) {
      ptr(sums.sum)[q * in.out + in.begin(p) + i] = static_cast<T>(sum[static_cast<std::size_t>(i)] * inverse);
      ptr(sums.abs)[q * in.out + in.begin(p) + i] = static_cast<T>(sum[static_cast<std::size_t>(n + i)] * inverse);
    }
  });
  for (std::int64_t q = 0; q < length; ++q) {
    for (std::int64_t j = 0; j < cl; ++j) {
      double total = 0;
      for (std::int64_t p = 0; p < in.count(); ++p) total += squares[static_cast<std::size_t>((p * length + q) * cl + j)];
      ptr(sums.l2)[q * cl + j] = static_cast<T>(std::sqrt(total) / static_cast<double>(ptr(*view.dev)[q]));
    }
  }
  return sums;
}

template <typename T>
void HostBackend<T>::mlp_scores(const MlpView& view, MlpSide side, int query, Array& out) {
  const auto w = layer(view.layer);
  const Panels<T>& in = side == MlpSide::gate ? w->in : w->up;
  const std::int64_t d = config_.d_model;
  const T inverse = T(1) / ptr(*view.dev)[query];
  pool_.parallel_for(in.count(), [&](std::int64_t p) {
    T* to = ptr(out) + in.begin(p);
    gemm(false, view.visible, in.columns(p), d, ptr(*view.writers) + static_cast<std::int64_t>(query) * view.n_writers * d, d, in.panel(p), in.columns(p),
         false, to, in.out);
    for (std::int64_t j = 0; j < view.visible; ++j) {
      for (std::int64_t i = 0; i < in.columns(p); ++i) to[j * in.out + i] *= inverse;
    }
  });
}

}  // namespace unpack
