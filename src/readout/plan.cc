#include "readout/plan.h"

#include <algorithm>

#include "decompose/decomposition.h"

namespace unpack {

namespace {

struct Shape {
  double s, d, h, g, e, n, sides, v;
  double pairs() const { return s * (s + 1) / 2; }
  double q_weights() const { return d * h * e; }
  double kv_weights() const { return d * g * e; }
  double in_weights() const { return d * n * sides; }
  double out_weights() const { return n * d; }
};

Shape shape_of(const ModelConfig& c, int tokens) {
  return {static_cast<double>(tokens),   static_cast<double>(c.d_model), static_cast<double>(c.n_heads), static_cast<double>(c.n_kv_heads),
          static_cast<double>(c.d_head), static_cast<double>(c.d_mlp),   c.gated() ? 2.0 : 1.0,          static_cast<double>(c.vocab_size)};
}

constexpr double kBytes = 4;

}  // namespace

Cost forward_cost(const ModelConfig& c, int tokens) {
  const Shape x = shape_of(c, tokens);
  const double layer_weights = 2 * x.q_weights() + 2 * x.kv_weights() + x.in_weights() + x.out_weights();
  Cost cost;
  cost.flop = c.n_layers * (2 * x.s * layer_weights + 4 * x.pairs() * x.h * x.e) + 2 * x.v * x.d;
  cost.byte = kBytes * (c.n_layers * layer_weights + x.v * x.d);
  return cost;
}

Cost prepare_cost(const ModelConfig& c, const Writers& writers, int tokens, bool products) {
  const Shape x = shape_of(c, tokens);
  Cost cost = forward_cost(c, tokens);
  for (int l = 0; l < c.n_layers; ++l) {
    const double cl = writers.visible_to_attention(l);
    const double cm = writers.visible_to_mlp(l);
    cost.flop += 2 * x.s * x.q_weights();  // head writers
    // Keys and queries: a vector per pair folded into the stream, or every writer projected; whichever takes fewer operations.
    const bool rotary = c.positions == Positions::rotary;
    const double fold_vectors = 4 * x.h * x.e * x.d * (rotary ? x.pairs() : x.s);
    const double fold = fold_vectors + 4 * x.pairs() * x.h * x.d * cl;
    const double project = 2 * x.s * cl * (x.q_weights() + x.kv_weights()) + 4 * x.pairs() * x.h * x.e * cl;
    cost.flop += std::min(fold, project);
    cost.flop += 2 * x.s * x.kv_weights() + 2 * x.s * x.g * x.d * cl;  // values
    const double heads = products ? x.h * (c.block == Block::parallel ? l : l + 1) : 0;
    cost.flop += 2 * x.s * (cm - heads) * x.in_weights() + 2 * x.s * heads * x.e * x.n * x.sides;  // neurons
    cost.byte += kBytes * heads * x.e * x.n * x.sides;
    cost.flop += 2 * x.s * (x.q_weights() + x.out_weights());  // Stage 1 numerators
    cost.byte += kBytes * (3 * x.q_weights() + 2 * x.kv_weights() + x.in_weights() + x.out_weights());
  }
  return cost;
}

Cost question_cost(const ModelConfig& c, const Writers& writers, int tokens) {
  const Shape x = shape_of(c, tokens);
  Cost cost;
  for (int l = 0; l < c.n_layers; ++l) {
    const double cl = writers.visible_to_attention(l);
    const double cm = writers.visible_to_mlp(l);
    const double rows = x.s + 1;                                        // every position, and the target's direct edges
    cost.flop += rows * (2 * x.q_weights() + 2 * x.h * x.d * cl);       // Q edges
    cost.flop += rows * (2 * x.in_weights() + 2 * x.sides * x.d * cm);  // MLP edges
    cost.flop += 2 * (x.q_weights() + x.out_weights());                 // numerators towards the target
    cost.flop += 8 * x.pairs() * x.h * cl;                              // sweep, mass and bound
    cost.byte += kBytes * (3 * x.q_weights() + 2 * x.in_weights() + x.out_weights() + x.pairs() * x.h * cl);
  }
  cost.byte += 2 * kBytes * x.v * x.d;
  return cost;
}

Cost target_cost(const ModelConfig& c, const Writers& writers, int tokens) {
  const Shape x = shape_of(c, tokens);
  Cost cost;
  for (int l = 0; l < c.n_layers; ++l) {
    const double cl = writers.visible_to_attention(l);
    const double cm = writers.visible_to_mlp(l);
    cost.flop += 2 * (x.q_weights() + x.out_weights());                          // numerators towards the target
    cost.flop += 2 * cm * x.n * x.sides + 6 * x.s * x.h * cl;                    // its own edges
    cost.flop += 4 * x.pairs() * x.h * cl;                                       // sweep
    cost.byte += kBytes * (x.q_weights() + x.out_weights() + cm * x.n * x.sides  // weights, and the scores kept for the last position
                           + x.pairs() * x.h * cl);
  }
  return cost;
}

Cost beta_cost(const ModelConfig& c, const Writers& writers, int tokens) {
  const Shape x = shape_of(c, tokens);
  Cost cost;
  for (int l = 0; l < c.n_layers; ++l) {
    const double cl = writers.visible_to_attention(l);
    const double cm = writers.visible_to_mlp(l);
    cost.flop += 2 * x.s * (x.in_weights() + x.sides * x.d * cm);  // MLP edges
    cost.flop += 2 * cm * x.n * x.sides + 6 * x.s * x.h * cl;      // the target's own
    cost.flop += 10 * x.pairs() * x.h * cl;                        // Q edges, sweep, mass and bound
    cost.byte += kBytes * (x.in_weights() + cm * x.n * x.sides + 2 * x.pairs() * x.h * cl);
  }
  return cost;
}

double memory_cost(const ModelConfig& c, const Writers& writers, int tokens, std::size_t memory_budget, int threads) {
  const Shape x = shape_of(c, tokens);
  const bool table = Decomposition::table_fits(c, writers, tokens, memory_budget, static_cast<int>(kBytes));
  double bytes = static_cast<double>(Decomposition::bytes(c, writers, tokens, table, static_cast<int>(kBytes)));
  double edges = 0;
  for (int l = 0; l < c.n_layers; ++l) {
    const double cl = writers.visible_to_attention(l);
    edges += 2 * x.pairs() * x.h + x.s * cl * (x.h + x.g) + x.s * x.sides * writers.visible_to_mlp(l);
  }
  bytes += kBytes * edges;
  // A layer's work at its largest: projected keys of a panel of heads, or the folded vectors of every head; coefficients in double; squares per panel.
  const double cl = writers.count();
  const double keys = std::min(x.g * x.e, std::max(256.0, x.e)) * x.s * cl * kBytes;
  const double folded = 2 * x.s * x.h * x.d * kBytes;
  const double coefficients = 8 * (x.pairs() * x.h + 3 * x.s * x.n);
  const double squares = 8 * x.s * cl * (x.n / 256 + 1);
  bytes += std::max(keys + squares, folded + coefficients);
  // Tiles of each thread, the path search, one row of logits, and what the allocator keeps.
  constexpr double kThread = 24 << 20;
  constexpr double kFixed = 224 << 20;
  return bytes + kThread * threads + kFixed + 16 * x.v;
}

}  // namespace unpack
