#include "experiments/strengths.h"

#include <cmath>
#include <vector>

#include "engine/state.h"

namespace unpack {

namespace {

using Values = std::vector<double>;  // one per writer

// || sum over q of sM_j(q, .) ||_2 of a layer's MLP, added to `to`. Scores are linear in what was
// written, so that the sum is taken before the product.
void add_summed_mlp_scores(const Decomposition& d, const Values& vectors, int layer, Values& to) {
  Backend& backend = d.backend();
  const auto length = static_cast<std::size_t>(d.length());
  const std::size_t row = vectors.size() / length;  // C D
  MlpView view = d.mlp_view(layer);
  Values dev(length), summed(row, 0.0);
  backend.download(*view.dev, 0, dev);
  for (std::size_t q = 0; q < length; ++q) {
    for (std::size_t i = 0; i < row; ++i) summed[i] += vectors[q * row + i] / dev[q];
  }
  Array writers = backend.zeros(static_cast<std::int64_t>(row)), one = backend.zeros(1);
  backend.upload(writers, 0, summed);
  backend.upload(one, 0, Values{1.0});
  view.length = 1;
  view.writers = &writers;
  view.dev = &one;
  const auto neurons = static_cast<std::size_t>(d.config().d_mlp),
             visible = static_cast<std::size_t>(view.visible);
  Array scores = backend.zeros(static_cast<std::int64_t>(visible * neurons));
  backend.mlp_scores(view, MlpSide::gate, 0, scores);
  Values all(visible * neurons);
  backend.download(scores, 0, all);
  for (std::size_t j = 0; j < visible; ++j) {
    double square = 0;
    for (std::size_t n = 0; n < neurons; ++n) square += all[j * neurons + n] * all[j * neurons + n];
    to[j] += std::sqrt(square);
  }
}

}  // namespace

Json strengths(const Prepared& prepared, const RunContext& context) {
  const Decomposition& d = *prepared.state()->decomposition;
  const auto writers = static_cast<std::size_t>(d.writers().count());
  Values attention(writers, 0.0), mean_signed(writers, 0.0), values(writers, 0.0),
      mlp(writers, 0.0), mlp_signed(writers, 0.0), size(writers, 0.0);
  const auto add = [&](const Array& scores, int visible, Values& to) {
    Values v(static_cast<std::size_t>(scores.size()));
    d.backend().download(scores, 0, v);
    for (std::size_t i = 0; i < v.size(); ++i)
      to[i % static_cast<std::size_t>(visible)] += std::fabs(v[i]);
  };
  Values vectors(static_cast<std::size_t>(d.writer_vectors().size()));  // [S, C, D]
  d.backend().download(d.writer_vectors(), 0, vectors);
  for (int l = 0; l < d.config().n_layers; ++l) {
    const AttentionSums& sums = d.attention(l, Scores::raw, context);
    add(sums.k_std, d.writers().visible_to_attention(l), attention);
    add(sums.k_mean, d.writers().visible_to_attention(l), mean_signed);
    add(sums.v_scores, d.writers().visible_to_attention(l), values);
    add(d.mlp(l, MlpSide::gate, context).l2, d.writers().visible_to_mlp(l), mlp);
    add_summed_mlp_scores(d, vectors, l, mlp_signed);
  }
  const auto width = static_cast<std::size_t>(d.config().d_model);
  for (std::size_t row = 0; row < vectors.size() / width; ++row) {
    double square = 0;
    for (std::size_t i = 0; i < width; ++i)
      square += vectors[row * width + i] * vectors[row * width + i];
    size[row % writers] += std::sqrt(square);
  }
  return {{"attention", attention},     {"attention_signed", mean_signed},
          {"attention_values", values}, {"mlp", mlp},
          {"mlp_signed", mlp_signed},   {"size", size}};
}

}  // namespace unpack
