#include "experiments/strengths.h"

#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "engine/state.h"

namespace unpack::experiments {

namespace {

using Values = std::vector<double>;  // one per writer

// || sum over some q of sM_j(q, .) ||^2 of one MLP or expert, a number a writer. Scores are linear
// in what was written, so that the sum is taken before the product.
Values summed_scores(const decompose::Decomposition& d, const Values& vectors,
                     backend::MlpView view, const std::vector<std::size_t>& positions,
                     const backend::Routing* routing) {
  backend::Backend& backend = d.backend();
  const std::size_t length = d.length();
  const std::size_t row = vectors.size() / length;  // C D
  Values dev(length), summed(row, 0.0);
  backend.download(*view.dev, 0, dev);
  for (const std::size_t q : positions) {
    for (std::size_t i = 0; i < row; ++i) summed[i] += vectors[q * row + i] / dev[q];
  }
  backend::Array writers = backend.zeros(row), one = backend.zeros(1);
  backend.upload(writers, 0, summed);
  backend.upload(one, 0, Values{1.0});
  view.length = 1;
  view.writers = &writers;
  view.dev = &one;
  view.routing = routing;
  const std::size_t neurons = d.config().layer(view.layer).n_neurons, visible = view.visible;
  backend::Array scores = backend.zeros(visible * neurons);
  backend.mlp_scores(view, backend::MlpSide::gate, Scores::raw, 0, scores);
  Values all(visible * neurons), squares(visible, 0.0);
  backend.download(scores, 0, all);
  for (std::size_t j = 0; j < visible; ++j) {
    for (std::size_t n = 0; n < neurons; ++n)
      squares[j] += all[j * neurons + n] * all[j * neurons + n];
  }
  return squares;
}

// || sum over q of sM_j(q, .) ||_2 of a layer's MLP, added to `to`; a mixture's experts are summed
// over the positions that use them.
void add_summed_mlp_scores(const decompose::Decomposition& d, const Values& vectors, int layer,
                           Values& to) {
  const backend::MlpView view = d.mlp_view(layer);
  Values squares(view.visible, 0.0);
  const auto add = [&](const std::vector<std::size_t>& positions, const backend::Routing* routing) {
    const Values own = summed_scores(d, vectors, view, positions, routing);
    for (std::size_t j = 0; j < own.size(); ++j) squares[j] += own[j];
  };
  if (view.routing == nullptr) {
    std::vector<std::size_t> all(d.length());
    std::iota(all.begin(), all.end(), std::size_t{0});
    add(all, nullptr);
  } else {
    std::map<int, std::vector<std::size_t>> users;
    for (std::size_t i = 0; i < view.routing->expert.size(); ++i)
      users[view.routing->expert[i]].push_back(i / view.routing->chosen);
    for (const auto& [expert, positions] : users) {
      const backend::Routing alone{1, view.routing->experts, {expert}, {1.0}, {}};
      add(positions, &alone);
    }
  }
  for (std::size_t j = 0; j < squares.size(); ++j) to[j] += std::sqrt(squares[j]);
}

}  // namespace

Json strengths(const Prepared& prepared, const RunContext& context) {
  const decompose::Decomposition& d = *engine::state_of(prepared)->decomposition;
  const std::size_t writers = d.writers().count();
  Values attention(writers, 0.0), mean_signed(writers, 0.0), values(writers, 0.0),
      mlp(writers, 0.0), mlp_signed(writers, 0.0), size(writers, 0.0);
  const auto add = [&](const backend::Array& scores, int visible, Values& to) {
    Values v(scores.size());
    d.backend().download(scores, 0, v);
    for (std::size_t i = 0; i < v.size(); ++i) to[i % visible] += std::fabs(v[i]);
  };
  Values vectors(d.writer_vectors().size());  // [S, C, D]
  d.backend().download(d.writer_vectors(), 0, vectors);
  for (int l = 0; l < d.config().n_layers; ++l) {
    const backend::AttentionSums& sums = d.attention(l, Scores::raw, context);
    const backend::AttentionSums& moments = d.moments(l, context);
    add(moments.k_std, d.writers().visible_to_attention(l), attention);
    add(moments.k_mean, d.writers().visible_to_attention(l), mean_signed);
    add(sums.v_scores, d.writers().visible_to_attention(l), values);
    add(d.mlp_norms(l, backend::MlpSide::gate, context), d.writers().visible_to_mlp(l), mlp);
    add_summed_mlp_scores(d, vectors, l, mlp_signed);
  }
  const std::size_t width = d.config().d_model;
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

}  // namespace unpack::experiments
