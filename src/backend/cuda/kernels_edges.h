// Kernels of edge factors: shares of entries over SafeDenom.
#pragma once

#include "backend/cuda/kernel_base.h"

namespace unpack::backend::cuda {

// Entries of a head at a query and what they pass to keys and queries, one row per (h, i).
struct HeadShares {
  const float* numerators;  // [H, sources of all rows]
  const int* queries;
  const Index* begin;  // [rows + 1]
  const float* k_sum;  // [H, tri]
  const float* k_abs;
  const float* q_sum;
  const float* q_abs;
  const float* v_sum;  // [G, S]
  const float* v_abs;
  float* entry;  // as numerators
  float* key_coef;
  float* query_coef;
  float* doubt;  // [H, rows] or null
  Index pairs, rows, length, group, window;
  double beta, weight_k, weight_q, weight_v;
  int gate;      // entries are taken as they are
  int centered;  // query coefficients act on centred scores
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index h = index / rows;
    const Index i = index % rows;
    const Index q = queries[i];
    const Index n = q + 1;
    const Index at = h * begin[rows] + begin[i];
    const Index sums_at = h * pairs + pairs_before(q);
    const float* t = numerators + at;
    double scale = 1;
    if (!gate) {
      double total = 0, size = 0;
      g.sums(
          n,
          [&](Index s, double& a, double& b) {
            a += t[s];
            b += fabsf(t[s]);
          },
          total, size);
      scale = base::inverse_denom(total, size, beta);
    }
    const Index values = h / group * length;
    double doubtful = 0, of_queries = 0;
    g.sums(
        n,
        [&](Index s, double& a, double& b) {
          const double share = t[s] * scale;
          const double ks = k_sum[sums_at + s], ka = k_abs[sums_at + s];
          const double qs = q_sum[sums_at + s], qa = q_abs[sums_at + s];
          const double from_query =
              base::coefficient(weight_q, share, base::inverse_denom(qs, qa, beta));
          entry[at + s] = share;
          key_coef[at + s] = base::coefficient(weight_k, share, base::inverse_denom(ks, ka, beta));
          query_coef[at + s] = from_query;
          a += base::doubtful(weight_k, share, ks, ka);
          a += base::doubtful(weight_q, share, qs, qa);
          a += base::doubtful(weight_v, share, v_sum[values + s], v_abs[values + s]);
          b += from_query;
        },
        doubtful, of_queries);
    if (centered) {
      // Over the sources that are seen; the others keep their 0.
      const Index from = base::first_in_window(q, window);
      const double mean = of_queries / (n - from);
      g.each(n - from, [&](Index s) {
        float& coef = query_coef[at + from + s];
        coef = coef - mean;
      });
    }
    if (doubt != nullptr) g.each(1, [&](Index) { doubt[h * rows + i] = doubtful; });
  }
};

// Where one writer alone is visible, all of a sum is its score: what comes of both has no rounding
// of the sum's own, which next to 0 is larger than the sum. One row per (h, i).
struct QueriesOfOne {
  const float* coef;  // [H, sources of all rows]
  const float* sum;   // [H, tri]
  const int* queries;
  const Index* begin;  // [rows + 1]
  float* out;          // [H, rows]
  Index rows, pairs;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index index) const {
    const Index h = index / rows, i = index % rows, q = queries[i];
    const float* own = coef + h * begin[rows] + begin[i];
    const float* all = sum + h * pairs + pairs_before(q);
    const double total =
        g.sum(q + 1, [&](Index s) { return static_cast<double>(own[s]) * all[s]; });
    g.each(1, [&](Index) { out[index] = total; });
  }
};

struct ValueEdges {  // out[G, S, Cl] = weight v_scores / SafeDenom
  const float* scores;
  const float* sum;
  const float* abs;
  float* out;
  Index visible;
  double beta, weight;
  UNPACK_BODY void operator()(Index i) const {
    const Index at = i / visible;
    out[i] = base::coefficient(weight, scores[i], base::inverse_denom(sum[at], abs[at], beta));
  }
};

// Entries of an MLP at a query: shares of the numerators, and the coefficients that fold the scores
// of what is read for them: each neuron, or (by a router) each chosen expert. One row per query.
struct NeuronShares {
  const float* numerators;  // [rows, entries]
  const float* own;         // [rows, N] of what is read: the numerators, or their sums by expert
  const int* queries;
  const float* sum;  // [S, N]; null: the linearized rule, which divides by `pre`
  const float* abs;
  const float* pre;
  float* coef;    // [rows, N]
  float* shares;  // [rows, entries] or null
  float* doubt;   // [rows] or null; added to
  Index entries, neurons;
  double beta, weight;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index i) const {
    const Index row = queries[i] * neurons;
    const float* all = numerators + i * entries;
    const float* t = own + i * neurons;
    double total = 0, size = 0;
    sum_and_size(g, all, entries, total, size);
    const double scale = base::inverse_denom(total, size, beta);
    if (shares != nullptr)
      g.each(entries, [&](Index n) { shares[i * entries + n] = all[n] * scale; });
    const double doubtful = g.sum(neurons, [&](Index n) {
      const double share = t[n] * scale;
      if (sum == nullptr) {
        coef[i * neurons + n] = base::linear_coefficient(t[n], pre[row + n]);
        return 0.0;
      }
      const double s = sum[row + n], a = abs[row + n];
      coef[i * neurons + n] = base::coefficient(1.0, share, base::inverse_denom(s, a, beta));
      return base::doubtful(weight, share, s, a);
    });
    if (doubt != nullptr) g.each(1, [&](Index) { doubt[i] += doubtful; });
  }
};

struct ShareRows {  // x[rows, cols] -> shares of each row, times weight
  float* x;
  Index cols;
  double beta, weight;
  template <typename Group>
  UNPACK_BODY void operator()(Group& g, Index row) const {
    float* v = x + row * cols;
    double total = 0, size = 0;
    sum_and_size(g, v, cols, total, size);
    const double scale = weight * base::inverse_denom(total, size, beta);
    g.each(cols, [&](Index j) { v[j] = v[j] * scale; });
  }
};

}  // namespace unpack::backend::cuda
