// The scores of neurons and routers and the sums behind their denominators, on a device; and what
// mixtures of experts do with their rows.
#include <algorithm>
#include <numeric>

#include "backend/cuda/cuda_backend.h"
#include "backend/expert_rows.h"

namespace unpack::backend::cuda {

model::Role CudaBackend::matrix_of(MlpSide side) {
  return side == MlpSide::router ? model::Role::w_r
         : side == MlpSide::up   ? model::Role::w_up
                                 : model::Role::w_in;
}

model::Role CudaBackend::bias_of(MlpSide side) {
  return side == MlpSide::router ? model::Role::b_r
         : side == MlpSide::up   ? model::Role::b_up
                                 : model::Role::b_in;
}

// Experts
// -------------------------------------------------------------------------------------------------

CudaBackend::Spread CudaBackend::spread(const Routing& routing,
                                        std::span<const std::int64_t> rows) {
  Spread out;
  out.k = routing.chosen;
  out.total = static_cast<Index>(rows.size()) * out.k;
  const auto total = static_cast<std::size_t>(out.total);
  std::vector<int> lists(4 * total);  // rows, slots, where, expert
  std::size_t at = 0;
  for (const ExpertRows& used : by_expert(routing, rows)) {
    out.parts.push_back(
        {used.expert, static_cast<Index>(at), static_cast<Index>(used.rows.size())});
    for (std::size_t i = 0; i < used.rows.size(); ++i, ++at) {
      const auto slot = static_cast<std::size_t>(used.rows[i] * out.k + used.slots[i]);
      lists[at] = static_cast<int>(used.rows[i]);
      lists[total + at] = static_cast<int>(slot);
      lists[2 * total + slot] = static_cast<int>(at);
      lists[3 * total + slot] = used.expert;
    }
  }
  out.memory = device_->upload(std::span<const int>(lists));
  out.rows = out.memory.get();
  out.slots = out.rows + total;
  out.where = out.slots + total;
  out.expert = out.where + total;
  return out;
}

CudaBackend::Spread CudaBackend::spread(const Routing& routing, std::int64_t rows) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(rows));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return spread(routing, all);
}

void CudaBackend::multiply_experts(int layer, const Spread& spread, model::Role role,
                                   const float* a, float* c) {
  for (const Spread::Part& part : spread.parts) {
    const auto w = on_device_.expert(layer, part.expert);
    const DeviceMatrix& m = w->matrix(role);
    multiply(m, a + part.begin * m.in, part.count, c + part.begin * m.out);
  }
}

void CudaBackend::multiply_experts_turned(int layer, const Spread& spread, model::Role role,
                                          const float* a, float* c) {
  for (const Spread::Part& part : spread.parts) {
    const auto w = on_device_.expert(layer, part.expert);
    const DeviceMatrix& m = w->matrix(role);
    multiply_turned(m, a + part.begin * m.out, part.count, c + part.begin * m.in);
  }
}

void CudaBackend::experts_in(int layer, MlpSide side, const float* normalized, std::int64_t rows,
                             const Routing& routing, float* out) {
  const std::int64_t d = config_.d_model, n = config_.layer(layer).n_neurons;
  const Spread s = spread(routing, rows);
  Array from = device_->floats(s.total * d), to = device_->floats(s.total * n);
  device_->launch(TakeRows{normalized, s.rows, ptr(from), d, d}, s.total * d);
  multiply_experts(layer, s, matrix_of(side), ptr(from), ptr(to));
  for (const Spread::Part& part : s.parts) {
    const auto w = on_device_.expert(layer, part.expert);
    const Array& bias = w->vector(bias_of(side));
    if (!bias.empty())
      device_->launch(AddBias{ptr(bias), ptr(to) + part.begin * n, n, nullptr, nullptr},
                      part.count * n);
  }
  device_->launch(TakeRows{ptr(to), s.where, out, n, n}, s.total * n);
}

void CudaBackend::experts_out(int layer, const float* act, std::int64_t rows,
                              const Routing& routing, float* out) {
  const std::int64_t d = config_.d_model, n = config_.layer(layer).n_neurons;
  const Spread s = spread(routing, rows);
  Array from = device_->floats(s.total * n), to = device_->floats(s.total * d);
  device_->launch(TakeRows{act, s.slots, ptr(from), n, n}, s.total * n);
  multiply_experts(layer, s, model::Role::w_out, ptr(from), ptr(to));
  device_->launch(SumSlots{ptr(to), s.where, nullptr, out, d, s.k, 0}, rows * d);
}

void CudaBackend::add_expert_biases(int layer, Array& x, std::int64_t rows,
                                    const Routing& routing) {
  const model::LayerWeights& views = weights_->layers[layer];
  if (!views.experts[0][model::Role::b_out]) return;
  const std::int64_t d = config_.d_model;
  const Spread s = spread(routing, rows);
  // A row of biases for every expert in use.
  std::vector<int> row_of(static_cast<std::size_t>(routing.experts), 0), index;
  Array biases = device_->floats(static_cast<std::int64_t>(s.parts.size()) * d);
  for (std::size_t i = 0; i < s.parts.size(); ++i) {
    const int expert = s.parts[i].expert;
    row_of[expert] = static_cast<int>(i);
    copy(on_device_.expert(layer, expert)->vector(model::Role::b_out), 0, biases,
         static_cast<std::int64_t>(i) * d, d);
  }
  for (const int expert : routing.expert) index.push_back(row_of[expert]);
  const auto at = device_->upload(std::span<const int>(index));
  const Array weight = device_->upload_floats(routing.weight);
  device_->launch(SumSlots{ptr(biases), at.get(), ptr(weight), ptr(x), d, s.k, 1}, rows * d);
}

// Scores and sums
// -------------------------------------------------------------------------------------------------

// Products of the writers of some positions with one matrix, in parts or in single precision. One
// product over the writers of all positions wastes no part of the device's own tiles, which one per
// position does.
class CudaBackend::WriterProduct {
 public:
  WriterProduct(CudaBackend& backend, const DeviceMatrix& matrix, bool split, std::int64_t rows)
      : backend_(backend), split_(split) {
    if (split) {
      weights_ = backend.split_.weights(matrix);
    } else {
      whole_ = backend.on_device_.operand(matrix);
      packed_ = backend.device_->floats(rows * matrix.in);
    }
  }
  void make(const SplitProducts::Runs& runs, float* out) const {
    if (split_) return backend_.split_.multiply(runs, weights_, out);
    Device& device = *backend_.device_;
    const std::int64_t d = whole_.in, cl = runs.run / d;
    if (runs.rows != nullptr) {
      device.launch(TakeRows{runs.from, runs.rows, ptr(packed_), runs.run, runs.stride},
                    runs.count * runs.run);
    } else {
      device.launch(CenterRows{runs.from, runs.stride, d, ptr(packed_), runs.run, d, cl, d, 0},
                    runs.count * cl);
    }
    device.gemm({whole_.turned ? 1 : 0, 0, runs.count * cl, whole_.out, d, ptr(packed_), d, 0,
                 whole_.data, whole_.ld(), 0, out, whole_.out, 0, 1});
  }

 private:
  CudaBackend& backend_;
  bool split_;
  SplitProducts::Weights weights_;
  Operand whole_;
  Array packed_;
};

std::int64_t CudaBackend::positions_at_once(std::int64_t positions,
                                            std::int64_t floats_each) const {
  const std::int64_t fit = std::clamp<std::int64_t>(tile_bytes_ / (floats_each * 4), 1, positions);
  const std::int64_t tiles = (positions + fit - 1) / fit;
  return (positions + tiles - 1) / tiles;
}

MlpSums CudaBackend::mlp_sums(const MlpView& view, MlpSide side, Scores scores) {
  if (side == MlpSide::router) return router_sums(view, scores);
  if (view.routing != nullptr) return expert_sums(view, side);
  const auto layer = on_device_.layer(view.layer);
  const DeviceMatrix& matrix = layer->matrix(matrix_of(side));
  if (low_rank(matrix, view.length)) return low_rank_neurons(view, side, matrix);
  const std::int64_t d = config_.d_model, n = config_.layer(view.layer).n_neurons,
                     cl = view.visible, length = view.length,
                     stride = static_cast<std::int64_t>(view.n_writers) * d;
  MlpSums sums;
  sums.sum = device_->floats(length * n);
  sums.abs = device_->floats(length * n);
  sums.l2 = device_->floats(length * cl);
  const std::int64_t at_once = positions_at_once(length, cl * (n + 2 * d));
  const bool split = split_.pays(matrix, at_once * cl), reads = split_.large(matrix, at_once * cl);
  const WriterProduct product(*this, matrix, split, at_once * cl);
  Array tile = device_->floats(at_once * cl * n);
  for (std::int64_t q0 = 0; q0 < length; q0 += at_once) {
    const std::int64_t nq = std::min(at_once, length - q0);
    const NeuronRows rows{q0, nullptr, nullptr};
    product.make({ptr(*view.writers) + q0 * stride, stride, nullptr, cl * d, nq}, ptr(tile));
    device_->launch(NeuronSums{ptr(tile), ptr(*view.dev), reads ? nullptr : ptr(sums.sum),
                               ptr(sums.abs), rows, cl, n, 0},
                    nq * n);
    device_->launch(
        NeuronNorms{ptr(tile), ptr(*view.dev), ptr(sums.l2), rows, cl, n, cl, 0, nullptr}, nq * cl);
  }
  if (reads) neuron_read(view, side, nullptr, sums.sum);
  return sums;
}

Array CudaBackend::summed_writers(const Array& writers, int n_writers, int visible, int length) {
  const std::int64_t d = config_.d_model;
  Array out = device_->floats(length * d);
  device_->launch(SumWriters{ptr(writers), n_writers, visible, d, ptr(out)}, length * d);
  return out;
}

// What all writers together give a neuron: [S, N], or of the spread experts [slots, N].
void CudaBackend::neuron_read(const MlpView& view, MlpSide side, const Spread* spread, Array& sum) {
  const Array all = summed_writers(*view.writers, view.n_writers, view.visible, view.length);
  const std::int64_t d = config_.d_model, n = config_.layer(view.layer).n_neurons;
  const model::Role role = matrix_of(side);
  if (spread == nullptr) {
    multiply(on_device_.layer(view.layer)->matrix(role), ptr(all), view.length, ptr(sum));
  } else {
    Array from = device_->floats(spread->total * d), to = device_->floats(spread->total * n);
    device_->launch(TakeRows{ptr(all), spread->rows, ptr(from), d, d}, spread->total * d);
    multiply_experts(view.layer, *spread, role, ptr(from), ptr(to));
    device_->launch(TakeRows{ptr(to), spread->where, ptr(sum), n, n}, spread->total * n);
  }
  device_->launch(ScaleByRow{ptr(sum), ptr(*view.dev), 0, 1, sum.size() / view.length, 1.0F},
                  sum.size());
}

// Every expert reads the positions that use it.
MlpSums CudaBackend::expert_sums(const MlpView& view, MlpSide side) {
  const std::int64_t d = config_.d_model, n = config_.layer(view.layer).n_neurons,
                     cl = view.visible, length = view.length,
                     stride = static_cast<std::int64_t>(view.n_writers) * d;
  const Spread s = spread(*view.routing, length);
  MlpSums sums;
  sums.sum = device_->floats(s.total * n);
  sums.abs = device_->floats(s.total * n);
  sums.l2 = device_->floats(length * cl);
  Array norms = device_->floats(s.total * cl);
  const std::int64_t at_once = positions_at_once(length, cl * (n + 2 * d));
  Array tile = device_->floats(at_once * cl * n);
  bool reads = false;
  for (const Spread::Part& part : s.parts) {
    const auto expert = on_device_.expert(view.layer, part.expert);
    const DeviceMatrix& matrix = expert->matrix(matrix_of(side));
    const Index most = std::min(at_once, part.count) * cl;
    const bool split = split_.pays(matrix, most);
    reads = reads || split_.large(matrix, most);
    const WriterProduct product(*this, matrix, split, most);
    for (Index begin = part.begin; begin < part.begin + part.count; begin += at_once) {
      const Index m = std::min(at_once, part.begin + part.count - begin);
      const NeuronRows rows{0, s.rows + begin, s.slots + begin};
      product.make({ptr(*view.writers), stride, s.rows + begin, cl * d, m}, ptr(tile));
      device_->launch(
          NeuronSums{ptr(tile), ptr(*view.dev), ptr(sums.sum), ptr(sums.abs), rows, cl, n, 0},
          m * n);
      device_->launch(
          NeuronNorms{ptr(tile), ptr(*view.dev), ptr(norms), rows, cl, n, cl, 0, nullptr}, m * cl);
    }
  }
  device_->launch(SlotNorms{ptr(norms), ptr(sums.l2), cl, s.k}, length * cl);
  if (reads) neuron_read(view, side, &s, sums.sum);
  return sums;
}

// sR_j(q, e) = norm(c_j)(q) . W_r[:, e] of the chosen experts, less the mean over all of them.
MlpSums CudaBackend::router_sums(const MlpView& view, Scores scores) {
  const auto layer = on_device_.layer(view.layer);
  const Operand w = on_device_.operand(layer->matrix(model::Role::w_r));
  const std::int64_t d = config_.d_model, experts = w.out, cl = view.visible, length = view.length,
                     stride = static_cast<std::int64_t>(view.n_writers) * d;
  const Spread s = spread(*view.routing, length);
  MlpSums sums;
  sums.sum = device_->floats(s.total);
  sums.abs = device_->floats(s.total);
  sums.l2 = device_->floats(length * cl);
  const std::int64_t at_once = positions_at_once(length, cl * (experts + s.k));
  Array tile = device_->floats(at_once * cl * experts),
        picked = device_->floats(at_once * cl * s.k);
  for (std::int64_t q0 = 0; q0 < length; q0 += at_once) {
    const std::int64_t nq = std::min(at_once, length - q0);
    const NeuronRows rows{q0, nullptr, nullptr};
    device_->gemm({w.turned ? 1 : 0, 0, cl, experts, d, ptr(*view.writers) + q0 * stride, d, stride,
                   w.data, w.ld(), 0, ptr(tile), experts, cl * experts, nq});
    device_->launch(PickExperts{ptr(tile), s.expert + q0 * s.k, ptr(picked), cl, experts, s.k,
                                scores == Scores::centered ? 1 : 0},
                    nq * cl);
    device_->launch(
        NeuronSums{ptr(picked), ptr(*view.dev), ptr(sums.sum), ptr(sums.abs), rows, cl, s.k, 0},
        nq * s.k);
    device_->launch(
        NeuronNorms{ptr(picked), ptr(*view.dev), ptr(sums.l2), rows, cl, s.k, cl, 0, nullptr},
        nq * cl);
  }
  return sums;
}

void CudaBackend::mlp_scores(const MlpView& view, MlpSide side, Scores scores, int query,
                             Array& out) {
  const auto layer = on_device_.layer(view.layer);
  const std::int64_t d = config_.d_model, n = config_.layer(view.layer).n_neurons,
                     cl = view.visible;
  const float* writers = ptr(*view.writers) + static_cast<std::int64_t>(query) * view.n_writers * d;
  std::int64_t width = n;
  if (view.routing == nullptr) {
    multiply(layer->matrix(matrix_of(side)), writers, cl, ptr(out));
  } else if (side == MlpSide::router) {
    const std::int64_t position = query;
    const Spread s = spread(*view.routing, std::span(&position, 1));
    const DeviceMatrix& router = layer->matrix(model::Role::w_r);
    width = s.k;
    Array all = device_->floats(cl * router.out);
    multiply(router, writers, cl, ptr(all));
    device_->launch(PickExperts{ptr(all), s.expert, ptr(out), cl, router.out, s.k,
                                scores == Scores::centered ? 1 : 0},
                    cl);
  } else {
    const int slots = view.routing->chosen;
    width = slots * n;
    for (int slot = 0; slot < slots; ++slot) {
      const auto expert =
          on_device_.expert(view.layer, view.routing->expert[view.routing->slot(query, slot)]);
      const Operand w = on_device_.operand(expert->matrix(matrix_of(side)));
      device_->gemm({w.turned ? 1 : 0, 0, cl, n, d, writers, d, 0, w.data, w.ld(), 0,
                     ptr(out) + slot * n, width, 0, 1});
    }
  }
  device_->launch(ScaleByRow{ptr(out), ptr(*view.dev), query, 0, width, 1.0F}, cl * width);
}

}  // namespace unpack::backend::cuda
