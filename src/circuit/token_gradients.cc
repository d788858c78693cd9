// Gradient x input and integrated gradients of the tokens of a prompt.
#include "base/index.h"
#include "circuit/gradients.h"
#include "decompose/host_math.h"
#include "engine/state.h"
#include "unpack/baselines.h"
#include "unpack/error.h"

namespace unpack {

std::vector<double> gradient_scores(const Model& model, std::span<const TokenId> ids,
                                    const Target& target, int first, int steps,
                                    const RunContext& context) {
  circuit::check_gradients(model.config());
  model.check(ids);
  if (target.raw) throw UsageError("gradient_scores explains a logit against a contrast");
  if (steps < 1) throw UsageError("gradient_scores takes one step or more");
  backend::Backend& backend = *engine::state_of(model)->backend;
  const circuit::EdgeTable table(model);
  const std::vector<TaskPrompt> prompts = {
      {{ids.begin(), ids.end()}, {}, target.ids, target.versus}};
  circuit::PromptChunk chunk;
  chunk.add(0, prompts[0].ids);
  const Index width = model.config().d_model;
  const Index fixed = Index{first} * width;
  std::vector<double> own, out(ids.size(), 0.0);
  for (int step = 0; step < steps; ++step) {
    const double part = steps == 1 ? 1.0 : (step + 0.5) / steps;
    forward::ForwardHooks hooks;
    hooks.embeddings = [&](backend::Array& emb) {
      if (own.empty()) own = decompose::fetch(backend, emb);
      backend::Array less = backend.zeros(emb.size());
      backend.copy(emb, fixed, less, fixed, emb.size() - fixed);
      backend.add(less, emb, emb.size(), part - 1);
    };
    forward::ForwardOptions options;
    options.hooks = &hooks;
    const forward::ForwardPass pass = forward::forward(backend, chunk.prompts, options, context);
    const std::vector<double> gradient = circuit::visit_gradients(
        model, table, prompts, chunk, pass, [](std::size_t, std::span<const double>) {});
    const std::size_t d = width;
    for (std::size_t s = 0; s < out.size(); ++s)
      out[s] += decompose::dot(std::span<const double>(own).subspan(s * d, d),
                               std::span<const double>(gradient).subspan(s * d, d)) /
                steps;
  }
  return out;
}

}  // namespace unpack
