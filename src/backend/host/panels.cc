#include "backend/host/panels.h"

namespace unpack::backend {

template <typename T>
Panel<T>::Panel(const model::WeightView& w, const model::WeightBlock& part, std::int64_t ld,
                std::int64_t skip, const std::vector<T>& row_scale) {
  T* to = made_.of<T>(part.rows * ld) + skip;
  model::read_block(w, part, row_scale.empty() ? nullptr : row_scale.data(), to, ld);
  data_ = to;
}

template class Panel<float>;
template class Panel<double>;
template struct Panels<float>;
template struct Panels<double>;

namespace {

constexpr std::int64_t kRowsAtOnce = 64;

// bias + norm_bias W, [1, out]; empty where both are.
template <typename T>
std::vector<T> folded_bias(const model::WeightView& bias, const model::WeightView& norm_bias,
                           const model::WeightView& w) {
  if (!bias && !norm_bias) return {};
  std::vector<double> sum(static_cast<std::size_t>(w.out), 0.0);
  if (bias) model::read_rows(bias, 0, 1, sum.data());
  if (norm_bias) {
    std::vector<double> beta(static_cast<std::size_t>(w.in));
    model::read_rows(norm_bias, 0, 1, beta.data());
    std::vector<double> rows(static_cast<std::size_t>(kRowsAtOnce * w.out));
    for (std::int64_t i = 0; i < w.in; i += kRowsAtOnce) {
      const std::int64_t n = std::min(kRowsAtOnce, w.in - i);
      model::read_rows(w, i, n, rows.data());
      for (std::int64_t r = 0; r < n; ++r) {
        const double scale = beta[i + r];
        const double* row = rows.data() + r * w.out;
        for (std::int64_t o = 0; o < w.out; ++o) sum[o] += scale * row[o];
      }
    }
  }
  return {sum.begin(), sum.end()};
}

}  // namespace

template <typename T>
std::vector<T> read_vector(const model::WeightView& w) {
  std::vector<T> out(static_cast<std::size_t>(w ? w.out : 0));
  if (w) model::read_rows(w, 0, 1, out.data());
  return out;
}

template <typename T>
Panels<T> make_panels(const model::WeightView& w, std::int64_t width,
                      const std::vector<T>* row_scale, Pack pack) {
  Panels<T> panels;
  if (!w) return panels;
  panels.in = w.in;
  panels.out = w.out;
  panels.width = width;
  if (pack == Pack::never || model::is_quantised(w)) {
    panels.stored = w;
    if (row_scale) panels.row_scale = *row_scale;
    return panels;
  }
  panels.data.resize(w.in * w.out);
  for (std::int64_t p = 0; p < panels.count(); ++p)
    model::read_block(w, {0, w.in, panels.begin(p), panels.columns(p)},
                      row_scale ? row_scale->data() : nullptr,
                      panels.data.data() + w.in * panels.begin(p), panels.columns(p));
  return panels;
}

namespace {

constexpr std::int64_t kWidth = 256;

template <typename T>
MlpPanels<T> make_mlp(const model::RoleViews& w, const model::LayerWeights& layer, Pack pack) {
  const std::vector<T> norm = read_vector<T>(layer[model::Role::mlp_norm_w]);
  const std::vector<T>* scale = norm.empty() ? nullptr : &norm;
  const model::WeightView& bias = layer[model::Role::mlp_norm_b];
  MlpPanels<T> mlp;
  mlp.in = make_panels(w[model::Role::w_in], kWidth, scale, pack);
  mlp.up = make_panels(w[model::Role::w_up], kWidth, scale, pack);
  mlp.out = make_panels<T>(w[model::Role::w_out], kWidth, nullptr, pack);
  mlp.b_in = folded_bias<T>(w[model::Role::b_in], bias, w[model::Role::w_in]);
  if (w[model::Role::w_up])
    mlp.b_up = folded_bias<T>(w[model::Role::b_up], bias, w[model::Role::w_up]);
  mlp.b_out = read_vector<T>(w[model::Role::b_out]);
  return mlp;
}

// A weight for every head, whether it is stored once or for all of them.
template <typename T>
std::vector<T> for_heads(const model::WeightView& w, std::int64_t n) {
  std::vector<T> out = read_vector<T>(w);
  const std::size_t stored = out.size();
  if (stored == 0) return out;
  out.resize(n);
  for (std::size_t i = stored; i < out.size(); ++i) out[i] = out[i - stored];
  return out;
}

}  // namespace

template <typename T>
LayerPanels<T> make_layer_panels(const ModelConfig& config, const model::LayerWeights& w,
                                 Pack pack) {
  LayerPanels<T> layer;
  const std::vector<T> norm = read_vector<T>(w[model::Role::attn_norm_w]);
  const std::vector<T>* scale = norm.empty() ? nullptr : &norm;
  const model::WeightView& bias = w[model::Role::attn_norm_b];
  // Heads never straddle a panel.
  const std::int64_t e = config.d_head, head_width = e * std::max<std::int64_t>(1, 256 / e);
  layer.q = make_panels(w[model::Role::w_q], head_width, scale, pack);
  layer.k = make_panels(w[model::Role::w_k], head_width, scale, pack);
  layer.v = make_panels(w[model::Role::w_v], head_width, scale, pack);
  layer.o = make_panels<T>(w[model::Role::w_o], kWidth, nullptr, pack);
  layer.b_q = folded_bias<T>(w[model::Role::b_q], bias, w[model::Role::w_q]);
  layer.b_k = folded_bias<T>(w[model::Role::b_k], bias, w[model::Role::w_k]);
  layer.b_v = folded_bias<T>(w[model::Role::b_v], bias, w[model::Role::w_v]);
  layer.b_o = read_vector<T>(w[model::Role::b_o]);
  layer.q_norm = for_heads<T>(w[model::Role::q_norm], config.n_heads * e);
  layer.k_norm = for_heads<T>(w[model::Role::k_norm], config.n_kv_heads * e);
  layer.attn_post = read_vector<T>(w[model::Role::attn_post_w]);
  layer.mlp_post = read_vector<T>(w[model::Role::mlp_post_w]);
  layer.sinks = read_vector<T>(w[model::Role::sinks]);
  if (w.experts.empty()) {
    layer.mlp = make_mlp<T>(w, w, pack);
  } else {
    const std::vector<T> mlp_norm = read_vector<T>(w[model::Role::mlp_norm_w]);
    layer.router =
        make_panels(w[model::Role::w_r], kWidth, mlp_norm.empty() ? nullptr : &mlp_norm, pack);
    layer.b_router =
        folded_bias<T>(w[model::Role::b_r], w[model::Role::mlp_norm_b], w[model::Role::w_r]);
  }
  return layer;
}

template <typename T>
MlpPanels<T> make_expert_panels(const model::LayerWeights& w, int expert) {
  return make_mlp<T>(w.experts[expert], w, Pack::now);
}

template MlpPanels<float> make_expert_panels<float>(const model::LayerWeights&, int);
template MlpPanels<double> make_expert_panels<double>(const model::LayerWeights&, int);
template std::vector<float> read_vector<float>(const model::WeightView&);
template std::vector<double> read_vector<double>(const model::WeightView&);
template Panels<float> make_panels<float>(const model::WeightView&, std::int64_t,
                                          const std::vector<float>*, Pack);
template Panels<double> make_panels<double>(const model::WeightView&, std::int64_t,
                                            const std::vector<double>*, Pack);
template LayerPanels<float> make_layer_panels<float>(const ModelConfig&, const model::LayerWeights&,
                                                     Pack);
template LayerPanels<double> make_layer_panels<double>(const ModelConfig&,
                                                       const model::LayerWeights&, Pack);

}  // namespace unpack::backend
