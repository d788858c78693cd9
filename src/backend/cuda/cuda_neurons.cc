// The scores of neurons and routers and the sums behind their denominators, on a device; and what
// mixtures of experts do with their rows.
#include <algorithm>
#include <numeric>

#include "backend/cuda/cuda_backend.h"
#include "backend/expert_rows.h"
#include "base/index.h"

namespace unpack::backend::cuda {

// Experts
// -------------------------------------------------------------------------------------------------

void CudaBackend::multiply_experts(int layer, const Spread& spread, model::Role role,
                                   const float* a, float* c) {
  for (const Spread::Part& part : spread.parts) {
    const auto w = on_device_.expert(layer, part.expert);
    const DeviceMatrix& m = w->matrix(role);
    multiply(m, a + part.begin * m.in, part.count, c + part.begin * m.out);
  }
}

// Scores and sums
// -------------------------------------------------------------------------------------------------

// Products of the writers of some positions with one matrix, in parts or in single precision. One
// product over the writers of all positions wastes no part of the device's own tiles, which one per
// position does.
class CudaBackend::WriterProduct {
 public:
  WriterProduct(CudaBackend& backend, const DeviceMatrix& matrix, bool split, Index rows)
      : backend_(backend), split_(split) {
    if (split) {
      weights_ = backend.split_.weights(matrix);
    } else {
      whole_ = backend.operand(matrix);
      packed_ = backend.device_->floats(rows * matrix.in);
    }
  }
  void make(const SplitProducts::Runs& runs, float* out) const {
    if (split_) return backend_.split_.multiply(runs, weights_, out);
    Device& device = *backend_.device_;
    const Index d = whole_.in, cl = runs.run / d;
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

Index CudaBackend::positions_at_once(Index positions, Index floats_each) const {
  const Index fit = std::clamp<Index>(tile_bytes_ / (floats_each * 4), 1, positions);
  const Index tiles = (positions + fit - 1) / fit;
  return (positions + tiles - 1) / tiles;
}

void CudaBackend::sum_neurons(const NeuronTile& tile, const Array& dev, float* sum, float* abs) {
  device_->launch(NeuronSums{tile.scores, ptr(dev), sum, abs, tile.rows, tile.writers, tile.neurons,
                             tile.adds ? 1 : 0},
                  tile.nq * tile.neurons);
}

void CudaBackend::norm_neurons(const NeuronTile& tile, const Array& dev, float* l2) {
  device_->launch(NeuronNorms{tile.scores, ptr(dev), l2, tile.rows, tile.writers, tile.neurons,
                              tile.width, tile.first, tile.listed},
                  tile.nq * tile.writers);
}

MlpSums CudaBackend::mlp_sums(const MlpView& view, MlpSide side, Scores scores) {
  if (side == MlpSide::router) return router_sums(view, scores);
  if (view.routing != nullptr) return expert_sums(view, side);
  return dense_neurons(view, side, Wanted::sums);
}

Array CudaBackend::mlp_norms(const MlpView& view, MlpSide side) {
  if (side == MlpSide::router || view.routing != nullptr) return Backend::mlp_norms(view, side);
  return dense_neurons(view, side, Wanted::norms).l2;
}

MlpSums CudaBackend::dense_neurons(const MlpView& view, MlpSide side, Wanted wanted) {
  const auto layer = on_device_.layer(view.layer);
  const DeviceMatrix& matrix = layer->matrix(matrix_of(side));
  if (low_rank(matrix, view.length)) return low_rank_neurons(view, side, matrix, wanted);
  const Index d = config_.d_model, n = config_.layer(view.layer).n_neurons, cl = view.visible,
              length = view.length;
  const bool norms = wanted == Wanted::norms;
  MlpSums sums;
  if (norms) {
    sums.l2 = device_->floats(length * cl);
  } else {
    sums.sum = device_->floats(length * n);
    sums.abs = device_->floats(length * n);
  }
  const Index at_once = positions_at_once(length, cl * (n + 2 * d));
  const bool split = split_.pays(matrix, at_once * cl), reads = split_.large(matrix, at_once * cl);
  const WriterProduct product(*this, matrix, split, at_once * cl);
  Array tile = device_->floats(at_once * cl * n);
  for (Index q0 = 0; q0 < length; q0 += at_once) {
    const Index nq = std::min(at_once, length - q0);
    const NeuronRows rows{q0, nullptr, nullptr};
    with_writers(view, q0, nq, [&](Index begin, Index some, Any* writers, Index n_writers) {
      product.make({floats_at(writers), n_writers * d, nullptr, cl * d, some},
                   ptr(tile) + (begin - q0) * cl * n);
    });
    const NeuronTile made{ptr(tile), nq, cl, n, rows, cl};
    if (norms) {
      norm_neurons(made, *view.dev, ptr(sums.l2));
    } else {
      sum_neurons(made, *view.dev, reads ? nullptr : ptr(sums.sum), ptr(sums.abs));
    }
  }
  if (reads && !norms) neuron_read(view, side, nullptr, sums.sum);
  return sums;
}

// Centring is linear: the sum is centred once. Of a layer whose MLP is not among the visible ones
// the heads may be.
Array CudaBackend::summed_parts(const WriterParts& parts, int visible, int length) {
  const Index d = config_.d_model, size = Index{length} * d;
  Array out = device_->zeros(size);
  int at = writers_.terminals();
  add(*parts.emb, out, size);
  if (config_.has_pos_writer()) add(*parts.pos, out, size);
  for (const WriterParts::Layer& layer : parts.layers) {
    if (at >= visible) break;
    add(*layer.attn_out, out, size);
    at += config_.n_heads;
    if (at >= visible) break;
    add(*layer.mlp_out, out, size);
    ++at;
  }
  if (config_.norm == Norm::layer)
    device_->launch(CenterRows{ptr(out), d, 0, ptr(out), d, 0, 1, d, 1}, length);
  return out;
}

Array CudaBackend::summed_writers(const Array& writers, int n_writers, int visible, int length) {
  const Index d = config_.d_model;
  Array out = device_->floats(length * d);
  device_->launch(SumWriters{ptr(writers), n_writers, visible, d, ptr(out)}, length * d);
  return out;
}

// What all writers together give a neuron: [S, N], or of the spread experts [slots, N].
void CudaBackend::neuron_read(const MlpView& view, MlpSide side, const Spread* spread, Array& sum) {
  const Array all = summed_writers(view);
  const Index d = config_.d_model, n = config_.layer(view.layer).n_neurons;
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
  const Index d = config_.d_model, n = config_.layer(view.layer).n_neurons, cl = view.visible,
              length = view.length, stride = view.n_writers * d;
  const Spread s = spread(*view.routing, length);
  MlpSums sums;
  sums.sum = device_->floats(s.total * n);
  sums.abs = device_->floats(s.total * n);
  sums.l2 = device_->floats(length * cl);
  Array norms = device_->floats(s.total * cl);
  const Index at_once = positions_at_once(length, cl * (n + 2 * d));
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
      const NeuronTile made{ptr(tile), m, cl, n, rows, cl};
      sum_neurons(made, *view.dev, ptr(sums.sum), ptr(sums.abs));
      norm_neurons(made, *view.dev, ptr(norms));
    }
  }
  device_->launch(SlotNorms{ptr(norms), ptr(sums.l2), cl, s.k}, length * cl);
  if (reads) neuron_read(view, side, &s, sums.sum);
  return sums;
}

// sR_j(q, e) = norm(c_j)(q) . W_r[:, e] of the chosen experts, less the mean over all of them.
MlpSums CudaBackend::router_sums(const MlpView& view, Scores scores) {
  const auto layer = on_device_.layer(view.layer);
  const Operand w = operand(layer->matrix(model::Role::w_r));
  const Index d = config_.d_model, experts = w.out, cl = view.visible, length = view.length,
              stride = view.n_writers * d;
  const Spread s = spread(*view.routing, length);
  MlpSums sums;
  sums.sum = device_->floats(s.total);
  sums.abs = device_->floats(s.total);
  sums.l2 = device_->floats(length * cl);
  const Index at_once = positions_at_once(length, cl * (experts + s.k));
  Array tile = device_->floats(at_once * cl * experts),
        picked = device_->floats(at_once * cl * s.k);
  for (Index q0 = 0; q0 < length; q0 += at_once) {
    const Index nq = std::min(at_once, length - q0);
    const NeuronRows rows{q0, nullptr, nullptr};
    device_->gemm({w.turned ? 1 : 0, 0, cl, experts, d, ptr(*view.writers) + q0 * stride, d, stride,
                   w.data, w.ld(), 0, ptr(tile), experts, cl * experts, nq});
    device_->launch(PickExperts{ptr(tile), s.expert + q0 * s.k, ptr(picked), cl, experts, s.k,
                                scores == Scores::centered ? 1 : 0},
                    nq * cl);
    const NeuronTile made{ptr(picked), nq, cl, s.k, rows, cl};
    sum_neurons(made, *view.dev, ptr(sums.sum), ptr(sums.abs));
    norm_neurons(made, *view.dev, ptr(sums.l2));
  }
  return sums;
}

void CudaBackend::mlp_scores(const MlpView& view, MlpSide side, Scores scores, int query,
                             Array& out) {
  const auto layer = on_device_.layer(view.layer);
  const Index d = config_.d_model, n = config_.layer(view.layer).n_neurons, cl = view.visible;
  Array made;
  if (view.parts != nullptr) made = make_writers(*view.parts, query, 1, 0, view.visible);
  const float* writers = view.parts != nullptr
                             ? ptr(made)
                             : ptr(*view.writers) + static_cast<Index>(query) * view.n_writers * d;
  Index width = n;
  if (view.routing == nullptr) {
    multiply(layer->matrix(matrix_of(side)), writers, cl, ptr(out));
  } else if (side == MlpSide::router) {
    const Index position = query;
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
      const Operand w = operand(expert->matrix(matrix_of(side)));
      device_->gemm({w.turned ? 1 : 0, 0, cl, n, d, writers, d, 0, w.data, w.ld(), 0,
                     ptr(out) + slot * n, width, 0, 1});
    }
  }
  device_->launch(ScaleByRow{ptr(out), ptr(*view.dev), query, 0, width, 1.0F}, cl * width);
}

}  // namespace unpack::backend::cuda
