// Direction `read`: what the heads and neurons of a layer read, and edge by edge what they pass on.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "base/formulas.h"

namespace unpack {

namespace {

constexpr std::int64_t kQueryBlock = 64;

}  // namespace

template <typename T>
void HostReads<T>::head_directions(const AttentionView& view, std::span<const int> queries,
                                   std::span<const double> directions, std::vector<double>& out) {
  const auto w = layer(view.layer);
  const auto rows = static_cast<std::int64_t>(queries.size());
  Array given = uninitialized(static_cast<std::int64_t>(directions.size()));
  this->upload(given, 0, directions);
  const std::vector<T> centered = this->directions_for(w->attn_post, view.out_dev, queries, given);
  std::vector<T> pulled(static_cast<std::size_t>(rows * w->o.in));
  multiply_transposed(w->o, centered.data(), rows, pulled.data());
  out.assign(pulled.begin(), pulled.end());
}

template <typename T>
ReadOps::HeadReads HostReads<T>::head_reads(const AttentionView& view, const AttentionSums& sums,
                                            const Options& options,
                                            std::span<const double> directions) {
  const auto w = layer(view.layer);
  const std::int64_t heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
                     d = config_.d_model, length = view.length, pairs = tri(length);
  const LayerConfig& shape = config_.layer(view.layer);
  const bool centered = options.scores == Scores::centered,
             spread = options.keys == Keys::spread && centered;
  HeadReads reads;
  reads.key_coef = this->zeros(heads * pairs);
  reads.query = this->zeros(length * heads * e);
  reads.value = uninitialized(length * heads * e);
  this->upload(reads.value, 0, directions);
  for (std::int64_t q = length - 1; q >= 0 && reads.last < 0; --q) {
    const auto row = directions.subspan(static_cast<std::size_t>(q * heads * e),
                                        static_cast<std::size_t>(heads * e));
    if (std::any_of(row.begin(), row.end(), [](double x) { return x != 0; }))
      reads.last = static_cast<int>(q);
  }
  const std::int64_t used = reads.last + 1;
  std::vector<T> by_key(static_cast<std::size_t>(heads * length * e), T(0)), by_value = by_key;
  pool_.parallel_for(heads, [&](std::int64_t h) {
    const std::int64_t g = h / config_.group_size();
    std::vector<T> entry, query, key_turned, value_turned;
    for (std::int64_t begin = 0; begin < used; begin += kQueryBlock) {
      const std::int64_t n = std::min(kQueryBlock, used - begin), reach = begin + n;
      const T* direction = ptr(reads.value) + (begin * heads + h) * e;
      entry.resize(static_cast<std::size_t>(n * reach));
      gemm(true, n, reach, e, direction, heads * e, ptr(*view.v) + g * e, groups * e, false,
           entry.data(), reach);
      query.assign(entry.size(), T(0));
      key_turned.assign(entry.size(), T(0));
      value_turned.assign(entry.size(), T(0));
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t q = begin + i, first = shape.first_source(static_cast<int>(q)),
                           pair = h * pairs + tri(q);
        const auto sources = static_cast<double>(q + 1 - first);
        T* key = ptr(reads.key_coef) + pair;
        T* own = query.data() + i * reach;
        double key_mean = 0, query_mean = 0;
        for (std::int64_t s = first; s <= q; ++s) {
          const auto at = static_cast<std::size_t>(s * n + i);
          const T alpha = ptr(*view.pattern)[pair + s];
          value_turned[at] = alpha;
          const double credit = static_cast<double>(alpha) *
                                static_cast<double>(entry[static_cast<std::size_t>(i * reach + s)]);
          const double k = options.weights[0] * credit *
                           floored_inverse(static_cast<double>(ptr(sums.k_sum)[pair + s]),
                                           static_cast<double>(ptr(sums.k_abs)[pair + s]),
                                           options.beta, options.floor);
          const double x = options.weights[1] * credit *
                           floored_inverse(static_cast<double>(ptr(sums.q_sum)[pair + s]),
                                           static_cast<double>(ptr(sums.q_abs)[pair + s]),
                                           options.beta, options.floor);
          key[s] = static_cast<T>(k);
          own[s] = static_cast<T>(x);
          key_mean += k / sources;
          query_mean += x / sources;
        }
        for (std::int64_t s = first; s <= q; ++s) {
          if (spread) key[s] -= static_cast<T>(key_mean);
          if (centered) own[s] -= static_cast<T>(query_mean);
          key_turned[static_cast<std::size_t>(s * n + i)] = key[s];
        }
      }
      gemm(false, n, e, reach, query.data(), reach, ptr(*view.k) + g * e, groups * e, false,
           ptr(reads.query) + (begin * heads + h) * e, heads * e);
      gemm(false, reach, e, n, key_turned.data(), n, ptr(*view.q) + (begin * heads + h) * e,
           heads * e, true, by_key.data() + h * length * e, e);
      gemm(false, reach, e, n, value_turned.data(), n, direction, heads * e, true,
           by_value.data() + h * length * e, e);
    }
  });
  const auto rope = rotary(view.layer, length, view.length);
  const auto key_pull = this->key_pull(view, *w, rope.get());
  const auto query_pull = this->query_pull(view, *w, rope.get());
  const auto scale = static_cast<T>(shape.attention_scale);
  const auto value_weight = static_cast<T>(options.weights[2]);
  std::vector<T> keys(static_cast<std::size_t>(length * groups * e)), values = keys;
  pool_.parallel_for(length, [&](std::int64_t s) {
    for (std::int64_t h = 0; h < heads; ++h) {
      T* u = ptr(reads.query) + (s * heads + h) * e;
      query_pull(s, h, u);
      T* v = ptr(reads.value) + (s * heads + h) * e;
      for (std::int64_t i = 0; i < e; ++i) {
        u[i] *= scale;
        v[i] *= value_weight;
      }
      const std::int64_t g = h / config_.group_size();
      axpy(e, scale, by_key.data() + (h * length + s) * e, keys.data() + (s * groups + g) * e);
      axpy(e, value_weight, by_value.data() + (h * length + s) * e,
           values.data() + (s * groups + g) * e);
    }
    for (std::int64_t g = 0; g < groups; ++g) key_pull(s, g, keys.data() + (s * groups + g) * e);
  });
  const auto to_stream = [&](std::span<const std::pair<const Panels<T>*, const T*>> parts,
                             std::vector<double>& out) {
    out.assign(static_cast<std::size_t>(length * d), 0.0);
    std::vector<T> read(out.size());
    for (const auto& [panels, from] : parts) {
      multiply_transposed(*panels, from, length, read.data());
      for (std::int64_t i = 0; i < length * d; ++i)
        out[static_cast<std::size_t>(i)] += static_cast<double>(read[static_cast<std::size_t>(i)]) /
                                            static_cast<double>(ptr(*view.dev)[i / d]);
    }
  };
  using Folded = std::pair<const Panels<T>*, const T*>;
  to_stream(std::array<Folded, 2>{Folded{&w->v, values.data()}, Folded{&w->q, ptr(reads.query)}},
            reads.linear);
  to_stream(std::array<Folded, 1>{Folded{&w->k, keys.data()}}, reads.keyed);
  return reads;
}

template <typename T>
Array HostReads<T>::slot_sums(const Array& entries, std::int64_t neurons) {
  Array out = uninitialized(entries.size() / neurons);
  for (std::int64_t i = 0; i < out.size(); ++i) {
    double sum = 0;
    for (std::int64_t n = 0; n < neurons; ++n)
      sum += static_cast<double>(ptr(entries)[i * neurons + n]);
    ptr(out)[i] = static_cast<T>(sum);
  }
  return out;
}

template <typename T>
ReadOps::NeuronCredit HostReads<T>::neuron_credit(const Array& own, std::int64_t rows,
                                                  const Array* pre, const MlpSums* sums,
                                                  double beta, double weight) {
  const std::int64_t n = own.size() / rows;
  NeuronCredit out;
  out.coef = uninitialized(own.size());
  out.credit.assign(static_cast<std::size_t>(rows), 0.0);
  for (std::int64_t i = 0; i < own.size(); ++i) {
    const auto x = static_cast<double>(ptr(own)[i]);
    out.credit[static_cast<std::size_t>(i / n)] += x;
    if (pre != nullptr) {
      ptr(out.coef)[i] = static_cast<T>(x / away_from_zero(static_cast<double>(ptr(*pre)[i])));
      continue;
    }
    const auto sum = static_cast<double>(ptr(sums->sum)[i]),
               abs = static_cast<double>(ptr(sums->abs)[i]);
    ptr(out.coef)[i] = static_cast<T>(weight * x * inverse_denom(sum, abs, beta));
    out.passed += std::fabs(x);
    if (ill_conditioned(sum, abs)) out.doubt += std::fabs(x);
  }
  return out;
}

template <typename T>
void HostReads<T>::neuron_reads(const MlpView& view, MlpSide side, Scores scores, const Array& coef,
                                std::vector<double>& out) {
  const std::int64_t d = config_.d_model;
  std::vector<int> queries(static_cast<std::size_t>(view.length));
  std::iota(queries.begin(), queries.end(), 0);
  const std::vector<double> given(ptr(coef), ptr(coef) + coef.size());
  const std::vector<T> vectors = this->fold_neurons(view, side, scores, queries, given);
  out.resize(vectors.size());
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<double>(vectors[i]) /
             static_cast<double>(ptr(*view.dev)[static_cast<std::int64_t>(i) / d]);
}

template <typename T>
Array HostReads<T>::key_medians(const AttentionView& view, const AttentionSums& sums) {
  const std::int64_t cl = view.visible, length = view.length;
  Array out = uninitialized(config_.n_heads * length * cl);
  const auto take = [&](int h, int q, const T* rows) {
    const std::int64_t first = config_.layer(view.layer).first_source(q),
                       at = (h * length + q) * cl;
    column_medians(rows + first * cl, q + 1 - first, cl, ptr(out) + at);
  };
  if (sums.k_scores.empty()) {
    this->visit_key_scores(view, Scores::centered, [&](int h, int q, const void* rows) {
      take(h, q, static_cast<const T*>(rows));
    });
    return out;
  }
  pool_.parallel_for(config_.n_heads * length, [&](std::int64_t task) {
    const auto h = static_cast<int>(task / length), q = static_cast<int>(task % length);
    take(h, q, ptr(sums.k_scores) + (h * tri(length) + tri(q)) * cl);
  });
  return out;
}

template <typename T>
void HostReads<T>::offset_fold(const AttentionView& view, const HeadReads& reads,
                               const Array& offsets, std::vector<double>& out) {
  const std::int64_t cl = view.visible, length = view.length, used = reads.last + 1,
                     heads = config_.n_heads;
  out.assign(static_cast<std::size_t>(length * cl), 0.0);
  const std::int64_t blocks = (used + kQueryBlock - 1) / kQueryBlock;
  pool_.parallel_for(blocks, [&](std::int64_t block) {  // of sources
    const std::int64_t begin = block * kQueryBlock, n = std::min(kQueryBlock, used - begin);
    std::vector<T> turned, sum(static_cast<std::size_t>(n * cl));
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t queries = used - begin;
      turned.assign(static_cast<std::size_t>(n * queries), T(0));
      for (std::int64_t q = begin; q < used; ++q) {
        const T* coef = ptr(reads.key_coef) + h * tri(length) + tri(q);
        for (std::int64_t s = begin; s < begin + n && s <= q; ++s)
          turned[static_cast<std::size_t>((s - begin) * queries + q - begin)] = coef[s];
      }
      gemm(false, n, cl, queries, turned.data(), queries, ptr(offsets) + (h * length + begin) * cl,
           cl, h > 0, sum.data(), cl);
    }
    std::copy(sum.begin(), sum.end(), out.begin() + begin * cl);
  });
}

template <typename T>
void HostReads<T>::position_dots(const Array& writers, int n_writers, int first, int end,
                                 std::span<const double> vectors, std::vector<double>& out) {
  const std::int64_t d = config_.d_model, count = end - first,
                     length = static_cast<std::int64_t>(vectors.size()) / d;
  out.resize(static_cast<std::size_t>(length * count));
  const std::vector<T> single(vectors.begin(), vectors.end());
  pool_.parallel_for(length, [&](std::int64_t s) {
    for (std::int64_t j = 0; j < count; ++j)
      out[static_cast<std::size_t>(s * count + j)] = static_cast<double>(
          dot(d, ptr(writers) + (s * n_writers + first + j) * d, single.data() + s * d));
  });
}

// norm(c_j)(s) W, [count, W.out]: as the readers' heads see these writers before rotary.
template <typename T>
void HostReads<T>::project_writers(const AttentionView& view, const Panels<T>& w, const Sources& of,
                                   T* out) {
  const std::int64_t d = config_.d_model;
  const T* writers = ptr(*view.writers) + (of.position * view.n_writers + of.first) * d;
  for (std::int64_t p = 0; p < w.count(); ++p)
    gemm(false, of.count, w.columns(p), d, writers, d, w.panel(p), w.columns(p), false,
         out + w.begin(p), w.out);
  const T inverse = T(1) / ptr(*view.dev)[of.position];
  for (std::int64_t i = 0; i < of.count * w.out; ++i) out[i] *= inverse;
}

// Their keys as queries meet them: with the norm of keys, rotary and the attention's scale.
template <typename T>
void HostReads<T>::project_keys(const AttentionView& view, const LayerPanels<T>& w,
                                const RotaryTable* rope, const Sources& of, T* out) {
  const std::int64_t groups = config_.n_kv_heads, e = config_.d_head;
  project_writers(view, w.k, of, out);
  const auto scale = static_cast<T>(config_.layer(view.layer).attention_scale);
  for (std::int64_t j = 0; j < of.count; ++j) {
    for (std::int64_t g = 0; g < groups; ++g) {
      T* key = out + (j * groups + g) * e;
      if (w.k_norm.empty()) {
        for (std::int64_t i = 0; i < e; ++i) key[i] *= scale;
      } else {
        const T inverse = scale / ptr(*view.k_dev)[of.position * groups + g];
        for (std::int64_t i = 0; i < e; ++i)
          key[i] *= w.k_norm[static_cast<std::size_t>(g * e + i)] * inverse;
      }
      if (rope != nullptr) this->rotate(*rope, of.position, key, false);
    }
  }
}

// tile[queries, count] = < from[q, h], projected[j] > for the queries from the sources' position
// on.
template <typename T>
void HostReads<T>::products_with(const T* from, std::int64_t head, std::int64_t queries,
                                 const Sources& of, const T* projected, T* tile) {
  const std::int64_t heads = config_.n_heads, e = config_.d_head;
  gemm(true, queries, of.count, e, from + (of.position * heads + head) * e, heads * e,
       projected + head / config_.group_size() * e, config_.n_kv_heads * e, false, tile, of.count);
}

// tile[queries, count] = cK_s(q) (sK_j(q, s) - offset_j(q)); projected are needed only where scores
// are not kept.
template <typename T>
void HostReads<T>::key_rows(const AttentionView& view, const HeadReads& reads,
                            const KeyOffsets& offsets, std::int64_t head, std::int64_t queries,
                            const Sources& of, const T* projected, T* tile) {
  const std::int64_t length = view.length, cl = view.visible, s = of.position;
  const bool kept = !offsets.scores.empty();
  if (!kept) products_with(ptr(*view.q), head, queries, of, projected, tile);
  const Array& taken = kept ? offsets.kept : offsets.raw;
  for (std::int64_t i = 0; i < queries; ++i) {
    const std::int64_t pair = head * tri(length) + tri(s + i) + s;
    const T factor = ptr(reads.key_coef)[pair];
    T* row = tile + i * of.count;
    const T* scores = kept ? ptr(offsets.scores) + pair * cl + of.first : row;
    if (taken.empty()) {
      for (std::int64_t j = 0; j < of.count; ++j) row[j] = factor * scores[j];
    } else {
      const T* offset = ptr(taken) + (head * length + s + i) * cl + of.first;
      for (std::int64_t j = 0; j < of.count; ++j) row[j] = factor * (scores[j] - offset[j]);
    }
  }
}

// tile[queries, count] = alpha[h, q, s] < value direction of q, value of j >
template <typename T>
void HostReads<T>::value_rows(const AttentionView& view, const HeadReads& reads, std::int64_t head,
                              std::int64_t queries, const Sources& of, const T* projected,
                              T* tile) {
  products_with(ptr(reads.value), head, queries, of, projected, tile);
  for (std::int64_t i = 0; i < queries; ++i) {
    const T alpha =
        ptr(*view.pattern)[head * tri(view.length) + tri(of.position + i) + of.position];
    for (std::int64_t j = 0; j < of.count; ++j) tile[i * of.count + j] *= alpha;
  }
}

// What heads read by rows[S, H, E] of theirs at positions begin .. begin + n - 1, as vectors over
// the stream, [n, H, D].
template <typename T>
std::vector<T> HostReads<T>::to_model(const Panels<T>& w, bool grouped, const T* rows,
                                      std::int64_t begin, std::int64_t n) {
  const std::int64_t heads = config_.n_heads, e = config_.d_head, d = config_.d_model;
  std::vector<T> out(static_cast<std::size_t>(n * heads * d));
  if (n == 0) return out;
  pool_.parallel_for(heads, [&](std::int64_t h) {
    const auto column = static_cast<int>(grouped ? h / config_.group_size() : h);
    this->head_to_model(w, column, rows + (begin * heads + h) * e, heads * e, n, out.data() + h * d,
                        heads * d);
  });
  return out;
}

template <typename T>
void HostReads<T>::visit_edges(const AttentionView& view, const HeadReads& reads,
                               const KeyOffsets& offsets, const EdgeVisitor& visit) {
  const auto w = layer(view.layer);
  const std::int64_t heads = config_.n_heads, e = config_.d_head, d = config_.d_model,
                     used = reads.last + 1;
  const int cl = view.visible;
  const auto rope = rotary(view.layer, view.length, view.length);
  // Few queries see the last sources: a vector over the stream for each costs less than the values
  // of all writers.
  const std::int64_t few = d > e ? std::min(used, w->v.out * d / (heads * (d - e))) : used;
  const std::vector<T> values = to_model(w->v, true, ptr(reads.value), used - few, few);
  const auto one_source = [&](std::int64_t s, const T* queries) {
    const Sources all{s, 0, cl};
    const auto source = static_cast<int>(s), n = static_cast<int>(used - s);
    const T* writers = ptr(*view.writers) + s * view.n_writers * d;
    const T inverse = T(1) / ptr(*view.dev)[s];
    std::vector<T> projected(static_cast<std::size_t>(cl) * static_cast<std::size_t>(w->k.out));
    std::vector<T> tile(static_cast<std::size_t>(n) * static_cast<std::size_t>(cl));
    if (offsets.scores.empty()) project_keys(view, *w, rope.get(), all, projected.data());
    for (int h = 0; h < heads; ++h) {
      key_rows(view, reads, offsets, h, n, all, projected.data(), tile.data());
      visit(source, h, Branch::K, n, tile.data());
    }
    const bool fold = n <= few;
    std::vector<T> products(static_cast<std::size_t>(fold ? n * heads * cl : 0));
    if (fold) {
      gemm(true, n * heads, cl, d, values.data() + (few - n) * heads * d, d, writers, d, false,
           products.data(), cl);
    } else {
      project_writers(view, w->v, all, projected.data());
    }
    for (int h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; fold && i < n; ++i) {
        const T factor =
            inverse * ptr(*view.pattern)[h * tri(view.length) + tri(source + i) + source];
        const T* from = products.data() + (i * heads + h) * cl;
        for (std::int64_t c = 0; c < cl; ++c)
          tile[static_cast<std::size_t>(i * cl + c)] = factor * from[c];
      }
      if (!fold) value_rows(view, reads, h, n, all, projected.data(), tile.data());
      visit(source, h, Branch::V, n, tile.data());
    }
    products.resize(static_cast<std::size_t>(heads * cl));
    gemm(true, heads, cl, d, queries, d, writers, d, false, products.data(), cl);
    for (T& x : products) x *= inverse;
    for (int h = 0; h < heads; ++h) visit(source, h, Branch::Q, 1, products.data() + h * cl);
  };
  for (std::int64_t begin = 0; begin < used; begin += kQueryBlock) {
    const std::int64_t n = std::min(kQueryBlock, used - begin);
    const std::vector<T> queries = to_model(w->q, false, ptr(reads.query), begin, n);
    pool_.parallel_for(
        n, [&](std::int64_t i) { one_source(begin + i, queries.data() + i * heads * d); });
  }
}

template <typename T>
ReadOps::EdgesFrom HostReads<T>::edges_from(const AttentionView& view, const HeadReads& reads,
                                            const KeyOffsets& offsets, int head, int query) {
  EdgesFrom out;
  out.k.assign(static_cast<std::size_t>(view.length * view.visible), 0.0);
  out.q = out.v = out.k;
  visit_edges(view, reads, offsets,
              [&](int source, int of, Branch branch, int queries, const void* rows) {
                const int row = branch == Branch::Q ? 0 : query - source;
                if (of != head || row < 0 || row >= queries) return;
                if (branch == Branch::Q && source != query) return;
                const T* credit = static_cast<const T*>(rows) + std::ptrdiff_t{row} * view.visible;
                auto& to = branch == Branch::K ? out.k : branch == Branch::Q ? out.q : out.v;
                std::copy(credit, credit + view.visible,
                          to.begin() + std::ptrdiff_t{source} * view.visible);
              });
  return out;
}

template <typename T>
std::vector<ReadOps::EdgesInto> HostReads<T>::edges_into(std::span<const LayerReads> layers,
                                                         int writer, int source) {
  std::vector<EdgesInto> out(layers.size());
  pool_.parallel_for(static_cast<std::int64_t>(layers.size()), [&](std::int64_t i) {
    const LayerReads& from = layers[static_cast<std::size_t>(i)];
    out[static_cast<std::size_t>(i)] =
        edges_into(from.view, *from.reads, *from.offsets, writer, source);
  });
  return out;
}

template <typename T>
ReadOps::EdgesInto HostReads<T>::edges_into(const AttentionView& view, const HeadReads& reads,
                                            const KeyOffsets& offsets, int writer, int source) {
  const auto w = layer(view.layer);
  const std::int64_t heads = config_.n_heads, e = config_.d_head;
  EdgesInto out;
  out.queries = std::max(0, reads.last + 1 - source);
  if (out.queries == 0) return out;
  const Sources one{source, writer, 1};
  const auto rope = rotary(view.layer, view.length, view.length);
  std::vector<T> projected(static_cast<std::size_t>(std::max(w->k.out, w->q.out)));
  std::vector<T> tile(static_cast<std::size_t>(out.queries));
  if (offsets.scores.empty()) project_keys(view, *w, rope.get(), one, projected.data());
  for (std::int64_t h = 0; h < heads; ++h) {
    key_rows(view, reads, offsets, h, out.queries, one, projected.data(), tile.data());
    out.k.insert(out.k.end(), tile.begin(), tile.end());
  }
  project_writers(view, w->v, one, projected.data());
  for (std::int64_t h = 0; h < heads; ++h) {
    value_rows(view, reads, h, out.queries, one, projected.data(), tile.data());
    out.v.insert(out.v.end(), tile.begin(), tile.end());
  }
  project_writers(view, w->q, one, projected.data());
  for (std::int64_t h = 0; h < heads; ++h)
    out.q.push_back(static_cast<double>(
        dot(e, ptr(reads.query) + (source * heads + h) * e, projected.data() + h * e)));
  return out;
}

template class HostReads<float>;
template class HostReads<double>;

}  // namespace unpack
