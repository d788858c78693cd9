// Layer-wise relevance as a modified gradient: AttnLRP, and CP-LRP, which holds attention patterns
// and gates constant.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "backend/host/kernels.h"
#include "base/center.h"
#include "decompose/host_math.h"
#include "engine/state.h"
#include "unpack/baselines.h"

namespace unpack {

namespace {

using Values = std::vector<double>;

// phi(h) / h, with its limit where h is too small to divide by.
double activation_ratio(Activation activation, double h) {
  if (std::fabs(h) < 1e-8) return activation == Activation::relu ? 0.0 : 0.5;
  return backend::activate_one(activation, h) / h;
}

class Relevance {
 public:
  Relevance(const Prepared& prepared, bool constant_attention)
      : decomposition_(*engine::state_of(prepared)->decomposition),
        weights_(*engine::state_of(prepared.model())->weights),
        backend_(decomposition_.backend()),
        c_(weights_.config),
        length_(decomposition_.length()),
        d_(c_.d_model),
        constant_(constant_attention) {
    for (const LayerConfig& layer : c_.layers) {
      if (layer.activation == Activation::clamped_swiglu || layer.sinks)
        throw InputError(fmt::format(
            "{} is not defined for {}: use unpack or ifr",
            to_string(constant_attention ? Method::cplrp : Method::attnlrp), c_.family));
    }
  }

  BaselineScores run(const TargetInfo& target) {
    Values g(length_ * d_, 0.0);
    seed(target, g);
    for (int l = c_.n_layers - 1; l >= 0; --l) {
      if (c_.block == Block::parallel) {
        Values back = g;
        mlp_back(l, g, back);
        attention_back(l, g, back);
        g = std::move(back);
      } else {
        Values middle = g;
        mlp_back(l, g, middle);
        g = middle;
        attention_back(l, middle, g);
      }
    }
    const auto score = [&](const backend::Array& rows) {
      const Values x = decompose::fetch(backend_, rows);
      Values out;
      for (std::size_t s = 0; s < length_; ++s)
        out.push_back(decompose::dot(std::span(x).subspan(s * d_, d_),
                                     std::span<const double>(g).subspan(s * d_, d_)));
      return out;
    };
    const forward::ForwardPass& pass = decomposition_.pass();
    return {score(pass.emb), pass.pos.empty() ? Values() : score(pass.pos)};
  }

 private:
  void center(std::span<double> row) const { base::center(c_.norm, row.data(), std::ssize(row)); }

  void seed(const TargetInfo& target, Values& g) {
    backend::Array direction = backend_.zeros(c_.d_model);
    backend_.target_direction(decomposition_.pass().x_final, target.position, target.ids,
                              target.versus_ids ? &*target.versus_ids : nullptr, target.raw,
                              direction);
    const auto row = std::span(g).subspan(target.position * d_, d_);
    backend_.download(direction, 0, row);
    center(row);
  }

  // out += center(w * g_norm) / dev; where there is no norm, out += g_norm.
  void norm_back(Norm kind, const model::WeightView& w, const backend::Array& dev, Values& g_norm,
                 Values& out) {
    if (kind == Norm::none) {
      for (std::size_t i = 0; i < out.size(); ++i) out[i] += g_norm[i];
      return;
    }
    const Values weight = decompose::fetch(w);
    const Values deviation = decompose::fetch(backend_, dev);
    for (std::size_t s = 0; s < length_; ++s) {
      const auto row = std::span(g_norm).subspan(s * d_, d_);
      for (std::size_t i = 0; i < d_; ++i) row[i] *= weight[i];
      center(row);
      for (std::size_t i = 0; i < d_; ++i) out[s * d_ + i] += row[i] / deviation[s];
    }
  }

  // What reaches a sublayer's output through the norm behind it.
  Values behind(const model::WeightView& post, const backend::Array& dev, const Values& g) const {
    if (!post) return g;
    const Values weight = decompose::fetch(post), deviation = decompose::fetch(backend_, dev);
    Values out = g;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] *= weight[i % d_] / deviation[i / d_];
    return out;
  }

  // From the output of one MLP or expert to its normed input, for m rows; `weight` holds what each
  // row's output was multiplied by.
  Values neurons_back(const LayerConfig& shape, const model::RoleViews& weights, const Values& g,
                      const Values& pre, const Values& up, const Values& weight) {
    const std::int64_t rows = weight.size();
    const std::size_t neurons = shape.n_neurons;
    const std::size_t n = weight.size() * neurons;
    const Activation phi = shape.activation;
    Values g_act(n, 0.0), g_norm(weight.size() * d_, 0.0);
    decompose::linear_back(backend_, weights[model::Role::w_out], g, g_act, rows);
    for (std::size_t i = 0; i < n; ++i) g_act[i] *= weight[i / neurons];
    if (!shape.gated()) {
      for (std::size_t i = 0; i < n; ++i)
        g_act[i] = g_act[i] == 0 ? 0 : g_act[i] * activation_ratio(phi, pre[i]);
    } else {
      Values g_up(n, 0.0);
      const double share = constant_ ? 1.0 : 0.5;
      for (std::size_t i = 0; i < n; ++i) {
        if (g_act[i] == 0) continue;
        g_up[i] = share * g_act[i] * backend::activate_one(phi, pre[i]);
        g_act[i] = constant_ ? 0.0 : 0.5 * g_act[i] * up[i] * activation_ratio(phi, pre[i]);
      }
      decompose::linear_back(backend_, weights[model::Role::w_up], g_up, g_norm, rows);
    }
    decompose::linear_back(backend_, weights[model::Role::w_in], g_act, g_norm, rows);
    return g_norm;
  }

  void mlp_back(int l, const Values& g, Values& out) {
    const forward::LayerPass& layer = decomposition_.pass().layers[l];
    const model::LayerWeights& weights = weights_.layers[l];
    const LayerConfig& shape = c_.layer(l);
    const Values g_out = behind(weights[model::Role::mlp_post_w], layer.mlp_out_dev, g);
    const Values pre = decompose::fetch(backend_, layer.pre),
                 up = decompose::fetch(backend_, layer.up);
    Values g_norm;
    if (!layer.routing) {
      g_norm = neurons_back(shape, weights, g_out, pre, up, Values(length_, 1.0));
    } else {
      g_norm.assign(length_ * d_, 0.0);
      experts_back(shape, weights, *layer.routing, g_out, pre, up, g_norm);
    }
    norm_back(shape.mlp_norm, weights[model::Role::mlp_norm_w], layer.dev_mlp, g_norm, out);
  }

  // Routing weights are constants.
  void experts_back(const LayerConfig& shape, const model::LayerWeights& weights,
                    const backend::Routing& routing, const Values& g, const Values& pre,
                    const Values& up, Values& g_norm) {
    const std::size_t neurons = shape.n_neurons;
    std::map<int, std::vector<std::size_t>> slots;
    for (std::size_t i = 0; i < routing.expert.size(); ++i) slots[routing.expert[i]].push_back(i);
    for (const auto& [expert, used] : slots) {
      Values own_g, own_pre, own_up, weight;
      const auto take = [](const Values& from, std::size_t row, std::size_t n, Values& to) {
        const auto at = from.begin() + (row * n);
        to.insert(to.end(), at, at + n);
      };
      for (const std::size_t slot : used) {
        take(g, slot / routing.chosen, d_, own_g);
        take(pre, slot, neurons, own_pre);
        take(up, slot, neurons, own_up);
        weight.push_back(routing.weight[slot]);
      }
      const Values back =
          neurons_back(shape, weights.experts[expert], own_g, own_pre, own_up, weight);
      for (std::size_t i = 0; i < used.size(); ++i) {
        double* to = g_norm.data() + used[i] / routing.chosen * d_;
        for (std::size_t k = 0; k < d_; ++k) to[k] += back[i * d_ + k];
      }
    }
  }

  void attention_back(int l, const Values& g, Values& out) {
    const forward::LayerPass& layer = decomposition_.pass().layers[l];
    const model::LayerWeights& weights = weights_.layers[l];
    const LayerConfig& shape = c_.layer(l);
    const std::int64_t rows = length_;
    const std::size_t heads = c_.n_heads;
    const std::size_t groups = c_.n_kv_heads;
    const std::size_t e = c_.d_head;
    Values g_z(length_ * heads * e, 0.0);
    decompose::linear_back(backend_, weights[model::Role::w_o],
                           behind(weights[model::Role::attn_post_w], layer.attn_out_dev, g), g_z,
                           rows);
    const Values pattern = decompose::fetch(backend_, layer.pattern);
    const Values q = constant_ ? Values() : decompose::fetch(backend_, layer.q);
    const Values k = constant_ ? Values() : decompose::fetch(backend_, layer.k);
    const Values v = constant_ ? Values() : decompose::fetch(backend_, layer.v);
    Values g_q(length_ * heads * e, 0.0), g_k(length_ * groups * e, 0.0),
        g_v(length_ * groups * e, 0.0);
    // A group at a time: its heads add to the same keys and values.
    backend_.parallel_for(groups, [&](std::int64_t group) {
      const auto first = static_cast<std::size_t>(group) * c_.group_size();
      for (std::size_t h = first; h < first + c_.group_size(); ++h) {
        head_back(shape, h, group, pattern, q, k, v, g_z, g_q, g_k, g_v);
      }
    });
    Values g_norm(length_ * d_, 0.0);
    decompose::linear_back(backend_, weights[model::Role::w_v], g_v, g_norm, rows);
    if (!constant_) {
      undo(shape, weights[model::Role::q_norm], layer.q_dev, heads, g_q);
      undo(shape, weights[model::Role::k_norm], layer.k_dev, groups, g_k);
      decompose::linear_back(backend_, weights[model::Role::w_q], g_q, g_norm, rows);
      decompose::linear_back(backend_, weights[model::Role::w_k], g_k, g_norm, rows);
    }
    norm_back(shape.attn_norm, weights[model::Role::attn_norm_w], layer.dev_attn, g_norm, out);
  }

  void head_back(const LayerConfig& shape, std::size_t h, std::size_t group, const Values& pattern,
                 const Values& q, const Values& k, const Values& v, const Values& g_z, Values& g_q,
                 Values& g_k, Values& g_v) const {
    const std::size_t e = c_.d_head;
    const std::size_t heads = c_.n_heads;
    const std::size_t groups = c_.n_kv_heads;
    const double scale = shape.attention_scale;
    const std::size_t pairs = backend::tri(length_);
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
        g_pattern[j] = decompose::dot(z, std::span(v).subspan((j * groups + group) * e, e));
        mean += alpha[j] * g_pattern[j];
      }
      double* to_q = g_q.data() + (i * heads + h) * e;
      const double* query = q.data() + (i * heads + h) * e;
      for (std::size_t j = 0; j <= i; ++j) {
        const double* key = k.data() + (j * groups + group) * e;
        const double ds = 0.25 * scale * alpha[j] * (g_pattern[j] - mean) *
                          cap_ratio(shape.attention_cap, scale, query, key, e);
        double* to_k = g_k.data() + (j * groups + group) * e;
        for (std::size_t x = 0; x < e; ++x) {
          to_q[x] += ds * key[x];
          to_k[x] += ds * query[x];
        }
      }
    }
  }

  // Capped over uncapped logit.
  static double cap_ratio(double cap, double scale, const double* query, const double* key,
                          std::size_t e) {
    if (cap == 0) return 1.0;
    const double logit = scale * decompose::dot({query, e}, {key, e});
    return std::fabs(logit) < 1e-8 ? 1.0 : cap * std::tanh(logit / cap) / logit;
  }

  // Rotary, then the norm of queries or keys with its deviation held constant.
  void undo(const LayerConfig& shape, const model::WeightView& norm, const backend::Array& dev,
            std::size_t heads, Values& g) {
    const std::size_t e = c_.d_head;
    const Values weight = decompose::fetch(norm);
    const Values deviation = norm ? decompose::fetch(backend_, dev) : Values();
    const Values frequencies = backend::rotary_frequencies(shape.rope, length_);
    for (std::size_t s = 0; s < length_; ++s) {
      for (std::size_t h = 0; h < heads; ++h) {
        const auto row = std::span(g).subspan((s * heads + h) * e, e);
        if (shape.rope.dims > 0) decompose::rotate_back(shape.rope, frequencies, s, row);
        if (!norm) continue;
        for (std::size_t i = 0; i < e; ++i)
          row[i] *= weight[(h * e + i) % weight.size()] / deviation[s * heads + h];
      }
    }
  }

  const decompose::Decomposition& decomposition_;
  const model::ModelWeights& weights_;
  backend::Backend& backend_;
  const ModelConfig& c_;
  std::size_t length_, d_;
  bool constant_;
};

}  // namespace

BaselineScores lrp_scores(const Prepared& prepared, const TargetInfo& target,
                          bool attention_constant) {
  return Relevance(prepared, attention_constant).run(target);
}

}  // namespace unpack
