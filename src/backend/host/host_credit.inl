// Entries, folding and targets: what passing credit on needs. Part of host_backend.cc.

namespace unpack {

template <typename T>
void HostBackend<T>::head_numerators(const AttentionView& view, std::span<const int> queries,
                                     const Array& directions, Array& out) {
  // alpha[h, q, s] < v[s], W_O[h] center(d) >
  const auto w = layer(view.layer);
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const auto rows = static_cast<std::int64_t>(queries.size());
  std::vector<T> centered(ptr(directions), ptr(directions) + rows * d);
  for (std::int64_t i = 0; i < rows; ++i) center_row(centered.data() + i * d);
  std::vector<T> pulled(static_cast<std::size_t>(rows * heads * e));
  multiply_transposed(w->o, centered.data(), rows, pulled.data());
  std::vector<std::int64_t> begin(queries.size() + 1, 0);
  for (std::size_t i = 0; i < queries.size(); ++i) begin[i + 1] = begin[i] + queries[i] + 1;
  pool_.parallel_for(heads, [&](std::int64_t h) {
    const std::int64_t g = h / config_.group_size();
    for (std::int64_t i = 0; i < rows; ++i) {
      const int q = queries[static_cast<std::size_t>(i)];
      const T* u = pulled.data() + (i * heads + h) * e;
      const T* alpha = ptr(*view.pattern) + h * tri(view.length) + tri(q);
      T* to = ptr(out) + h * begin.back() + begin[static_cast<std::size_t>(i)];
      for (int s = 0; s <= q; ++s)
        to[s] =
            alpha[s] *
            dot(e, ptr(*view.v) + (static_cast<std::int64_t>(s) * config_.n_kv_heads + g) * e, u);
    }
  });
}

template <typename T>
void HostBackend<T>::mlp_numerators(const MlpView& view, std::span<const int> queries,
                                    const Array& directions, Array& out) {
  const auto w = layer(view.layer);
  const std::int64_t d = config_.d_model;
  const std::int64_t n = config_.d_mlp;
  const auto rows = static_cast<std::int64_t>(queries.size());
  std::vector<T> centered(ptr(directions), ptr(directions) + rows * d);
  for (std::int64_t i = 0; i < rows; ++i) center_row(centered.data() + i * d);
  multiply_transposed(w->out, centered.data(), rows, ptr(out));
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* act = ptr(*view.act) + queries[static_cast<std::size_t>(i)] * n;
    for (std::int64_t j = 0; j < n; ++j) ptr(out)[i * n + j] *= act[j];
  }
}

template <typename T>
void HostBackend<T>::query_fold(const AttentionView& view, std::span<const int> queries,
                                std::span<const double> coef, std::vector<double>& out) {
  const auto w = layer(view.layer);
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const auto rows = static_cast<std::int64_t>(queries.size());
  const auto rope = rotary(view.length);
  std::vector<std::int64_t> begin(queries.size() + 1, 0);
  for (std::size_t i = 0; i < queries.size(); ++i) begin[i + 1] = begin[i] + queries[i] + 1;
  out.assign(static_cast<std::size_t>(heads * rows * cl), 0.0);
  if (view.q_scores && !view.q_scores->empty()) {
    pool_.parallel_for(heads, [&](std::int64_t h) {
      std::vector<T> sum(static_cast<std::size_t>(cl));
      for (std::int64_t i = 0; i < rows; ++i) {
        const int q = queries[static_cast<std::size_t>(i)];
        const double* c = coef.data() + h * begin.back() + begin[static_cast<std::size_t>(i)];
        const T* scores = ptr(*view.q_scores) + (h * tri(view.length) + tri(q)) * cl;
        std::fill(sum.begin(), sum.end(), T(0));
        for (int s = 0; s <= q; ++s) axpy(cl, static_cast<T>(c[s]), scores + s * cl, sum.data());
        std::copy(sum.begin(), sum.end(), out.begin() + (h * rows + i) * cl);
      }
    });
    return;
  }
  std::vector<T> vectors(static_cast<std::size_t>(rows * heads * d));  // [rows, H, D]
  pool_.parallel_for(heads, [&](std::int64_t h) {
    const std::int64_t g = h / config_.group_size();
    std::vector<T> folded(static_cast<std::size_t>(rows * e), T(0));
    for (std::int64_t i = 0; i < rows; ++i) {
      const int q = queries[static_cast<std::size_t>(i)];
      const double* c = coef.data() + h * begin.back() + begin[static_cast<std::size_t>(i)];
      T* u = folded.data() + i * e;
      for (int s = 0; s <= q; ++s)
        axpy(e, static_cast<T>(c[s]),
             ptr(*view.k) + (static_cast<std::int64_t>(s) * config_.n_kv_heads + g) * e, u);
      pull_back(rope.get(), q, w->q_norm, view.q_dev, static_cast<std::int64_t>(q) * heads + h, u);
    }
    head_to_model(w->q, static_cast<int>(h), folded.data(), e, rows, vectors.data() + h * d,
                  heads * d);
  });
  const double scale = 1.0 / std::sqrt(static_cast<double>(e));
  pool_.parallel_for(rows, [&](std::int64_t i) {
    const int q = queries[static_cast<std::size_t>(i)];
    std::vector<T> scores(static_cast<std::size_t>(heads * cl));
    gemm(true, heads, cl, d, vectors.data() + i * heads * d, d,
         ptr(*view.writers) + static_cast<std::int64_t>(q) * view.n_writers * d, d, false,
         scores.data(), cl);
    const double factor = scale / static_cast<double>(ptr(*view.dev)[q]);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t j = 0; j < cl; ++j) {
        out[static_cast<std::size_t>((h * rows + i) * cl + j)] =
            factor * static_cast<double>(scores[static_cast<std::size_t>(h * cl + j)]);
      }
    }
  });
}

template <typename T>
void HostBackend<T>::key_fold(const AttentionView& view, std::span<const double> coef,
                              std::vector<double>& out) {
  const auto w = layer(view.layer);
  const int heads = config_.n_heads;
  const int groups = config_.n_kv_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const int length = view.length;
  const auto rope = rotary(length);
  std::vector<T> folded(static_cast<std::size_t>(length) * static_cast<std::size_t>(groups * e),
                        T(0));  // [S, G, E]
  pool_.parallel_for(static_cast<std::int64_t>(length) * groups, [&](std::int64_t task) {
    const std::int64_t s = task / groups;
    const std::int64_t g = task % groups;
    T* u = folded.data() + (s * groups + g) * e;
    for (std::int64_t h = g * config_.group_size(); h < (g + 1) * config_.group_size(); ++h) {
      for (std::int64_t q = s; q < length; ++q) {
        const double c = coef[static_cast<std::size_t>(h * tri(length) + tri(q) + s)];
        if (c != 0) axpy(e, static_cast<T>(c), ptr(*view.q) + (q * heads + h) * e, u);
      }
    }
    pull_back(rope.get(), s, w->k_norm, view.k_dev, s * groups + g, u);
  });
  std::vector<T> vectors(static_cast<std::size_t>(length) * static_cast<std::size_t>(d));
  multiply_transposed(w->k, folded.data(), length, vectors.data());
  out.assign(static_cast<std::size_t>(length) * static_cast<std::size_t>(cl), 0.0);
  const double scale = 1.0 / std::sqrt(static_cast<double>(e));
  pool_.parallel_for(length, [&](std::int64_t s) {
    const double factor = scale / static_cast<double>(ptr(*view.dev)[s]);
    for (std::int64_t j = 0; j < cl; ++j) {
      out[static_cast<std::size_t>(s * cl + j)] =
          factor * static_cast<double>(dot(d, ptr(*view.writers) + (s * view.n_writers + j) * d,
                                           vectors.data() + s * d));
    }
  });
}

template <typename T>
void HostBackend<T>::mlp_fold(const MlpView& view, MlpSide side, std::span<const int> queries,
                              std::span<const double> coef, std::vector<double>& out) {
  const auto w = layer(view.layer);
  const Panels<T>& in = side == MlpSide::gate ? w->in : w->up;
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const auto rows = static_cast<std::int64_t>(queries.size());
  const std::vector<T> scaled(coef.begin(), coef.end());
  out.assign(static_cast<std::size_t>(rows * cl), 0.0);
  if (rows == 1 && queries[0] == view.length - 1 && view.last && !view.last->empty()) {
    pool_.parallel_for(cl, [&](std::int64_t j) {
      out[static_cast<std::size_t>(j)] =
          static_cast<double>(dot(in.out, ptr(*view.last) + j * in.out, scaled.data()));
    });
    return;
  }
  std::vector<T> vectors(static_cast<std::size_t>(rows * d));
  multiply_transposed(in, scaled.data(), rows, vectors.data());
  pool_.parallel_for(rows, [&](std::int64_t i) {
    const int q = queries[static_cast<std::size_t>(i)];
    const double factor = 1.0 / static_cast<double>(ptr(*view.dev)[q]);
    for (std::int64_t j = 0; j < cl; ++j) {
      out[static_cast<std::size_t>(i * cl + j)] =
          factor *
          static_cast<double>(
              dot(d, ptr(*view.writers) + (static_cast<std::int64_t>(q) * view.n_writers + j) * d,
                  vectors.data() + i * d));
    }
  });
}

template <typename T>
typename Backend::Peaks HostBackend<T>::measure_peaks() {
  using Clock = std::chrono::steady_clock;
  const auto fastest = [](int repeat, const auto& work) {
    double best = 1e30;
    for (int i = 0; i < repeat; ++i) {
      const auto begin = Clock::now();
      work();
      best = std::min(best, std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return best;
  };
  constexpr std::int64_t m = 1024, k = 1024, n = 2048;
  Panels<T> w;
  w.in = k;
  w.out = n;
  w.data.resize(static_cast<std::size_t>(k * n));
  std::vector<T> a(static_cast<std::size_t>(m * k)), c(static_cast<std::size_t>(m * n));
  for (std::size_t i = 0; i < w.data.size(); ++i)
    w.data[i] = static_cast<T>(static_cast<double>(i * 7 % 13) / 13 - 0.5);
  for (std::size_t i = 0; i < a.size(); ++i)
    a[i] = static_cast<T>(static_cast<double>(i * 11 % 17) / 17 - 0.5);
  Peaks peaks;
  peaks.flops = 2.0 * m * k * n / fastest(25, [&] { multiply(w, a.data(), m, {}, c.data()); });
  constexpr std::int64_t kBlock = std::int64_t{1} << 18, kBlocks = 256;  // far past every cache
  std::vector<T> memory(static_cast<std::size_t>(kBlock * kBlocks), T(1));
  std::vector<double> sums(kBlocks);
  const double read = fastest(12, [&] {
    pool_.parallel_for(kBlocks, [&](std::int64_t b) {
      double sum = 0;
      double abs = 0;
      row_sums(memory.data() + b * kBlock, kBlock, sum, abs);
      sums[static_cast<std::size_t>(b)] = sum;
    });
  });
  peaks.bytes = static_cast<double>(memory.size() * sizeof(T)) / read;
  return peaks;
}

template <typename T>
std::vector<double> HostBackend<T>::vocabulary_mean() {
  {
    std::lock_guard lock(mutex_);
    if (!vocabulary_mean_.empty()) return vocabulary_mean_;
  }
  const std::int64_t d = config_.d_model;
  const std::int64_t vocabulary = config_.vocab_size;
  const std::int64_t blocks = (vocabulary + kVocabularyBlock - 1) / kVocabularyBlock;
  std::vector<double> partial(static_cast<std::size_t>(blocks * d), 0.0);
  pool_.parallel_for(blocks, [&](std::int64_t block) {
    const std::int64_t first = block * kVocabularyBlock;
    const std::int64_t last = std::min(vocabulary, first + kVocabularyBlock);
    constexpr std::int64_t kRows = 16;
    std::vector<T> rows(static_cast<std::size_t>(kRows * d));
    std::vector<T> group(static_cast<std::size_t>(d));
    double* sum = partial.data() + block * d;
    for (std::int64_t r = first; r < last; r += kRows) {
      const std::int64_t n = std::min(kRows, last - r);
      read_rows(weights_->unembed, r, n, rows.data());
      std::fill(group.begin(), group.end(), T(0));
      for (std::int64_t i = 0; i < n; ++i) axpy(d, T(1), rows.data() + i * d, group.data());
      for (std::int64_t j = 0; j < d; ++j)
        sum[j] += static_cast<double>(group[static_cast<std::size_t>(j)]);
    }
  });
  std::vector<double> mean(static_cast<std::size_t>(d), 0.0);
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t j = 0; j < d; ++j)
      mean[static_cast<std::size_t>(j)] += partial[static_cast<std::size_t>(b * d + j)];
  }
  for (auto& m : mean) m /= static_cast<double>(vocabulary);
  std::lock_guard lock(mutex_);
  vocabulary_mean_ = mean;
  return mean;
}

template <typename T>
void HostBackend<T>::target_direction(const Array& x, std::int64_t row,
                                      std::span<const TokenId> target,
                                      const std::vector<TokenId>* versus, bool raw, Array& out) {
  const std::int64_t d = config_.d_model;
  std::vector<double> direction(static_cast<std::size_t>(d), 0.0);
  std::vector<double> w_row(static_cast<std::size_t>(d));
  const auto add_mean = [&](std::span<const TokenId> ids, double sign) {
    for (const TokenId id : ids) {
      read_rows(weights_->unembed, id, 1, w_row.data());
      for (std::size_t j = 0; j < direction.size(); ++j)
        direction[j] += sign * w_row[j] / static_cast<double>(ids.size());
    }
  };
  add_mean(target, 1.0);
  if (!raw && versus) add_mean(*versus, -1.0);
  if (!raw && !versus) {
    const std::vector<double> mean = vocabulary_mean();
    for (std::size_t j = 0; j < direction.size(); ++j) direction[j] -= mean[j];
  }
  Array one = uninitialized(d);
  copy(x, row * d, one, 0, d);
  Array normalized = uninitialized(d);
  Array dev = uninitialized(1);
  normalize(one, 1, normalized, dev);
  const double inverse = 1.0 / static_cast<double>(ptr(dev)[0]);
  for (std::size_t j = 0; j < direction.size(); ++j)
    ptr(out)[j] = static_cast<T>(direction[j] * static_cast<double>(final_w_[j]) * inverse);
}

template <typename T>
void HostBackend<T>::writer_dots(const Array& writers, int n_writers, int position,
                                 const Array& direction, std::vector<double>& out) {
  const std::int64_t d = config_.d_model;
  out.resize(static_cast<std::size_t>(n_writers));
  for (int k = 0; k < n_writers; ++k) {
    out[static_cast<std::size_t>(k)] = static_cast<double>(
        dot(d, ptr(writers) + (static_cast<std::int64_t>(position) * n_writers + k) * d,
            ptr(direction)));
  }
}

}  // namespace unpack
