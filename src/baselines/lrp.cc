// Layer-wise relevance as a modified gradient: AttnLRP, and CP-LRP, which holds attention patterns
// and gates constant.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <ranges>

#include "backend/host/kernels.h"
#include "base/center.h"
#include "base/formulas.h"
#include "base/index.h"
#include "decompose/host_math.h"
#include "engine/state.h"
#include "forward/block.h"
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
      for (const forward::BlockStep& at : forward::block_steps(c_.block) | std::views::reverse)
        back(l, at, g);
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
  // What has come back into a sublayer, so far as it went.
  struct Sublayer {
    Values written, mixed, gate, up, q, k, v, normed;
  };

  void back(int l, const forward::BlockStep& at, Values& g) {
    const forward::LayerPass& layer = decomposition_.pass().layers[l];
    const model::LayerWeights& weights = weights_.layers[l];
    const LayerConfig& shape = c_.layer(l);
    const bool heads = at.sublayer == backend::Sublayer::attention;
    Sublayer& own = heads ? heads_ : mlp_;
    switch (at.step) {
      case forward::Step::add:
        own.written = g;
        return;
      case forward::Step::norm_behind:
        behind(weights[heads ? model::Role::attn_post_w : model::Role::mlp_post_w],
               heads ? layer.attn_out_dev : layer.mlp_out_dev, own.written);
        return;
      case forward::Step::write:
        return heads ? write_back(weights[model::Role::w_o], own) : experts_written(l, own);
      case forward::Step::mix:
        return heads ? attention_back(layer, shape, own) : activation_back(layer, shape, own);
      case forward::Step::read:
        return heads ? projections_back(l, own) : experts_read(l, own);
      case forward::Step::norm:
        norm_back(heads ? shape.attn_norm : shape.mlp_norm,
                  weights[heads ? model::Role::attn_norm_w : model::Role::mlp_norm_w],
                  heads ? layer.dev_attn : layer.dev_mlp, own.normed, g);
        return;
    }
  }

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

  // Through the norm behind a sublayer, in place.
  void behind(const model::WeightView& post, const backend::Array& dev, Values& g) const {
    if (!post) return;
    const Values weight = decompose::fetch(post), deviation = decompose::fetch(backend_, dev);
    for (std::size_t i = 0; i < g.size(); ++i) g[i] *= weight[i % d_] / deviation[i / d_];
  }

  void write_back(const model::WeightView& w, Sublayer& own) {
    own.mixed.assign(length_ * w.in, 0.0);
    decompose::linear_back(backend_, w, own.written, own.mixed, length_);
  }

  // An MLP, or an expert and the slots [S, k] that use it.
  struct Part {
    const model::RoleViews* weights = nullptr;
    std::vector<std::size_t> slots;
  };
  std::vector<Part> parts(int l) const {
    const backend::Routing* routing = decomposition_.pass().layers[l].routing.get();
    const model::LayerWeights& weights = weights_.layers[l];
    if (routing == nullptr) {
      std::vector<std::size_t> all(length_);
      std::iota(all.begin(), all.end(), std::size_t{0});
      return {{&weights, std::move(all)}};
    }
    std::map<int, std::vector<std::size_t>> slots;
    for (std::size_t i = 0; i < routing->expert.size(); ++i) slots[routing->expert[i]].push_back(i);
    std::vector<Part> out;
    for (auto& [expert, used] : slots) out.push_back({&weights.experts[expert], std::move(used)});
    return out;
  }
  std::size_t slots_a_row(int l) const {
    const backend::Routing* routing = decomposition_.pass().layers[l].routing.get();
    return routing == nullptr ? 1 : routing->chosen;
  }

  // The rows of `from` [.., n] that the slots over `share` name.
  static Values rows_of(const Values& from, const std::vector<std::size_t>& slots,
                        std::size_t share, std::size_t n) {
    Values out;
    out.reserve(slots.size() * n);
    for (const std::size_t slot : slots) {
      const auto at = from.begin() + (slot / share * n);
      out.insert(out.end(), at, at + n);
    }
    return out;
  }

  void experts_written(int l, Sublayer& own) {
    const std::size_t share = slots_a_row(l), neurons = c_.layer(l).n_neurons;
    own.mixed.assign(length_ * share * neurons, 0.0);
    for (const Part& part : parts(l)) {
      Values back(part.slots.size() * neurons, 0.0);
      decompose::linear_back(backend_, (*part.weights)[model::Role::w_out],
                             rows_of(own.written, part.slots, share, d_), back, part.slots.size());
      for (std::size_t i = 0; i < part.slots.size(); ++i)
        std::copy_n(back.begin() + (i * neurons), neurons,
                    own.mixed.begin() + (part.slots[i] * neurons));
    }
  }

  // Routing weights are constants.
  void activation_back(const forward::LayerPass& layer, const LayerConfig& shape, Sublayer& own) {
    const Values pre = decompose::fetch(backend_, layer.pre),
                 up = decompose::fetch(backend_, layer.up);
    const Activation phi = shape.activation;
    const std::size_t neurons = shape.n_neurons, n = own.mixed.size();
    own.gate = std::move(own.mixed);
    if (layer.routing) {
      for (std::size_t i = 0; i < n; ++i) own.gate[i] *= layer.routing->weight[i / neurons];
    }
    if (!shape.gated()) {
      for (std::size_t i = 0; i < n; ++i)
        own.gate[i] = own.gate[i] == 0 ? 0 : own.gate[i] * activation_ratio(phi, pre[i]);
      return;
    }
    own.up.assign(n, 0.0);
    const double share = constant_ ? 1.0 : 0.5;
    for (std::size_t i = 0; i < n; ++i) {
      if (own.gate[i] == 0) continue;
      own.up[i] = share * own.gate[i] * backend::activate_one(phi, pre[i]);
      own.gate[i] = constant_ ? 0.0 : 0.5 * own.gate[i] * up[i] * activation_ratio(phi, pre[i]);
    }
  }

  void experts_read(int l, Sublayer& own) {
    const LayerConfig& shape = c_.layer(l);
    const std::size_t share = slots_a_row(l), neurons = shape.n_neurons;
    own.normed.assign(length_ * d_, 0.0);
    for (const Part& part : parts(l)) {
      const Index rows = part.slots.size();
      Values back(part.slots.size() * d_, 0.0);
      if (shape.gated())
        decompose::linear_back(backend_, (*part.weights)[model::Role::w_up],
                               rows_of(own.up, part.slots, 1, neurons), back, rows);
      decompose::linear_back(backend_, (*part.weights)[model::Role::w_in],
                             rows_of(own.gate, part.slots, 1, neurons), back, rows);
      for (std::size_t i = 0; i < part.slots.size(); ++i) {
        double* to = own.normed.data() + part.slots[i] / share * d_;
        for (std::size_t k = 0; k < d_; ++k) to[k] += back[i * d_ + k];
      }
    }
  }

  void attention_back(const forward::LayerPass& layer, const LayerConfig& shape, Sublayer& own) {
    const std::size_t heads = c_.n_heads, groups = c_.n_kv_heads, e = c_.d_head;
    const Values pattern = decompose::fetch(backend_, layer.pattern);
    const Values q = constant_ ? Values() : decompose::fetch(backend_, layer.q);
    const Values k = constant_ ? Values() : decompose::fetch(backend_, layer.k);
    const Values v = constant_ ? Values() : decompose::fetch(backend_, layer.v);
    own.q.assign(length_ * heads * e, 0.0);
    own.k.assign(length_ * groups * e, 0.0);
    own.v.assign(length_ * groups * e, 0.0);
    // A group at a time: its heads add to the same keys and values.
    backend_.parallel_for(groups, [&](Index group) {
      const auto first = static_cast<std::size_t>(group) * c_.group_size();
      for (std::size_t h = first; h < first + c_.group_size(); ++h)
        head_back(shape, h, group, pattern, q, k, v, own.mixed, own.q, own.k, own.v);
    });
  }

  void projections_back(int l, Sublayer& own) {
    const forward::LayerPass& layer = decomposition_.pass().layers[l];
    const model::LayerWeights& weights = weights_.layers[l];
    const LayerConfig& shape = c_.layer(l);
    own.normed.assign(length_ * d_, 0.0);
    decompose::linear_back(backend_, weights[model::Role::w_v], own.v, own.normed, length_);
    if (constant_) return;
    undo(shape, weights[model::Role::q_norm], layer.q_dev, c_.n_heads, own.q);
    undo(shape, weights[model::Role::k_norm], layer.k_dev, c_.n_kv_heads, own.k);
    decompose::linear_back(backend_, weights[model::Role::w_q], own.q, own.normed, length_);
    decompose::linear_back(backend_, weights[model::Role::w_k], own.k, own.normed, length_);
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
    return std::fabs(logit) < 1e-8 ? 1.0 : base::soft_cap(logit, cap) / logit;
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
  Sublayer heads_, mlp_;
};

}  // namespace

BaselineScores lrp_scores(const Prepared& prepared, const TargetInfo& target,
                          bool attention_constant) {
  return Relevance(prepared, attention_constant).run(target);
}

}  // namespace unpack
