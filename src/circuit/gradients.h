// True gradients of the difference of the logits by what every reader sees, in double precision on
// the host.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "circuit/ablation.h"

namespace unpack::circuit {

// Called once a port with the gradient [T, D] by its input.
using PortVisitor = std::function<void(std::size_t port, std::span<const double> gradient)>;

// Throws InputError for models whose gradients are not written down here: mixtures, clamped gates,
// a norm over the queries of all heads at once.
void check_gradients(const ModelConfig& config);
// Of the sum over the chunk's prompts: rows of one prompt depend on that prompt alone. Returns the
// gradient [T, D] by the stream before the first layer.
std::vector<double> visit_gradients(const Model& model, const EdgeTable& table,
                                    const std::vector<TaskPrompt>& prompts,
                                    const PromptChunk& chunk, const forward::ForwardPass& pass,
                                    const PortVisitor& visit);

}  // namespace unpack::circuit
