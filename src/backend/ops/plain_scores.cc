// Scores and the sums behind every denominator in their plainest form, straight from the formulas:
// a vector over the stream for every pair of positions, the scores of one query at a time, sums in
// double on the host. A device that has nothing faster works with these; `reference` has nothing
// else, so that the tests hold every faster way against them.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/backend.h"

namespace unpack::backend {

std::vector<double> Backend::values_of(const Array& from) {
  std::vector<double> out(from.size());
  download(from, 0, out);
  return out;
}

// Keys:    sK_j(q, s) = g / dev(s) < c_j(s), W_K n_K R_s^-1 q(q) >
// Queries: sQ_j(q, s) = g / dev(q) < c_j(q), W_Q n_Q R_q^-1 k(s) >
// [(q + 1), H, Cl] for one query; zeros outside of a window.
std::vector<double> Backend::pair_scores(const AttentionView& view, bool key, Scores scores,
                                         int query) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, e = config_.d_head,
              d = config_.d_model, group = config_.group_size(), n = query + 1, cl = view.visible,
              stride = view.n_writers * d;
  const Array norm = vector({view.layer, key ? model::Role::k_norm : model::Role::q_norm});
  const auto table = rotary(view.layer, view.length, view.length);
  Array pulled = uninitialized(n * heads * e), vectors = uninitialized(n * heads * d),
        made = uninitialized(n * heads * cl);
  kernels::PullBack<Any> pull{};
  pull.from = key ? data(*view.q, query * heads * e) : data(*view.k);
  pull.from_a = key ? 0 : groups * e;
  pull.from_group = key ? 1 : group;
  pull.out = data(pulled);
  pull.nb = 1;
  pull.heads = heads;
  pull.e = e;
  pull.position0 = key ? 0 : query;
  pull.position_a = key ? 1 : 0;
  if (table) pull.rotary = {data(table->cos), data(table->sin), table->rope.dims / 2};
  if (!norm.empty()) {
    pull.norm = data(norm);
    pull.dev = data(key ? *view.k_dev : *view.q_dev);
    pull.dev_heads = key ? groups : heads;
    pull.dev_group = key ? group : 1;
  }
  launch(pull, pulled.size());
  heads_to_model({view.layer, key ? model::Role::w_k : model::Role::w_q}, heads,
                 block(pulled, n, heads * e), block(vectors, n, heads * d));
  multiply_batch({true, heads, cl, d, tail(vectors), d, heads * d,
                  tail(*view.writers, key ? 0 : query * stride), d, key ? stride : 0, tail(made),
                  cl, heads * cl, n});
  const LayerConfig& shape = config_.layer(view.layer);
  const std::vector<double> dev = values_of(*view.dev);
  std::vector<double> out = values_of(made);
  const Index row = heads * cl, first = shape.first_source(query);
  for (Index s = 0; s < n; ++s) {
    const double factor = s < first ? 0.0 : shape.attention_scale / dev[key ? s : query];
    for (Index i = 0; i < row; ++i) out[s * row + i] *= factor;
  }
  if (scores != Scores::centered) return out;
  for (Index i = 0; i < row; ++i) {
    double mean = 0;
    for (Index s = first; s < n; ++s) mean += out[s * row + i] / (n - first);
    for (Index s = first; s < n; ++s) out[s * row + i] -= mean;
  }
  return out;
}

AttentionSums Backend::attention_sums(const AttentionView& view, Scores scores,
                                      bool keep_key_scores) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, d = config_.d_model,
              e = config_.d_head, length = view.length, pairs = tri(length), cl = view.visible;
  std::vector<double> k_sum(heads * pairs, 0.0), k_abs = k_sum, q_sum = k_sum, q_abs = k_sum;
  std::vector<double> k_mean(heads * length * cl, 0.0), k_std = k_mean;
  std::vector<double> k_scores(keep_key_scores ? heads * pairs * cl : 0);
  for (int q = 0; q < view.length; ++q) {
    const Index first = config_.layer(view.layer).first_source(q);
    const std::vector<double> raw = pair_scores(view, true, Scores::raw, q),
                              keys = pair_scores(view, true, scores, q),
                              queries = pair_scores(view, false, scores, q);
    for (Index h = 0; h < heads; ++h) {
      for (Index s = 0; s <= q; ++s) {
        const Index pair = h * pairs + tri(q) + s, from = (s * heads + h) * cl;
        for (Index j = 0; j < cl; ++j) {
          k_sum[pair] += keys[from + j];
          k_abs[pair] += std::fabs(keys[from + j]);
          q_sum[pair] += queries[from + j];
          q_abs[pair] += std::fabs(queries[from + j]);
          if (keep_key_scores) k_scores[pair * cl + j] = keys[from + j];
        }
      }
      // Mean and population standard deviation over the sources in sight.
      const double n = q + 1 - first;
      for (Index j = 0; j < cl; ++j) {
        double& mean = k_mean[(h * length + q) * cl + j];
        for (Index s = first; s <= q; ++s) mean += raw[(s * heads + h) * cl + j] / n;
        double square = 0;
        for (Index s = first; s <= q; ++s)
          square += std::pow(raw[(s * heads + h) * cl + j] - mean, 2) / n;
        k_std[(h * length + q) * cl + j] = std::sqrt(square);
      }
    }
  }
  // sV_j(s) = < norm(c_j)(s), W_V v(s) >
  Array vectors = uninitialized(length * groups * d), made = uninitialized(length * groups * cl);
  heads_to_model({view.layer, model::Role::w_v}, groups, block(*view.v, length, groups * e),
                 block(vectors, length, groups * d));
  multiply_batch({true, groups, cl, d, tail(vectors), d, groups * d, tail(*view.writers), d,
                  view.n_writers * d, tail(made), cl, groups * cl, length});
  const std::vector<double> products = values_of(made), dev = values_of(*view.dev);
  std::vector<double> v_sum(groups * length, 0.0), v_abs = v_sum, v_scores(products.size());
  for (Index s = 0; s < length; ++s) {
    for (Index g = 0; g < groups; ++g) {
      for (Index j = 0; j < cl; ++j) {
        const double score = products[(s * groups + g) * cl + j] / dev[s];
        v_scores[(g * length + s) * cl + j] = score;
        v_sum[g * length + s] += score;
        v_abs[g * length + s] += std::fabs(score);
      }
    }
  }
  AttentionSums sums;
  sums.k_sum = upload_array(k_sum);
  sums.k_abs = upload_array(k_abs);
  sums.q_sum = upload_array(q_sum);
  sums.q_abs = upload_array(q_abs);
  sums.v_sum = upload_array(v_sum);
  sums.v_abs = upload_array(v_abs);
  sums.v_scores = upload_array(v_scores);
  sums.k_std = upload_array(k_std);
  sums.k_mean = upload_array(k_mean);
  if (keep_key_scores) sums.k_scores = upload_array(k_scores);
  return sums;
}

// The scores of one head at a query, [(q + 1), Cl].
std::vector<double> Backend::scores_of_head(const std::vector<double>& all, Index head, Index cl) {
  const Index row = config_.n_heads * cl, n = static_cast<Index>(all.size()) / row;
  std::vector<double> out;
  out.reserve(n * cl);
  for (Index s = 0; s < n; ++s) {
    const auto from = all.begin() + s * row + head * cl;
    out.insert(out.end(), from, from + cl);
  }
  return out;
}

void Backend::key_scores(const AttentionView& view, Scores scores, int head, int query,
                         Array& out) {
  upload(out, 0, scores_of_head(pair_scores(view, true, scores, query), head, view.visible));
}

void Backend::query_scores(const AttentionView& view, Scores scores, int head, int query,
                           Array& out) {
  upload(out, 0, scores_of_head(pair_scores(view, false, scores, query), head, view.visible));
}

void Backend::visit_key_scores(const AttentionView& view, Scores scores, const KeyVisitor& visit) {
  for (int q = 0; q < view.length; ++q) {
    const std::vector<double> all = pair_scores(view, true, scores, q);
    for (int h = 0; h < config_.n_heads; ++h) {
      const std::vector<double> own = scores_of_head(all, h, view.visible);
      if (is_double()) {
        visit(h, q, own.data());
      } else {
        visit(h, q, std::vector<float>(own.begin(), own.end()).data());
      }
    }
  }
}

// sM_j(q, n) = norm(c_j)(q) . W_in[:, n]; of the router those of the chosen experts, less the mean
// over all of them where they are centred.
void Backend::mlp_scores(const MlpView& view, MlpSide side, Scores scores, int query, Array& out) {
  const LayerConfig& shape = config_.layer(view.layer);
  const Index d = config_.d_model, cl = view.visible;
  const View writers = block(*view.writers, cl, d, Index{query} * view.n_writers);
  const double dev = values_of(*view.dev)[query];
  const bool mixture = view.routing != nullptr, router = mixture && side == MlpSide::router;
  const Index slots = mixture ? view.routing->chosen : 1,
              n = router ? view.routing->experts : shape.n_neurons,
              width = router ? slots : slots * n;
  std::vector<double> to(cl * width);
  Array made = uninitialized(cl * n);
  for (Index slot = 0; slot < slots; ++slot) {
    const int expert = mixture ? view.routing->expert[view.routing->slot(query, slot)] : -1;
    multiply({{view.layer, matrix_of(side), router ? -1 : expert}, block(made, cl, n)}, writers);
    const std::vector<double> all = values_of(made);
    for (Index j = 0; j < cl; ++j) {
      const double* row = all.data() + j * n;
      if (!router) {
        for (Index i = 0; i < n; ++i) to[j * width + slot * n + i] = row[i] / dev;
        continue;
      }
      const double mean = scores == Scores::centered ? std::accumulate(row, row + n, 0.0) / n : 0.0;
      to[j * width + slot] = (row[expert] - mean) / dev;
    }
  }
  upload(out, 0, to);
}

MlpSums Backend::mlp_sums(const MlpView& view, MlpSide side, Scores scores) {
  const LayerConfig& shape = config_.layer(view.layer);
  const Index cl = view.visible, n = reader_entries(shape, side), length = view.length;
  std::vector<double> sum(length * n, 0.0), abs = sum, l2(length * cl, 0.0);
  Array made = uninitialized(cl * n);
  for (int q = 0; q < view.length; ++q) {
    mlp_scores(view, side, scores, q, made);
    const std::vector<double> all = values_of(made);
    for (Index j = 0; j < cl; ++j) {
      double square = 0;
      for (Index i = 0; i < n; ++i) {
        const double score = all[j * n + i];
        sum[q * n + i] += score;
        abs[q * n + i] += std::fabs(score);
        square += score * score;
      }
      l2[q * cl + j] = std::sqrt(square);
    }
  }
  MlpSums sums;
  sums.sum = upload_array(sum);
  sums.abs = upload_array(abs);
  sums.l2 = upload_array(l2);
  return sums;
}

}  // namespace unpack::backend
