#include "forward/forward.h"

#include <fmt/format.h>

#include <numeric>

namespace unpack {

void check_prompt(const ModelConfig& config, std::span<const TokenId> ids) {
  if (ids.empty()) throw InputError("the prompt has no tokens");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config.vocab_size) {
      throw InputError(
          fmt::format("token id {} at position {} is outside the vocabulary of {} (ids 0 to {})",
                      ids[i], i, config.vocab_size, config.vocab_size - 1));
    }
  }
  const auto n = static_cast<std::int64_t>(ids.size());
  if (n > config.n_ctx)
    throw InputError(fmt::format(
        "the prompt has {} tokens, but the model's context holds {}; shorten it", n, config.n_ctx));
  if (config.sliding_window && n > *config.sliding_window) {
    throw InputError(
        fmt::format("the prompt has {} tokens, past the model's sliding window of {}, which is not "
                    "supported; shorten it",
                    n, *config.sliding_window));
  }
}

namespace {

struct Pass {
  Backend& backend;
  const ForwardOptions& options;
  const std::vector<Segment>& segments;
  std::vector<int> positions;
  std::int64_t rows;

  const Array& hooked(int layer, Sublayer sublayer, const Array& x, Array& changed) const {
    if (!options.hooks || !options.hooks->norm_input) return x;
    if (changed.empty()) changed = backend.zeros(x.size());
    return options.hooks->norm_input(layer, sublayer, x, changed) ? changed : x;
  }

  // Adds the layer to x; fills `keep`.
  void layer(int index, Array& x, LayerTrace& keep) const {
    const ModelConfig& c = backend.config();
    const bool parallel = c.block == Block::parallel;
    const auto make = [&](Array& a, std::int64_t size) {
      if (a.size() != size) a = backend.zeros(size);
    };
    const std::int64_t d = c.d_model;
    Array changed, normalized = backend.zeros(rows * d);
    make(keep.x_pre, rows * d);
    backend.copy(x, 0, keep.x_pre, 0, rows * d);
    make(keep.dev_attn, rows);
    make(keep.dev_mlp, rows);
    make(keep.q, rows * c.n_heads * c.d_head);
    make(keep.k, rows * c.n_kv_heads * c.d_head);
    make(keep.v, rows * c.n_kv_heads * c.d_head);
    if (c.qk_norm) {
      make(keep.q_dev, rows * c.n_heads);
      make(keep.k_dev, rows * c.n_kv_heads);
    }
    make(keep.z, rows * c.n_heads * c.d_head);
    make(keep.attn_out, rows * d);
    make(keep.mlp_out, rows * d);
    make(keep.pre, rows * c.d_mlp);
    make(keep.act, rows * c.d_mlp);
    if (c.gated()) make(keep.up, rows * c.d_mlp);
    std::int64_t pattern_size = 0;
    std::vector<std::int64_t> key_begin;
    for (const Segment& s : segments) {
      pattern_size += c.n_heads * tri(s.length);
      key_begin.push_back(s.begin);
    }
    if (options.keep) make(keep.pattern, pattern_size);

    const Array& attn_input = hooked(index, Sublayer::attention, x, changed);
    backend.normalize(attn_input, rows, normalized, keep.dev_attn);
    backend.qkv(index, normalized, positions, keep.q, keep.k, keep.v, keep.q_dev, keep.k_dev);
    if (options.hooks && options.hooks->heads) options.hooks->heads(index, keep.q, keep.k, keep.v);
    backend.attention(keep.q, keep.k, keep.v, segments, key_begin, keep.pattern, keep.z);
    if (options.hooks && options.hooks->mixed)
      options.hooks->mixed(index, attn_input, keep.q, keep.k, keep.v, keep.z);
    backend.attention_out(index, keep.z, rows, keep.attn_out);
    if (!parallel) {
      backend.add(keep.attn_out, x, rows * d);
      backend.add_bias(index, Sublayer::attention, x, rows);
      make(keep.x_mid, rows * d);
      backend.copy(x, 0, keep.x_mid, 0, rows * d);
    } else {
      keep.x_mid = keep.x_pre;
    }
    const Array& mlp_input = hooked(index, Sublayer::mlp, parallel ? keep.x_pre : x, changed);
    backend.normalize(mlp_input, rows, normalized, keep.dev_mlp);
    backend.mlp_in(index, MlpSide::gate, normalized, rows, keep.pre);
    if (c.gated()) backend.mlp_in(index, MlpSide::up, normalized, rows, keep.up);
    if (options.hooks && options.hooks->neurons)
      options.hooks->neurons(index, mlp_input, keep.pre, keep.up);
    backend.activate(keep.pre, keep.up, keep.act, rows * c.d_mlp);
    backend.mlp_out(index, keep.act, rows, keep.mlp_out);
    if (options.hooks && options.hooks->mlp_written)
      options.hooks->mlp_written(index, keep.mlp_out);
    if (parallel) {
      backend.add(keep.attn_out, x, rows * d);
      backend.add_bias(index, Sublayer::attention, x, rows);
    }
    backend.add(keep.mlp_out, x, rows * d);
    backend.add_bias(index, Sublayer::mlp, x, rows);
  }
};

}  // namespace

ForwardTrace forward(Backend& backend, const std::vector<std::vector<TokenId>>& prompts,
                     const ForwardOptions& options, const RunContext& context) {
  const ModelConfig& c = backend.config();
  ForwardTrace trace;
  std::vector<int> positions;
  for (const auto& prompt : prompts) {
    check_prompt(c, prompt);
    trace.segments.push_back({trace.rows(), static_cast<int>(prompt.size()), 0});
    trace.ids.insert(trace.ids.end(), prompt.begin(), prompt.end());
    for (std::size_t i = 0; i < prompt.size(); ++i) positions.push_back(static_cast<int>(i));
  }
  const std::int64_t rows = trace.rows();
  const std::int64_t size = rows * c.d_model;
  trace.emb = backend.zeros(size);
  backend.embed(trace.ids, trace.emb);
  if (options.hooks && options.hooks->embeddings) options.hooks->embeddings(trace.emb);
  Array x = backend.zeros(size);
  backend.copy(trace.emb, 0, x, 0, size);
  if (c.has_pos_writer()) {
    trace.pos = backend.zeros(size);
    backend.embed_positions(positions, trace.pos);
    if (options.hooks && options.hooks->positions) options.hooks->positions(trace.pos);
    backend.add(trace.pos, x, size);
  }
  if (options.start) backend.copy(*options.start, 0, x, 0, size);
  const Pass pass{backend, options, trace.segments, positions, rows};
  trace.layers.resize(options.keep ? static_cast<std::size_t>(c.n_layers) : 0);
  LayerTrace scratch;
  for (int l = options.first_layer; l < c.n_layers; ++l) {
    context.check();
    if (c.block == Block::parallel) scratch.x_mid = Array();
    pass.layer(l, x, options.keep ? trace.layers[static_cast<std::size_t>(l)] : scratch);
  }
  trace.x_final = x;
  return trace;
}

ForwardTrace slice_prompt(Backend& backend, const ForwardTrace& batch, std::size_t index) {
  const ModelConfig& c = backend.config();
  const Segment& segment = batch.segments[index];
  const std::int64_t begin = segment.begin;
  const std::int64_t n = segment.length;
  const auto rows = [&](const Array& a, std::int64_t width) {
    return a.empty() ? Array() : backend.slice(a, begin * width, n * width);
  };
  ForwardTrace one;
  one.ids.assign(batch.ids.begin() + begin, batch.ids.begin() + begin + n);
  one.segments = {{0, segment.length, 0}};
  one.emb = rows(batch.emb, c.d_model);
  one.pos = rows(batch.pos, c.d_model);
  one.x_final = rows(batch.x_final, c.d_model);
  std::int64_t pattern_begin = 0;
  for (std::size_t i = 0; i < index; ++i)
    pattern_begin += c.n_heads * tri(batch.segments[i].length);
  for (const LayerTrace& from : batch.layers) {
    LayerTrace to;
    to.x_pre = rows(from.x_pre, c.d_model);
    to.x_mid = rows(from.x_mid, c.d_model);
    to.dev_attn = rows(from.dev_attn, 1);
    to.dev_mlp = rows(from.dev_mlp, 1);
    to.q = rows(from.q, c.n_heads * c.d_head);
    to.k = rows(from.k, c.n_kv_heads * c.d_head);
    to.v = rows(from.v, c.n_kv_heads * c.d_head);
    to.q_dev = rows(from.q_dev, c.n_heads);
    to.k_dev = rows(from.k_dev, c.n_kv_heads);
    to.pattern = backend.slice(from.pattern, pattern_begin, c.n_heads * tri(n));
    to.z = rows(from.z, c.n_heads * c.d_head);
    to.attn_out = rows(from.attn_out, c.d_model);
    to.pre = rows(from.pre, c.d_mlp);
    to.up = rows(from.up, c.d_mlp);
    to.act = rows(from.act, c.d_mlp);
    to.mlp_out = rows(from.mlp_out, c.d_model);
    one.layers.push_back(std::move(to));
  }
  return one;
}

KeyValueCache::KeyValueCache(Backend& backend, int capacity)
    : backend_(backend), capacity_(capacity) {
  const ModelConfig& c = backend.config();
  for (int l = 0; l < c.n_layers; ++l) {
    k_.push_back(backend.zeros(static_cast<std::int64_t>(capacity) * c.n_kv_heads * c.d_head));
    v_.push_back(backend.zeros(static_cast<std::int64_t>(capacity) * c.n_kv_heads * c.d_head));
  }
}

std::vector<double> KeyValueCache::step(std::span<const TokenId> ids) {
  const ModelConfig& c = backend_.config();
  const auto rows = static_cast<std::int64_t>(ids.size());
  if (length_ + rows > capacity_)
    throw InternalError("[KeyValueCache] more tokens than its capacity");
  std::vector<int> positions(ids.size());
  std::iota(positions.begin(), positions.end(), length_);
  const std::int64_t d = c.d_model;
  const std::int64_t kv_row = static_cast<std::int64_t>(c.n_kv_heads) * c.d_head;
  const auto make = [&](std::int64_t width) { return backend_.zeros(rows * width); };
  Array x = make(d), normalized = make(d), dev = make(1), out = make(d);
  Array q = make(c.n_heads * c.d_head), k = make(kv_row), v = make(kv_row),
        z = make(c.n_heads * c.d_head);
  Array q_dev = make(c.qk_norm ? c.n_heads : 0), k_dev = make(c.qk_norm ? c.n_kv_heads : 0);
  Array pre = make(c.d_mlp), up = make(c.gated() ? c.d_mlp : 0), act = make(c.d_mlp), no_pattern;
  backend_.embed(ids, x);
  if (c.has_pos_writer()) {
    backend_.embed_positions(positions, out);
    backend_.add(out, x, rows * d);
  }
  const std::vector<Segment> segments = {{0, static_cast<int>(rows), length_}};
  const std::vector<std::int64_t> key_begin = {0};
  Array block_input = make(d);
  for (int l = 0; l < c.n_layers; ++l) {
    const auto i = static_cast<std::size_t>(l);
    backend_.copy(x, 0, block_input, 0, rows * d);
    backend_.normalize(x, rows, normalized, dev);
    backend_.qkv(l, normalized, positions, q, k, v, q_dev, k_dev);
    backend_.copy(k, 0, k_[i], length_ * kv_row, rows * kv_row);
    backend_.copy(v, 0, v_[i], length_ * kv_row, rows * kv_row);
    backend_.attention(q, k_[i], v_[i], segments, key_begin, no_pattern, z);
    backend_.attention_out(l, z, rows, out);
    backend_.add(out, x, rows * d);
    backend_.add_bias(l, Sublayer::attention, x, rows);
    backend_.normalize(c.block == Block::parallel ? block_input : x, rows, normalized, dev);
    backend_.mlp_in(l, MlpSide::gate, normalized, rows, pre);
    if (c.gated()) backend_.mlp_in(l, MlpSide::up, normalized, rows, up);
    backend_.activate(pre, up, act, rows * c.d_mlp);
    backend_.mlp_out(l, act, rows, out);
    backend_.add(out, x, rows * d);
    backend_.add_bias(l, Sublayer::mlp, x, rows);
  }
  length_ += static_cast<int>(rows);
  std::vector<double> logits;
  const std::vector<std::int64_t> last = {rows - 1};
  backend_.logits(x, last, logits);
  return logits;
}

}  // namespace unpack
