// Entries, folding and targets: what passing credit on needs.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/question_tables.h"

namespace unpack {

namespace {

constexpr std::int64_t kCreditRows = 64;  // queries, or sources, that share a product

// How many sources any of the queries sees.
std::int64_t farthest(std::span<const int> queries) {
  return std::int64_t{*std::max_element(queries.begin(), queries.end())} + 1;
}

}  // namespace

template <typename T>
std::vector<T> HostBackend<T>::directions_for(const std::vector<T>& post, const Array* out_dev,
                                              std::span<const int> queries,
                                              const Array& directions) const {
  const auto d = static_cast<std::size_t>(config_.d_model);
  std::vector<T> out(ptr(directions), ptr(directions) + queries.size() * d);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    T* row = out.data() + i * d;
    center_row(row);
    if (post.empty()) continue;
    const T inverse = T(1) / ptr(*out_dev)[queries[i]];
    for (std::size_t k = 0; k < d; ++k) row[k] *= post[k] * inverse;
  }
  return out;
}

template <typename T>
void HostBackend<T>::head_numerators(const AttentionView& view, std::span<const int> queries,
                                     const Array& directions, Array& out) {
  // alpha[h, q, s] < v[s], W_O[h] center(d) >
  const auto w = layer(view.layer);
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const auto rows = static_cast<std::int64_t>(queries.size());
  const std::vector<T> centered = directions_for(w->attn_post, view.out_dev, queries, directions);
  std::vector<T> pulled(static_cast<std::size_t>(rows * heads * e));
  multiply_transposed(w->o, centered.data(), rows, pulled.data());
  std::vector<std::int64_t> begin(queries.size() + 1, 0);
  for (std::size_t i = 0; i < queries.size(); ++i) begin[i + 1] = begin[i] + queries[i] + 1;
  const std::int64_t kv_row = static_cast<std::int64_t>(config_.n_kv_heads) * e;
  const std::int64_t blocks = (rows + kCreditRows - 1) / kCreditRows;
  pool_.parallel_for(heads * blocks, [&](std::int64_t task) {
    const std::int64_t h = task / blocks, first = task % blocks * kCreditRows;
    const std::int64_t n = std::min(kCreditRows, rows - first);
    const std::int64_t reach =
        farthest(queries.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)));
    Scratch scratch;
    T* products = scratch.of<T>(n * reach);
    gemm(true, n, reach, e, pulled.data() + (first * heads + h) * e, heads * e,
         ptr(*view.v) + h / config_.group_size() * e, kv_row, false, products, reach);
    for (std::int64_t i = first; i < first + n; ++i) {
      const int q = queries[static_cast<std::size_t>(i)];
      const T* alpha = ptr(*view.pattern) + h * tri(view.length) + tri(q);
      const T* from = products + (i - first) * reach;
      T* to = ptr(out) + h * begin.back() + begin[static_cast<std::size_t>(i)];
      for (int s = 0; s <= q; ++s) to[s] = alpha[s] * from[s];
    }
  });
}

template <typename T>
void HostBackend<T>::mlp_numerators(const MlpView& view, std::span<const int> queries,
                                    const Array& directions, Array& out) {
  const auto w = layer(view.layer);
  const std::int64_t d = config_.d_model, width = config_.layer(view.layer).entries(),
                     n = config_.layer(view.layer).n_neurons;
  const auto rows = static_cast<std::int64_t>(queries.size());
  const std::vector<T> centered = directions_for(w->mlp_post, view.out_dev, queries, directions);
  if (view.routing == nullptr) {
    multiply_transposed(w->mlp.out, centered.data(), rows, ptr(out));
  } else {
    const std::vector<std::int64_t> positions(queries.begin(), queries.end());
    for (const ExpertRows& used : by_expert(*view.routing, positions)) {
      const auto m = static_cast<std::int64_t>(used.rows.size());
      std::vector<T> from(static_cast<std::size_t>(m * d)), to(static_cast<std::size_t>(m * n));
      for (std::int64_t i = 0; i < m; ++i)
        std::copy_n(centered.data() + used.rows[static_cast<std::size_t>(i)] * d, d,
                    from.data() + i * d);
      multiply_transposed(expert(view.layer, used.expert)->out, from.data(), m, to.data());
      for (std::int64_t i = 0; i < m; ++i) {
        const auto at = static_cast<std::size_t>(i);
        std::copy_n(to.data() + i * n, n, ptr(out) + used.rows[at] * width + used.slots[at] * n);
      }
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* act = ptr(*view.act) + queries[static_cast<std::size_t>(i)] * width;
    for (std::int64_t j = 0; j < width; ++j) ptr(out)[i * width + j] *= act[j];
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
  const auto rope = rotary(view.layer, view.length, view.length);
  const auto pull = this->query_pull(view, *w, rope.get());
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
  const std::int64_t blocks = (rows + kCreditRows - 1) / kCreditRows;
  pool_.parallel_for(heads * blocks, [&](std::int64_t task) {
    const std::int64_t h = task / blocks, first = task % blocks * kCreditRows;
    const std::int64_t n = std::min(kCreditRows, rows - first);
    const std::int64_t reach =
        farthest(queries.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)));
    Scratch coefficients, sums;
    T* of = coefficients.of<T>(n * reach);
    T* folded = sums.of<T>(n * e);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto row = static_cast<std::size_t>(first + i);
      const double* c = coef.data() + h * begin.back() + begin[row];
      T* to = of + i * reach;
      for (int s = 0; s <= queries[row]; ++s) to[s] = static_cast<T>(c[s]);
      std::fill(to + queries[row] + 1, to + reach, T(0));
    }
    gemm(false, n, e, reach, of, reach, ptr(*view.k) + h / config_.group_size() * e,
         config_.n_kv_heads * e, false, folded, e);
    for (std::int64_t i = 0; i < n; ++i)
      pull(queries[static_cast<std::size_t>(first + i)], h, folded + i * e);
    head_to_model(w->q, static_cast<int>(h), folded, e, n, vectors.data() + (first * heads + h) * d,
                  heads * d);
  });
  const double scale = config_.layer(view.layer).attention_scale;
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
  const auto rope = rotary(view.layer, length, length);
  const auto pull = this->key_pull(view, *w, rope.get());
  std::vector<T> folded(static_cast<std::size_t>(length) * static_cast<std::size_t>(groups * e),
                        T(0));  // [S, G, E]
  // folded[s, :] = sum_q coef[q, s] q[q, :], the other way round: queries [E, S] times coefficients
  // [S, sources], whose rows lie as they come.
  std::vector<T> queries(static_cast<std::size_t>(heads * e) * static_cast<std::size_t>(length));
  pool_.parallel_for(heads, [&](std::int64_t h) {
    T* to = queries.data() + h * e * length;
    for (std::int64_t q = 0; q < length; ++q) {
      const T* from = ptr(*view.q) + (q * heads + h) * e;
      for (std::int64_t x = 0; x < e; ++x) to[x * length + q] = from[x];
    }
  });
  const std::int64_t blocks = (length + kCreditRows - 1) / kCreditRows;
  pool_.parallel_for(blocks * groups, [&](std::int64_t task) {
    const std::int64_t g = task % groups;
    const std::int64_t begin = task / groups * kCreditRows;
    const std::int64_t n = std::min(kCreditRows, length - begin);
    Scratch coefficients, sums;
    T* rows = coefficients.of<T>((length - begin) * n);  // [queries, sources]
    T* sum = sums.of<T>(e * n);
    std::fill_n(sum, e * n, T(0));
    for (std::int64_t h = g * config_.group_size(); h < (g + 1) * config_.group_size(); ++h) {
      // Queries with any coefficient lie between these.
      std::int64_t first = length, end = begin;
      for (std::int64_t q = begin; q < length; ++q) {
        const double* c = coef.data() + h * tri(length) + tri(q) + begin;
        const std::int64_t seen = std::min(n, q + 1 - begin);
        T* to = rows + (q - begin) * n;
        int any = 0;
        for (std::int64_t s = 0; s < seen; ++s) {
          to[s] = static_cast<T>(c[s]);
          any |= c[s] != 0 ? 1 : 0;
        }
        std::fill(to + seen, to + n, T(0));  // sources that the query does not see
        if (any == 0) continue;
        first = std::min(first, q);
        end = q + 1;
      }
      if (end == begin) continue;
      gemm(false, e, n, end - first, queries.data() + h * e * length + first, length,
           rows + (first - begin) * n, n, true, sum, n);
    }
    for (std::int64_t s = 0; s < n; ++s) {
      T* to = folded.data() + ((begin + s) * groups + g) * e;
      for (std::int64_t x = 0; x < e; ++x) to[x] = sum[x * n + s];
      pull(begin + s, g, to);
    }
  });
  std::vector<T> vectors(static_cast<std::size_t>(length) * static_cast<std::size_t>(d));
  multiply_transposed(w->k, folded.data(), length, vectors.data());
  out.assign(static_cast<std::size_t>(length) * static_cast<std::size_t>(cl), 0.0);
  const double scale = config_.layer(view.layer).attention_scale;
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
std::vector<T> HostBackend<T>::fold_neurons(const MlpView& view, MlpSide side, Scores scores,
                                            std::span<const int> queries, std::vector<T> coef) {
  const auto w = layer(view.layer);
  const std::int64_t d = config_.d_model;
  const auto rows = static_cast<std::int64_t>(queries.size());
  std::vector<T> vectors(static_cast<std::size_t>(rows * d), T(0));
  if (side == MlpSide::router && view.routing != nullptr) {
    // sum_i coef_i (sR(e_i) - mean sR) = sum_e (coef_e - (sum coef) / E) sR(e)
    const Routing& routing = *view.routing;
    const std::int64_t experts = routing.experts;
    std::vector<T> scaled(static_cast<std::size_t>(rows * experts), T(0));
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* from = coef.data() + r * routing.chosen;
      T* to = scaled.data() + r * experts;
      if (scores == Scores::centered) {
        const double total = std::accumulate(from, from + routing.chosen, 0.0);
        std::fill_n(to, experts, static_cast<T>(-total / static_cast<double>(experts)));
      }
      for (int i = 0; i < routing.chosen; ++i)
        to[routing.expert[routing.slot(queries[static_cast<std::size_t>(r)], i)]] += from[i];
    }
    multiply_transposed(w->router, scaled.data(), rows, vectors.data());
  } else if (view.routing != nullptr) {
    const std::int64_t n = config_.layer(view.layer).n_neurons, width = view.routing->chosen * n;
    const std::vector<std::int64_t> positions(queries.begin(), queries.end());
    for (const ExpertRows& used : by_expert(*view.routing, positions)) {
      const auto m = static_cast<std::int64_t>(used.rows.size());
      std::vector<T> from(static_cast<std::size_t>(m * n)), to(static_cast<std::size_t>(m * d));
      for (std::int64_t i = 0; i < m; ++i) {
        const auto at = static_cast<std::size_t>(i);
        std::copy_n(coef.data() + used.rows[at] * width + used.slots[at] * n, n,
                    from.data() + i * n);
      }
      multiply_transposed(this->panels(*expert(view.layer, used.expert), side), from.data(), m,
                          to.data());
      for (std::int64_t i = 0; i < m; ++i)
        axpy(d, T(1), to.data() + i * d,
             vectors.data() + used.rows[static_cast<std::size_t>(i)] * d);
    }
  } else {
    multiply_transposed(this->panels(w->mlp, side), coef.data(), rows, vectors.data());
  }
  return vectors;
}

template <typename T>
void HostBackend<T>::mlp_fold(const MlpView& view, MlpSide side, Scores scores,
                              std::span<const int> queries, std::span<const double> coef,
                              std::vector<double>& out) {
  const std::int64_t d = config_.d_model;
  const std::int64_t cl = view.visible;
  const auto rows = static_cast<std::int64_t>(queries.size());
  out.assign(static_cast<std::size_t>(rows * cl), 0.0);
  const int kept_at = view.last_at < 0 ? view.length - 1 : view.last_at;
  if (view.routing == nullptr && rows == 1 && queries[0] == kept_at && view.last &&
      !view.last->empty()) {
    const std::vector<T> scaled(coef.begin(), coef.end());
    const auto n = static_cast<std::int64_t>(scaled.size());
    pool_.parallel_for(cl, [&](std::int64_t j) {
      out[static_cast<std::size_t>(j)] =
          static_cast<double>(dot(n, ptr(*view.last) + j * n, scaled.data()));
    });
    return;
  }
  const std::vector<T> vectors =
      fold_neurons(view, side, scores, queries, std::vector<T>(coef.begin(), coef.end()));
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
      read_rows((*weights_)[Role::unembed], r, n, rows.data());
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
      read_rows((*weights_)[Role::unembed], id, 1, w_row.data());
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
  this->copy(x, row * d, one, 0, d);
  Array normalized = uninitialized(d);
  Array dev = uninitialized(1);
  this->normalize(config_.norm, one, 1, normalized, dev);
  const std::vector<T>& final_w = this->final_weight();
  const double inverse = config_.logit_scale / static_cast<double>(ptr(dev)[0]);
  for (std::size_t j = 0; j < direction.size(); ++j)
    ptr(out)[j] = static_cast<T>(direction[j] * static_cast<double>(final_w[j]) * inverse);
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

template class HostBackend<float>;
template class HostBackend<double>;

}  // namespace unpack
