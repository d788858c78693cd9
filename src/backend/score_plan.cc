#include "backend/score_plan.h"

#include <algorithm>

#include "backend/fold_rule.h"
#include "backend/mlp_readers.h"

namespace unpack::backend {

namespace {

constexpr double kPlanBytes = 4;  // a weight

// All writers that a reader sees, times a matrix [D, out] at `rows` positions.
struct Matrix {
  double rows, d, heads, e;
  double visible;  // writers
  double sources;  // layers whose heads are among them
  double out;
  bool may;  // heads may be multiplied through products of weights

  ReaderPlan direct() const {
    return {Way::direct, 2 * rows * visible * d * out, kPlanBytes * d * out};
  }
  ReaderPlan through_products(bool there) const {
    const double width = heads * e, others = visible - sources * heads;
    ReaderPlan plan{there ? Way::kept : Way::made, 2 * rows * (others * d + sources * width) * out,
                    kPlanBytes * (d + sources * width) * out};
    if (there) return plan;
    // Each is made from W_O and W, written and read.
    plan.flop += 2 * sources * width * d * out;
    plan.byte += kPlanBytes * sources * width * (d + out);
    return plan;
  }
  ReaderPlan cheapest(Products products) const {
    const ReaderPlan plain = direct();
    if (!may || sources == 0 || products == Products::none) return plain;
    const ReaderPlan low = through_products(products == Products::kept);
    return low.flop < plain.flop ? low : plain;
  }
};

}  // namespace

std::string way_name(Way way) {
  switch (way) {
    case Way::direct:
      return "every writer times the weights";
    case Way::folded:
      return "folded into the stream";
    case Way::made:
      return "heads through products of weights, made as needed";
    case Way::kept:
      return "heads through products of weights, kept";
  }
  return {};
}

int source_layers(const Writers& writers, int visible) {
  // Asked for every row of scores, so from the end: layers stand in order.
  for (int j = visible - 1; j >= 0; --j) {
    if (writers[j].kind == WriterKind::head) return writers[j].layer + 1;
  }
  return 0;
}

bool heads_write_products(const ModelConfig& config) {
  return std::none_of(config.layers.begin(), config.layers.end(),
                      [](const LayerConfig& l) { return l.attn_post_norm; });
}

bool asked_neurons(const ModelConfig& config, int layer) {
  return layer == config.n_layers - 1 && !config.layer(layer).mixture();
}

LayerPlan plan_layer(const ModelConfig& c, const Writers& writers, int layer, int tokens,
                     Products products, int scalar) {
  const LayerConfig& shape = c.layer(layer);
  const double s = tokens, d = c.d_model, h = c.n_heads, g = c.n_kv_heads, e = c.d_head;
  const int cl = writers.visible_to_attention(layer), cm = writers.visible_to_mlp(layer);
  double pairs = s * (s + 1) / 2;
  for (int q = 0; q < tokens && shape.window > 0; ++q) pairs -= shape.first_source(q);
  const bool may = heads_write_products(c);
  // Kept products are those of neurons.
  const Products heads = products == Products::none ? Products::none : Products::as_needed;
  const auto matrix = [&](int visible, double out, bool product) {
    const double sources = source_layers(writers, visible);
    return Matrix{s, d, h, e, static_cast<double>(visible), sources, out, product};
  };
  LayerPlan plan;
  plan.keys = matrix(cl, g * e, may).cheapest(heads);
  plan.queries = matrix(cl, h * e, may).cheapest(heads);
  // A vector is the same for all sources (queries) where nothing turns or norms it there.
  const bool turned = shape.rope.dims > 0 || shape.qk_norm != QkNorm::none;
  // A multiplication is two operations: the multiplications of both sides are operations of one.
  const ScoreWork work{.pairs = pairs * h * cl,
                       .vectors = 2 * h * e * d * (turned ? pairs : s),
                       .projections = (plan.keys.flop + plan.queries.flop) / 2};
  const double held = s * (s + 1) / 2 * h * cl * scalar;
  if (held <= kFoldBytes && fold_is_cheaper(c, work)) {
    plan.keys = {Way::folded, folded_work(c, work), kPlanBytes * d * g * e};
    plan.queries = {Way::folded, folded_work(c, work), kPlanBytes * d * h * e};
  } else {
    plan.keys.flop += 2 * work.pairs * e;
    plan.queries.flop += 2 * work.pairs * e;
  }
  plan.values = {Way::folded, 2 * s * g * d * (e + cl), kPlanBytes * d * g * e};
  const Matrix neurons = matrix(cm, shape.entries(), may && !shape.mixture());
  for (int i = 0; i < neuron_sides(shape); ++i) plan.neurons[i] = neurons.cheapest(products);
  return plan;
}

}  // namespace unpack::backend
