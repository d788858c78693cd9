// What a prompt of some length takes, by the rules that choose how its scores are made.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/weight_copy.h"
#include "backend/fold_rule.h"
#include "backend/mlp_readers.h"
#include "backend/score_plan.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

// As it will be on the device, without being there.
DeviceMatrix shape_of_matrix(const model::WeightView& w) {
  DeviceMatrix m;
  m.type = stored_as(w);
  m.in = w.in;
  m.out = w.out;
  return m;
}

double size_of(const DeviceMatrix& m) { return static_cast<double>(m.in) * m.out; }

}  // namespace

// A tile of scores is written once; two kernels read what neurons score, three what keys do.
std::vector<DevicePlan::Part> CudaBackend::plan(const Writers& writers, int tokens, bool by_layer) {
  using Part = DevicePlan::Part;
  constexpr double kFloat = sizeof(float);
  const double s = tokens, d = config_.d_model, e = config_.d_head, h = config_.n_heads,
               g = config_.n_kv_heads, pairs = tri(tokens);
  Part heads{"head writers", "single precision", 0, 0}, keys{"keys", "", 0, 0},
      queries{"queries", "", 0, 0}, values{"values", "folded, single precision", 0, 0},
      neurons{"neurons", "", 0, 0};
  const auto parts = [&](const DeviceMatrix& m) { return std::string(split_.words(m)); };
  // Products of some writers with a matrix, the heads' through products of weights or not.
  const auto products = [&](Part& part, const DeviceMatrix& m, int visible, bool may, double rows) {
    const double all = visible, columns = m.out;
    const bool low = may && low_rank(m, tokens);
    const double sources = low ? source_layers(writers_, visible) : 0;
    part.flop += 2 * rows * (all - sources * h) * size_of(m) +
                 sources * 2 * h * e * (size_of(m) + rows * columns);
    part.byte += kFloat * (size_of(m) * (1 + sources) + 3 * sources * h * e * columns);
    return low;
  };
  const auto side = [&](Part& part, Side which, const DeviceMatrix& m, int visible) {
    const bool split = split_.pays(m, static_cast<Index>(tokens) * visible);
    bool on_chip = false;
    const double own = which == Side::key ? g : h, cl = visible;
    if (!by_layer && folds(m, tokens, visible)) {
      part.flop += 2 * pairs * h * d * (cl + e);
      part.way = "folded, single precision";
    } else {
      const bool low = products(part, m, visible, split, s);
      part.flop += 2 * pairs * h * e * cl;
      part.byte += kFloat * 2 * s * cl * own * e;
      on_chip = split && device_->pair_sums_fit(config_.d_head);
      part.way = low     ? "projected, heads through products of weights, " + parts(m)
                 : split ? "projected, " + parts(m)
                         : "projected, single precision";
      if (on_chip) part.way += ", summed on the chip";
    }
    if (!on_chip) part.byte += kFloat * pairs * h * cl * (which == Side::key ? 4 : 2);
  };
  for (int l = 0; l < config_.n_layers; ++l) {
    const model::LayerWeights& w = weights_->layers[l];
    const int cl = writers.visible_to_attention(l), cm = writers.visible_to_mlp(l);
    heads.flop += 2 * s * h * e * d;
    heads.byte += kFloat * (s * h * d + h * e * d);
    side(keys, Side::key, shape_of_matrix(w[model::Role::w_k]), cl);
    side(queries, Side::query, shape_of_matrix(w[model::Role::w_q]), cl);
    values.flop += 2 * s * g * d * (cl + e);
    values.byte += kFloat * (s * cl * (d + g) + g * e * d);
    const LayerConfig& shape = config_.layer(l);
    for (const MlpReader& reader : mlp_readers(shape)) {
      if (reader.side == MlpSide::router) continue;
      const bool mixture = shape.mixture();
      const DeviceMatrix m = shape_of_matrix(
          (mixture ? static_cast<const model::RoleViews&>(w.experts[0])
                   : static_cast<const model::RoleViews&>(w))[matrix_of(reader.side)]);
      const double rows = mixture ? s * shape.experts_per_token : s;
      const bool low = products(neurons, m, cm, !mixture, rows);
      neurons.byte += kFloat * 3 * rows * cm * m.out;
      neurons.way = low ? "heads through products of weights, " + parts(m)
                    : split_.pays(m, static_cast<Index>(tokens) * cm) ? parts(m)
                                                                      : "single precision";
    }
  }
  if (!by_layer) return {heads, keys, queries, values, neurons};
  // Keys are made for their sums, for what they lead to, and for their sums again on the way down.
  // Head writers are made for whoever reads them: values, queries' folds, those of keys and of both
  // sides of the neurons, and the nodes next to a target.
  Part bounds = keys, again = keys;
  bounds.what = "keys, for paths";
  again.what = "keys, on the way down";
  const double made = 2 * s * h * e * d, written = kFloat * 2 * s * h * d;
  heads.what = "writers, made again";
  heads.way = "single precision, as often as they are read";
  heads.flop = heads.byte = 0;
  for (int l = 0; l < config_.n_layers; ++l) {
    const double times = 3 + mlp_readers(config_.layer(l)).size() + 1;
    heads.flop += times * l * made;
    heads.byte += times * l * written;
  }
  return {heads, keys, queries, values, neurons, bounds, again};
}

}  // namespace unpack::backend::cuda
