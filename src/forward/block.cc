#include <algorithm>
#include <cmath>
#include <numeric>

#include "forward/forward.h"

namespace unpack::forward {

namespace {

// What a sublayer adds to the stream, from what it put out: through the norm behind it.
void finish_sublayer(backend::Backend& backend, int layer, backend::Sublayer sublayer,
                     std::int64_t rows, backend::Array& out, backend::Array& dev) {
  const LayerConfig& shape = backend.config().layer(layer);
  const bool behind =
      sublayer == backend::Sublayer::attention ? shape.attn_post_norm : shape.mlp_post_norm;
  if (behind) backend.norm_behind(layer, sublayer, out, rows, dev);
}

class BlockRun {
 public:
  BlockRun(backend::Backend& backend, int layer, const Batch& batch, const ForwardHooks* hooks,
           backend::Array& x, LayerPass& keep)
      : backend_(backend),
        c_(backend.config()),
        shape_(c_.layer(layer)),
        layer_(layer),
        batch_(batch),
        hooks_(hooks),
        rows_(batch.rows()),
        x_(x),
        keep_(keep) {}

  void run(bool patterns) {
    const std::int64_t d = c_.d_model;
    const bool parallel = c_.block == Block::parallel;
    normalized_ = backend_.uninitialized(rows_ * d);
    make(keep_.x_pre, rows_ * d);
    backend_.copy(x_, 0, keep_.x_pre, 0, rows_ * d);
    attend(patterns);
    if (parallel) {
      keep_.x_mid = keep_.x_pre;
      read_neurons(keep_.x_pre);
      add(backend::Sublayer::attention);
    } else {
      add(backend::Sublayer::attention);
      keep_.x_mid = backend_.uninitialized(rows_ * d);
      backend_.copy(x_, 0, keep_.x_mid, 0, rows_ * d);
      read_neurons(x_);
    }
    add(backend::Sublayer::mlp);
  }

 private:
  // All of it is written; clearing it first would be one more launch on a device.
  void make(backend::Array& a, std::int64_t size) {
    if (a.size() != size) a = backend_.uninitialized(size);
  }

  const backend::Array& hooked(backend::Sublayer sublayer, const backend::Array& x) {
    if (!hooks_ || !hooks_->norm_input) return x;
    if (changed_.size() != x.size()) changed_ = backend_.zeros(x.size());
    return hooks_->norm_input(layer_, sublayer, x, changed_) ? changed_ : x;
  }

  void attend(bool patterns) {
    const std::int64_t q_row = std::int64_t{c_.n_heads} * c_.d_head;
    const std::int64_t kv_row = std::int64_t{c_.n_kv_heads} * c_.d_head;
    make(keep_.dev_attn, rows_);
    make(keep_.q, rows_ * q_row);
    make(keep_.k, rows_ * kv_row);
    make(keep_.v, rows_ * kv_row);
    make(keep_.z, rows_ * q_row);
    if (shape_.qk_norm != QkNorm::none) {
      make(keep_.q_dev, rows_ * c_.n_heads);
      make(keep_.k_dev, rows_ * c_.n_kv_heads);
    }
    if (patterns) {
      std::int64_t size = 0;
      for (const backend::Segment& s : batch_.segments) size += c_.n_heads * backend::tri(s.length);
      // A host leaves out what a window hides.
      if (backend_.device_memory() != nullptr) {
        make(keep_.pattern, size);
      } else if (keep_.pattern.size() != size) {
        keep_.pattern = backend_.zeros(size);
      }
    }
    const backend::Array& input = hooked(backend::Sublayer::attention, x_);
    backend_.normalize(shape_.attn_norm, input, rows_, normalized_, keep_.dev_attn);
    backend_.qkv(layer_, normalized_, batch_.positions, batch_.context, keep_.q, keep_.k, keep_.v,
                 keep_.q_dev, keep_.k_dev);
    if (hooks_ && hooks_->heads) hooks_->heads(layer_, keep_.q, keep_.k, keep_.v);
    const backend::Array *keys = &keep_.k, *values = &keep_.v;
    if (hooks_ && hooks_->attended) hooks_->attended(layer_, keep_.k, keep_.v, keys, values);
    backend_.attention(layer_, keep_.q, *keys, *values, batch_.segments, batch_.key_begin,
                       keep_.pattern, keep_.z);
    if (hooks_ && hooks_->mixed) hooks_->mixed(layer_, input, keep_.q, keep_.k, keep_.v, keep_.z);
    if (hooks_ && hooks_->survivors) {
      if (const auto rows = hooks_->survivors(layer_)) go_on(*rows);
    }
    make(keep_.attn_out, rows_ * c_.d_model);
    backend_.attention_out(layer_, keep_.z, rows_, keep_.attn_out);
    if (shape_.attn_post_norm) make(keep_.attn_out_dev, rows_);
    finish_sublayer(backend_, layer_, backend::Sublayer::attention, rows_, keep_.attn_out,
                    keep_.attn_out_dev);
    if (hooks_ && hooks_->heads_written) hooks_->heads_written(layer_, keep_.z, keep_.attn_out_dev);
  }

  // Only these rows are read from here on.
  void go_on(const std::vector<std::int64_t>& rows) {
    const auto gather = [&](backend::Array& from, std::int64_t width) {
      backend::Array to = backend_.zeros(std::ssize(rows) * width);
      for (std::size_t i = 0; i < rows.size(); ++i)
        backend_.copy(from, rows[i] * width, to, i * width, width);
      from = to;
    };
    gather(x_, c_.d_model);
    gather(keep_.x_pre, c_.d_model);
    gather(keep_.z, std::int64_t{c_.n_heads} * c_.d_head);
    rows_ = rows.size();
    normalized_ = backend_.zeros(rows_ * c_.d_model);
  }

  void read_neurons(const backend::Array& x) {
    const std::int64_t entries = rows_ * shape_.entries();
    make(keep_.dev_mlp, rows_);
    make(keep_.pre, entries);
    make(keep_.act, entries);
    if (shape_.gated()) make(keep_.up, entries);
    make(keep_.mlp_out, rows_ * c_.d_model);
    const backend::Array& input = hooked(backend::Sublayer::mlp, x);
    backend_.normalize(shape_.mlp_norm, input, rows_, normalized_, keep_.dev_mlp);
    keep_.routing.reset();  // `keep` may come from another layer
    if (shape_.mixture()) route(input);
    const backend::Routing* routing = keep_.routing.get();
    backend_.mlp_in(layer_, backend::MlpSide::gate, normalized_, rows_, routing, keep_.pre);
    if (shape_.gated())
      backend_.mlp_in(layer_, backend::MlpSide::up, normalized_, rows_, routing, keep_.up);
    if (hooks_ && hooks_->neurons) hooks_->neurons(layer_, input, routing, keep_.pre, keep_.up);
    backend_.activate(layer_, keep_.pre, keep_.up, routing, rows_, keep_.act);
    backend_.mlp_out(layer_, keep_.act, rows_, routing, keep_.mlp_out);
    if (shape_.mlp_post_norm) make(keep_.mlp_out_dev, rows_);
    finish_sublayer(backend_, layer_, backend::Sublayer::mlp, rows_, keep_.mlp_out,
                    keep_.mlp_out_dev);
    if (hooks_ && hooks_->mlp_written) hooks_->mlp_written(layer_, keep_.mlp_out);
  }

  void route(const backend::Array& input) {
    backend::Array logits = backend_.zeros(rows_ * shape_.n_experts);
    backend_.router(layer_, normalized_, rows_, logits);
    if (hooks_ && hooks_->router) hooks_->router(layer_, input, logits);
    std::vector<double> values(logits.size());
    backend_.download(logits, 0, values);
    keep_.routing = choose_experts(shape_, std::move(values));
  }

  void add(backend::Sublayer sublayer) {
    const bool attention = sublayer == backend::Sublayer::attention;
    backend_.add(attention ? keep_.attn_out : keep_.mlp_out, x_, rows_ * c_.d_model);
    backend_.add_bias(layer_, sublayer, x_, rows_,
                      attention ? keep_.attn_out_dev : keep_.mlp_out_dev,
                      attention ? nullptr : keep_.routing.get());
  }

  backend::Backend& backend_;
  const ModelConfig& c_;
  const LayerConfig& shape_;
  int layer_;
  const Batch& batch_;
  const ForwardHooks* hooks_;
  std::int64_t rows_;
  backend::Array& x_;
  LayerPass& keep_;
  backend::Array changed_, normalized_;
};

}  // namespace

void run_block(backend::Backend& backend, int layer, const Batch& batch, const ForwardHooks* hooks,
               bool patterns, backend::Array& x, LayerPass& keep) {
  BlockRun(backend, layer, batch, hooks, x, keep).run(patterns);
}

void bring_back(backend::Backend& backend, int layer, LayerPass& keep) {
  const ModelConfig& c = backend.config();
  const LayerConfig& shape = c.layer(layer);
  const std::int64_t rows = keep.dev_mlp.size(), entries = rows * shape.entries();
  const std::vector<backend::Segment> segments = {{0, static_cast<int>(rows), 0}};
  const std::vector<std::int64_t> key_begin = {0};
  keep.pattern = backend.uninitialized(c.n_heads * backend::tri(rows));
  {
    backend::Array z = backend.uninitialized(keep.z.size());
    backend.attention(layer, keep.q, keep.k, keep.v, segments, key_begin, keep.pattern, z);
  }
  backend::Array normalized = backend.uninitialized(keep.x_mid.size()),
                 dev = backend.uninitialized(rows);
  backend.normalize(shape.mlp_norm, keep.x_mid, rows, normalized, dev);
  keep.pre = backend.uninitialized(entries);
  keep.act = backend.uninitialized(entries);
  const backend::Routing* routing = keep.routing.get();
  backend.mlp_in(layer, backend::MlpSide::gate, normalized, rows, routing, keep.pre);
  if (shape.gated()) {
    keep.up = backend.uninitialized(entries);
    backend.mlp_in(layer, backend::MlpSide::up, normalized, rows, routing, keep.up);
  }
  backend.activate(layer, keep.pre, keep.up, routing, rows, keep.act);
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
