#include "backend/host/panels.h"

namespace unpack {

template struct Panels<float>;
template struct Panels<double>;

namespace {

constexpr std::int64_t kRowsAtOnce = 64;

// bias + norm_bias W, [1, out]; empty where both are.
template <typename T>
std::vector<T> folded_bias(const WeightView& bias, const WeightView& norm_bias,
                           const WeightView& w) {
  if (!bias && !norm_bias) return {};
  std::vector<double> sum(static_cast<std::size_t>(w.out), 0.0);
  if (bias) read_rows(bias, 0, 1, sum.data());
  if (norm_bias) {
    std::vector<double> beta(static_cast<std::size_t>(w.in));
    read_rows(norm_bias, 0, 1, beta.data());
    std::vector<double> rows(static_cast<std::size_t>(kRowsAtOnce * w.out));
    for (std::int64_t i = 0; i < w.in; i += kRowsAtOnce) {
      const std::int64_t n = std::min(kRowsAtOnce, w.in - i);
      read_rows(w, i, n, rows.data());
      for (std::int64_t r = 0; r < n; ++r) {
        const double scale = beta[static_cast<std::size_t>(i + r)];
        const double* row = rows.data() + r * w.out;
        for (std::int64_t o = 0; o < w.out; ++o) sum[static_cast<std::size_t>(o)] += scale * row[o];
      }
    }
  }
  return {sum.begin(), sum.end()};
}

}  // namespace

template <typename T>
std::vector<T> read_vector(const WeightView& w) {
  std::vector<T> out(static_cast<std::size_t>(w ? w.out : 0));
  if (w) read_rows(w, 0, 1, out.data());
  return out;
}

template <typename T>
Panels<T> make_panels(const WeightView& w, std::int64_t width, const std::vector<T>* row_scale) {
  Panels<T> panels;
  if (!w) return panels;
  panels.in = w.in;
  panels.out = w.out;
  panels.width = width;
  panels.data.resize(static_cast<std::size_t>(w.in * w.out));
  std::vector<T> rows(static_cast<std::size_t>(kRowsAtOnce * w.out));
  for (std::int64_t i = 0; i < w.in; i += kRowsAtOnce) {
    const std::int64_t n = std::min(kRowsAtOnce, w.in - i);
    read_rows(w, i, n, rows.data());
    for (std::int64_t p = 0; p < panels.count(); ++p) {
      const std::int64_t columns = panels.columns(p);
      T* to = panels.data.data() + w.in * panels.begin(p) + i * columns;
      for (std::int64_t r = 0; r < n; ++r) {
        const T scale = row_scale ? (*row_scale)[static_cast<std::size_t>(i + r)] : T(1);
        const T* from = rows.data() + r * w.out + panels.begin(p);
        for (std::int64_t c = 0; c < columns; ++c) to[r * columns + c] = from[c] * scale;
      }
    }
  }
  return panels;
}

template <typename T>
LayerPanels<T> make_layer_panels(const ModelConfig& config, const LayerWeights& w) {
  LayerPanels<T> layer;
  const std::vector<T> attn_scale = read_vector<T>(w.attn_norm.w);
  const std::vector<T> mlp_scale = read_vector<T>(w.mlp_norm.w);
  // Heads never straddle a panel.
  const std::int64_t head_width = config.d_head * std::max<std::int64_t>(1, 256 / config.d_head);
  constexpr std::int64_t kWidth = 256;
  layer.q = make_panels(w.w_q, head_width, &attn_scale);
  layer.k = make_panels(w.w_k, head_width, &attn_scale);
  layer.v = make_panels(w.w_v, head_width, &attn_scale);
  layer.o = make_panels<T>(w.w_o, kWidth, nullptr);
  layer.in = make_panels(w.w_in, kWidth, &mlp_scale);
  layer.up = make_panels(w.w_up, kWidth, &mlp_scale);
  layer.out = make_panels<T>(w.w_out, kWidth, nullptr);
  layer.b_q = folded_bias<T>(w.b_q, w.attn_norm.b, w.w_q);
  layer.b_k = folded_bias<T>(w.b_k, w.attn_norm.b, w.w_k);
  layer.b_v = folded_bias<T>(w.b_v, w.attn_norm.b, w.w_v);
  layer.b_o = read_vector<T>(w.b_o);
  layer.b_in = folded_bias<T>(w.b_in, w.mlp_norm.b, w.w_in);
  if (w.w_up) layer.b_up = folded_bias<T>(w.b_up, w.mlp_norm.b, w.w_up);
  layer.b_out = read_vector<T>(w.b_out);
  layer.q_norm = read_vector<T>(w.q_norm);
  layer.k_norm = read_vector<T>(w.k_norm);
  return layer;
}

template std::vector<float> read_vector<float>(const WeightView&);
template std::vector<double> read_vector<double>(const WeightView&);
template Panels<float> make_panels<float>(const WeightView&, std::int64_t,
                                          const std::vector<float>*);
template Panels<double> make_panels<double>(const WeightView&, std::int64_t,
                                            const std::vector<double>*);
template LayerPanels<float> make_layer_panels<float>(const ModelConfig&, const LayerWeights&);
template LayerPanels<double> make_layer_panels<double>(const ModelConfig&, const LayerWeights&);

}  // namespace unpack
