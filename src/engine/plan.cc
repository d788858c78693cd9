#include "engine/plan.h"

#include <algorithm>

#include "backend/backend.h"
#include "backend/cuda/low_rank_rule.h"
#include "backend/cuda/tile_rule.h"
#include "backend/fold_rule.h"
#include "backend/mlp_readers.h"
#include "backend/question_tables.h"
#include "base/index.h"
#include "decompose/decomposition.h"

namespace unpack::engine {

namespace {

constexpr double kBytes = 4;

// One layer. Operations count the neurons in use at a position, bytes every expert that some
// position may use.
struct Shape {
  double s, d, h, g, e;
  double n;        // neurons in use at a position
  double sides;    // 2: gate and up
  double experts;  // logits of the router; 0: a dense MLP
  double read;     // expert weights that are read over those of one position, 1 for a dense MLP
  double pairs;    // of a query and a source that it sees
  double q_weights() const { return d * h * e; }
  double kv_weights() const { return d * g * e; }
  double in_weights() const { return d * n * sides + d * experts; }
  double out_weights() const { return n * d; }
  double in_bytes() const { return kBytes * (d * n * sides * read + d * experts); }
  double out_bytes() const { return kBytes * out_weights() * read; }
  // A row per writer: gate, up, and the router for the chosen experts' logits.
  double readers() const { return sides + (experts > 0 ? 1 : 0); }
};

Shape shape_of(const ModelConfig& c, int layer, int tokens) {
  const LayerConfig& l = c.layer(layer);
  Shape x{};
  x.s = tokens;
  x.d = c.d_model;
  x.h = c.n_heads;
  x.g = c.n_kv_heads;
  x.e = c.d_head;
  x.n = l.entries();
  x.sides = backend::neuron_sides(l);
  x.experts = l.n_experts;
  x.read = l.mixture() ? std::min(static_cast<double>(l.n_experts) / l.experts_per_token,
                                  static_cast<double>(tokens))
                       : 1.0;
  for (int q = 0; q < tokens; ++q) x.pairs += q + 1 - l.first_source(q);
  return x;
}

}  // namespace

backend::Products products_of(const backend::Backend& backend) {
  return backend.name() == "cpu" && backend.layers_side_by_side() ? backend::Products::as_needed
                                                                  : backend::Products::none;
}

Cost forward_cost(const ModelConfig& c, int tokens) {
  const double head = static_cast<double>(c.vocab_size) * c.d_model;
  Cost cost = {2 * head, kBytes * head};
  for (int l = 0; l < c.n_layers; ++l) {
    const Shape x = shape_of(c, l, tokens);
    const double attention = 2 * x.q_weights() + 2 * x.kv_weights();
    cost += {2 * x.s * (attention + x.in_weights() + x.out_weights()) + 4 * x.pairs * x.h * x.e,
             kBytes * attention + x.in_bytes() + x.out_bytes()};
  }
  return cost;
}

Cost prepare_cost(const ModelConfig& c, const Writers& writers, int tokens,
                  backend::Products products) {
  Cost cost = forward_cost(c, tokens);
  for (int l = 0; l < c.n_layers; ++l) {
    const Shape x = shape_of(c, l, tokens);
    const backend::LayerPlan plan = backend::plan_layer(c, writers, l, tokens, products);
    // Where every writer is taken times the weights, so are those of every layer.
    const bool asked = products != backend::Products::none && backend::asked_neurons(c, l);
    for (const backend::ReaderPlan& reader : {plan.keys, plan.queries, plan.values})
      cost += {reader.flop, reader.byte};
    for (const backend::ReaderPlan& reader : plan.neurons) {
      if (!asked) cost += {reader.flop, reader.byte};
    }
    cost.flop += 2 * x.s * writers.visible_to_mlp(l) * x.d * x.experts;  // routers
    cost.flop += 2 * x.s * x.q_weights();                                // head writers
    // Stage 1 numerators
    cost.flop += 2 * x.s * (x.q_weights() + (asked ? 0 : x.out_weights()));
    cost.byte += kBytes * (2 * x.q_weights() + x.d * x.experts) + (asked ? 0 : x.out_bytes());
    // Every expert that some position uses, not those of one position.
    cost.byte += kBytes * x.d * x.n * x.sides * (x.read - 1);
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
  const double neurons = scores ? cm * x.n * x.sides : x.in_weights() + x.readers() * x.d * cm;
  return {2 * neurons + 6 * x.s * x.h * cl + 4 * x.pairs * x.h * cl,
          kBytes * ((scores ? cm * x.n * x.sides : x.in_weights()) + x.pairs * x.h * cl)};
}

// Edges of every position, and what lies below them: mass and bound. `asked`: of the neurons those
// of direct edges are all there is.
Cost edges_cost(const Shape& x, double cl, double cm, bool scores, bool asked) {
  Cost cost = {4 * x.pairs * x.h * cl, kBytes * x.pairs * x.h * cl};
  if (!asked) cost += {2 * x.s * (x.in_weights() + x.readers() * x.d * cm), x.in_bytes()};
  cost += scores ? Cost{2 * x.pairs * x.h * cl, kBytes * x.pairs * x.h * cl}
                 : Cost{2 * x.s * (x.q_weights() + x.h * x.d * cl), kBytes * x.q_weights()};
  return cost;
}

// Parts of a question, added up over the layers.
Cost question_parts(const ModelConfig& c, const Writers& writers, int tokens, bool new_target,
                    bool new_edges) {
  const bool queries = backend::keeps_query_scores(c, writers, tokens, kBytes);
  const bool last = backend::keeps_last_scores(c, writers, kBytes);
  Cost cost;
  for (int l = 0; l < c.n_layers; ++l) {
    const Shape x = shape_of(c, l, tokens);
    const double cl = writers.visible_to_attention(l);
    const double cm = writers.visible_to_mlp(l);
    const bool asked = backend::asked_neurons(c, l);
    cost += own_cost(x, cl, cm, last);
    if (new_target) cost += numerators_cost(x);
    if (new_edges) cost += edges_cost(x, cl, cm, queries, asked);
    if (new_target && new_edges && asked)  // scores at the target's own position
      cost += {2 * x.d * x.n * x.sides * cm, x.in_bytes()};
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

double pair_scores(const ModelConfig& c, const Writers& writers, int tokens) {
  double count = 0;
  for (int l = 0; l < c.n_layers; ++l)
    count += shape_of(c, l, tokens).pairs * c.n_heads * writers.visible_to_attention(l);
  return count;
}

Cost scores_again_cost(const ModelConfig& c, const Writers& writers, int tokens,
                       std::size_t memory_budget) {
  Cost cost;
  if (decompose::Decomposition::table_fits(c, writers, tokens, memory_budget, kBytes)) return cost;
  for (int l = 0; l < c.n_layers; ++l) {
    const Shape x = shape_of(c, l, tokens);
    const double cl = writers.visible_to_attention(l);
    cost.flop += 2 * x.s * cl * x.kv_weights() + 2 * x.pairs * x.h * x.e * cl;
  }
  return cost;
}

Cost read_once_cost(const ModelConfig& c, const Writers& writers, int tokens,
                    std::size_t memory_budget) {
  // A median of every writer's key scores over the sources of a query.
  constexpr double kMedian = 30;  // operations that a number takes on its way through
  Cost cost = scores_again_cost(c, writers, tokens, memory_budget);
  cost.flop += kMedian * pair_scores(c, writers, tokens);
  return cost;
}

Cost read_target_cost(const ModelConfig& c, const Writers& writers, int tokens) {
  Cost cost;
  for (int l = 0; l < c.n_layers; ++l) {
    const Shape x = shape_of(c, l, tokens);
    const double cl = writers.visible_to_attention(l);
    // Directions through every matrix once (those of heads from two sides), four products over
    // pairs, and products with the writers.
    const double weights =
        x.in_weights() + x.out_weights() + 3 * x.q_weights() + 2 * x.kv_weights();
    cost +=
        {2 * x.s * weights + 8 * x.pairs * x.h * x.e + 2 * x.pairs * x.h * cl + 4 * x.s * x.d * cl,
         kBytes * weights};
  }
  return cost;
}

double memory_cost(const ModelConfig& c, const Writers& writers, int tokens,
                   std::size_t memory_budget, int threads, bool table) {
  constexpr int kScalar = kBytes;
  decompose::Decomposition::Kept kept =
      decompose::Decomposition::kept_within(c, writers, tokens, memory_budget, kScalar);
  kept.key_scores = kept.key_scores && table;
  double bytes = decompose::Decomposition::bytes(c, writers, tokens, kept, kScalar);
  // Arrays over pairs have a place for every source, seen or not.
  const double pairs = backend::tri(tokens);
  double edges = 0;
  double work = 0;  // of a layer, at its largest
  const double all = writers.count();
  for (int l = 0; l < c.n_layers; ++l) {
    const Shape x = shape_of(c, l, tokens);
    const double cl = writers.visible_to_attention(l);
    edges +=
        2 * pairs * x.h + x.s * cl * (x.h + x.g) + x.s * x.readers() * writers.visible_to_mlp(l);
    // Projected keys of a panel of heads, or the folded vectors of every head; coefficients in
    // double; squares per panel.
    const double keys = std::min(x.g * x.e, std::max(256.0, x.e)) * x.s * all * kBytes;
    const double folded = 2 * x.s * x.h * x.d * kBytes;
    const double coefficients = 8 * (pairs * x.h + 3 * x.s * x.n);
    const double squares = 8 * x.s * all * (x.n / 256 + 1);
    // Products of weights: those of a panel of heads, or of some panels of neurons, and the weights
    // they are made from.
    const double pair = (l + 1.0) * x.h * x.e * kBytes;
    const double head_products = pair * std::max(256.0, x.e);
    const double neuron_products =
        std::min(std::max(backend::kProductBytes, pair * 256), pair * (x.n + 256)) +
        x.d * x.n * kBytes;
    work = std::max({work, keys + head_products, squares + neuron_products, folded + coefficients});
  }
  bytes += kBytes * edges + work;
  return bytes + memory_slack(threads) + 16.0 * c.vocab_size;  // one row of logits
}

double memory_slack(int threads) {
  constexpr double kThread = 24 << 20;
  constexpr double kFixed = 224 << 20;
  return kThread * threads + kFixed;
}

double device_memory_cost(const ModelConfig& c, const Writers& writers, int tokens,
                          std::size_t memory_budget, bool parts, bool raw) {
  const double s = tokens, count = writers.count(), layers = c.n_layers, d = c.d_model;
  const double h = c.n_heads, g = c.n_kv_heads, q = h * c.d_head, kv = g * c.d_head;
  double neurons = 0, widest = 0;
  for (int l = 0; l < c.n_layers; ++l) {
    const double n = c.layer(l).entries();
    neurons += n * (1 + 3 * backend::neuron_sides(c.layer(l)));
    widest = std::max(widest, static_cast<double>(c.layer(l).n_neurons));
  }
  const bool table =
      decompose::Decomposition::table_fits(c, writers, tokens, memory_budget, kBytes);
  constexpr double kTile = 768 << 20, kWorkspace = 32 << 20;
  double bytes = kBytes * s * count * d;                                // writers
  bytes += kBytes * s * (layers * (4 * d + 2 * q + 2 * kv) + neurons);  // forward pass
  bytes += 14 * s * s * h * layers;                                     // pairs
  if (table) bytes += s * s * h * count * layers;                       // key scores
  // One after the other: keys of all positions, projected and in parts; queries of some, with
  // products of weights; neurons, with one such product and what it is made from.
  constexpr double kFastest = 7;  // products of bf16 against single precision
  const bool low_rank =
      parts && backend::cuda::low_rank_is_cheaper(c, tokens, backend::cuda::kThreeTf32);
  const bool folded = backend::fold_is_cheaper(c, tokens, parts ? kFastest : 1);
  // Then neither scores nor parts of their factors are in memory, and no means.
  const bool on_chip = raw && parts && !table && !folded && backend::cuda::on_chip_depth(c.d_head);
  bytes += 2 * s * layers * count * ((on_chip ? 1 : 3) * h + 2 * g);  // edges, moments, values
  double keys = 0, queries = 0, products = 0;
  const double tile = std::min(kTile, kBytes * s * count * (widest + 2 * d));
  if (!folded) {
    const auto stacked = [&](bool of_keys) {
      return static_cast<double>(
          backend::cuda::tile_of_projected(c, of_keys, tokens, writers.count(), 0, Index{768} << 20)
              .stacked);
    };
    keys = kBytes * s * count * kv + (parts && !on_chip ? stacked(true) : 0);
    if (parts && !on_chip) queries = stacked(false);
    if (low_rank)
      queries += std::min(backend::cuda::kProjectedTiles * kTile, kBytes * s * count * q) +
                 kBytes * layers * q * q + 3 * kBytes * q * q;
  }
  if (low_rank) products = 5 * kBytes * q * widest + kBytes * q * d;
  const double most = std::max({keys, queries, products});
  bytes += on_chip ? std::max(most, tile) : most + tile;
  return bytes + kWorkspace + 2 * kBytes * d * widest;  // parts of a matrix
}

bool may_go_by_layer(backend::Backend& backend) {
  const backend::DeviceMemory* memory = backend.device_memory();
  return memory != nullptr && !memory->streams() && backend.device_credit() != nullptr &&
         !backend.config().mixture();
}

double by_layer_memory_cost(const ModelConfig& c, const Writers& writers, int tokens, bool parts,
                            bool raw, double tile) {
  constexpr double kWorkspace = 32 << 20, kLogits = 256 << 20;
  const double s = tokens, count = writers.count(), layers = c.n_layers, d = c.d_model;
  const double h = c.n_heads, g = c.n_kv_heads, q = h * c.d_head, kv = g * c.d_head;
  const double pairs = backend::tri(tokens) * h;
  double widest = 0, sides = 1, edges = 0;
  for (int l = 0; l < c.n_layers; ++l) {
    widest = std::max(widest, static_cast<double>(c.layer(l).entries()));
    const double own = backend::neuron_sides(c.layer(l));
    sides = std::max(sides, own);
    edges += s * (writers.visible_to_attention(l) * (h + g) + writers.visible_to_mlp(l) * own);
  }
  // Streams, heads, and edges but for those of pairs.
  double bytes = kBytes * (s * (layers * (4 * d + 2 * q + 2 * kv) + 3 * d) + edges);
  // One layer: pattern, sums, shares and coefficients of its pairs; values of its neurons and their
  // sums; what is read of every writer.
  const double scores = s * count;
  const bool on_chip = raw && parts && backend::cuda::on_chip_depth(c.d_head);
  double layer = 9 * pairs + s * widest * (1 + 3 * sides) + scores * (h + 2 * g) + s * q;
  if (!raw) layer += 2 * scores * h;
  bytes += kBytes * layer;
  const bool low_rank =
      parts && backend::cuda::low_rank_is_cheaper(c, tokens, backend::cuda::kThreeTf32);
  const double products = low_rank ? kBytes * (layers + 3) * q * q : 0;
  const auto stacked = [&](bool of_keys) {
    return static_cast<double>(
        backend::cuda::tile_of_projected(c, of_keys, tokens, writers.count(), 0, tile).stacked);
  };
  const double projected = backend::cuda::kProjectedTiles * tile;
  double keys = on_chip ? std::min(projected, kBytes * scores * kv) : kBytes * scores * kv,
         queries = std::min(projected, kBytes * scores * q);
  if (parts && !on_chip) {
    keys += stacked(true);
    queries += stacked(false);
  }
  const double neurons = low_rank ? 5 * kBytes * q * widest + kBytes * q * d : 0;
  bytes += std::max({keys + products, queries + products, neurons}) +
           2 * std::min(tile, kBytes * s * count * (widest + 2 * d)) +
           std::min(kLogits, 2 * kBytes * pairs);
  return bytes + kWorkspace + 2 * kBytes * d * widest;
}

int longest_prompt(const ModelConfig& c, double bytes, const std::function<double(int)>& bytes_of) {
  int fits = 0, not_any_more = c.n_ctx + 1;
  while (fits + 1 < not_any_more) {
    const int middle = fits + (not_any_more - fits) / 2;
    (bytes_of(middle) <= bytes ? fits : not_any_more) = middle;
  }
  return fits;
}

}  // namespace unpack::engine
