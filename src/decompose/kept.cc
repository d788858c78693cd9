// What of a prompt is kept within a memory budget, and how much that takes, counted from shapes.
#include "backend/question_tables.h"
#include "backend/score_plan.h"
#include "decompose/decomposition.h"

namespace unpack::decompose {

std::size_t Decomposition::bytes() const {
  const std::size_t arrays = held_ + asked_.numbers();
  std::size_t doubles = 0;
  const std::lock_guard lock(direct_.mutex);
  for (const auto& layer : direct_.layers) {
    if (layer) doubles += layer->heads.size() + layer->neurons.size();
  }
  return arrays * backend_->scalar_bytes() + doubles * sizeof(double);
}

std::size_t Decomposition::bytes(const ModelConfig& c, const Writers& writers, int length,
                                 const Kept& kept, int scalar) {
  const double s = length;
  const double pairs = backend::tri(length) * c.n_heads;
  const double q = static_cast<double>(c.n_heads) * c.d_head;
  const double kv = 2.0 * c.n_kv_heads * c.d_head;
  double scalars = s * c.d_model * (writers.count() + 3);
  for (int l = 0; l < c.n_layers; ++l) {
    const double cl = writers.visible_to_attention(l);
    const double cm = writers.visible_to_mlp(l);
    const double sides = backend::neuron_sides(c.layer(l)), neurons = c.layer(l).entries();
    scalars += s * (4.0 * c.d_model + 2 * q + kv +
                    (1 + 3 * sides) * neurons);  // streams, heads, neurons and their sums
    scalars += 5 * pairs;                        // pattern and the sums of keys and queries
    scalars +=
        s * cl * (2.0 * c.n_heads + c.n_kv_heads) + s * cm * sides;  // moments, value scores, norms
    if (kept.key_scores) scalars += pairs * cl;
    if (kept.numerators) scalars += pairs + s * neurons;
    scalars += s * cl * kv / 2 * ((kept.values ? 1 : 0) + (kept.keys ? 1 : 0));
    if (kept.key_scores && backend::keeps_query_scores(c, writers, length, scalar))
      scalars += pairs * cl;
    if (backend::keeps_last_scores(c, writers, scalar)) scalars += cm * neurons * sides;
  }
  return scalars * scalar;
}

bool Decomposition::table_fits(const ModelConfig& c, const Writers& writers, int length,
                               std::size_t memory_budget, int scalar) {
  double table = 0;
  for (int l = 0; l < c.n_layers; ++l)
    table +=
        static_cast<double>(backend::tri(length)) * c.n_heads * writers.visible_to_attention(l);
  return table * scalar <= memory_budget;
}

Decomposition::Kept Decomposition::kept_within(const ModelConfig& c, const Writers& writers,
                                               int length, std::size_t memory_budget, int scalar) {
  const double row = static_cast<double>(c.n_kv_heads) * c.d_head;
  double rows = 0;
  for (int l = 0; l < c.n_layers; ++l)
    rows += static_cast<double>(length) * writers.visible_to_attention(l);
  Kept out;
  out.key_scores = out.numerators = table_fits(c, writers, length, memory_budget, scalar);
  const bool fit = 2 * rows * row * scalar <= memory_budget;
  // Keys pay where they are fewer than the scores that are made of them.
  out.keys = fit && 2 * row <= static_cast<double>(c.n_heads) * (length + 1);
  out.values = out.key_scores || out.keys;
  return out;
}

}  // namespace unpack::decompose
