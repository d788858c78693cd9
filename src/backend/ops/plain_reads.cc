// Direction `read` in its plainest form (see plain_scores.cc): shares pair by pair, edges one by
// one.
#include <algorithm>
#include <cmath>

#include "backend/backend.h"
#include "base/formulas.h"

namespace unpack::backend {

ReadOps::HeadReads Backend::head_reads(const AttentionView& view, const AttentionSums& sums,
                                       const Options& options, std::span<const double> directions) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              d = config_.d_model, group = config_.group_size(), length = view.length,
              pairs = tri(length);
  const LayerConfig& shape = config_.layer(view.layer);
  const bool centered = options.scores == Scores::centered,
             spread = options.keys == Keys::spread && centered;
  const double scale = shape.attention_scale;
  const std::vector<double> pattern = values_of(*view.pattern), v = values_of(*view.v),
                            k_sum = values_of(sums.k_sum), k_abs = values_of(sums.k_abs),
                            q_sum = values_of(sums.q_sum), q_abs = values_of(sums.q_abs);
  std::vector<double> key_coef(heads * pairs, 0.0), query_coef = key_coef;
  HeadReads reads;
  reads.active.resize(heads);
  for (Index h = 0; h < heads; ++h) {
    for (Index q = 0; q < length; ++q) {
      const double* direction = directions.data() + (q * heads + h) * e;
      if (std::all_of(direction, direction + e, [](double x) { return x == 0; })) continue;
      auto& active = reads.active[h];
      if (active.end == 0) active.first = q;
      active.end = q + 1;
      reads.last = std::max(reads.last, active.end - 1);
      const Index first = shape.first_source(q);
      const double n = q + 1 - first;
      double key_mean = 0, query_mean = 0;
      for (Index s = first; s <= q; ++s) {
        const Index pair = h * pairs + tri(q) + s;
        const double* value = v.data() + (s * groups + h / group) * e;
        double credit = 0;
        for (Index x = 0; x < e; ++x) credit += pattern[pair] * direction[x] * value[x];
        key_coef[pair] = base::coefficient(
            options.weights[0], credit,
            base::floored_inverse(k_sum[pair], k_abs[pair], options.beta, options.floor));
        query_coef[pair] = base::coefficient(
            options.weights[1], credit,
            base::floored_inverse(q_sum[pair], q_abs[pair], options.beta, options.floor));
        key_mean += key_coef[pair] / n;
        query_mean += query_coef[pair] / n;
      }
      for (Index s = first; s <= q; ++s) {
        const Index pair = h * pairs + tri(q) + s;
        if (spread) key_coef[pair] -= key_mean;
        if (centered) query_coef[pair] -= query_mean;
      }
    }
  }
  reads.key_coef = upload_array(key_coef);
  reads.value = upload_array(directions);
  const Array coef = upload_array(query_coef);
  std::vector<int> all(length);
  for (Index q = 0; q < length; ++q) all[q] = q;
  const Rows rows = rows_of(all);
  reads.query = before_norm(view, false, &rows, Backend::sum_keys(view, rows, coef));
  const Array keys = before_norm(view, true, nullptr, Backend::sum_queries(view, reads.key_coef));
  AttentionView of_values = view;
  of_values.q = &reads.value;
  const Array values = Backend::sum_queries(of_values, *view.pattern);
  const auto scaled = [&](const Array& x, double by) {
    Array out = zeros(x.size());
    add(x, out, x.size(), by);
    return out;
  };
  reads.query = scaled(reads.query, scale);
  reads.value = scaled(reads.value, options.weights[2]);
  const auto to_stream = [&](model::Role role, const Array& x, Index width, double by,
                             std::vector<double>& out) {
    Array vectors = uninitialized(length * d);
    multiply_turned({view.layer, role}, block(x, length, width), block(vectors, length, d));
    launch(kernels::ScaleByRow<Any>{data(vectors), data(*view.dev), 0, 1, d, by}, vectors.size());
    const std::vector<double> made = values_of(vectors);
    out.resize(made.size(), 0.0);
    for (std::size_t i = 0; i < made.size(); ++i) out[i] += made[i];
  };
  to_stream(model::Role::w_v, values, groups * e, options.weights[2], reads.linear);
  to_stream(model::Role::w_q, reads.query, heads * e, 1.0, reads.linear);
  to_stream(model::Role::w_k, keys, groups * e, scale, reads.keyed);
  return reads;
}

ReadOps::NeuronCredit Backend::neuron_credit(const Array& own, Index rows, const Array* pre,
                                             const MlpSums* sums, double beta, double weight) {
  const Index n = own.size() / rows;
  const std::vector<double> given = values_of(own),
                            before = pre != nullptr ? values_of(*pre) : std::vector<double>(),
                            sum = pre == nullptr ? values_of(sums->sum) : std::vector<double>(),
                            abs = pre == nullptr ? values_of(sums->abs) : std::vector<double>();
  NeuronCredit out;
  out.credit.assign(rows, 0.0);
  std::vector<double> coef(given.size());
  for (Index i = 0; i < own.size(); ++i) {
    out.credit[i / n] += given[i];
    if (pre != nullptr) {
      coef[i] = base::linear_coefficient(given[i], before[i]);
      continue;
    }
    coef[i] = base::coefficient(weight, given[i], base::inverse_denom(sum[i], abs[i], beta));
    out.passed += std::fabs(given[i]);
    out.doubt += base::doubtful(1.0, given[i], sum[i], abs[i]);
  }
  out.coef = upload_array(coef);
  return out;
}

Array Backend::key_medians(const AttentionView& view, const AttentionSums&) {
  const Index heads = config_.n_heads, cl = view.visible, length = view.length;
  std::vector<double> out(heads * length * cl), column;
  for (int q = 0; q < view.length; ++q) {
    const std::vector<double> rows = pair_scores(view, true, Scores::centered, q);
    for (Index h = 0; h < heads; ++h) {
      for (Index j = 0; j < cl; ++j) {
        column.clear();
        for (Index s = config_.layer(view.layer).first_source(q); s <= q; ++s)
          column.push_back(rows[(s * heads + h) * cl + j]);
        std::sort(column.begin(), column.end());
        out[(h * length + q) * cl + j] = column[(column.size() - 1) / 2];
      }
    }
  }
  return upload_array(out);
}

void Backend::offset_fold(const AttentionView& view, const HeadReads& reads, const Array& offsets,
                          std::vector<double>& out) {
  const Index heads = config_.n_heads, cl = view.visible, length = view.length;
  const std::vector<double> coef = values_of(reads.key_coef), offset = values_of(offsets);
  out.assign(length * cl, 0.0);
  for (Index h = 0; h < heads; ++h) {
    for (Index q = 0; q < length; ++q) {
      for (Index s = 0; s <= q; ++s) {
        const double factor = coef[h * tri(length) + tri(q) + s];
        for (Index j = 0; j < cl; ++j)
          out[s * cl + j] += factor * offset[(h * length + q) * cl + j];
      }
    }
  }
}

// Edges
// -------------------------------------------------------------------------------------------------

// [(q + 1), H, Cl] what the heads at a query pass to every writer at every source, by K and V, and
// [H, Cl] by Q to those at the query.
Backend::QueryEdges Backend::edges_at(const AttentionView& view, const HeadReads& reads,
                                      const KeyOffsets& offsets, int query) {
  const Index heads = config_.n_heads, e = config_.d_head, d = config_.d_model, cl = view.visible,
              length = view.length, n = query + 1, row = heads * cl, stride = view.n_writers * d;
  const std::vector<double> coef = values_of(reads.key_coef), pattern = values_of(*view.pattern),
                            dev = values_of(*view.dev);
  const bool kept = !offsets.scores.empty();
  const Array& taken = kept ? offsets.kept : offsets.raw;
  const std::vector<double> offset = values_of(taken), table = values_of(offsets.scores);
  QueryEdges out;
  out.k = kept ? std::vector<double>(n * row) : pair_scores(view, true, Scores::raw, query);
  // < value of j at s, direction of the head > = < c_j(s) / dev(s), W_V direction >
  const auto towards_writers = [&](model::Role role, const Array& from, Index first, Index count) {
    Array vectors = uninitialized(heads * d), made = uninitialized(count * row);
    heads_to_model({view.layer, role}, heads, block(from, 1, heads * e, query),
                   block(vectors, 1, heads * d));
    multiply_batch({true, heads, cl, d, tail(vectors), d, 0, tail(*view.writers, first * stride), d,
                    stride, tail(made), cl, row, count});
    return values_of(made);
  };
  out.v = towards_writers(model::Role::w_v, reads.value, 0, n);
  out.q = towards_writers(model::Role::w_q, reads.query, query, 1);
  for (double& x : out.q) x /= dev[query];
  for (Index s = 0; s < n; ++s) {
    for (Index h = 0; h < heads; ++h) {
      const Index pair = h * tri(length) + tri(query) + s;
      for (Index j = 0; j < cl; ++j) {
        const Index at = s * row + h * cl + j;
        if (kept) out.k[at] = table[pair * cl + j];
        if (!offset.empty()) out.k[at] -= offset[(h * length + query) * cl + j];
        out.k[at] *= coef[pair];
        out.v[at] *= pattern[pair] / dev[s];
      }
    }
  }
  return out;
}

void Backend::visit_edges(const AttentionView& view, const HeadReads& reads,
                          const KeyOffsets& offsets, const EdgeVisitor& visit) {
  const Index heads = config_.n_heads, cl = view.visible;
  const auto show = [&](Index source, Index head, Branch branch, int query, const double* credit) {
    Edges edges{static_cast<int>(source), static_cast<int>(head), branch, query, 1, credit};
    if (is_double()) return visit(edges);
    const std::vector<float> rounded(credit, credit + cl);
    edges.credit = rounded.data();
    visit(edges);
  };
  for (int q = 0; q <= reads.last; ++q) {
    const QueryEdges of = edges_at(view, reads, offsets, q);
    for (Index h = 0; h < heads; ++h) {
      if (q < reads.active[h].first || q >= reads.active[h].end) continue;
      for (Index s = 0; s <= q; ++s) {
        show(s, h, Branch::K, q, of.k.data() + (s * heads + h) * cl);
        show(s, h, Branch::V, q, of.v.data() + (s * heads + h) * cl);
      }
      show(q, h, Branch::Q, q, of.q.data() + h * cl);
    }
  }
}

ReadOps::EdgesFrom Backend::edges_from(const AttentionView& view, const HeadReads& reads,
                                       const KeyOffsets& offsets, int head, int query) {
  const Index heads = config_.n_heads, cl = view.visible;
  const QueryEdges of = edges_at(view, reads, offsets, query);
  EdgesFrom out;
  out.k.assign(view.length * cl, 0.0);
  out.q = out.v = out.k;
  for (Index s = 0; s <= query; ++s) {
    std::copy_n(of.k.begin() + (s * heads + head) * cl, cl, out.k.begin() + s * cl);
    std::copy_n(of.v.begin() + (s * heads + head) * cl, cl, out.v.begin() + s * cl);
  }
  std::copy_n(of.q.begin() + head * cl, cl, out.q.begin() + query * cl);
  return out;
}

// One writer at a source, projected as its readers see it.
std::vector<ReadOps::EdgesInto> Backend::edges_into(std::span<const LayerReads> layers, int writer,
                                                    int source) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              d = config_.d_model, group = config_.group_size();
  std::vector<EdgesInto> out;
  for (const LayerReads& from : layers) {
    const AttentionView& view = from.view;
    const HeadReads& reads = *from.reads;
    const KeyOffsets& offsets = *from.offsets;
    const Index length = view.length, cl = view.visible;
    EdgesInto& into = out.emplace_back();
    into.queries = std::max(0, reads.last + 1 - source);
    if (into.queries == 0) continue;
    const std::vector<double> dev = values_of(*view.dev), pattern = values_of(*view.pattern),
                              coef = values_of(reads.key_coef), queries = values_of(*view.q),
                              by_query = values_of(reads.query), by_value = values_of(reads.value);
    const auto projected = [&](model::Role role, Index width) {
      Array made = uninitialized(width);
      multiply({{view.layer, role}, block(made, 1, width)},
               block(*view.writers, 1, d, Index{source} * view.n_writers + writer));
      std::vector<double> values = values_of(made);
      for (double& x : values) x /= dev[source];
      return values;
    };
    const std::vector<double> value = projected(model::Role::w_v, groups * e),
                              query = projected(model::Role::w_q, heads * e);
    std::vector<double> key = projected(model::Role::w_k, groups * e);
    const std::vector<double> norm = values_of(vector({view.layer, model::Role::k_norm}));
    const std::vector<double> norm_dev =
        norm.empty() ? std::vector<double>() : values_of(*view.k_dev);
    for (Index i = 0; i < groups * e && !norm.empty(); ++i)
      key[i] *= norm[i] / norm_dev[source * groups + i / e];
    if (const auto table = rotary(view.layer, view.length, view.length)) {
      const std::vector<double> cos = values_of(table->cos), sin = values_of(table->sin);
      const kernels::Rotary<double> turn{cos.data(), sin.data(), table->rope.dims / 2};
      kernels::HostGroup one;
      for (Index g = 0; g < groups; ++g) turn.turn(one, key.data() + g * e, source);
    }
    const bool kept = !offsets.scores.empty();
    const std::vector<double> offset = values_of(kept ? offsets.kept : offsets.raw),
                              scores = values_of(offsets.scores);
    const double scale = config_.layer(view.layer).attention_scale;
    const auto dot_of = [&](const double* a, const double* b) {
      double sum = 0;
      for (Index x = 0; x < e; ++x) sum += a[x] * b[x];
      return sum;
    };
    for (Index h = 0; h < heads; ++h) {
      const Index g = h / group;
      for (Index q = source; q < source + into.queries; ++q) {
        const Index pair = h * tri(length) + tri(q) + source, at = (q * heads + h) * e;
        double score = kept ? scores[pair * cl + writer]
                            : scale * dot_of(queries.data() + at, key.data() + g * e);
        if (!offset.empty()) score -= offset[(h * length + q) * cl + writer];
        into.k.push_back(coef[pair] * score);
        into.v.push_back(pattern[pair] * dot_of(by_value.data() + at, value.data() + g * e));
      }
      into.q.push_back(dot_of(by_query.data() + (source * heads + h) * e, query.data() + h * e));
    }
  }
  return out;
}

}  // namespace unpack::backend
