#include "forward/forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "backend/rotary.h"
#include "base/index.h"
#include "forward/block.h"
#include "forward/check_finite.h"

namespace unpack::forward {

void check_prompt(const ModelConfig& config, std::span<const TokenId> ids) {
  if (ids.empty()) throw InputError("the prompt has no tokens");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= config.vocab_size) {
      throw InputError(
          fmt::format("token id {} at position {} is outside the vocabulary of {} (ids 0 to {})",
                      ids[i], i, config.vocab_size, config.vocab_size - 1));
    }
  }
  const Index n = ids.size();
  if (n > config.n_ctx)
    throw InputError(fmt::format(
        "the prompt has {} tokens, but the model's context holds {}; shorten it", n, config.n_ctx));
}

Embedded embed_rows(backend::Backend& backend, std::span<const TokenId> ids,
                    std::span<const int> positions, const ForwardHooks* hooks) {
  const ModelConfig& c = backend.config();
  const Index size = std::ssize(ids) * c.d_model;
  Embedded out;
  out.emb = backend.zeros(size);
  backend.embed(ids, out.emb);
  if (hooks && hooks->embeddings) hooks->embeddings(out.emb);
  out.x = backend.zeros(size);
  backend.copy(out.emb, 0, out.x, 0, size);
  if (c.has_pos_writer()) {
    out.pos = backend.zeros(size);
    backend.embed_positions(positions, out.pos);
    if (hooks && hooks->positions) hooks->positions(out.pos);
    backend.add(out.pos, out.x, size);
  }
  return out;
}

ForwardPass forward_unchecked(backend::Backend& backend,
                              const std::vector<std::vector<TokenId>>& prompts,
                              const ForwardOptions& options, const RunContext& context) {
  const ModelConfig& c = backend.config();
  ForwardPass pass;
  Batch batch;
  for (const auto& prompt : prompts) {
    check_prompt(c, prompt);
    const int length = prompt.size();
    batch.segments.push_back({pass.rows(), length, 0});
    batch.key_begin.push_back(pass.rows());
    batch.context = std::max(batch.context, length);
    pass.ids.insert(pass.ids.end(), prompt.begin(), prompt.end());
    for (int i = 0; i < length; ++i) batch.positions.push_back(i);
  }
  for (const auto& prompt : prompts) {
    if (!backend::same_rotary(c, prompt.size(), batch.context))
      throw InternalError("[forward] prompts of one batch need different rotaries");
  }
  pass.segments = batch.segments;
  Embedded embedded = embed_rows(backend, pass.ids, batch.positions, options.hooks);
  pass.emb = embedded.emb;
  pass.pos = embedded.pos;
  backend::Array x = embedded.x;
  if (options.start) backend.copy(*options.start, 0, x, 0, pass.rows() * c.d_model);
  pass.layers.resize(options.keep ? c.n_layers : 0);
  LayerPass scratch;
  for (int l = options.first_layer; l < c.n_layers; ++l) {
    context.check();
    LayerPass& kept = options.keep ? pass.layers[l] : scratch;
    run_block(backend, l, batch, options.hooks, options.keep && !options.lean, x, kept);
    if (options.lean) kept.pre = kept.up = kept.act = {};
  }
  pass.x_final = x;
  if (options.check_values) backend.check_values();
  return pass;
}

ForwardPass forward(backend::Backend& backend, const std::vector<std::vector<TokenId>>& prompts,
                    const ForwardOptions& options, const RunContext& context) {
  ForwardPass pass = forward_unchecked(backend, prompts, options, context);
  if (!stream_is_finite(backend, pass)) {
    backend.check_values();
    // What was not kept is made once more, to name the layer.
    if (!options.keep && !options.hooks && !options.start) {
      ForwardOptions kept = options;
      kept.keep = true;
      return forward(backend, prompts, kept, context);
    }
    check_finite(backend, pass);
  }
  return pass;
}

ForwardPass slice_prompt(backend::Backend& backend, const ForwardPass& batch, std::size_t index) {
  const ModelConfig& c = backend.config();
  const backend::Segment& segment = batch.segments[index];
  const Index begin = segment.begin;
  const Index n = segment.length;
  const auto rows = [&](const backend::Array& a, Index width) {
    return a.empty() ? backend::Array() : backend.slice(a, begin * width, n * width);
  };
  ForwardPass one;
  one.ids.assign(batch.ids.begin() + begin, batch.ids.begin() + begin + n);
  one.segments = {{0, segment.length, 0}};
  one.emb = rows(batch.emb, c.d_model);
  one.pos = rows(batch.pos, c.d_model);
  one.x_final = rows(batch.x_final, c.d_model);
  Index pattern_begin = 0;
  for (std::size_t i = 0; i < index; ++i)
    pattern_begin += c.n_heads * backend::tri(batch.segments[i].length);
  for (std::size_t l = 0; l < batch.layers.size(); ++l) {
    const LayerPass& from = batch.layers[l];
    const Index entries = c.layers[l].entries();
    LayerPass to;
    to.x_pre = rows(from.x_pre, c.d_model);
    to.x_mid = rows(from.x_mid, c.d_model);
    to.dev_attn = rows(from.dev_attn, 1);
    to.dev_mlp = rows(from.dev_mlp, 1);
    to.q = rows(from.q, c.n_heads * c.d_head);
    to.k = rows(from.k, c.n_kv_heads * c.d_head);
    to.v = rows(from.v, c.n_kv_heads * c.d_head);
    to.q_dev = rows(from.q_dev, c.n_heads);
    to.k_dev = rows(from.k_dev, c.n_kv_heads);
    to.pattern = backend.slice(from.pattern, pattern_begin, c.n_heads * backend::tri(n));
    to.z = rows(from.z, c.n_heads * c.d_head);
    to.attn_out = rows(from.attn_out, c.d_model);
    to.pre = rows(from.pre, entries);
    to.up = rows(from.up, entries);
    to.act = rows(from.act, entries);
    to.mlp_out = rows(from.mlp_out, c.d_model);
    to.attn_out_dev = rows(from.attn_out_dev, 1);
    to.mlp_out_dev = rows(from.mlp_out_dev, 1);
    if (from.routing) {
      const Index experts = from.routing->experts;
      const auto first = from.routing->logits.begin() + begin * experts;
      to.routing = choose_experts(c.layers[l], {first, first + n * experts});
    }
    one.layers.push_back(std::move(to));
  }
  return one;
}

KeyValueCache::KeyValueCache(backend::Backend& backend, int capacity)
    : backend_(backend), capacity_(capacity) {
  const ModelConfig& c = backend.config();
  for (int l = 0; l < c.n_layers; ++l) {
    k_.push_back(backend.zeros(static_cast<Index>(capacity) * c.n_kv_heads * c.d_head));
    v_.push_back(backend.zeros(static_cast<Index>(capacity) * c.n_kv_heads * c.d_head));
  }
}

std::vector<double> KeyValueCache::step(std::span<const TokenId> ids) {
  const ModelConfig& c = backend_.config();
  const int rows = ids.size();
  if (length_ + rows > capacity_)
    throw InternalError("[KeyValueCache] more tokens than its capacity");
  if (length_ > 0 && !backend::same_rotary(c, length_, length_ + rows)) {
    // The text has become a long one, in which all keys are turned otherwise.
    std::vector<TokenId> all = std::exchange(seen_, {});
    all.insert(all.end(), ids.begin(), ids.end());
    length_ = 0;
    return step(all);
  }
  seen_.insert(seen_.end(), ids.begin(), ids.end());
  Batch batch;
  batch.segments = {{0, rows, length_}};
  batch.key_begin = {0};
  batch.context = length_ + rows;
  batch.positions.resize(ids.size());
  std::iota(batch.positions.begin(), batch.positions.end(), length_);
  const Index kv_row = static_cast<Index>(c.n_kv_heads) * c.d_head;
  ForwardHooks hooks;
  hooks.attended = [&](int layer, const backend::Array& k, const backend::Array& v,
                       const backend::Array*& keys, const backend::Array*& values) {
    const std::size_t l = layer;
    backend_.copy(k, 0, k_[l], length_ * kv_row, rows * kv_row);
    backend_.copy(v, 0, v_[l], length_ * kv_row, rows * kv_row);
    keys = &k_[l];
    values = &v_[l];
  };
  backend::Array x = embed_rows(backend_, ids, batch.positions, nullptr).x;
  LayerPass scratch;
  for (int l = 0; l < c.n_layers; ++l) run_block(backend_, l, batch, &hooks, false, x, scratch);
  length_ += rows;
  std::vector<double> logits;
  const std::vector<Index> last = {rows - 1};
  backend_.logits(x, last, logits);
  backend_.check_values();
  return logits;
}

}  // namespace unpack::forward
