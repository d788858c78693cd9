// Information flow routes: proximity of every part to the whole, layer by layer.
#include <cmath>

#include "base/index.h"
#include "decompose/host_math.h"
#include "engine/state.h"
#include "forward/block.h"
#include "unpack/baselines.h"

namespace unpack {

namespace {

double l1(const double* x, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += std::fabs(x[i]);
  return sum;
}

// max(||y||_1 - ||y - scale z||_1, 0)
double proximity(const double* whole, double size, const double* part, double scale,
                 std::size_t n) {
  double rest = 0;
  for (std::size_t i = 0; i < n; ++i) rest += std::fabs(whole[i] - scale * part[i]);
  return std::max(size - rest, 0.0);
}

// U[h, s, :] = v[h, s] W_O[h], times the weight of a norm behind, [H, S, D].
std::vector<double> head_outputs(const model::LayerWeights& weights, const ModelConfig& c,
                                 const std::vector<double>& v, std::size_t length) {
  const std::size_t d = c.d_model;
  const std::size_t e = c.d_head;
  const std::size_t groups = c.n_kv_heads;
  const std::vector<double> w_o = decompose::fetch(weights[model::Role::w_o]),
                            post = decompose::fetch(weights[model::Role::attn_post_w]);
  std::vector<double> out(static_cast<std::size_t>(c.n_heads) * length * d, 0.0);
  for (std::size_t h = 0; h < static_cast<std::size_t>(c.n_heads); ++h) {
    const std::size_t g = h / c.group_size();
    for (std::size_t s = 0; s < length; ++s) {
      double* to = out.data() + (h * length + s) * d;
      for (std::size_t i = 0; i < e; ++i) {
        const double scale = v[(s * groups + g) * e + i];
        const double* row = w_o.data() + (h * e + i) * d;
        for (std::size_t k = 0; k < d; ++k) to[k] += scale * row[k];
      }
      for (std::size_t k = 0; k < post.size(); ++k) to[k] *= post[k];
    }
  }
  return out;
}

}  // namespace

BaselineScores ifr_scores(const Prepared& prepared, int position) {
  const decompose::Decomposition& decomposition = *engine::state_of(prepared)->decomposition;
  const model::ModelWeights& weights = *engine::state_of(prepared.model())->weights;
  backend::Backend& backend = decomposition.backend();
  const forward::ForwardPass& pass = decomposition.pass();
  const ModelConfig& c = weights.config;
  const std::size_t length = decomposition.length();
  const std::size_t d = c.d_model;
  const std::size_t heads = c.n_heads;
  // The stream that heads are near to is the one that is read next.
  const bool with_mlp = forward::added_together(c.block);
  std::vector<double> row(length, 0.0);  // row p of the product so far
  row[resolve_position(position, decomposition.length())] = 1.0;

  for (int l = c.n_layers - 1; l >= 0; --l) {
    const forward::LayerPass& layer = pass.layers[l];
    const std::vector<double> x_pre = decompose::fetch(backend, layer.x_pre);
    const bool last = l + 1 == c.n_layers;
    const backend::Array& after = last ? pass.x_final : pass.layers[l + 1].x_pre;
    const std::vector<double> whole = decompose::fetch(backend, with_mlp ? after : layer.x_mid);
    const std::vector<double> mlp =
        with_mlp ? decompose::fetch(backend, layer.mlp_out) : std::vector<double>();
    const std::vector<double> pattern = decompose::fetch(backend, layer.pattern);
    const std::vector<double> u =
        head_outputs(weights.layers[l], c, decompose::fetch(backend, layer.v), length);
    const std::vector<double> out_dev = decompose::fetch(backend, layer.attn_out_dev);
    std::vector<std::vector<double>> shares(length);
    backend.parallel_for(length, [&](Index at) {
      const std::size_t i = at;
      if (row[i] == 0) return;
      const double* y = whole.data() + i * d;
      const double size = l1(y, d);
      std::vector<double> share(i + 1, 0.0);
      double total = 0;
      const auto add = [&](std::size_t to, double p) {
        share[to] += p;
        total += p;
      };
      add(i, proximity(y, size, x_pre.data() + i * d, 1.0, d));
      if (with_mlp) add(i, proximity(y, size, mlp.data() + i * d, 1.0, d));
      for (std::size_t h = 0; h < heads; ++h) {
        const double* alpha = pattern.data() + h * backend::tri(length) + backend::tri(at);
        for (std::size_t j = 0; j <= i; ++j)
          add(j, proximity(y, size, u.data() + (h * length + j) * d,
                           out_dev.empty() ? alpha[j] : alpha[j] / out_dev[i], d));
      }
      if (total > 0) {
        for (double& x : share) x /= total;
      } else {
        share[i] = 1.0;
      }
      shares[i] = std::move(share);
    });
    std::vector<double> next(length, 0.0);
    for (std::size_t i = 0; i < length; ++i) {
      for (std::size_t j = 0; j < shares[i].size(); ++j) next[j] += row[i] * shares[i][j];
    }
    row = std::move(next);
  }
  return {row, {}};
}

}  // namespace unpack
