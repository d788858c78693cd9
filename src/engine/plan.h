// Operations and bytes of what the engine does for one prompt, counted from shapes.
#pragma once

#include <cstddef>
#include <functional>

#include "backend/score_plan.h"
#include "base/index.h"
#include "unpack/config.h"
#include "unpack/writers.h"

namespace unpack::backend {
class Backend;
}

namespace unpack::engine {

// What a backend does with products of weights that it does not keep. Other devices than the CPU
// are held against every writer times the weights, however they go about it.
backend::Products products_of(const backend::Backend& backend);

struct Cost {
  double flop = 0;
  double byte = 0;  // fp32 weights that must be read
  Cost& operator+=(const Cost& other) {
    flop += other.flop;
    byte += other.byte;
    return *this;
  }
};

Cost forward_cost(const ModelConfig& config, int tokens);
// The forward pass included; scores as the plan of the length has them (backend/score_plan.h).
Cost prepare_cost(const ModelConfig& config, const Writers& writers, int tokens,
                  backend::Products products = backend::Products::as_needed);
Cost question_cost(const ModelConfig& config, const Writers& writers,
                   int tokens);  // edges, direct edges of a target, totals
// On a prepared prompt: a target at the last position, and another beta for the same target.
Cost target_cost(const ModelConfig& config, const Writers& writers, int tokens);
Cost beta_cost(const ModelConfig& config, const Writers& writers, int tokens);
// The same along readings (Direction::read): what the first target of a prompt takes beside its
// own pass, and the pass that every target takes.
Cost read_once_cost(const ModelConfig& config, const Writers& writers, int tokens,
                    std::size_t memory_budget);
Cost read_target_cost(const ModelConfig& config, const Writers& writers, int tokens);
// Key scores that are made once more because they do not fit into the budget; nothing where they
// do.
Cost scores_again_cost(const ModelConfig& config, const Writers& writers, int tokens,
                       std::size_t memory_budget);

// Scores of a head's pairs of positions, one a writer, over all layers.
double pair_scores(const ModelConfig& config, const Writers& writers, int tokens);

// Bytes of host memory that a one-shot trace of one prompt holds at once on the CPU, the model's
// weights not counted: the prompt taken apart, one set of edges, and what the threads work in.
// `table`: key scores are kept where they fit.
double memory_cost(const ModelConfig& config, const Writers& writers, int tokens,
                   std::size_t memory_budget, int threads, bool table = true);
// The part of it that is no more than a bound, whatever the prompt: tiles of each thread, the path
// search, and what the allocator keeps.
double memory_slack(int threads);

// Bytes of a device with memory of its own that a trace of one prompt takes there, the weights not
// counted (docs/gpu.md). `parts`: products are made in parts where that is faster. `raw`: no scores
// but raw ones are asked for, whose sums are then made on the chip.
double device_memory_cost(const ModelConfig& config, const Writers& writers, int tokens,
                          std::size_t memory_budget, bool parts, bool raw = false);
// The same of a prompt that is traced layer by layer. `tile`: bytes that work on some positions
// takes at a time.
double by_layer_memory_cost(const ModelConfig& config, const Writers& writers, int tokens,
                            bool parts, bool raw = true, double tile = Index{768} << 20);
// Whether a model's prompts can be traced layer by layer where they do not fit otherwise: on a
// device that has all its weights; not those of mixtures.
bool may_go_by_layer(backend::Backend& backend);
// The longest prompt that takes no more, by what a length takes; 0: none.
int longest_prompt(const ModelConfig& config, double bytes,
                   const std::function<double(int tokens)>& bytes_of);

}  // namespace unpack::engine
