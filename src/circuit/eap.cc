// Edge attribution patching: what the difference of the logits falls by when an edge carries the
// counterfactual's value, to first order; with several steps the gradient is a mean over the way
// from the counterfactual's embeddings to the prompt's.
#include <fmt/format.h>

#include <cmath>

#include "base/index.h"
#include "circuit/gradients.h"
#include "circuit/rank.h"
#include "decompose/host_math.h"
#include "engine/state.h"

namespace unpack::circuit {

namespace {

// scores[prompt][edge] += part * < counterfactual - own, gradient >, with its sign turned.
class Contraction {
 public:
  Contraction(backend::Backend& backend, const EdgeTable& table, const PromptChunk& chunk,
              const WriterRun& own, const WriterRun& other)
      : backend_(backend),
        table_(table),
        chunk_(chunk),
        d_(backend.config().d_model),
        scores_(chunk.members.size(), std::vector<double>(table.size(), 0.0)) {
    for (std::size_t w = 0; w < own.written.size(); ++w) {
      change_.push_back(decompose::fetch(backend, own.written[w]));
      const std::vector<double> there = decompose::fetch(backend, other.written[w]);
      for (std::size_t i = 0; i < there.size(); ++i) change_.back()[i] -= there[i];
    }
  }

  void add(std::size_t port_index, std::span<const double> gradient, double part) {
    const ReaderPort& port = table_.ports()[port_index];
    backend_.parallel_for(port.visible, [&](Index writer) {
      const std::size_t w = writer;
      for (std::size_t p = 0; p < scores_.size(); ++p) {
        for (std::size_t s = 0; s < static_cast<std::size_t>(chunk_.segments[p].length); ++s) {
          const std::size_t row = (chunk_.segments[p].begin + s) * d_;
          scores_[p][table_.place(s) + port.first + w] +=
              part * decompose::dot(std::span<const double>(change_[w]).subspan(row, d_),
                                    gradient.subspan(row, d_));
        }
      }
    });
  }

  const std::vector<std::vector<double>>& scores() const { return scores_; }

 private:
  backend::Backend& backend_;
  const EdgeTable& table_;
  const PromptChunk& chunk_;
  std::size_t d_;
  std::vector<std::vector<double>> change_, scores_;
};

// scores[prompt][edge], one prompt behind the other.
std::vector<double> gradients_of_chunk(const Model& model, const EdgeTable& table, const Task& task,
                                       const PromptChunk& chunk, int steps,
                                       const RunContext& context) {
  backend::Backend& backend = *engine::state_of(model)->backend;
  std::vector<std::vector<TokenId>> others;
  for (const std::size_t i : chunk.members) others.push_back(task.prompts[i].counterfactual);
  forward::ForwardPass pass;
  const WriterRun own = record_writers(model, chunk.prompts, {}, &pass, context);
  const WriterRun other = record_writers(model, others, context);
  Contraction sums(backend, table, chunk, own, other);
  for (int step = steps; step >= 1; --step) {
    context.report("steps", steps - step, steps);
    const double part = static_cast<double>(step) / steps;
    if (step < steps) {
      const auto between = [&](backend::Array& emb) {
        backend.copy(other.written[0], 0, emb, 0, emb.size());
        backend.add(other.written[0], emb, emb.size(), -part);
        backend.add(own.written[0], emb, emb.size(), part);
      };
      forward::ForwardHooks hooks;
      hooks.embeddings = between;
      forward::ForwardOptions options;
      options.hooks = &hooks;
      pass = forward::forward(backend, chunk.prompts, options, context);
    }
    visit_gradients(model, table, task.prompts, chunk, pass,
                    [&](std::size_t port, std::span<const double> gradient) {
                      context.check();
                      sums.add(port, gradient, 1.0 / steps);
                    });
  }
  std::vector<double> out;
  for (const std::vector<double>& of_prompt : sums.scores())
    out.insert(out.end(), of_prompt.begin(), of_prompt.end());
  return out;
}

}  // namespace

EdgeScores rank_gradients(const Model& model, const EdgeTable& table, const Task& task, int steps,
                          const RunContext& context, CircuitMemory* memory) {
  check_gradients(model.config());
  EdgeScores scores;
  const double prompts = task.prompts.size();
  const std::vector<PromptChunk> chunks =
      cut_chunks(model.config(), task.prompts, chunk_rows(model) / 2);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    context.report("prompts", chunks[c].members[0], prompts);
    const std::vector<double> all = recalled(memory, fmt::format("gradients {} {}", steps, c), [&] {
      return gradients_of_chunk(model, table, task, chunks[c], steps, context);
    });
    for (std::size_t p = 0; p < chunks[c].members.size(); ++p) {
      const auto begin = all.begin() + (p * table.size());
      add_scores(scores, {begin, begin + table.size()}, prompts);
    }
    // The prompt, its counterfactual, the other steps, and a way back of two passes a step.
    scores.passes += chunks[c].members.size() * (2 + (steps - 1) + 2 * steps);
  }
  return scores;
}

}  // namespace unpack::circuit
