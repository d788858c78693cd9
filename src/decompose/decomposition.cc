#include "decompose/decomposition.h"

#include <numeric>

#include "backend/adds_keys_up.h"
#include "backend/device_memory.h"
#include "backend/mlp_readers.h"
#include "backend/question_tables.h"
#include "backend/read_ops.h"
#include "backend/score_plan.h"
#include "unpack/error.h"

namespace unpack {

Decomposition::Decomposition(std::shared_ptr<Backend> backend, const Writers& writers,
                             ForwardTrace trace, const RunContext& context)
    : backend_(std::move(backend)),
      writers_(writers),
      trace_(std::move(trace)),
      length_(static_cast<int>(trace_.ids.size())) {
  const ModelConfig& c = config();
  const int count = writers_.count();
  vectors_ = backend_->zeros(static_cast<std::int64_t>(length_) * count * c.d_model);
  backend_->put_writer(trace_.emb, 0, length_, vectors_, count, 0);
  if (c.has_pos_writer()) backend_->put_writer(trace_.pos, 0, length_, vectors_, count, 1);
  keeps_ = kept_within(c, writers_, length_, context.memory_budget, backend_->is_double() ? 8 : 4);
  const auto* device = dynamic_cast<const DeviceMemory*>(backend_.get());
  const bool all = device != nullptr && device->streams();
  std::array<std::vector<MlpSums>, 3> neurons;  // by side
  for (auto& side : neurons) side.resize(trace_.layers.size());
  std::vector<AttentionSums> heads;
  std::vector<Array> head_numerators, mlp_numerators;
  for (int l = 0; l < c.n_layers; ++l) {
    context.report("layers", l, c.n_layers);
    const auto at = static_cast<std::size_t>(l);
    const LayerTrace& layer = trace_.layers[at];
    // Readers of a layer see nothing of those above it.
    backend_->put_head_writers(l, layer.z, layer.attn_out_dev, 0, length_, vectors_, count,
                               writers_.head(l, 0));
    backend_->put_writer(layer.mlp_out, 0, length_, vectors_, count, writers_.mlp(l));
    if (all)
      heads.push_back(backend_->attention_sums(attention_view(l), Scores::raw, keeps_.key_scores));
    for (const MlpReader& reader : mlp_readers(c.layer(l))) {
      if ((reader.side == MlpSide::router && !all) || neurons_when_asked(l)) continue;
      neurons[static_cast<std::size_t>(reader.side)][at] =
          backend_->mlp_sums(mlp_view(l), reader.side, Scores::raw);
    }
    if (!all || !keeps_.key_scores) continue;  // then these are made where they are used
    head_numerators.push_back(make_head_numerators(l));
    mlp_numerators.push_back(make_mlp_numerators(l));
  }
  const auto keep = [](auto& lazy, auto& made) {
    lazy.once([&] { lazy.layers = std::move(made); });
    lazy.made = true;
  };
  for (const MlpSide side : {MlpSide::gate, MlpSide::up})
    keep(mlp_[static_cast<std::size_t>(side)], neurons[static_cast<std::size_t>(side)]);
  if (!all) return;
  keep(attention_[0], heads);
  keep(mlp_[static_cast<std::size_t>(MlpSide::router)],
       neurons[static_cast<std::size_t>(MlpSide::router)]);
  if (!keeps_.key_scores) return;
  keep(head_numerators_, head_numerators);
  keep(mlp_numerators_, mlp_numerators);
}

std::vector<const Array*> Decomposition::head_states() const {
  std::vector<const Array*> z;
  z.reserve(trace_.layers.size());
  for (const LayerTrace& source : trace_.layers) z.push_back(&source.z);
  return z;
}

AttentionView Decomposition::attention_view(int layer) const {
  const LayerTrace& t = trace_.layers[static_cast<std::size_t>(layer)];
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
          head_states()};
}

MlpView Decomposition::mlp_view(int layer) const {
  const LayerTrace& t = trace_.layers[static_cast<std::size_t>(layer)];
  return {layer,         length_,          writers_.visible_to_mlp(layer),
          &vectors_,     writers_.count(), &t.dev_mlp,
          &t.act,        &t.mlp_out_dev,   t.routing.get(),
          head_states(), nullptr,          -1};
}

Array Decomposition::pre(int layer, MlpSide side, Scores scores) const {
  const LayerTrace& t = trace_.layers[static_cast<std::size_t>(layer)];
  if (side != MlpSide::router) return side == MlpSide::gate ? t.pre : t.up;
  // r_e of the chosen experts, less the mean over all.
  std::vector<double> out;
  const Routing& routing = *t.routing;
  for (int q = 0; q < length_; ++q) {
    const double* r = routing.logits.data() + static_cast<std::ptrdiff_t>(q) * routing.experts;
    const double mean = scores == Scores::centered
                            ? std::accumulate(r, r + routing.experts, 0.0) / routing.experts
                            : 0.0;
    for (int i = 0; i < routing.chosen; ++i)
      out.push_back(r[routing.expert[routing.slot(q, i)]] - mean);
  }
  Array array = backend_->zeros(static_cast<std::int64_t>(out.size()));
  backend_->upload(array, 0, out);
  return array;
}

const AttentionSums& Decomposition::attention(int layer, Scores scores,
                                              const RunContext& context) const {
  make_attention(scores, [&](int l) {
    context.report("layers", l, config().n_layers);
    return backend_->attention_sums(attention_view(l), scores, keeps_key_scores(scores));
  });
  return attention_[scores == Scores::raw ? 0 : 1].layers[static_cast<std::size_t>(layer)];
}

bool Decomposition::wants_key_scores(const Backend& backend, Scores scores, int length) {
  const auto* adds = dynamic_cast<const AddsKeysUp*>(&backend);
  return scores != Scores::raw || adds == nullptr || !adds->adds_keys_up(length);
}

bool Decomposition::keeps_key_scores(Scores scores) const {
  return keeps_.key_scores && wants_key_scores(*backend_, scores, length_);
}

bool Decomposition::make_attention(Scores scores,
                                   const std::function<AttentionSums(int)>& make) const {
  auto& lazy = attention_[scores == Scores::raw ? 0 : 1];
  bool mine = false;
  lazy.once([&] {
    std::vector<AttentionSums> made;
    for (int l = 0; l < config().n_layers; ++l) made.push_back(make(l));
    lazy.layers = std::move(made);
    lazy.made = mine = true;
  });
  return mine;
}

const Array& Decomposition::key_medians(int layer, const RunContext& context) const {
  key_medians_.once([&] {
    auto* reads = dynamic_cast<ReadOps*>(backend_.get());
    if (reads == nullptr) throw InternalError("this device has no medians of key scores");
    std::vector<Array> made;
    for (int l = 0; l < config().n_layers; ++l) {
      context.report("layers", l, config().n_layers);
      made.push_back(
          reads->key_medians(attention_view(l), attention(l, Scores::centered, context)));
    }
    key_medians_.layers = std::move(made);
  });
  return key_medians_.layers[static_cast<std::size_t>(layer)];
}

Array Decomposition::writer_values(int layer, const RunContext& context) const {
  auto* reads = dynamic_cast<ReadOps*>(backend_.get());
  if (!keeps_.values || reads == nullptr) return {};
  return kept(values_, layer, [&](int l) {
    context.report("layers", l, config().n_layers);
    return reads->writer_values(attention_view(l));
  });
}

Array Decomposition::writer_keys(int layer, const RunContext& context) const {
  auto* reads = dynamic_cast<ReadOps*>(backend_.get());
  if (!keeps_.keys || reads == nullptr) return {};
  return kept(keys_, layer, [&](int l) {
    context.report("layers", l, config().n_layers);
    return reads->writer_keys(attention_view(l));
  });
}

// A device with memory of its own makes all sums in one walk over the layers.
bool Decomposition::neurons_when_asked(int layer) const {
  return asked_neurons(config(), layer) &&
         dynamic_cast<const DeviceMemory*>(backend_.get()) == nullptr;
}

MlpSums Decomposition::mlp_at(int layer, MlpSide side, int query) const {
  const int scalar = backend_->is_double() ? 8 : 4;
  return asked_.at(*backend_, mlp_view(layer), side, query,
                   keeps_last_scores(config(), writers_, scalar));
}

const MlpSums& Decomposition::mlp(int layer, MlpSide side, Scores scores,
                                  const RunContext& context) const {
  if (neurons_when_asked(layer)) {
    auto& last = last_mlp_[side == MlpSide::up ? 1 : 0];
    last.once([&] { last.layers = {backend_->mlp_sums(mlp_view(layer), side, scores)}; });
    return last.layers.front();
  }
  // How scores are centred concerns routers alone.
  const bool router = side == MlpSide::router;
  auto& lazy = mlp_[!router                      ? static_cast<std::size_t>(side)
                    : scores == Scores::centered ? 3U
                                                 : 2U];
  lazy.once([&] {
    std::vector<MlpSums> made(trace_.layers.size());
    for (int l = 0; l < config().n_layers; ++l) {
      context.report("layers", l, config().n_layers);
      for (const MlpReader& reader : mlp_readers(config().layer(l))) {
        if (reader.side != side) continue;
        MlpSums& to = made[static_cast<std::size_t>(l)];
        to = backend_->mlp_sums(mlp_view(l), side, scores);
      }
    }
    lazy.layers = std::move(made);
  });
  return lazy.layers[static_cast<std::size_t>(layer)];
}

Array Decomposition::kept(Lazy<Array>& lazy, int layer,
                          const std::function<Array(int)>& make) const {
  lazy.once([&] {
    std::vector<Array> made;
    made.reserve(trace_.layers.size());
    for (int l = 0; l < config().n_layers; ++l) made.push_back(make(l));
    lazy.layers = std::move(made);
  });
  return lazy.layers[static_cast<std::size_t>(layer)];
}

// Long prompts have no room for them; they are cheap to make again.
Array Decomposition::kept_numerators(Lazy<Array>& lazy, int layer,
                                     const std::function<Array(int)>& make) const {
  return keeps_.numerators ? kept(lazy, layer, make) : make(layer);
}

Array Decomposition::head_numerators(int layer) const {
  return kept_numerators(head_numerators_, layer, [&](int l) { return make_head_numerators(l); });
}

Array Decomposition::mlp_numerators(int layer) const {
  if (neurons_when_asked(layer)) return make_mlp_numerators(layer);
  return kept_numerators(mlp_numerators_, layer, [&](int l) {
    return neurons_when_asked(l) ? Array() : make_mlp_numerators(l);
  });
}

Array Decomposition::make_head_numerators(int layer) const {
  std::vector<int> queries(static_cast<std::size_t>(length_));
  std::iota(queries.begin(), queries.end(), 0);
  Array out = backend_->zeros(config().n_heads * tri(length_));
  backend_->head_numerators(attention_view(layer), queries,
                            trace_.layers[static_cast<std::size_t>(layer)].attn_out, out);
  return out;
}

Array Decomposition::make_mlp_numerators(int layer) const {
  std::vector<int> queries(static_cast<std::size_t>(length_));
  std::iota(queries.begin(), queries.end(), 0);
  Array out = backend_->zeros(std::int64_t{length_} * config().layer(layer).entries());
  backend_->mlp_numerators(mlp_view(layer), queries,
                           trace_.layers[static_cast<std::size_t>(layer)].mlp_out, out);
  return out;
}

Decomposition::DirectNumerators Decomposition::direct_numerators(int layer, int query,
                                                                 const Array& direction) const {
  const auto l = static_cast<std::size_t>(layer);
  std::vector<double> wanted(static_cast<std::size_t>(config().d_model));
  backend_->download(direction, 0, wanted);
  {
    std::lock_guard lock(direct_.mutex);
    if (direct_.query != query || direct_.direction != wanted) {
      direct_.query = query;
      direct_.direction = wanted;
      direct_.layers.assign(trace_.layers.size(), nullptr);
    }
    if (direct_.layers[l]) return *direct_.layers[l];
  }
  const std::vector<int> queries = {query};
  DirectNumerators made;
  const auto downloaded = [&](const Array& from) {
    std::vector<double> out(static_cast<std::size_t>(from.size()));
    backend_->download(from, 0, out);
    return out;
  };
  Array heads = backend_->zeros(static_cast<std::int64_t>(config().n_heads) * (query + 1));
  backend_->head_numerators(attention_view(layer), queries, direction, heads);
  made.heads = downloaded(heads);
  Array neurons = backend_->zeros(config().layer(layer).entries());
  backend_->mlp_numerators(mlp_view(layer), queries, direction, neurons);
  made.neurons = downloaded(neurons);
  std::lock_guard lock(direct_.mutex);
  if (direct_.query == query && direct_.direction == wanted)
    direct_.layers[l] = std::make_shared<const DirectNumerators>(made);
  return made;
}

std::size_t Decomposition::bytes(const ModelConfig& c, const Writers& writers, int length,
                                 const Kept& kept, int scalar) {
  const auto s = static_cast<double>(length);
  const double pairs = static_cast<double>(tri(length)) * c.n_heads;
  const double q = static_cast<double>(c.n_heads) * c.d_head;
  const double kv = 2.0 * c.n_kv_heads * c.d_head;
  double scalars = s * c.d_model * (writers.count() + 3);
  for (int l = 0; l < c.n_layers; ++l) {
    const double cl = writers.visible_to_attention(l);
    const double cm = writers.visible_to_mlp(l);
    const double sides = c.layer(l).gated() ? 2.0 : 1.0, neurons = c.layer(l).entries();
    scalars += s * (4.0 * c.d_model + 2 * q + kv +
                    (1 + 3 * sides) * neurons);  // streams, heads, neurons and their sums
    scalars += 5 * pairs;                        // pattern and the sums of keys and queries
    scalars +=
        s * cl * (2.0 * c.n_heads + c.n_kv_heads) + s * cm * sides;  // moments, value scores, norms
    if (kept.key_scores) scalars += pairs * cl;
    if (kept.numerators) scalars += pairs + s * neurons;
    scalars += s * cl * kv / 2 * ((kept.values ? 1 : 0) + (kept.keys ? 1 : 0));
    if (kept.key_scores && keeps_query_scores(c, writers, length, scalar)) scalars += pairs * cl;
    if (keeps_last_scores(c, writers, scalar)) scalars += cm * neurons * sides;
  }
  return static_cast<std::size_t>(scalars * scalar);
}

bool Decomposition::table_fits(const ModelConfig& c, const Writers& writers, int length,
                               std::size_t memory_budget, int scalar) {
  double table = 0;
  for (int l = 0; l < c.n_layers; ++l)
    table += static_cast<double>(tri(length)) * c.n_heads * writers.visible_to_attention(l);
  return table * scalar <= static_cast<double>(memory_budget);
}

Decomposition::Kept Decomposition::kept_within(const ModelConfig& c, const Writers& writers,
                                               int length, std::size_t memory_budget, int scalar) {
  const double row = static_cast<double>(c.n_kv_heads) * c.d_head;
  double rows = 0;
  for (int l = 0; l < c.n_layers; ++l)
    rows += static_cast<double>(length) * writers.visible_to_attention(l);
  Kept out;
  out.key_scores = out.numerators = table_fits(c, writers, length, memory_budget, scalar);
  const bool fit = 2 * rows * row * scalar <= static_cast<double>(memory_budget);
  // Keys pay where they are fewer than the scores that are made of them.
  out.keys = fit && 2 * row <= static_cast<double>(c.n_heads) * (length + 1);
  out.values = out.key_scores || out.keys;
  return out;
}

}  // namespace unpack
