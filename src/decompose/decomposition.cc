#include "decompose/decomposition.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "backend/device_memory.h"
#include "backend/mlp_readers.h"
#include "backend/question_tables.h"
#include "backend/read_ops.h"
#include "backend/score_plan.h"
#include "base/index.h"
#include "forward/block.h"
#include "unpack/error.h"

namespace unpack::decompose {

namespace {

std::size_t numbers(std::initializer_list<const backend::Array*> arrays) {
  std::size_t all = 0;
  for (const backend::Array* array : arrays) all += array->size();
  return all;
}

std::size_t numbers(const backend::Array& array) { return array.size(); }

std::size_t numbers(const backend::AttentionSums& s) {
  return numbers({&s.k_sum, &s.k_abs, &s.q_sum, &s.q_abs, &s.v_sum, &s.v_abs, &s.v_scores, &s.k_std,
                  &s.k_mean, &s.k_scores, &s.q_scores});
}

std::size_t numbers(const backend::MlpSums& s) { return numbers({&s.sum, &s.abs, &s.l2, &s.last}); }

std::size_t numbers(const forward::ForwardPass& pass) {
  std::size_t all = numbers({&pass.emb, &pass.pos, &pass.x_final});
  for (const forward::LayerPass& t : pass.layers) {
    all += numbers({&t.x_pre, &t.dev_attn, &t.dev_mlp, &t.q, &t.k, &t.v, &t.q_dev, &t.k_dev,
                    &t.pattern, &t.z, &t.attn_out, &t.pre, &t.up, &t.act, &t.mlp_out,
                    &t.attn_out_dev, &t.mlp_out_dev});
    if (t.x_mid.raw() != t.x_pre.raw()) all += t.x_mid.size();
  }
  return all;
}

}  // namespace

Decomposition::Decomposition(std::shared_ptr<backend::Backend> backend, const Writers& writers,
                             forward::ForwardPass pass, const RunContext& context, bool by_layer)
    : backend_(std::move(backend)),
      writers_(writers),
      pass_(std::move(pass)),
      length_(pass_.ids.size()),
      by_layer_(by_layer) {
  held_ = numbers(pass_);
  if (by_layer_) {
    walked_ = true;
    parts_.emb = &pass_.emb;
    parts_.pos = &pass_.pos;
    for (const forward::LayerPass& t : pass_.layers)
      parts_.layers.push_back({&t.z, &t.attn_out, &t.attn_out_dev, &t.mlp_out});
    return;
  }
  keeps_ = kept_within(config(), writers_, length_, context.memory_budget,
                       backend_->is_double() ? 8 : 4);
  const backend::DeviceMemory* device = backend_->device_memory();
  if (device == nullptr || !device->streams()) {
    walk_([&] { walk({}, context); });
    walked_ = true;
  }
}

void Decomposition::begin(const Options& options, const RunContext& context) const {
  if (walked_) return;
  Walk what;
  what.heads = true;
  what.scores = options.scores;
  what.numerators = options.direction == Direction::output && keeps_.key_scores;
  what.medians = options.direction == Direction::read && options.keys == Keys::spread;
  walk_([&] { walk(what, context); });
}

// Who walks himself sees what there is so far.
void Decomposition::walked() const {
  if (!walked_ && walker_.load() != std::this_thread::get_id()) begin(Options{});
}

void Decomposition::walk(const Walk& what, const RunContext& context) const {
  const ModelConfig& c = config();
  const int count = writers_.count();
  struct Walker {
    explicit Walker(std::atomic<std::thread::id>& to) : id(to) { id = std::this_thread::get_id(); }
    ~Walker() { id = std::thread::id(); }
    std::atomic<std::thread::id>& id;
  } const walker(walker_);
  vectors_ = backend_->zeros(static_cast<Index>(length_) * count * c.d_model);
  backend_->put_writer(pass_.emb, 0, length_, vectors_, count, 0);
  if (c.has_pos_writer()) backend_->put_writer(pass_.pos, 0, length_, vectors_, count, 1);
  std::array<std::vector<backend::MlpSums>, 3> neurons;  // by side
  for (auto& side : neurons) side.resize(pass_.layers.size());
  std::vector<backend::AttentionSums> heads;
  std::vector<backend::Array> head_numerators, mlp_numerators, medians;
  for (int l = 0; l < c.n_layers; ++l) {
    context.report("layers", l, c.n_layers);
    const std::size_t at = l;
    const forward::LayerPass& layer = pass_.layers[at];
    // Readers of a layer see nothing of those above it.
    backend_->put_head_writers(l, layer.z, layer.attn_out_dev, 0, length_, vectors_, count,
                               writers_.head(l, 0));
    backend_->put_writer(layer.mlp_out, 0, length_, vectors_, count, writers_.mlp(l));
    if (what.heads)
      heads.push_back(backend_->attention_sums(attention_view(l), what.scores, keeps_.key_scores));
    if (what.medians) medians.push_back(backend_->key_medians(attention_view(l), heads.back()));
    for (const backend::MlpReader& reader : backend::mlp_readers(c.layer(l))) {
      const bool router = reader.side == backend::MlpSide::router;
      if ((router && !what.heads) || neurons_when_asked(l)) continue;
      neurons[static_cast<std::size_t>(reader.side)][at] =
          backend_->mlp_sums(mlp_view(l), reader.side, router ? what.scores : Scores::raw);
    }
    if (!what.numerators) continue;  // then these are made where they are used
    head_numerators.push_back(make_head_numerators(l));
    mlp_numerators.push_back(make_mlp_numerators(l));
  }
  held_ += vectors_.size();
  const auto keep_all = [&](auto& lazy, auto& made) {
    lazy.once([&] { keep(lazy, std::move(made)); });
  };
  for (const backend::MlpSide side : {backend::MlpSide::gate, backend::MlpSide::up})
    keep_all(mlp_[static_cast<std::size_t>(side)], neurons[static_cast<std::size_t>(side)]);
  if (what.heads) {
    const bool centered = what.scores == Scores::centered;
    keep_all(attention_[centered ? 1 : 0], heads);
    keep_all(mlp_[centered ? 3 : 2], neurons[static_cast<std::size_t>(backend::MlpSide::router)]);
  }
  if (what.medians) keep_all(key_medians_, medians);
  if (what.numerators) {
    keep_all(head_numerators_, head_numerators);
    keep_all(mlp_numerators_, mlp_numerators);
  }
  walked_ = true;
}

// Layer by layer
// -------------------------------------------------------------------------------------------------

namespace {

[[noreturn]] void refuse_whole(int tokens) {
  throw InputError(fmt::format(
      "a prompt of {} tokens leaves the device no room to keep all of it: layer by layer it can be "
      "traced with direction output, and its tokens with direction read; for this take fewer "
      "tokens or device cpu",
      tokens));
}

}  // namespace

const forward::ForwardPass& Decomposition::pass() const {
  if (by_layer_) refuse_whole(length_);
  return pass_;
}

const backend::Array& Decomposition::writer_vectors() const {
  if (by_layer_) refuse_whole(length_);
  walked();
  return vectors_;
}

std::unique_lock<std::mutex> Decomposition::alone() const {
  return by_layer_ ? std::unique_lock(alone_) : std::unique_lock<std::mutex>();
}

void Decomposition::enter(int layer) const {
  if (!by_layer_ || now_.layer == layer) return;
  if (now_.layer >= 0) {
    forward::LayerPass& before = pass_.layers[now_.layer];
    before.pattern = before.pre = before.up = before.act = {};
  }
  now_ = {};
  forward::bring_back(*backend_, layer, pass_.layers[layer]);
  now_.layer = layer;
}

void Decomposition::writer_dots(int position, const backend::Array& direction,
                                std::vector<double>& out) const {
  const int count = writers_.count();
  walked();
  if (!by_layer_) return backend_->writer_dots(vectors_, count, position, direction, out);
  backend_->writer_dots(backend_->make_writers(parts_, position, 1, 0, count), count, 0, direction,
                        out);
}

void Decomposition::position_dots(int first, int end, std::span<const double> vectors,
                                  std::vector<double>& out) const {
  walked();
  if (!by_layer_)
    return backend_->position_dots(vectors_, writers_.count(), first, end, vectors, out);
  const Index d = config().d_model,
              at_once = backend_->positions_at_a_time((end - first) * d, length_);
  out.clear();
  for (Index begin = 0; begin < length_; begin += at_once) {
    const Index n = std::min<Index>(at_once, length_ - begin);
    std::vector<double> some;
    backend_->position_dots(backend_->make_writers(parts_, begin, n, first, end), end - first, 0,
                            end - first, vectors.subspan(begin * d, n * d), some);
    out.insert(out.end(), some.begin(), some.end());
  }
}

std::vector<const backend::Array*> Decomposition::head_states() const {
  std::vector<const backend::Array*> z;
  z.reserve(pass_.layers.size());
  for (const forward::LayerPass& source : pass_.layers) z.push_back(&source.z);
  return z;
}

backend::AttentionView Decomposition::attention_view(int layer) const {
  walked();
  const forward::LayerPass& t = pass_.layers[layer];
  return {layer,
          length_,
          writers_.visible_to_attention(layer),
          &vectors_,
          writers_.count(),
          &t.dev_attn,
          &t.q,
          &t.k,
          &t.v,
          &t.q_dev,
          &t.k_dev,
          &t.pattern,
          &t.attn_out_dev,
          nullptr,
          head_states(),
          by_layer_ ? &parts_ : nullptr};
}

backend::MlpView Decomposition::mlp_view(int layer) const {
  walked();
  const forward::LayerPass& t = pass_.layers[layer];
  return {layer,
          length_,
          writers_.visible_to_mlp(layer),
          &vectors_,
          writers_.count(),
          &t.dev_mlp,
          &t.act,
          &t.mlp_out_dev,
          t.routing.get(),
          head_states(),
          nullptr,
          -1,
          by_layer_ ? &parts_ : nullptr};
}

backend::Array Decomposition::pre(int layer, backend::MlpSide side, Scores scores) const {
  const forward::LayerPass& t = pass_.layers[layer];
  if (side != backend::MlpSide::router) return side == backend::MlpSide::gate ? t.pre : t.up;
  // r_e of the chosen experts, less the mean over all.
  std::vector<double> out;
  const backend::Routing& routing = *t.routing;
  for (int q = 0; q < length_; ++q) {
    const double* r = routing.logits.data() + static_cast<std::ptrdiff_t>(q) * routing.experts;
    const double mean = scores == Scores::centered
                            ? std::accumulate(r, r + routing.experts, 0.0) / routing.experts
                            : 0.0;
    for (int i = 0; i < routing.chosen; ++i)
      out.push_back(r[routing.expert[routing.slot(q, i)]] - mean);
  }
  backend::Array array = backend_->zeros(std::ssize(out));
  backend_->upload(array, 0, out);
  return array;
}

const backend::AttentionSums& Decomposition::attention(int layer, Scores scores,
                                                       const RunContext& context) const {
  if (by_layer_) {
    enter(layer);
    if (!now_.attention || now_.scores != scores) {
      now_.attention.reset();
      now_.attention = backend_->attention_sums(attention_view(layer), scores, false);
      now_.scores = scores;
    }
    return *now_.attention;
  }
  walked();
  make_attention(scores, [&](int l) {
    context.report("layers", l, config().n_layers);
    return backend_->attention_sums(attention_view(l), scores, keeps_key_scores(scores));
  });
  return attention_[scores == Scores::raw ? 0 : 1].layers[layer];
}

bool Decomposition::wants_key_scores(const backend::Backend& backend, Scores scores, int length) {
  return scores != Scores::raw || !backend.adds_keys_up(length);
}

bool Decomposition::keeps_key_scores(Scores scores) const {
  return keeps_.key_scores && wants_key_scores(*backend_, scores, length_);
}

bool Decomposition::make_attention(Scores scores,
                                   const std::function<backend::AttentionSums(int)>& make) const {
  walked();
  auto& lazy = attention_[scores == Scores::raw ? 0 : 1];
  bool mine = false;
  lazy.once([&] {
    std::vector<backend::AttentionSums> made;
    made.reserve(config().n_layers);
    for (int l = 0; l < config().n_layers; ++l) made.push_back(make(l));
    keep(lazy, std::move(made));
    mine = true;
  });
  return mine;
}

// Sums of either kind of scores may have them.
const backend::AttentionSums& Decomposition::moments(int layer, const RunContext& context) const {
  if (by_layer_) refuse_whole(length_);
  const bool centered = attention_[1].made && !attention_[0].made;
  const backend::AttentionSums& sums =
      attention(layer, centered ? Scores::centered : Scores::raw, context);
  if (!sums.k_std.empty()) return sums;
  moments_.once([&] {
    std::vector<backend::AttentionSums> made;
    for (int l = 0; l < config().n_layers; ++l) {
      context.report("layers", l, config().n_layers);
      made.push_back(backend_->key_moments(attention_view(l)));
    }
    keep(moments_, std::move(made));
  });
  return moments_.layers[layer];
}

const backend::Array& Decomposition::key_medians(int layer, const RunContext& context) const {
  if (by_layer_) {
    const backend::AttentionSums& sums = attention(layer, Scores::centered, context);
    if (!now_.medians) now_.medians = backend_->key_medians(attention_view(layer), sums);
    return *now_.medians;
  }
  walked();
  key_medians_.once([&] {
    std::vector<backend::Array> made;
    for (int l = 0; l < config().n_layers; ++l) {
      context.report("layers", l, config().n_layers);
      made.push_back(
          backend_->key_medians(attention_view(l), attention(l, Scores::centered, context)));
    }
    keep(key_medians_, std::move(made));
  });
  return key_medians_.layers[layer];
}

backend::Array Decomposition::writer_values(int layer, const RunContext& context) const {
  if (!keeps_.values) return {};
  return kept(values_, layer, [&](int l) {
    context.report("layers", l, config().n_layers);
    return backend_->writer_values(attention_view(l));
  });
}

backend::Array Decomposition::writer_keys(int layer, const RunContext& context) const {
  if (!keeps_.keys) return {};
  return kept(keys_, layer, [&](int l) {
    context.report("layers", l, config().n_layers);
    return backend_->writer_keys(attention_view(l));
  });
}

// A device with memory of its own makes all sums in one walk over the layers.
bool Decomposition::neurons_when_asked(int layer) const {
  return backend::asked_neurons(config(), layer) && backend_->device_memory() == nullptr;
}

backend::MlpSums Decomposition::mlp_at(int layer, backend::MlpSide side, int query) const {
  const int scalar = backend_->is_double() ? 8 : 4;
  return asked_.at(*backend_, mlp_view(layer), side, query,
                   backend::keeps_last_scores(config(), writers_, scalar));
}

const backend::MlpSums& Decomposition::mlp(int layer, backend::MlpSide side, Scores scores,
                                           const RunContext& context) const {
  if (by_layer_) {
    enter(layer);
    auto& made = now_.mlp[side == backend::MlpSide::up ? 1 : 0];
    if (!made) made = backend_->mlp_sums(mlp_view(layer), side, scores);
    return *made;
  }
  walked();
  if (neurons_when_asked(layer)) {
    auto& last = last_mlp_[backend::neuron_side(side)];
    last.once([&] { keep(last, {backend_->mlp_sums(mlp_view(layer), side, scores)}); });
    return last.layers.front();
  }
  // How scores are centred concerns routers alone.
  const bool router = side == backend::MlpSide::router;
  auto& lazy = mlp_[!router                      ? static_cast<std::size_t>(side)
                    : scores == Scores::centered ? 3U
                                                 : 2U];
  lazy.once([&] {
    std::vector<backend::MlpSums> made(pass_.layers.size());
    for (int l = 0; l < config().n_layers; ++l) {
      context.report("layers", l, config().n_layers);
      for (const backend::MlpReader& reader : backend::mlp_readers(config().layer(l))) {
        if (reader.side != side) continue;
        backend::MlpSums& to = made[l];
        to = backend_->mlp_sums(mlp_view(l), side, scores);
      }
    }
    keep(lazy, std::move(made));
  });
  return lazy.layers[layer];
}

backend::Array Decomposition::mlp_norms(int layer, backend::MlpSide side,
                                        const RunContext& context) const {
  if (by_layer_) {
    enter(layer);
    return backend_->mlp_norms(mlp_view(layer), side);
  }
  const backend::Array& made = mlp(layer, side, Scores::raw, context).l2;
  if (!made.empty()) return made;
  return kept(norms_[backend::neuron_side(side)], layer, [&](int l) {
    context.report("layers", l, config().n_layers);
    return backend_->mlp_norms(mlp_view(l), side);
  });
}

template <typename Value>
void Decomposition::keep(Lazy<Value>& lazy, std::vector<Value> made) const {
  for (const Value& of_layer : made) held_ += numbers(of_layer);
  lazy.layers = std::move(made);
  lazy.made = true;
}

backend::Array Decomposition::kept(Lazy<backend::Array>& lazy, int layer,
                                   const std::function<backend::Array(int)>& make) const {
  lazy.once([&] {
    std::vector<backend::Array> made;
    made.reserve(config().n_layers);
    for (int l = 0; l < config().n_layers; ++l) made.push_back(make(l));
    keep(lazy, std::move(made));
  });
  return lazy.layers[layer];
}

}  // namespace unpack::decompose
