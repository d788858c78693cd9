// Products of writers with a matrix through the heads' own space: a head's vector is z W_O, so that
// its product with W is z (W_O C W), and W_O C W serves all positions.
#include <algorithm>
#include <numeric>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/low_rank_rule.h"
#include "backend/score_plan.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

// Writers that are no heads.
std::vector<int> plain_writers(const Writers& writers, int visible) {
  std::vector<int> out;
  for (int j = 0; j < visible; ++j) {
    if (writers[j].kind != WriterKind::head) out.push_back(j);
  }
  return out;
}

}  // namespace

// Of a model whose layers go up as they are needed every layer would go up for every other one.
bool CudaBackend::low_rank(const DeviceMatrix& w, Index length) {
  const Index rows = static_cast<Index>(config_.n_heads) * config_.d_head;
  if (on_device_.streams() || !heads_write_products(config_)) return false;
  return split_.pays(w, rows) && low_rank_is_cheaper(config_, length, split_.gain(w));
}

Array CudaBackend::head_product(int source, const SplitProducts::Weights& w) {
  const auto layer = on_device_.layer(source);
  const DeviceMatrix& o = layer->matrix(model::Role::w_o);
  if (config_.norm != Norm::layer) {
    Array whole = device_->floats(o.in * w.out);
    split_.multiply_stored(o, w, ptr(whole));
    return whole;
  }
  Array rows = device_->floats(o.in * o.out);
  device_->launch(
      StoredRows{o.data.get(), o.type, o.factor, o.turned ? 1 : 0, o.in, o.out, ptr(rows)},
      o.in * o.out);
  device_->launch(CenterRows{ptr(rows), o.out, 0, ptr(rows), o.out, 0, 1, o.out, 1}, o.in);
  Array made = device_->floats(o.in * w.out);
  split_.multiply({ptr(rows), o.out, nullptr, o.out, o.in, true}, w, ptr(made));
  return made;
}

SplitProducts::HeadWeights CudaBackend::by_head(const Array& product, Index columns,
                                                SplitProducts::Kind kind) {
  return split_.head_weights(product, config_.n_heads, config_.d_head, columns, kind);
}

// [count, plain, D], centred.
Array CudaBackend::make_plain(const WriterParts& parts, Index first, Index count, Index plain) {
  const int width = plain, length = count;
  Array out = device_->floats(count * plain * config_.d_model);
  int at = 0;
  const auto put = [&](const Array& rows) {
    if (at < width) put_writer(rows, first, length, out, width, at);
    ++at;
  };
  put(*parts.emb);
  if (config_.has_pos_writer()) put(*parts.pos);
  for (const WriterParts::Layer& layer : parts.layers) put(*layer.mlp_out);
  return out;
}

template <typename ViewOf>
void CudaBackend::multiply_plain(const ViewOf& view, const std::vector<int>& plain,
                                 const int* listed, Index first, Index count,
                                 const SplitProducts::Weights& w, float* c) {
  const Index d = config_.d_model, p = plain.size(), stride = view.n_writers * d;
  if (view.parts == nullptr)
    return split_.multiply(
        {ptr(*view.writers) + first * stride, d, listed, d, count * p, true, p, stride}, w, c);
  const Array made = make_plain(*view.parts, first, count, p);
  split_.multiply({ptr(made), d, nullptr, d, count * p, true}, w, c);
}

MlpSums CudaBackend::low_rank_neurons(const MlpView& view, MlpSide side, const DeviceMatrix& matrix,
                                      Wanted wanted) {
  const Index d = config_.d_model, n = matrix.out, cl = view.visible, length = view.length,
              heads = config_.n_heads, width = heads * config_.d_head;
  const std::vector<int> plain = plain_writers(writers_, view.visible);
  const auto columns = device_->upload(std::span<const int>(plain));
  const auto p = static_cast<Index>(plain.size()), most = std::max(p, heads);
  const bool norms = wanted == Wanted::norms;
  MlpSums sums;
  if (norms) {
    sums.l2 = device_->floats(length * cl);
  } else {
    sums.sum = device_->floats(length * n);
    sums.abs = device_->floats(length * n);
  }
  const Index at_once = positions_at_once(length, most * n + 2 * std::max(d, width));
  Array tile = device_->floats(at_once * most * n);
  const SplitProducts::Weights weights = split_.weights(matrix);
  // What `make` puts into tiles [positions, writers, N].
  const auto each_tile = [&](Index writers, Index first, const int* listed, const auto& make) {
    for (Index q0 = 0; q0 < length; q0 += at_once) {
      const Index nq = std::min(at_once, length - q0);
      const NeuronRows rows{q0, nullptr, nullptr};
      make(q0, nq);
      const NeuronTile made{ptr(tile), nq, writers, n, rows, cl, first, listed, listed == nullptr};
      if (norms) {
        norm_neurons(made, *view.dev, ptr(sums.l2));
      } else {
        sum_neurons(made, *view.dev, nullptr, ptr(sums.abs));
      }
    }
  };
  each_tile(p, 0, columns.get(), [&](Index q0, Index nq) {
    multiply_plain(view, plain, columns.get(), q0, nq, weights, ptr(tile));
  });
  for (int source = 0; source < source_layers(writers_, view.visible); ++source) {
    // Sums of sizes over neurons' writers: as exact as those of other writers.
    const SplitProducts::HeadWeights made = by_head(head_product(source, weights), n, weights.kind);
    const float* z = ptr(*view.z[source]);
    const Index first = writers_.first_of_layer(source);
    each_tile(heads, first, nullptr, [&](Index q0, Index nq) {
      split_.multiply_heads(z + q0 * width, nq, made, ptr(tile), heads * n);
    });
  }
  if (!norms) neuron_read(view, side, nullptr, sums.sum);
  return sums;
}

// out[positions, Cl, width]
void CudaBackend::low_rank_project(const AttentionView& view, const Projection& way, Index first,
                                   Index positions, Array& out) {
  const Index d = config_.d_model, n = way.width, cl = view.visible, heads = config_.n_heads,
              each = heads * config_.d_head;
  const std::vector<int> plain = plain_writers(writers_, view.visible);
  const auto columns = device_->upload(std::span<const int>(plain));
  const Index p = plain.size();
  const Index at_once = positions_at_once(positions, p * (n + 2 * d));
  Array made = device_->floats(at_once * p * n);
  for (Index done = 0; done < positions; done += at_once) {
    const Index rows = std::min(at_once, positions - done) * p;
    multiply_plain(view, plain, columns.get(), first + done, rows / p, way.parts, ptr(made));
    device_->launch(PlaceRows{ptr(made), columns.get(), ptr(out) + done * cl * n, p, cl, n},
                    rows * n);
  }
  for (int source = 0; source < source_layers(writers_, view.visible); ++source) {
    const std::size_t at = source;
    const Index to = writers_.first_of_layer(source);
    split_.multiply_heads(
        ptr(*view.z[at]) + first * each, positions,
        by_head(way.heads.empty() ? head_product(source, way.parts) : way.heads[at], n,
                SplitProducts::Kind::halves),
        ptr(out) + to * n, cl * n);
  }
}

}  // namespace unpack::backend::cuda
