// The sweep and the masses of paths on a device, without a round trip per layer.
#include "backend/cuda/cuda_backend.h"
#include "base/index.h"

namespace unpack::backend::cuda {

namespace {

// Spans of doubles packed as floats into one upload.
class Packed {
 public:
  std::size_t add(std::span<const double> values) {
    const std::size_t at = values_.size();
    values_.insert(values_.end(), values.begin(), values.end());
    return at;
  }
  void upload(Device& device) { memory_ = device.upload(std::span<const float>(values_)); }
  const float* at(std::size_t offset) const { return memory_.get() + offset; }

 private:
  std::vector<float> values_;
  std::shared_ptr<const float> memory_;
};

struct Offsets {
  std::size_t entry = 0, key_coef = 0, query_edge = 0;
  std::array<std::size_t, kMostReaders> mlp_edge{};
};

}  // namespace

void CudaBackend::sweep(std::span<const Layer> layers, Scores scores, int position,
                        std::span<const double> first, std::span<const Direct> direct,
                        std::vector<double>& credit) {
  const Index heads = config_.n_heads, groups = config_.n_kv_heads, group = config_.group_size();
  Packed packed;
  std::vector<Offsets> offsets;
  for (const Direct& d : direct) {
    Offsets o{packed.add(d.entry), packed.add(d.key_coef), packed.add(d.query_edge), {}};
    for (std::size_t i = 0; i < kMostReaders; ++i) o.mlp_edge[i] = packed.add(d.mlp_edge[i]);
    offsets.push_back(o);
  }
  packed.upload(*device_);
  const auto first_credit = device_->upload(first);
  const auto memory = device_->bytes(credit.size() * sizeof(double));
  auto* state = static_cast<double*>(memory.get());
  device_->to_device(state, credit.data(), credit.size() * sizeof(double));
  for (std::size_t l = layers.size(); l-- > 0;) {
    const Layer& layer = layers[l];
    const AttentionView& view = layer.attention;
    const Index length = view.length, pairs = tri(view.length), writers = view.n_writers;
    DirectPart part{};
    for (std::size_t i = 0; i < direct.size(); ++i) {
      if (direct[i].layer != view.layer) continue;
      part.credit = first_credit.get();
      part.position = position;
      part.entry = packed.at(offsets[i].entry);
      part.key_coef = packed.at(offsets[i].key_coef);
      part.query_edge = packed.at(offsets[i].query_edge);
      for (std::size_t side = 0; side < kMostReaders; ++side)
        part.mlp_edge[side] = packed.at(offsets[i].mlp_edge[side]);
    }
    device_->launch(
        PassNeurons{state,
                    {maybe(layer.neurons[0]), maybe(layer.neurons[1]), maybe(layer.neurons[2])},
                    part,
                    writers,
                    layer.mlp.visible,
                    layer.mlp_writer},
        length);
    Array coef = device_->floats(heads * pairs);
    device_->launch(KeyCredit{state, ptr(layer.heads.key_coef), ptr(coef), part, writers,
                              layer.first_head, length, pairs},
                    heads * length);
    const auto values = device_->bytes(groups * length * sizeof(double));
    device_->launch(ValueCredit{state, ptr(layer.heads.entry), static_cast<double*>(values.get()),
                                part, writers, layer.first_head, length, pairs, group},
                    groups * length);
    Array keys;
    if (view.visible == 1 && scores == Scores::raw && !layer.sums->k_sum.empty()) {
      keys = device_->floats(length);
      device_->launch(KeysOfOne{ptr(coef), ptr(layer.sums->k_sum), ptr(keys), heads, length, pairs},
                      length);
    } else {
      keys = fold_keys(view, coef);
    }
    if (scores == Scores::centered)
      device_->launch(CenteredKeys{ptr(coef), ptr(layer.sums->k_mean), ptr(keys), length, pairs,
                                   heads, view.visible},
                      keys.size());
    device_->launch(PassHeads{state, ptr(keys), ptr(layer.heads.query_edge),
                              ptr(layer.heads.value_edge), static_cast<const double*>(values.get()),
                              part, writers, layer.first_head, length, heads, groups, view.visible},
                    length);
  }
  device_->to_host(credit.data(), state, credit.size() * sizeof(double));
}

void CudaBackend::suffix(std::span<const Layer> layers, Scores scores, int terminals, bool begun,
                         std::vector<double>& mass, std::vector<double>& bound) {
  if (layers.empty()) return;
  const Index heads = config_.n_heads, groups = config_.n_kv_heads,
              length = layers[0].attention.length, writers = layers[0].attention.n_writers;
  const Index pairs = tri(length), size = length * writers;
  const bool centered = scores == Scores::centered;
  const auto doubles = [&](Index n) {
    const auto memory = device_->bytes(n * sizeof(double));
    return std::shared_ptr<double>(memory, static_cast<double*>(memory.get()));
  };
  const auto masses = doubles(size), bounds = doubles(size);
  const Reach reach{masses.get(), bounds.get(), writers};
  if (begun) {
    device_->to_device(masses.get(), mass.data(), mass.size() * sizeof(double));
    device_->to_device(bounds.get(), bound.data(), bound.size() * sizeof(double));
  } else {
    device_->launch(StartReach{reach, terminals}, size);
  }
  const Index all_parts = (length + KeyReach::kSources - 1) / KeyReach::kSources;
  const auto key_mass = doubles(heads * length * all_parts),
             key_bound = doubles(heads * length * all_parts), query_mass = doubles(heads * length),
             query_bound = doubles(heads * length);
  const auto value_mass = doubles(groups * length), value_bound = doubles(groups * length);
  const auto side_mass = doubles(kMostReaders * length),
             side_bound = doubles(kMostReaders * length);
  for (const Layer& layer : layers) {
    const AttentionView& view = layer.attention;
    const Index cl = view.visible, cm = layer.mlp.visible;
    // One part where the sums over a source's writers are made on the chip.
    const bool on_chip = !centered && layer.sums->k_scores.empty() && reads_sums(Side::key, view) &&
                         sums_on_chip(Side::key, view);
    const Index parts = on_chip ? 1 : all_parts;
    if (on_chip) {
      Array mass_in_units = device_->floats(size), bound_in_units = device_->floats(size),
            pair_mass = device_->floats(heads * pairs), pair_bound = device_->floats(heads * pairs);
      const auto unit = doubles(2 * length);
      device_->launch(ReachInUnits{reach, ptr(mass_in_units), ptr(bound_in_units), unit.get()},
                      length);
      pair_sums(Side::key, view, {ptr(mass_in_units), ptr(bound_in_units)}, pair_mass,
                ptr(pair_bound));
      device_->launch(KeyPairReach{ptr(pair_mass), ptr(pair_bound), unit.get(),
                                   ptr(layer.heads.key_coef), key_mass.get(), key_bound.get(),
                                   length, pairs, config_.layer(view.layer).window},
                      heads * length);
    } else {
      key_reach(layer, scores, reach, parts, key_mass.get(), key_bound.get());
    }
    device_->launch(RowReach{ptr(layer.heads.query_edge), reach, query_mass.get(),
                             query_bound.get(), length, cl},
                    heads * length);
    device_->launch(RowReach{ptr(layer.heads.value_edge), reach, value_mass.get(),
                             value_bound.get(), length, cl},
                    groups * length);
    device_->launch(
        HeadReach{reach, key_mass.get(), key_bound.get(), query_mass.get(), query_bound.get(),
                  value_mass.get(), value_bound.get(), ptr(layer.heads.entry), layer.first_head,
                  length, pairs, config_.group_size(), parts},
        heads * length);
    NeuronReach neurons{};
    neurons.reach = reach;
    neurons.writer = layer.mlp_writer;
    for (std::size_t side = 0; side < kMostReaders; ++side) {
      if (layer.neurons[side].empty()) continue;
      double* m = side_mass.get() + static_cast<Index>(side) * length;
      double* b = side_bound.get() + static_cast<Index>(side) * length;
      device_->launch(RowReach{ptr(layer.neurons[side]), reach, m, b, length, cm}, length);
      neurons.mass[side] = m;
      neurons.bound[side] = b;
    }
    device_->launch(neurons, length);
  }
  mass.resize(size);
  bound.resize(size);
  device_->to_host(mass.data(), masses.get(), mass.size() * sizeof(double));
  device_->to_host(bound.data(), bounds.get(), bound.size() * sizeof(double));
}

}  // namespace unpack::backend::cuda
