// The forward pass of the host backends.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/question_tables.h"
#include "backend/rotary.h"
#include "base/formulas.h"

namespace unpack::backend {

namespace {

// One more logit takes its part of the softmax and is dropped.
template <typename T>
void softmax_with_sink(T* row, std::int64_t n, T scale, T sink) {
  T most = sink;
  for (std::int64_t i = 0; i < n; ++i) most = std::max(most, row[i] *= scale);
  double total = std::exp(static_cast<double>(sink - most));
  for (std::int64_t i = 0; i < n; ++i)
    total += static_cast<double>(row[i] = std::exp(row[i] - most));
  for (std::int64_t i = 0; i < n; ++i) row[i] = static_cast<T>(static_cast<double>(row[i]) / total);
}

}  // namespace

template <typename T>
void HostForward<T>::embed(std::span<const TokenId> ids, Array& out) {
  for (std::size_t i = 0; i < ids.size(); ++i)
    model::read_rows((*weights_)[model::Role::embed], ids[i], 1,
                     ptr(out) + static_cast<std::int64_t>(i) * config_.d_model);
}

template <typename T>
void HostForward<T>::embed_positions(std::span<const int> positions, Array& out) {
  for (std::size_t i = 0; i < positions.size(); ++i)
    model::read_rows((*weights_)[model::Role::pos], positions[i], 1,
                     ptr(out) + static_cast<std::int64_t>(i) * config_.d_model);
}

template <typename T>
void HostForward<T>::add(const Array& x, Array& y, std::int64_t size, double scale) {
  axpy(size, static_cast<T>(scale), ptr(x), ptr(y));
}

template <typename T>
void HostForward<T>::add_rows(const Array& x, std::int64_t x_row, Array& y, std::int64_t y_row,
                              std::int64_t rows, int cols, double scale) {
  axpy(rows * cols, static_cast<T>(scale), ptr(x) + x_row * cols, ptr(y) + y_row * cols);
}

template <typename T>
void HostForward<T>::add_bias(int index, Sublayer sublayer, Array& x, std::int64_t rows,
                              const Array& out_dev, const Routing* routing) {
  const auto w = layer(index);
  const std::int64_t d = config_.d_model;
  const bool attention = sublayer == Sublayer::attention;
  if (!attention && routing != nullptr) {
    for (std::int64_t r = 0; r < rows; ++r) {
      for (int slot = 0; slot < routing->chosen; ++slot) {
        const std::size_t at = routing->slot(r, slot);
        const auto e = expert(index, routing->expert[at]);
        if (!e->b_out.empty())
          axpy<T>(d, static_cast<T>(routing->weight[at]), e->b_out.data(), ptr(x) + r * d);
      }
    }
    return;
  }
  const std::vector<T>& bias = attention ? w->b_o : w->mlp.b_out;
  const std::vector<T>& post = attention ? w->attn_post : w->mlp_post;
  if (bias.empty()) return;
  std::vector<T> scaled = bias;
  for (std::size_t i = 0; i < post.size(); ++i) scaled[i] *= post[i];
  for (std::int64_t r = 0; r < rows; ++r)
    axpy<T>(d, post.empty() ? T(1) : T(1) / ptr(out_dev)[r], scaled.data(), ptr(x) + r * d);
}

template <typename T>
void HostForward<T>::normalize(Norm kind, const Array& x, std::int64_t rows, Array& out,
                               Array& dev) {
  const std::int64_t d = config_.d_model;
  if (kind == Norm::none) {
    std::copy_n(ptr(x), rows * d, ptr(out));
    std::fill_n(ptr(dev), rows, T(1));
    return;
  }
  pool_.parallel_for((rows + 7) / 8, [&](std::int64_t block) {
    for (std::int64_t r = block * 8; r < std::min(rows, block * 8 + 8); ++r) {
      const T* in = ptr(x) + r * d;
      T* to = ptr(out) + r * d;
      double mean = 0;
      if (kind == Norm::layer) {
        for (std::int64_t i = 0; i < d; ++i) mean += static_cast<double>(in[i]);
        mean /= static_cast<double>(d);
      }
      double square = 0;
      for (std::int64_t i = 0; i < d; ++i)
        square += (static_cast<double>(in[i]) - mean) * (static_cast<double>(in[i]) - mean);
      const double deviation = std::sqrt(square / static_cast<double>(d) + config_.norm_eps);
      for (std::int64_t i = 0; i < d; ++i)
        to[i] = static_cast<T>((static_cast<double>(in[i]) - mean) / deviation);
      ptr(dev)[r] = static_cast<T>(deviation);
    }
  });
}

template <typename T>
void HostForward<T>::norm_behind(int index, Sublayer sublayer, Array& y, std::int64_t rows,
                                 Array& dev) {
  const auto w = layer(index);
  const auto d = static_cast<std::size_t>(config_.d_model);
  const std::vector<T>& bias = sublayer == Sublayer::attention ? w->b_o : w->mlp.b_out;
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* row = ptr(y) + r * config_.d_model;
    double square = 0;
    for (std::size_t i = 0; i < d; ++i) {
      const double x =
          static_cast<double>(row[i]) + (bias.empty() ? 0.0 : static_cast<double>(bias[i]));
      square += x * x;
    }
    ptr(dev)[r] = static_cast<T>(std::sqrt(square / static_cast<double>(d) + config_.norm_eps));
  }
  through_norm_behind(index, sublayer, dev, rows, y);
}

template <typename T>
void HostForward<T>::through_norm_behind(int index, Sublayer sublayer, const Array& dev,
                                         std::int64_t rows, Array& y) {
  const auto w = layer(index);
  const std::vector<T>& post = sublayer == Sublayer::attention ? w->attn_post : w->mlp_post;
  if (post.empty()) return;
  for (std::int64_t r = 0; r < rows; ++r) {
    T* row = ptr(y) + r * config_.d_model;
    const T inverse = T(1) / ptr(dev)[r];
    for (std::size_t i = 0; i < post.size(); ++i) row[i] *= post[i] * inverse;
  }
}

template <typename T>
void HostForward<T>::qkv(int index, const Array& normalized, std::span<const int> positions,
                         int context, Array& q, Array& k, Array& v, Array& q_dev, Array& k_dev) {
  const auto w = layer(index);
  const auto rows = static_cast<std::int64_t>(positions.size());
  const std::array<typename HostBase<T>::Product, 3> products = {
      {{&w->q, &w->b_q, ptr(q)}, {&w->k, &w->b_k, ptr(k)}, {&w->v, &w->b_v, ptr(v)}}};
  multiply(products, ptr(normalized), rows);
  const int max_position =
      positions.empty() ? 0 : *std::max_element(positions.begin(), positions.end());
  const auto table = rotary(index, max_position + 1, context);
  const std::int64_t e = config_.d_head;
  const bool whole = config_.layer(index).qk_norm == QkNorm::projection;
  const auto finish = [&](Array& x, std::int64_t heads, const std::vector<T>& norm, Array& dev) {
    for (std::int64_t r = 0; r < rows; ++r) {
      T* row = ptr(x) + r * heads * e;
      if (!norm.empty()) {
        // One deviation for every head, or one for all of them.
        const std::int64_t n = whole ? heads * e : e;
        for (std::int64_t begin = 0; begin < heads * e; begin += n) {
          double square = 0;
          for (std::int64_t i = begin; i < begin + n; ++i)
            square += static_cast<double>(row[i]) * static_cast<double>(row[i]);
          const double deviation = std::sqrt(square / static_cast<double>(n) + config_.norm_eps);
          for (std::int64_t i = begin; i < begin + n; ++i)
            row[i] = static_cast<T>(static_cast<double>(row[i]) / deviation) * norm[i];
          std::fill_n(ptr(dev) + r * heads + begin / e, n / e, static_cast<T>(deviation));
        }
      }
      for (std::int64_t h = 0; table && h < heads; ++h)
        rotate(*table, positions[r], row + h * e, false);
    }
  };
  finish(q, config_.n_heads, w->q_norm, q_dev);
  finish(k, config_.n_kv_heads, w->k_norm, k_dev);
}

template <typename T>
void HostForward<T>::attention(int index, const Array& q, const Array& k, const Array& v,
                               std::span<const Segment> segments,
                               std::span<const std::int64_t> key_begin, Array& pattern, Array& z) {
  const LayerConfig& shape = config_.layer(index);
  const auto w = layer(index);
  const int heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t q_row = heads * e;
  const std::int64_t kv_row = static_cast<std::int64_t>(config_.n_kv_heads) * e;
  const T scale = static_cast<T>(shape.attention_scale);
  std::vector<std::int64_t> pattern_begin(segments.size() + 1, 0);
  for (std::size_t i = 0; i < segments.size(); ++i)
    pattern_begin[i + 1] = pattern_begin[i] + heads * tri(segments[i].length);
  pool_.parallel_for(static_cast<std::int64_t>(segments.size()) * heads, [&](std::int64_t task) {
    const auto part = static_cast<std::size_t>(task / heads);
    const auto h = task % heads;
    const Segment& segment = segments[part];
    const std::int64_t keys = segment.past + segment.length;
    const std::int64_t g = h / config_.group_size();
    const T* qh = ptr(q) + segment.begin * q_row + h * e;
    const T* kh = ptr(k) + key_begin[part] * kv_row + g * e;
    const T* vh = ptr(v) + key_begin[part] * kv_row + g * e;
    T* zh = ptr(z) + segment.begin * q_row + h * e;
    // A block of queries at a time keeps the logits of long prompts in cache.
    constexpr std::int64_t kQueries = 64;
    std::vector<T> logits(
        static_cast<std::size_t>(std::min<std::int64_t>(kQueries, segment.length) * keys));
    for (std::int64_t begin = 0; begin < segment.length; begin += kQueries) {
      const std::int64_t n = std::min<std::int64_t>(kQueries, segment.length - begin);
      const std::int64_t reach = segment.past + begin + n;
      gemm(true, n, reach, e, qh + begin * q_row, q_row, kh, kv_row, false, logits.data(), keys);
      for (std::int64_t i = 0; i < n; ++i) {
        T* row = logits.data() + i * keys;
        const std::int64_t seen = segment.past + begin + i + 1;
        const std::int64_t from = shape.first_source(static_cast<int>(seen) - 1);
        if (shape.attention_cap > 0) {
          for (std::int64_t s = from; s < seen; ++s)
            row[s] = base::soft_cap(row[s] * scale, static_cast<T>(shape.attention_cap));
        }
        std::fill(row, row + from, T(0));
        const T factor = shape.attention_cap > 0 ? T(1) : scale;
        if (w->sinks.empty()) {
          softmax_row(row + from, seen - from, factor);
        } else {
          softmax_with_sink(row + from, seen - from, factor, w->sinks[h]);
        }
        std::fill(row + seen, row + reach, T(0));
        if (!pattern.empty())
          std::copy_n(
              row, seen,
              ptr(pattern) + pattern_begin[part] + h * tri(segment.length) + tri(begin + i));
      }
      gemm(false, n, e, reach, logits.data(), keys, vh, kv_row, false, zh + begin * q_row, q_row);
    }
  });
}

template <typename T>
void HostForward<T>::attention_out(int index, const Array& z, std::int64_t rows, Array& out) {
  multiply(layer(index)->o, ptr(z), rows, {}, ptr(out));
}

template <typename T>
void HostForward<T>::router(int index, const Array& normalized, std::int64_t rows, Array& out) {
  const auto w = layer(index);
  multiply(w->router, ptr(normalized), rows, w->b_router, ptr(out));
}

namespace {

std::vector<std::int64_t> all_rows(std::int64_t n) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(n));
  std::iota(rows.begin(), rows.end(), std::int64_t{0});
  return rows;
}

}  // namespace

template <typename T>
void HostForward<T>::mlp_in(int index, MlpSide side, const Array& normalized, std::int64_t rows,
                            const Routing* routing, Array& out) {
  const bool gate = side == MlpSide::gate;
  if (routing == nullptr) {
    const auto w = layer(index);
    multiply(gate ? w->mlp.in : w->mlp.up, ptr(normalized), rows, gate ? w->mlp.b_in : w->mlp.b_up,
             ptr(out));
    return;
  }
  const std::int64_t d = config_.d_model, n = config_.layer(index).n_neurons;
  const std::vector<std::int64_t> all = all_rows(rows);
  for (const ExpertRows& used : by_expert(*routing, all)) {
    const auto w = expert(index, used.expert);
    const auto m = static_cast<std::int64_t>(used.rows.size());
    std::vector<T> from(static_cast<std::size_t>(m * d)), to(static_cast<std::size_t>(m * n));
    for (std::int64_t i = 0; i < m; ++i)
      std::copy_n(ptr(normalized) + used.rows[i] * d, d, from.data() + i * d);
    multiply(gate ? w->in : w->up, from.data(), m, gate ? w->b_in : w->b_up, to.data());
    for (std::int64_t i = 0; i < m; ++i) {
      const auto at = static_cast<std::size_t>(i);
      std::copy_n(to.data() + i * n, n,
                  ptr(out) + (used.rows[at] * routing->chosen + used.slots[at]) * n);
    }
  }
}

template <typename T>
void HostForward<T>::activate(int index, const Array& pre, const Array& up, const Routing* routing,
                              std::int64_t rows, Array& act) {
  const LayerConfig& shape = config_.layer(index);
  const std::int64_t size = rows * shape.entries();
  constexpr std::int64_t kBlock = 4096;
  pool_.parallel_for((size + kBlock - 1) / kBlock, [&](std::int64_t block) {
    const std::int64_t begin = block * kBlock;
    const std::int64_t n = std::min(kBlock, size - begin);
    if (shape.activation == Activation::clamped_swiglu) {
      for (std::int64_t i = begin; i < begin + n; ++i)
        ptr(act)[i] = static_cast<T>(base::clamped_swiglu(static_cast<double>(ptr(pre)[i]),
                                                          static_cast<double>(ptr(up)[i])));
    } else {
      activate_run(shape.activation, ptr(pre) + begin, ptr(act) + begin, n);
      if (!up.empty()) {
        for (std::int64_t i = begin; i < begin + n; ++i) ptr(act)[i] *= ptr(up)[i];
      }
    }
    if (routing != nullptr) {
      for (std::int64_t i = begin; i < begin + n; ++i)
        ptr(act)[i] *= static_cast<T>(routing->weight[i / shape.n_neurons]);
    }
  });
}

template <typename T>
void HostForward<T>::mlp_out(int index, const Array& act, std::int64_t rows, const Routing* routing,
                             Array& out) {
  if (routing == nullptr) {
    multiply(layer(index)->mlp.out, ptr(act), rows, {}, ptr(out));
    return;
  }
  const std::int64_t d = config_.d_model, n = config_.layer(index).n_neurons;
  std::fill_n(ptr(out), rows * d, T(0));
  const std::vector<std::int64_t> all = all_rows(rows);
  for (const ExpertRows& used : by_expert(*routing, all)) {
    const auto w = expert(index, used.expert);
    const auto m = static_cast<std::int64_t>(used.rows.size());
    std::vector<T> from(static_cast<std::size_t>(m * n)), to(static_cast<std::size_t>(m * d));
    for (std::int64_t i = 0; i < m; ++i) {
      const auto at = static_cast<std::size_t>(i);
      std::copy_n(ptr(act) + (used.rows[at] * routing->chosen + used.slots[at]) * n, n,
                  from.data() + i * n);
    }
    multiply(w->out, from.data(), m, {}, to.data());
    for (std::int64_t i = 0; i < m; ++i)
      axpy(d, T(1), to.data() + i * d, ptr(out) + used.rows[i] * d);
  }
}

template <typename T>
void HostForward<T>::read_final() {
  final_once_([&] {
    final_w_ = read_vector<T>((*weights_)[model::Role::final_norm_w]);
    final_b_ = read_vector<T>((*weights_)[model::Role::final_norm_b]);
  });
}

template <typename T>
const std::vector<T>& HostForward<T>::final_weight() {
  read_final();
  return final_w_;
}

template <typename T>
void HostForward<T>::logits(const Array& x, std::span<const std::int64_t> rows,
                            std::vector<double>& out) {
  const std::int64_t d = config_.d_model;
  const auto n = static_cast<std::int64_t>(rows.size());
  read_final();
  Array picked = uninitialized(n * d);
  for (std::int64_t i = 0; i < n; ++i) this->copy(x, rows[i] * d, picked, i * d, d);
  Array normalized = uninitialized(n * d);
  Array dev = uninitialized(n);
  normalize(config_.norm, picked, n, normalized, dev);
  for (std::int64_t i = 0; i < n; ++i) {
    T* row = ptr(normalized) + i * d;
    for (std::int64_t j = 0; j < d; ++j) {
      row[j] = row[j] * final_w_[j] + (final_b_.empty() ? T(0) : final_b_[j]);
    }
  }
  const std::int64_t vocabulary = config_.vocab_size;
  out.assign(n * vocabulary, 0.0);
  const model::WeightView& w = (*weights_)[model::Role::unembed];
  const bool direct = sizeof(T) == 4 && w.plain() && w.dtype == DType::f32 && w.out_stride == 1 &&
                      w.in_stride == d &&
                      reinterpret_cast<std::uintptr_t>(w.data) % alignof(T) == 0;
  pool_.parallel_for(
      (vocabulary + kVocabularyBlock - 1) / kVocabularyBlock, [&](std::int64_t block) {
        const std::int64_t first = block * kVocabularyBlock;
        const std::int64_t count = std::min(kVocabularyBlock, vocabulary - first);
        std::vector<T> converted;
        const T* table;
        if (direct) {
          table = reinterpret_cast<const T*>(w.data) + first * d;
        } else {
          converted.resize(count * d);
          model::read_rows(w, first, count, converted.data());
          table = converted.data();
        }
        std::vector<T> tile(static_cast<std::size_t>(n * count));
        gemm(true, n, count, d, ptr(normalized), d, table, d, false, tile.data(), count);
        for (std::int64_t i = 0; i < n; ++i)
          std::transform(tile.data() + i * count, tile.data() + (i + 1) * count,
                         out.data() + i * vocabulary + first,
                         [&](T z) { return config_.logit_scale * static_cast<double>(z); });
      });
}

template class HostForward<float>;
template class HostForward<double>;

}  // namespace unpack::backend
