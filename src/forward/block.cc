#include "forward/block.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/index.h"

namespace unpack::forward {

namespace {

using backend::Sublayer;

constexpr BlockStep kSequential[] = {{Sublayer::attention, Step::norm},
                                     {Sublayer::attention, Step::read},
                                     {Sublayer::attention, Step::mix},
                                     {Sublayer::attention, Step::write},
                                     {Sublayer::attention, Step::norm_behind},
                                     {Sublayer::attention, Step::add},
                                     {Sublayer::mlp, Step::norm},
                                     {Sublayer::mlp, Step::read},
                                     {Sublayer::mlp, Step::mix},
                                     {Sublayer::mlp, Step::write},
                                     {Sublayer::mlp, Step::norm_behind},
                                     {Sublayer::mlp, Step::add}};

// Both sublayers read the same stream.
constexpr BlockStep kParallel[] = {{Sublayer::attention, Step::norm},
                                   {Sublayer::attention, Step::read},
                                   {Sublayer::attention, Step::mix},
                                   {Sublayer::attention, Step::write},
                                   {Sublayer::attention, Step::norm_behind},
                                   {Sublayer::mlp, Step::norm},
                                   {Sublayer::mlp, Step::read},
                                   {Sublayer::mlp, Step::mix},
                                   {Sublayer::mlp, Step::write},
                                   {Sublayer::mlp, Step::norm_behind},
                                   {Sublayer::attention, Step::add},
                                   {Sublayer::mlp, Step::add}};

// All of it will be written; clearing it first would be one more launch on a device.
void make(backend::Backend& backend, backend::Array& a, Index size) {
  if (a.size() != size) a = backend.uninitialized(size);
}

void normalize(backend::Backend& backend, int layer, Sublayer sublayer, const backend::Array& x,
               Index rows, backend::Array& normalized, backend::Array& dev) {
  const LayerConfig& shape = backend.config().layer(layer);
  make(backend, normalized, rows * backend.config().d_model);
  make(backend, dev, rows);
  backend.normalize(sublayer == Sublayer::attention ? shape.attn_norm : shape.mlp_norm, x, rows,
                    normalized, dev);
}

void project(backend::Backend& backend, int layer, const backend::Array& normalized,
             std::span<const int> positions, int context, LayerPass& out) {
  const ModelConfig& c = backend.config();
  const Index rows = positions.size();
  make(backend, out.q, rows * c.n_heads * c.d_head);
  make(backend, out.k, rows * c.n_kv_heads * c.d_head);
  make(backend, out.v, rows * c.n_kv_heads * c.d_head);
  if (c.layer(layer).qk_norm != QkNorm::none) {
    make(backend, out.q_dev, rows * c.n_heads);
    make(backend, out.k_dev, rows * c.n_kv_heads);
  }
  backend.qkv(layer, normalized, positions, context, out.q, out.k, out.v, out.q_dev, out.k_dev);
}

void read_side(backend::Backend& backend, int layer, backend::MlpSide side,
               const backend::Array& normalized, Index rows, const backend::Routing* routing,
               backend::Array& out) {
  if (side == backend::MlpSide::router) {
    backend.router(layer, normalized, rows, out);
  } else {
    backend.mlp_in(layer, side, normalized, rows, routing, out);
  }
}

class BlockRun {
 public:
  BlockRun(backend::Backend& backend, int layer, const Batch& batch, const ForwardHooks* hooks,
           bool patterns, backend::Array& x, LayerPass& keep)
      : backend_(backend),
        c_(backend.config()),
        shape_(c_.layer(layer)),
        layer_(layer),
        batch_(batch),
        hooks_(hooks),
        patterns_(patterns),
        rows_(batch.rows()),
        x_(x),
        keep_(keep) {}

  void run() {
    for (const BlockStep& at : block_steps(c_.block)) {
      if (at.step == Step::norm) keep_stream(at.sublayer);
      take(at);
    }
  }

  // What a lean pass leaves out; x is what the MLP's norm read.
  void run_again() {
    for (const BlockStep& at : block_steps(c_.block)) {
      const bool heads = at.sublayer == Sublayer::attention;
      if (at.step == Step::mix || (!heads && at.step < Step::mix)) take(at);
      if (heads) keep_.z = {};
    }
  }

 private:
  void take(const BlockStep& at) {
    const bool attention = at.sublayer == Sublayer::attention;
    switch (at.step) {
      case Step::norm:
        input_ = &hooked(at.sublayer, x_);
        return normalize(backend_, layer_, at.sublayer, *input_, rows_, normalized_,
                         attention ? keep_.dev_attn : keep_.dev_mlp);
      case Step::read:
        return attention ? read_rows() : read_sides();
      case Step::mix:
        return attention ? attend() : activate();
      case Step::write:
        return attention ? write_heads() : write_mlp();
      case Step::norm_behind:
        return attention ? finish_heads() : finish_mlp();
      case Step::add:
        return add(at.sublayer);
    }
  }

  void make(backend::Array& a, Index size) { forward::make(backend_, a, size); }

  // The stream as a sublayer finds it.
  void keep_stream(Sublayer sublayer) {
    if (sublayer == Sublayer::mlp) keep_.routing.reset();  // `keep` may come from another layer
    if (sublayer == Sublayer::mlp && !changed_stream_) {
      keep_.x_mid = keep_.x_pre;
      return;
    }
    const Index size = rows_ * c_.d_model;
    if (sublayer == Sublayer::attention) {
      make(keep_.x_pre, size);
    } else {
      keep_.x_mid = backend_.uninitialized(size);
    }
    backend_.copy(x_, 0, sublayer == Sublayer::attention ? keep_.x_pre : keep_.x_mid, 0, size);
  }

  const backend::Array& hooked(Sublayer sublayer, const backend::Array& x) {
    if (!hooks_ || !hooks_->norm_input) return x;
    if (changed_.size() != x.size()) changed_ = backend_.zeros(x.size());
    return hooks_->norm_input(layer_, sublayer, x, changed_) ? changed_ : x;
  }

  void read_rows() {
    project(backend_, layer_, normalized_, batch_.positions, batch_.context, keep_);
    if (hooks_ && hooks_->heads) hooks_->heads(layer_, keep_.q, keep_.k, keep_.v);
  }

  void attend() {
    make(keep_.z, rows_ * c_.n_heads * c_.d_head);
    if (patterns_) {
      Index size = 0;
      for (const backend::Segment& s : batch_.segments) size += c_.n_heads * backend::tri(s.length);
      // A host leaves out what a window hides.
      if (backend_.device_memory() != nullptr) {
        make(keep_.pattern, size);
      } else if (keep_.pattern.size() != size) {
        keep_.pattern = backend_.zeros(size);
      }
    }
    const backend::Array *keys = &keep_.k, *values = &keep_.v;
    if (hooks_ && hooks_->attended) hooks_->attended(layer_, keep_.k, keep_.v, keys, values);
    backend_.attention(layer_, keep_.q, *keys, *values, batch_.segments, batch_.key_begin,
                       keep_.pattern, keep_.z);
    if (hooks_ && hooks_->mixed) hooks_->mixed(layer_, *input_, keep_.q, keep_.k, keep_.v, keep_.z);
    if (hooks_ && hooks_->survivors) {
      if (const auto rows = hooks_->survivors(layer_)) go_on(*rows);
    }
  }

  // Only these rows are read from here on.
  void go_on(const std::vector<Index>& rows) {
    const auto gather = [&](backend::Array& from, Index width) {
      backend::Array to = backend_.zeros(std::ssize(rows) * width);
      for (std::size_t i = 0; i < rows.size(); ++i)
        backend_.copy(from, rows[i] * width, to, i * width, width);
      from = to;
    };
    gather(x_, c_.d_model);
    gather(keep_.x_pre, c_.d_model);
    gather(keep_.z, Index{c_.n_heads} * c_.d_head);
    rows_ = rows.size();
  }

  void write_heads() {
    make(keep_.attn_out, rows_ * c_.d_model);
    backend_.attention_out(layer_, keep_.z, rows_, keep_.attn_out);
  }

  void finish_heads() {
    if (shape_.attn_post_norm) {
      make(keep_.attn_out_dev, rows_);
      backend_.norm_behind(layer_, Sublayer::attention, keep_.attn_out, rows_, keep_.attn_out_dev);
    }
    if (hooks_ && hooks_->heads_written) hooks_->heads_written(layer_, keep_.z, keep_.attn_out_dev);
  }

  void read_sides() {
    make(keep_.pre, rows_ * shape_.entries());
    if (shape_.gated()) make(keep_.up, rows_ * shape_.entries());
    if (shape_.mixture() && keep_.routing == nullptr) route();
    const backend::Routing* routing = keep_.routing.get();
    read_side(backend_, layer_, backend::MlpSide::gate, normalized_, rows_, routing, keep_.pre);
    if (shape_.gated())
      read_side(backend_, layer_, backend::MlpSide::up, normalized_, rows_, routing, keep_.up);
    if (hooks_ && hooks_->neurons) hooks_->neurons(layer_, *input_, routing, keep_.pre, keep_.up);
  }

  void route() {
    backend::Array logits = backend_.zeros(rows_ * shape_.n_experts);
    read_side(backend_, layer_, backend::MlpSide::router, normalized_, rows_, nullptr, logits);
    if (hooks_ && hooks_->router) hooks_->router(layer_, *input_, logits);
    std::vector<double> values(logits.size());
    backend_.download(logits, 0, values);
    keep_.routing = choose_experts(shape_, std::move(values));
  }

  void activate() {
    make(keep_.act, rows_ * shape_.entries());
    backend_.activate(layer_, keep_.pre, keep_.up, keep_.routing.get(), rows_, keep_.act);
  }

  void write_mlp() {
    make(keep_.mlp_out, rows_ * c_.d_model);
    backend_.mlp_out(layer_, keep_.act, rows_, keep_.routing.get(), keep_.mlp_out);
  }

  void finish_mlp() {
    if (shape_.mlp_post_norm) {
      make(keep_.mlp_out_dev, rows_);
      backend_.norm_behind(layer_, Sublayer::mlp, keep_.mlp_out, rows_, keep_.mlp_out_dev);
    }
    if (hooks_ && hooks_->mlp_written) hooks_->mlp_written(layer_, keep_.mlp_out);
  }

  void add(Sublayer sublayer) {
    const bool attention = sublayer == Sublayer::attention;
    backend_.add(attention ? keep_.attn_out : keep_.mlp_out, x_, rows_ * c_.d_model);
    backend_.add_bias(layer_, sublayer, x_, rows_,
                      attention ? keep_.attn_out_dev : keep_.mlp_out_dev,
                      attention ? nullptr : keep_.routing.get());
    changed_stream_ = true;
  }

  backend::Backend& backend_;
  const ModelConfig& c_;
  const LayerConfig& shape_;
  int layer_;
  const Batch& batch_;
  const ForwardHooks* hooks_;
  bool patterns_;
  Index rows_;
  backend::Array& x_;
  LayerPass& keep_;
  bool changed_stream_ = false;            // in this block
  const backend::Array* input_ = nullptr;  // what the sublayer's norm was given
  backend::Array changed_, normalized_;
};

}  // namespace

std::span<const BlockStep> block_steps(Block block) {
  if (block == Block::parallel) return kParallel;
  return kSequential;
}

bool added_together(Block block) {
  bool added = false;
  for (const BlockStep& at : block_steps(block)) {
    if (added && at.step == Step::norm) return false;
    added |= at.step == Step::add;
  }
  return true;
}

void run_block(backend::Backend& backend, int layer, const Batch& batch, const ForwardHooks* hooks,
               bool patterns, backend::Array& x, LayerPass& keep) {
  BlockRun(backend, layer, batch, hooks, patterns, x, keep).run();
}

void bring_back(backend::Backend& backend, int layer, LayerPass& keep) {
  Batch batch;
  batch.positions.resize(keep.dev_mlp.size());
  batch.segments = {{0, static_cast<int>(batch.rows()), 0}};
  batch.key_begin = {0};
  LayerPass again;
  again.q = keep.q;
  again.k = keep.k;
  again.v = keep.v;
  again.routing = keep.routing;
  BlockRun(backend, layer, batch, nullptr, true, keep.x_mid, again).run_again();
  keep.pattern = again.pattern;
  keep.pre = again.pre;
  keep.up = again.up;
  keep.act = again.act;
}

void read_heads(backend::Backend& backend, int layer, const backend::Array& x,
                std::span<const int> positions, int context, LayerPass& out) {
  backend::Array normalized;
  normalize(backend, layer, Sublayer::attention, x, positions.size(), normalized, out.dev_attn);
  project(backend, layer, normalized, positions, context, out);
}

void mix_heads(backend::Backend& backend, int layer, const backend::Array& q,
               const backend::Array& keys, const backend::Array& values,
               std::span<const backend::Segment> segments, std::span<const Index> key_begin,
               backend::Array& z) {
  backend::Array none;
  backend.attention(layer, q, keys, values, segments, key_begin, none, z);
}

backend::Array write_head(backend::Backend& backend, int layer, const backend::Array& z,
                          const backend::Array& dev, int head, Index rows) {
  const ModelConfig& c = backend.config();
  const Index width = Index{c.n_heads} * c.d_head;
  backend::Array alone = backend.zeros(rows * width);
  for (Index r = 0; r < rows; ++r) {
    const Index at = r * width + Index{head} * c.d_head;
    backend.copy(z, at, alone, at, c.d_head);
  }
  backend::Array out = backend.zeros(rows * c.d_model);
  backend.attention_out(layer, alone, rows, out);
  backend.through_norm_behind(layer, Sublayer::attention, dev, rows, out);
  return out;
}

void read_neurons(backend::Backend& backend, int layer, backend::MlpSide side,
                  const backend::Array& x, Index rows, const backend::Routing* routing,
                  backend::Array& out) {
  backend::Array normalized, dev;
  normalize(backend, layer, Sublayer::mlp, x, rows, normalized, dev);
  read_side(backend, layer, side, normalized, rows, routing, out);
}

std::shared_ptr<const backend::Routing> choose_experts(const LayerConfig& layer,
                                                       std::vector<double> logits) {
  auto out = std::make_shared<backend::Routing>();
  out->chosen = layer.experts_per_token;
  out->experts = layer.n_experts;
  out->logits = std::move(logits);
  const std::size_t experts = layer.n_experts;
  const std::ptrdiff_t chosen = layer.experts_per_token;
  std::vector<int> order(experts);
  for (std::size_t begin = 0; begin < out->logits.size(); begin += experts) {
    const double* r = out->logits.data() + begin;
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + chosen, order.end(),
                      [&](int a, int b) { return r[a] != r[b] ? r[a] > r[b] : a < b; });
    const double most = r[order[0]];
    double all = 0, picked = 0;
    for (std::size_t e = 0; e < experts; ++e) all += std::exp(r[e] - most);
    for (std::ptrdiff_t i = 0; i < chosen; ++i) picked += std::exp(r[order[i]] - most);
    // Divided by the sum over the chosen or taken over the chosen alone: the same number.
    const double total = layer.expert_weights == ExpertWeights::all ? all : picked;
    for (std::ptrdiff_t i = 0; i < chosen; ++i) {
      const int e = order[i];
      out->expert.push_back(e);
      out->weight.push_back(std::exp(r[e] - most) / total);
    }
  }
  return out;
}

}  // namespace unpack::forward
