// Products of the weights of two layers.
#include <algorithm>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "base/scratch.h"

namespace unpack {

// The reference takes every writer as it is, so that what the tests hold against it goes another
// way.
template <typename T>
HostProducts<T>::HostProducts(std::shared_ptr<const ModelWeights> weights,
                              const BackendOptions& options)
    : HostForward<T>(std::move(weights), options),
      kept_(options.weight_products ? 2 * static_cast<std::size_t>(config_.n_layers) : 0) {}

template <typename T>
LayerPlan HostProducts<T>::plan_of(int index, int length) const {
  // Where layers are converted over and over, so would W_O be for every product.
  const Products plain = sizeof(T) == sizeof(double) || !this->layers_side_by_side()
                             ? Products::none
                             : Products::as_needed;
  return plan_layer(config_, writers_, index, length, kept_.empty() ? plain : Products::kept,
                    sizeof(T));
}

template <typename T>
std::vector<DevicePlan::Part> HostProducts<T>::plan(const Writers& writers, int tokens) {
  const double each = 2.0 * config_.n_heads * config_.d_head * config_.d_model;
  Part heads{"head writers", "z times W_O", each * tokens * config_.n_layers,
             2 * each * config_.n_layers};
  Part keys{"keys", "", 0, 0}, queries{"queries", "", 0, 0}, values{"values", "", 0, 0},
      neurons{"neurons", "when a target asks", 0, 0};
  // The way of the last layer, which has most to do.
  const auto add = [](Part& part, const ReaderPlan& reader) {
    part.way = way_name(reader.way);
    part.flop += reader.flop;
    part.byte += reader.byte;
  };
  for (int l = 0; l < config_.n_layers; ++l) {
    const LayerPlan layer_plan = plan_of(l, tokens);
    add(keys, layer_plan.keys);
    add(queries, layer_plan.queries);
    add(values, layer_plan.values);
    if (asked_neurons(config_, l)) continue;
    add(neurons, layer_plan.neurons[0]);
    if (config_.layer(l).gated()) add(neurons, layer_plan.neurons[1]);
  }
  return {heads, keys, queries, values, neurons};
}

template <typename T>
std::int64_t HostProducts<T>::product_size(const Panels<T>& w, int sources) const {
  return std::int64_t{sources} * config_.n_heads * config_.d_head *
         padded_columns(std::min(w.width, w.out));
}

template <typename T>
void HostProducts<T>::make_products(const Panels<T>& w, int sources, std::int64_t first,
                                    std::int64_t count, bool packed, T* out) {
  constexpr std::int64_t kRows = 256;  // of W_O at once
  constexpr int kSources = 8;          // layers that are held
  const std::int64_t d = config_.d_model, e = config_.d_head, heads = config_.n_heads;
  const std::int64_t size = product_size(w, sources);
  // C goes to the side of W, whose columns it centres.
  std::vector<T> centered;
  const bool center = config_.norm != Norm::rms;
  if (center || !w.packed()) {
    centered.resize(static_cast<std::size_t>(count * d * w.width));
    pool_.parallel_for(count, [&](std::int64_t i) {
      const std::int64_t n = w.columns(first + i);
      T* to = centered.data() + i * d * w.width;
      const Panel<T> panel = w.panel(first + i);
      std::copy_n(static_cast<const T*>(panel), d * n, to);
      if (!center) return;
      std::vector<double> mean(static_cast<std::size_t>(n), 0.0);
      add_columns(to, d, n, mean.data());
      for (double& m : mean) m /= static_cast<double>(d);
      subtract_columns(to, d, n, mean.data());
    });
  }
  const std::int64_t together = std::clamp<std::int64_t>(kRows / e, 1, heads);
  const std::int64_t blocks = (heads + together - 1) / together;
  for (int from = 0; from < sources; from += kSources) {
    const int some = std::min(kSources, sources - from);
    std::vector<std::shared_ptr<const LayerPanels<T>>> layers;
    for (int i = 0; i < some; ++i) layers.push_back(layer(from + i));
    pool_.parallel_for(some * count * blocks, [&](std::int64_t task) {
      const std::int64_t i = task / blocks % count;
      const std::int64_t source = task / blocks / count;
      const std::int64_t head = task % blocks * together;
      const std::int64_t n = w.columns(first + i), columns = packed ? padded_columns(n) : n;
      const std::int64_t rows = std::min(together, heads - head) * e;
      const T* right = centered.empty() ? static_cast<const T*>(w.panel(first + i))
                                        : centered.data() + i * d * w.width;
      T* to = out + i * size + ((from + source) * heads + head) * e * columns;
      Scratch plain;
      T* made = packed ? plain.of<T>(rows * n) : to;
      const Panels<T>& o = layers[static_cast<std::size_t>(source)]->o;
      for (std::int64_t p = 0; p < o.count(); ++p) {
        gemm(false, rows, n, o.columns(p), o.rows(p, head * e, rows), o.columns(p),
             right + o.begin(p) * n, n, p > 0, made, n);
      }
      for (std::int64_t r = 0; packed && r < rows; r += e)
        pack_columns(false, e, n, made + r * n, n, to + r * columns);
    });
  }
}

template <typename T>
std::shared_ptr<const std::vector<T>> HostProducts<T>::kept_products(int index, MlpSide side) {
  if (kept_.empty()) return nullptr;
  Kept& kept = kept_[static_cast<std::size_t>(index) * 2 + (side == MlpSide::gate ? 0 : 1)];
  kept.once([&] {
    const auto target = layer(index);
    const Panels<T>& in = side == MlpSide::gate ? target->mlp.in : target->mlp.up;
    const int sources = source_layers(writers_, writers_.visible_to_mlp(index));
    auto made = std::make_shared<std::vector<T>>(
        static_cast<std::size_t>(in.count() * product_size(in, sources)));
    make_products(in, sources, 0, in.count(), true, made->data());
    kept.data = made;
  });
  return kept.data;
}

// Scores of the heads for one panel of neurons and its packed products: sum[position, {sum, abs},
// n] and square[position, Cl] get their parts; the scores of the last of the positions go to
// last[Cl, N] where that is given.
template <typename T>
void HostProducts<T>::add_head_products(const MlpView& view, const T* products, const Panels<T>& in,
                                        std::int64_t p, std::int64_t begin, std::int64_t positions,
                                        double* sum, double* square, T* last) {
  constexpr std::int64_t kTogether = 8;  // heads whose scores are added before they go to double
  const std::int64_t e = config_.d_head, n = in.columns(p), padded = padded_columns(n);
  const std::int64_t z_row = config_.n_heads * e;
  const int heads = config_.n_heads * source_layers(writers_, view.visible);
  Scratch scores, last_scores;
  const std::int64_t places = 2 * positions * padded;
  T* some = scores.of<T>(places);
  T* abs = some + positions * padded;
  T* row = last_scores.of<T>(last ? 2 * padded : 0);
  std::fill_n(some, places, T(0));
  for (int i = 0; i < heads; ++i) {
    const int source = i / config_.n_heads, head = i % config_.n_heads;
    const int writer = writers_.head(source, head);
    const T* z = ptr(*view.z[static_cast<std::size_t>(source)]) + begin * z_row + head * e;
    const T* product = products + i * e * padded;
    head_sums(HeadProduct<T>{positions, padded, e, z, z_row, product, some, abs, padded,
                             square + writer, view.visible});
    if (last) {
      std::fill_n(row, 2 * padded, T(0));
      double unused = 0;
      head_sums(HeadProduct<T>{1, padded, e, z + (positions - 1) * z_row, z_row, product, row,
                               row + padded, padded, &unused, 1});
      keep_row(row, n, ptr(*view.dev)[begin + positions - 1], last + writer * in.out);
    }
    if (i % kTogether != kTogether - 1 && i != heads - 1) continue;
    for (std::int64_t q = 0; q < positions; ++q) {
      double* to = sum + 2 * q * n;
      const T* from = some + q * padded;
      for (std::int64_t c = 0; c < n; ++c) {
        to[c] += static_cast<double>(from[c]);
        to[n + c] += static_cast<double>(from[positions * padded + c]);
      }
    }
    std::fill_n(some, places, T(0));
  }
}

template class HostProducts<float>;
template class HostProducts<double>;

}  // namespace unpack
