// Layer-wise relevance as a modified gradient: AttnLRP, and CP-LRP, which holds attention patterns
// and gates constant.
#include <cmath>

#include "backend/host/kernels.h"
#include "decompose/host_math.h"
#include "engine/state.h"
#include "unpack/baselines.h"

namespace unpack {

namespace {

using Values = std::vector<double>;

// phi(h) / h, with its limit where h is too small to divide by.
double activation_ratio(Activation activation, double h) {
  if (std::fabs(h) < 1e-8) return activation == Activation::relu ? 0.0 : 0.5;
  return activate_one(activation, h) / h;
}

class Relevance {
 public:
  Relevance(const Prepared& prepared, bool constant_attention)
      : decomposition_(*prepared.state()->decomposition),
        weights_(*prepared.model().state()->weights),
        backend_(decomposition_.backend()),
        c_(weights_.config),
        length_(static_cast<std::size_t>(decomposition_.length())),
        d_(static_cast<std::size_t>(c_.d_model)),
        constant_(constant_attention),
        frequencies_(c_.positions == Positions::rotary ? rotary_frequencies(c_.rope) : Values()) {}

  BaselineScores run(const TargetInfo& target) {
    Values g(length_ * d_, 0.0);
    seed(target, g);
    for (int l = c_.n_layers - 1; l >= 0; --l) {
      const LayerTrace& layer = decomposition_.trace().layers[static_cast<std::size_t>(l)];
      const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(l)];
      if (c_.block == Block::parallel) {
        Values back = g;
        mlp_back(layer, weights, g, back);
        attention_back(layer, weights, g, back);
        g = std::move(back);
      } else {
        Values middle = g;
        mlp_back(layer, weights, g, middle);
        g = middle;
        attention_back(layer, weights, middle, g);
      }
    }
    const auto score = [&](const Array& rows) {
      const Values x = fetch(backend_, rows);
      Values out;
      for (std::size_t s = 0; s < length_; ++s)
        out.push_back(
            dot(std::span(x).subspan(s * d_, d_), std::span<const double>(g).subspan(s * d_, d_)));
      return out;
    };
    const ForwardTrace& trace = decomposition_.trace();
    return {score(trace.emb), trace.pos.empty() ? Values() : score(trace.pos)};
  }

 private:
  void center(std::span<double> row) const {
    if (c_.norm != Norm::layer) return;
    double mean = 0;
    for (const double x : row) mean += x;
    mean /= static_cast<double>(row.size());
    for (double& x : row) x -= mean;
  }

  void seed(const TargetInfo& target, Values& g) {
    Array direction = backend_.zeros(c_.d_model);
    backend_.target_direction(decomposition_.trace().x_final, target.position, target.ids,
                              target.versus_ids ? &*target.versus_ids : nullptr, target.raw,
                              direction);
    const auto row = std::span(g).subspan(static_cast<std::size_t>(target.position) * d_, d_);
    backend_.download(direction, 0, row);
    center(row);
  }

  // out += center(w * g_norm) / dev
  void norm_back(const WeightView& w, const Array& dev, Values& g_norm, Values& out) {
    const Values weight = fetch(w);
    const Values deviation = fetch(backend_, dev);
    for (std::size_t s = 0; s < length_; ++s) {
      const auto row = std::span(g_norm).subspan(s * d_, d_);
      for (std::size_t i = 0; i < d_; ++i) row[i] *= weight[i];
      center(row);
      for (std::size_t i = 0; i < d_; ++i) out[s * d_ + i] += row[i] / deviation[s];
    }
  }

  void mlp_back(const LayerTrace& layer, const LayerWeights& weights, const Values& g,
                Values& out) {
    const auto rows = static_cast<std::int64_t>(length_);
    const std::size_t n = length_ * static_cast<std::size_t>(c_.d_mlp);
    Values g_act(n, 0.0);
    linear_back(backend_, weights.w_out, g, g_act, rows);
    const Values pre = fetch(backend_, layer.pre);
    Values g_norm(length_ * d_, 0.0);
    if (!c_.gated()) {
      for (std::size_t i = 0; i < n; ++i)
        g_act[i] = g_act[i] == 0 ? 0 : g_act[i] * activation_ratio(c_.activation, pre[i]);
      linear_back(backend_, weights.w_in, g_act, g_norm, rows);
    } else {
      const Values up = fetch(backend_, layer.up);
      Values g_up(n, 0.0);
      const double share = constant_ ? 1.0 : 0.5;
      for (std::size_t i = 0; i < n; ++i) {
        if (g_act[i] == 0) continue;
        g_up[i] = share * g_act[i] * activate_one(c_.activation, pre[i]);
        g_act[i] =
            constant_ ? 0.0 : 0.5 * g_act[i] * up[i] * activation_ratio(c_.activation, pre[i]);
      }
      linear_back(backend_, weights.w_up, g_up, g_norm, rows);
      linear_back(backend_, weights.w_in, g_act, g_norm, rows);
    }
    norm_back(weights.mlp_norm.w, layer.dev_mlp, g_norm, out);
  }

  void attention_back(const LayerTrace& layer, const LayerWeights& weights, const Values& g,
                      Values& out) {
    const auto rows = static_cast<std::int64_t>(length_);
    const auto heads = static_cast<std::size_t>(c_.n_heads);
    const auto groups = static_cast<std::size_t>(c_.n_kv_heads);
    const auto e = static_cast<std::size_t>(c_.d_head);
    Values g_z(length_ * heads * e, 0.0);
    linear_back(backend_, weights.w_o, g, g_z, rows);
    const Values pattern = fetch(backend_, layer.pattern);
    const Values q = constant_ ? Values() : fetch(backend_, layer.q);
    const Values k = constant_ ? Values() : fetch(backend_, layer.k);
    const Values v = constant_ ? Values() : fetch(backend_, layer.v);
    Values g_q(length_ * heads * e, 0.0), g_k(length_ * groups * e, 0.0),
        g_v(length_ * groups * e, 0.0);
    // A group at a time: its heads add to the same keys and values.
    backend_.parallel_for(static_cast<std::int64_t>(groups), [&](std::int64_t group) {
      const auto first =
          static_cast<std::size_t>(group) * static_cast<std::size_t>(c_.group_size());
      for (std::size_t h = first; h < first + static_cast<std::size_t>(c_.group_size()); ++h) {
        head_back(h, static_cast<std::size_t>(group), pattern, q, k, v, g_z, g_q, g_k, g_v);
      }
    });
    Values g_norm(length_ * d_, 0.0);
    linear_back(backend_, weights.w_v, g_v, g_norm, rows);
    if (!constant_) {
      undo(weights.q_norm, layer.q_dev, heads, g_q);
      undo(weights.k_norm, layer.k_dev, groups, g_k);
      linear_back(backend_, weights.w_q, g_q, g_norm, rows);
      linear_back(backend_, weights.w_k, g_k, g_norm, rows);
    }
    norm_back(weights.attn_norm.w, layer.dev_attn, g_norm, out);
  }

  void head_back(std::size_t h, std::size_t group, const Values& pattern, const Values& q,
                 const Values& k, const Values& v, const Values& g_z, Values& g_q, Values& g_k,
                 Values& g_v) const {
    const auto e = static_cast<std::size_t>(c_.d_head);
    const auto heads = static_cast<std::size_t>(c_.n_heads);
    const auto groups = static_cast<std::size_t>(c_.n_kv_heads);
    const double scale = 1.0 / std::sqrt(static_cast<double>(c_.d_head));
    const auto pairs = static_cast<std::size_t>(tri(static_cast<std::int64_t>(length_)));
    Values g_pattern(length_);
    for (std::size_t i = 0; i < length_; ++i) {
      const auto z = std::span(g_z).subspan((i * heads + h) * e, e);
      const double* alpha = pattern.data() + h * pairs + i * (i + 1) / 2;
      const double value_share = constant_ ? 1.0 : 0.5;
      for (std::size_t j = 0; j <= i; ++j) {
        double* to = g_v.data() + (j * groups + group) * e;
        for (std::size_t x = 0; x < e; ++x) to[x] += value_share * alpha[j] * z[x];
      }
      if (constant_) continue;
      double mean = 0;
      for (std::size_t j = 0; j <= i; ++j) {
        g_pattern[j] = dot(z, std::span(v).subspan((j * groups + group) * e, e));
        mean += alpha[j] * g_pattern[j];
      }
      double* to_q = g_q.data() + (i * heads + h) * e;
      const double* query = q.data() + (i * heads + h) * e;
      for (std::size_t j = 0; j <= i; ++j) {
        const double ds = 0.25 * scale * alpha[j] * (g_pattern[j] - mean);
        const double* key = k.data() + (j * groups + group) * e;
        double* to_k = g_k.data() + (j * groups + group) * e;
        for (std::size_t x = 0; x < e; ++x) {
          to_q[x] += ds * key[x];
          to_k[x] += ds * query[x];
        }
      }
    }
  }

  // Rotary, then the per-head norm with its deviation held constant.
  void undo(const WeightView& norm, const Array& dev, std::size_t heads, Values& g) {
    const auto e = static_cast<std::size_t>(c_.d_head);
    const Values weight = fetch(norm);
    const Values deviation = c_.qk_norm ? fetch(backend_, dev) : Values();
    for (std::size_t s = 0; s < length_; ++s) {
      for (std::size_t h = 0; h < heads; ++h) {
        const auto row = std::span(g).subspan((s * heads + h) * e, e);
        if (!frequencies_.empty()) rotate_back(c_.rope, frequencies_, static_cast<int>(s), row);
        if (!c_.qk_norm) continue;
        for (std::size_t i = 0; i < e; ++i) row[i] *= weight[i] / deviation[s * heads + h];
      }
    }
  }

  const Decomposition& decomposition_;
  const ModelWeights& weights_;
  Backend& backend_;
  const ModelConfig& c_;
  std::size_t length_, d_;
  bool constant_;
  Values frequencies_;
};

}  // namespace

BaselineScores lrp_scores(const Prepared& prepared, const TargetInfo& target,
                          bool attention_constant) {
  return Relevance(prepared, attention_constant).run(target);
}

}  // namespace unpack
