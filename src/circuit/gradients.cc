#include "circuit/gradients.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <ranges>

#include "backend/host/kernels.h"
#include "base/center.h"
#include "base/index.h"
#include "decompose/host_math.h"
#include "engine/state.h"
#include "forward/block.h"
#include "unpack/baselines.h"
#include "unpack/error.h"

namespace unpack {

namespace {

using Values = std::vector<double>;

double slope_of(Activation activation, double x) {
  switch (activation) {
    case Activation::relu:
      return x > 0 ? 1.0 : 0.0;
    case Activation::silu: {
      const double s = 1 / (1 + std::exp(-x));
      return s * (1 + x * (1 - s));
    }
    case Activation::gelu_erf:
      return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) +
             x * std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
    case Activation::gelu_tanh: {
      constexpr double kCube = 0.044715;
      const double scale = std::sqrt(2 * std::numbers::inv_pi);
      const double t = std::tanh(scale * (x + kCube * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * kCube * x * x);
    }
    case Activation::clamped_swiglu:
      break;
  }
  throw InternalError("[slope_of] an activation without a slope");
}

class WayBack {
 public:
  WayBack(const Model& model, const circuit::EdgeTable& table,
          const std::vector<TaskPrompt>& prompts, const circuit::PromptChunk& chunk,
          const forward::ForwardPass& pass, const circuit::PortVisitor& visit)
      : c_(model.config()),
        backend_(*engine::state_of(model)->backend),
        weights_(*engine::state_of(model)->weights),
        table_(table),
        prompts_(prompts),
        chunk_(chunk),
        pass_(pass),
        visit_(visit),
        rows_(chunk.rows),
        d_(c_.d_model) {}

  Values run() {
    Values g(rows_ * d_, 0.0);
    seed(g);
    visit_(table_.target_port(), g);
    for (int l = c_.n_layers - 1; l >= 0; --l) {
      for (const forward::BlockStep& at : forward::block_steps(c_.block) | std::views::reverse)
        back(l, at, g);
    }
    return g;
  }

 private:
  // The gradient by what a sublayer holds, so far as it went.
  struct Sublayer {
    Values written, mixed;
    Values gate, up;              // by the pre-activations
    std::vector<Values> q, k, v;  // [H] of [T, E]
  };

  void back(int l, const forward::BlockStep& at, Values& g) {
    const forward::LayerPass& layer = pass_.layers[l];
    const model::LayerWeights& weights = weights_.layers[l];
    const bool heads = at.sublayer == backend::Sublayer::attention;
    Sublayer& own = heads ? heads_ : mlp_;
    switch (at.step) {
      case forward::Step::add:
        own.written = g;
        return;
      case forward::Step::norm_behind:
        behind(weights[heads ? model::Role::attn_post_w : model::Role::mlp_post_w],
               heads ? layer.attn_out : layer.mlp_out,
               heads ? layer.attn_out_dev : layer.mlp_out_dev, own.written);
        return;
      case forward::Step::write: {
        const model::WeightView& w = weights[heads ? model::Role::w_o : model::Role::w_out];
        own.mixed.assign(rows_ * w.in, 0.0);
        decompose::linear_back(backend_, w, own.written, own.mixed, rows_);
        return;
      }
      case forward::Step::mix:
        return heads ? attention(l, own) : activation(l, own);
      case forward::Step::read:
        // Every port goes back to an input of its own, and so through the norm by itself.
        return heads ? read_heads(l, own, g) : read_neurons(l, own, g);
      case forward::Step::norm:
        return;
    }
  }

  void center(double* row) const { base::center(c_.norm, row, d_); }

  // From the gradient by the normed row to that by the row x itself, in place.
  void through_norm(Norm kind, const double* x, double dev, double* g) const {
    if (kind == Norm::none) return;
    Values n(x, x + d_);
    center(n.data());
    double along = 0;
    for (std::size_t i = 0; i < d_; ++i) {
      n[i] /= dev;
      along += n[i] * g[i];
    }
    for (std::size_t i = 0; i < d_; ++i) g[i] = (g[i] - n[i] * along / d_) / dev;
    center(g);
  }

  void seed(Values& g) {
    const Values x = decompose::fetch(backend_, pass_.x_final);
    for (std::size_t p = 0; p < chunk_.members.size(); ++p) {
      const TaskPrompt& prompt = prompts_[chunk_.members[p]];
      const Index row = chunk_.segments[p].begin + chunk_.segments[p].length - 1;
      backend::Array direction = backend_.zeros(c_.d_model);
      backend_.target_direction(pass_.x_final, row, prompt.target,
                                prompt.versus ? &*prompt.versus : nullptr, false, direction);
      double* to = g.data() + row * d_;
      backend_.download(direction, 0, {to, d_});
      if (c_.norm == Norm::none) continue;
      // The direction holds the deviation as a constant factor; here it may move.
      Values centred(x.begin() + row * c_.d_model, x.begin() + (row + 1) * c_.d_model);
      center(centred.data());
      const double dev = std::sqrt(decompose::dot(centred, centred) / d_ + c_.norm_eps);
      for (std::size_t i = 0; i < d_; ++i) to[i] *= dev;
      through_norm(c_.norm, centred.data(), dev, to);
    }
  }

  // Through the weight of a norm, and the norm, whose input was x.
  void to_input(Norm kind, const model::WeightView& w, const Values& x, const Values& dev,
                Values& g) const {
    const Values weight = kind == Norm::none ? Values() : decompose::fetch(w);
    for (std::size_t r = 0; r < rows_; ++r) {
      double* row = g.data() + r * d_;
      for (std::size_t i = 0; i < weight.size(); ++i) row[i] *= weight[i];
      through_norm(kind, x.data() + r * d_, kind == Norm::none ? 1.0 : dev[r], row);
    }
  }

  // Through the norm behind a sublayer, which gave `out`, in place.
  void behind(const model::WeightView& post, const backend::Array& out, const backend::Array& dev,
              Values& g) const {
    if (!post) return;
    const Values weight = decompose::fetch(post), y = decompose::fetch(backend_, out),
                 deviation = decompose::fetch(backend_, dev);
    for (std::size_t r = 0; r < rows_; ++r) {
      double along = 0;
      for (std::size_t i = 0; i < d_; ++i) along += y[r * d_ + i] * g[r * d_ + i];
      for (std::size_t i = 0; i < d_; ++i) {
        const double n = weight[i] == 0 ? 0.0 : y[r * d_ + i] / weight[i];
        double& x = g[r * d_ + i];
        x = (weight[i] * x - n * along / d_) / deviation[r];
      }
    }
  }

  void send(std::size_t port, const Values& g, Values& out) {
    visit_(port, g);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += g[i];
  }

  void activation(int l, Sublayer& own) {
    const LayerConfig& shape = c_.layer(l);
    const Values pre = decompose::fetch(backend_, pass_.layers[l].pre),
                 up = decompose::fetch(backend_, pass_.layers[l].up);
    own.gate = std::move(own.mixed);
    if (shape.gated()) {
      own.up.resize(pre.size());
      for (std::size_t i = 0; i < pre.size(); ++i)
        own.up[i] = own.gate[i] * backend::activate_one(shape.activation, pre[i]);
      for (std::size_t i = 0; i < pre.size(); ++i) own.gate[i] *= up[i];
    }
    for (std::size_t i = 0; i < pre.size(); ++i) own.gate[i] *= slope_of(shape.activation, pre[i]);
  }

  void read_neurons(int l, const Sublayer& own, Values& out) {
    const model::LayerWeights& weights = weights_.layers[l];
    const LayerConfig& shape = c_.layer(l);
    const Values x = decompose::fetch(backend_, pass_.layers[l].x_mid),
                 dev = decompose::fetch(backend_, pass_.layers[l].dev_mlp);
    const auto send_side = [&](model::Role role, const Values& g_side, std::size_t port) {
      Values g_in(rows_ * d_, 0.0);
      decompose::linear_back(backend_, weights[role], g_side, g_in, rows_);
      to_input(shape.mlp_norm, weights[model::Role::mlp_norm_w], x, dev, g_in);
      send(port, g_in, out);
    };
    if (shape.gated()) send_side(model::Role::w_up, own.up, table_.mlp_ports(l) + 1);
    send_side(model::Role::w_in, own.gate, table_.mlp_ports(l));
  }

  void attention(int l, Sublayer& own) {
    const forward::LayerPass& layer = pass_.layers[l];
    const std::size_t heads = c_.n_heads, e = c_.d_head;
    const Values pattern = decompose::fetch(backend_, layer.pattern),
                 q = decompose::fetch(backend_, layer.q), k = decompose::fetch(backend_, layer.k),
                 v = decompose::fetch(backend_, layer.v);
    own.q.assign(heads, Values(rows_ * e, 0.0));
    own.k = own.v = own.q;
    for (std::size_t h = 0; h < heads; ++h)
      head(c_.layer(l), h, h / c_.group_size(), pattern, q, k, v, own.mixed, own.q[h], own.k[h],
           own.v[h]);
  }

  void read_heads(int l, Sublayer& own, Values& out) {
    const forward::LayerPass& layer = pass_.layers[l];
    const model::LayerWeights& weights = weights_.layers[l];
    const LayerConfig& shape = c_.layer(l);
    const std::size_t heads = c_.n_heads, groups = c_.n_kv_heads, e = c_.d_head;
    const Values q = decompose::fetch(backend_, layer.q), k = decompose::fetch(backend_, layer.k),
                 x = decompose::fetch(backend_, layer.x_pre),
                 dev = decompose::fetch(backend_, layer.dev_attn);
    const Values w_q = decompose::fetch(weights[model::Role::w_q]),
                 w_k = decompose::fetch(weights[model::Role::w_k]),
                 w_v = decompose::fetch(weights[model::Role::w_v]);
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t group = h / c_.group_size();
      unturn(shape, weights[model::Role::q_norm], layer.q_dev, q, heads, h, own.q[h]);
      unturn(shape, weights[model::Role::k_norm], layer.k_dev, k, groups, group, own.k[h]);
      const auto send_branch = [&](const Values& g_head, const Values& w, std::size_t columns,
                                   std::size_t column, std::size_t branch) {
        Values g_in(rows_ * d_, 0.0);
        backend_.parallel_for(rows_, [&](Index row) {
          const std::size_t r = row;
          for (std::size_t i = 0; i < d_; ++i)
            g_in[r * d_ + i] = decompose::dot(std::span(g_head).subspan(r * e, e),
                                              {w.data() + i * columns + column, e});
        });
        to_input(shape.attn_norm, weights[model::Role::attn_norm_w], x, dev, g_in);
        send(table_.attention_ports(l) + 3 * h + branch, g_in, out);
      };
      send_branch(own.k[h], w_k, groups * e, group * e, 0);
      send_branch(own.q[h], w_q, heads * e, h * e, 1);
      send_branch(own.v[h], w_v, groups * e, group * e, 2);
    }
  }

  void head(const LayerConfig& shape, std::size_t h, std::size_t group, const Values& pattern,
            const Values& q, const Values& k, const Values& v, const Values& g_z, Values& g_q,
            Values& g_k, Values& g_v) const {
    const std::size_t heads = c_.n_heads, e = c_.d_head, groups = c_.n_kv_heads;
    std::size_t before = 0;  // pattern entries of earlier prompts
    for (const backend::Segment& segment : chunk_.segments) {
      const std::size_t length = segment.length, begin = segment.begin;
      const std::size_t pairs = length * (length + 1) / 2;
      for (std::size_t i = 0; i < length; ++i) {
        const double* z = g_z.data() + ((begin + i) * heads + h) * e;
        const double* query = q.data() + ((begin + i) * heads + h) * e;
        const double* alpha = pattern.data() + before + h * pairs + i * (i + 1) / 2;
        Values g_alpha(i + 1);
        double mean = 0;
        for (std::size_t j = 0; j <= i; ++j) {
          const std::size_t there = ((begin + j) * groups + group) * e;
          g_alpha[j] = decompose::dot({z, e}, {v.data() + there, e});
          mean += alpha[j] * g_alpha[j];
          for (std::size_t x = 0; x < e; ++x) g_v[(begin + j) * e + x] += alpha[j] * z[x];
        }
        for (std::size_t j = 0; j <= i; ++j) {
          const double* key = k.data() + ((begin + j) * groups + group) * e;
          double slope = shape.attention_scale * alpha[j] * (g_alpha[j] - mean);
          if (shape.attention_cap > 0) {
            const double t = std::tanh(shape.attention_scale *
                                       decompose::dot({query, e}, {key, e}) / shape.attention_cap);
            slope *= 1 - t * t;
          }
          for (std::size_t x = 0; x < e; ++x) {
            g_q[(begin + i) * e + x] += slope * key[x];
            g_k[(begin + j) * e + x] += slope * query[x];
          }
        }
      }
      before += heads * pairs;
    }
  }

  // Back through rotary and the norm of queries or keys; `used` is what came out of both.
  void unturn(const LayerConfig& shape, const model::WeightView& norm, const backend::Array& dev,
              const Values& used, std::size_t heads, std::size_t h, Values& g) const {
    const std::size_t e = c_.d_head;
    const Values weight = decompose::fetch(norm),
                 deviation = norm ? decompose::fetch(backend_, dev) : Values();
    for (const backend::Segment& segment : chunk_.segments) {
      const Values frequencies = backend::rotary_frequencies(shape.rope, segment.length);
      for (int s = 0; s < segment.length; ++s) {
        const std::size_t r = segment.begin + s;
        const std::span<double> row(g.data() + r * e, e);
        if (shape.rope.dims > 0) decompose::rotate_back(shape.rope, frequencies, s, row);
        if (!norm) continue;
        Values n(used.begin() + ((r * heads + h) * e), used.begin() + ((r * heads + h + 1) * e));
        if (shape.rope.dims > 0) decompose::rotate_back(shape.rope, frequencies, s, n);
        double along = 0;
        for (std::size_t i = 0; i < e; ++i) along += n[i] * row[i];
        for (std::size_t i = 0; i < e; ++i) {
          const double w = weight[(h * e + i) % weight.size()];
          row[i] = (w * row[i] - (w == 0 ? 0.0 : n[i] / w) * along / e) / deviation[r * heads + h];
        }
      }
    }
  }

  const ModelConfig& c_;
  backend::Backend& backend_;
  const model::ModelWeights& weights_;
  const circuit::EdgeTable& table_;
  const std::vector<TaskPrompt>& prompts_;
  const circuit::PromptChunk& chunk_;
  const forward::ForwardPass& pass_;
  const circuit::PortVisitor& visit_;
  std::size_t rows_, d_;
  Sublayer heads_, mlp_;
};

}  // namespace

bool gradients_known(const ModelConfig& config) {
  return std::none_of(config.layers.begin(), config.layers.end(), [](const LayerConfig& layer) {
    return layer.mixture() || layer.activation == Activation::clamped_swiglu ||
           layer.qk_norm == QkNorm::projection;
  });
}

void circuit::check_gradients(const ModelConfig& config) {
  if (!gradients_known(config))
    throw InputError(fmt::format("eap and eap-ig know no gradient of {}: use ours, ifr or patching",
                                 config.family));
}

std::vector<double> circuit::visit_gradients(const Model& model, const circuit::EdgeTable& table,
                                             const std::vector<TaskPrompt>& prompts,
                                             const circuit::PromptChunk& chunk,
                                             const forward::ForwardPass& pass,
                                             const circuit::PortVisitor& visit) {
  return WayBack(model, table, prompts, chunk, pass, visit).run();
}

}  // namespace unpack
