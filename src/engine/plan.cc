#include "engine/plan.h"

#include <algorithm>

#include "backend/question_tables.h"
#include "decompose/decomposition.h"

namespace unpack {

namespace {

struct Shape {
  double s, d, h, g, e, n, sides, v;  // of one layer; n: neurons in use at a position
  double pairs() const { return s * (s + 1) / 2; }
  double q_weights() const { return d * h * e; }
  double kv_weights() const { return d * g * e; }
  double in_weights() const { return d * n * sides; }
  double out_weights() const { return n * d; }
};

Shape shape_of(const ModelConfig& c, int tokens) {
  return {static_cast<double>(tokens),    static_cast<double>(c.d_model),
          static_cast<double>(c.n_heads), static_cast<double>(c.n_kv_heads),
          static_cast<double>(c.d_head),  static_cast<double>(c.most_entries()),
          c.gated() ? 2.0 : 1.0,          static_cast<double>(c.vocab_size)};
}

constexpr double kBytes = 4;

}  // namespace

Cost forward_cost(const ModelConfig& c, int tokens) {
  const Shape x = shape_of(c, tokens);
  const double layer_weights =
      2 * x.q_weights() + 2 * x.kv_weights() + x.in_weights() + x.out_weights();
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
    // Keys and queries: a vector per pair folded into the stream, or every writer projected;
    // whichever takes fewer operations.
    const bool rotary = c.positions == Positions::rotary;
    const double fold_vectors = 4 * x.h * x.e * x.d * (rotary ? x.pairs() : x.s);
    const double fold = fold_vectors + 4 * x.pairs() * x.h * x.d * cl;
    const double project =
        2 * x.s * cl * (x.q_weights() + x.kv_weights()) + 4 * x.pairs() * x.h * x.e * cl;
    cost.flop += std::min(fold, project);
    cost.flop += 2 * x.s * x.kv_weights() + 2 * x.s * x.g * x.d * cl;  // values
    const double heads = products ? x.h * (c.block == Block::parallel ? l : l + 1) : 0;
    cost.flop +=
        2 * x.s * (cm - heads) * x.in_weights() + 2 * x.s * heads * x.e * x.n * x.sides;  // neurons
    cost.byte += kBytes * heads * x.e * x.n * x.sides;
    cost.flop += 2 * x.s * (x.q_weights() + x.out_weights());  // Stage 1 numerators
    cost.byte +=
        kBytes * (3 * x.q_weights() + 2 * x.kv_weights() + x.in_weights() + x.out_weights());
  }
  return cost;
}

namespace {

// Shares of every neuron and entry towards a target.
Cost numerators_cost(const Shape& x) {
  return {2 * (x.q_weights() + x.out_weights()), kBytes * (x.q_weights() + x.out_weights())};
}

// The target's own edges, and the sweep.
Cost own_cost(const Shape& x, double cl, double cm, bool scores) {
  const double neurons = scores ? cm * x.n * x.sides : x.in_weights() + x.sides * x.d * cm;
  return {2 * neurons + 6 * x.s * x.h * cl + 4 * x.pairs() * x.h * cl,
          kBytes * ((scores ? cm * x.n * x.sides : x.in_weights()) + x.pairs() * x.h * cl)};
}

// Edges of every position, and what lies below them: mass and bound.
Cost edges_cost(const Shape& x, double cl, double cm, bool scores) {
  Cost cost = {2 * x.s * (x.in_weights() + x.sides * x.d * cm) + 4 * x.pairs() * x.h * cl,
               kBytes * (x.in_weights() + x.pairs() * x.h * cl)};
  cost += scores ? Cost{2 * x.pairs() * x.h * cl, kBytes * x.pairs() * x.h * cl}
                 : Cost{2 * x.s * (x.q_weights() + x.h * x.d * cl), kBytes * x.q_weights()};
  return cost;
}

// Parts of a question, added up over the layers.
Cost question_parts(const ModelConfig& c, const Writers& writers, int tokens, bool new_target,
                    bool new_edges) {
  const Shape x = shape_of(c, tokens);
  const bool queries = keeps_query_scores(c, writers, tokens, static_cast<int>(kBytes));
  const bool last = keeps_last_scores(c, writers, static_cast<int>(kBytes));
  Cost cost;
  for (int l = 0; l < c.n_layers; ++l) {
    const double cl = writers.visible_to_attention(l);
    const double cm = writers.visible_to_mlp(l);
    cost += own_cost(x, cl, cm, last);
    if (new_target) cost += numerators_cost(x);
    if (new_edges) cost += edges_cost(x, cl, cm, queries);
  }
  return cost;
}

}  // namespace

// The row of logits is counted with the forward pass, and the mean over the vocabulary is kept by
// the model.
Cost question_cost(const ModelConfig& c, const Writers& writers, int tokens) {
  return question_parts(c, writers, tokens, true, true);
}

Cost target_cost(const ModelConfig& c, const Writers& writers, int tokens) {
  return question_parts(c, writers, tokens, true, false);
}

Cost beta_cost(const ModelConfig& c, const Writers& writers, int tokens) {
  return question_parts(c, writers, tokens, false, true);
}

double memory_cost(const ModelConfig& c, const Writers& writers, int tokens,
                   std::size_t memory_budget, int threads) {
  const Shape x = shape_of(c, tokens);
  const bool table =
      Decomposition::table_fits(c, writers, tokens, memory_budget, static_cast<int>(kBytes));
  double bytes = static_cast<double>(
      Decomposition::bytes(c, writers, tokens, table, static_cast<int>(kBytes)));
  double edges = 0;
  for (int l = 0; l < c.n_layers; ++l) {
    const double cl = writers.visible_to_attention(l);
    edges +=
        2 * x.pairs() * x.h + x.s * cl * (x.h + x.g) + x.s * x.sides * writers.visible_to_mlp(l);
  }
  bytes += kBytes * edges;
  // A layer's work at its largest: projected keys of a panel of heads, or the folded vectors of
  // every head; coefficients in double; squares per panel.
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
