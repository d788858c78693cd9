// Plain passes that keep what every writer wrote, and the answers that are read from them.
#include <algorithm>

#include "backend/rotary.h"
#include "base/index.h"
#include "circuit/ablation.h"
#include "engine/state.h"
#include "forward/block.h"
#include "unpack/error.h"

namespace unpack::circuit {

void PromptChunk::add(std::size_t index, const std::vector<TokenId>& ids) {
  members.push_back(index);
  prompts.push_back(ids);
  segments.push_back({rows, static_cast<int>(ids.size()), 0});
  rows += std::ssize(ids);
}

std::vector<PromptChunk> cut_chunks(const ModelConfig& config,
                                    const std::vector<TaskPrompt>& prompts, Index rows) {
  std::vector<PromptChunk> out;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Index length = prompts[i].ids.size();
    if (out.empty() || out.back().rows + length > rows ||
        !backend::same_rotary(config, out.back().segments[0].length, length))
      out.emplace_back();
    out.back().add(i, prompts[i].ids);
  }
  return out;
}

Index chunk_rows(const Model& model) {
  constexpr Index kValues = Index{32} << 20, kMost = 1024;
  const Index row = Index{model.writers().count()} * model.config().d_model;
  return std::clamp(kValues / row, Index{1}, kMost);
}

WriterRun record_writers(const Model& model, const std::vector<std::vector<TokenId>>& prompts,
                         const std::function<void(backend::Array& emb)>& embeddings,
                         forward::ForwardPass* pass, const RunContext& context) {
  backend::Backend& backend = *engine::state_of(model)->backend;
  const Writers& writers = model.writers();
  const ModelConfig& c = model.config();
  WriterRun out;
  out.written.resize(writers.count());
  forward::ForwardHooks hooks;
  hooks.embeddings = embeddings;
  forward::ForwardOptions options;
  options.hooks = &hooks;
  forward::ForwardPass kept = forward::forward(backend, prompts, options, context);
  out.written[0] = kept.emb;
  if (c.has_pos_writer()) out.written[1] = kept.pos;
  for (int l = 0; l < c.n_layers; ++l) {
    const forward::LayerPass& layer = kept.layers[l];
    for (int h = 0; h < c.n_heads; ++h)
      out.written[writers.head(l, h)] =
          forward::write_head(backend, l, layer.z, layer.attn_out_dev, h, kept.rows());
    out.written[writers.mlp(l)] = layer.mlp_out;
    out.streams.push_back(layer.x_pre);
  }
  out.streams.push_back(kept.x_final);
  if (pass != nullptr) *pass = std::move(kept);
  return out;
}

WriterRun record_writers(const Model& model, const std::vector<std::vector<TokenId>>& prompts,
                         const RunContext& context) {
  return record_writers(model, prompts, {}, nullptr, context);
}

std::vector<double> differences(const Model& model, const std::vector<TaskPrompt>& prompts,
                                const PromptChunk& chunk, const backend::Array& x) {
  backend::Backend& backend = *engine::state_of(model)->backend;
  const std::size_t vocabulary = model.config().vocab_size;
  constexpr std::size_t kRows = 64;
  std::vector<double> out, logits;
  for (std::size_t begin = 0; begin < chunk.members.size(); begin += kRows) {
    std::vector<Index> rows;
    const std::size_t end = std::min(begin + kRows, chunk.members.size());
    for (std::size_t i = begin; i < end; ++i)
      rows.push_back(chunk.segments[i].begin + chunk.segments[i].length - 1);
    backend.logits(x, rows, logits);
    for (std::size_t i = begin; i < end; ++i) {
      const std::span<double> row(logits.data() + (i - begin) * vocabulary, vocabulary);
      const auto mean = [&](const std::vector<TokenId>& ids) {
        double sum = 0;
        for (const TokenId id : ids) sum += row[id];
        return sum / ids.size();
      };
      const TaskPrompt& prompt = prompts[chunk.members[i]];
      double against = 0;
      if (prompt.versus) {
        against = mean(*prompt.versus);
      } else {
        for (const double logit : row) against += logit / vocabulary;
      }
      out.push_back(mean(prompt.target) - against);
    }
  }
  return out;
}

}  // namespace unpack::circuit
