#include "credit/device_edges.h"

#include <numeric>
#include <optional>

#include "backend/device_credit.h"
#include "base/index.h"

namespace unpack::credit {

namespace {

// Arrays cut from one block of device memory, so that one copy brings them all to the host.
class Bundle {
 public:
  explicit Bundle(backend::Backend& backend) : backend_(backend) {}

  // The array exists once the bundle is made.
  void add(backend::Array& slot, Index size) {
    parts_.push_back({&slot, total_, size});
    total_ += size;
  }
  void make() {
    memory_ = backend_.zeros(total_);
    for (const Part& part : parts_) *part.slot = backend_.slice(memory_, part.offset, part.size);
  }
  Index size() const { return total_; }

  void fetch() { host_ = backend_.host(memory_); }
  template <typename T>
  void read(const backend::Array& slot, std::vector<T>& out) const {
    for (const Part& part : parts_) {
      if (part.slot != &slot) continue;
      const float* from = static_cast<const float*>(host_.get()) + part.offset;
      out.assign(from, from + part.size);
    }
  }

 private:
  struct Part {
    backend::Array* slot;
    Index offset, size;
  };
  backend::Backend& backend_;
  std::vector<Part> parts_;
  Index total_ = 0;
  backend::Array memory_;
  std::shared_ptr<const void> host_;
};

// What a layer gives for some queries.
struct LayerArrays {
  backend::DeviceCredit::HeadEdges heads;
  std::array<backend::DeviceCredit::NeuronEdges, backend::kMostReaders> neurons;
};

void queue_neurons(backend::DeviceCredit& device, const decompose::Decomposition& d,
                   const Options& options, int layer, std::span<const int> queries,
                   const backend::Array& numerators, LayerArrays& out) {
  const LayerConfig& shape = d.config().layer(layer);
  const std::vector<backend::MlpReader> readers = backend::mlp_readers(shape);
  for (std::size_t i = 0; i < readers.size(); ++i) {
    const backend::MlpSide side = readers[i].side;
    const double weight = backend::reader_weight(options, shape, i);
    if (weight == 0 && out.neurons[i].shares.empty()) continue;
    backend::MlpSums with_norms;
    const backend::MlpSums* sums =
        options.mlp == MlpRule::linearized ? nullptr : &d.mlp(layer, side, options.scores);
    if (options.mlp == MlpRule::l2 && sums->l2.empty()) {
      with_norms = *sums;
      with_norms.l2 = d.mlp_norms(layer, side);
      sums = &with_norms;
    }
    device.neuron_edges(d.mlp_view(layer), side, sums, d.pre(layer, side, options.scores), queries,
                        numerators, weight, options, out.neurons[i]);
  }
}

// Direct edges of some layers towards a target, a layer at a time.
class DirectQueue {
 public:
  DirectQueue(backend::DeviceCredit& device, const decompose::Decomposition& d,
              const Options& options, std::span<const int> layers, const EdgesTarget& target)
      : device_(device),
        d_(d),
        options_(options),
        layers_(layers.begin(), layers.end()),
        target_(target),
        bundle_(d.backend()),
        arrays_(layers.size()) {
    const ModelConfig& c = d.config();
    const Index heads = c.n_heads, sources = target.query + 1;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      LayerArrays& a = arrays_[i];
      const Index cl = d.writers().visible_to_attention(layers_[i]),
                  cm = d.writers().visible_to_mlp(layers_[i]);
      bundle_.add(a.heads.entry, heads * sources);
      bundle_.add(a.heads.key_coef, heads * sources);
      bundle_.add(a.heads.query_edge, heads * cl);
      const LayerConfig& shape = c.layer(layers_[i]);
      for (std::size_t r = 0; r < backend::mlp_readers(shape).size(); ++r)
        bundle_.add(a.neurons[r].edge, cm);
      bundle_.add(a.neurons[backend::gate_index(shape)].shares, shape.entries());
    }
    bundle_.make();
  }

  void queue(std::size_t i) {
    backend::Backend& backend = d_.backend();
    const ModelConfig& c = d_.config();
    const int layer = layers_[i];
    d_.enter(layer);
    const std::vector<int> queries = {target_.query};
    const backend::AttentionView view = d_.attention_view(layer);
    backend::Array numerators = backend.uninitialized(Index{c.n_heads} * (target_.query + 1)),
                   neurons = backend.uninitialized(c.layer(layer).entries());
    backend.head_numerators(view, queries, target_.direction, numerators);
    // Towards a target entries are shares whatever the dispatch inside the model is.
    Options aligned = options_;
    aligned.dispatch = Dispatch::aligned;
    device_.head_edges(view, d_.attention(layer, options_.scores), queries, numerators, aligned,
                       arrays_[i].heads);
    backend.mlp_numerators(d_.mlp_view(layer), queries, target_.direction, neurons);
    queue_neurons(device_, d_, options_, layer, queries, neurons, arrays_[i]);
  }

  void fetch(std::vector<DirectEdges>& out) {
    bundle_.fetch();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      DirectEdges to;
      to.layer = layers_[i];
      to.query = target_.query;
      bundle_.read(arrays_[i].heads.entry, to.entry);
      bundle_.read(arrays_[i].heads.key_coef, to.key_coef);
      bundle_.read(arrays_[i].heads.query_edge, to.query_edge);
      const LayerConfig& shape = d_.config().layer(layers_[i]);
      for (std::size_t r = 0; r < backend::mlp_readers(shape).size(); ++r)
        bundle_.read(arrays_[i].neurons[r].edge, to.mlp_edge[r]);
      bundle_.read(arrays_[i].neurons[backend::gate_index(shape)].shares, to.neuron_share);
      out.push_back(std::move(to));
    }
  }

 private:
  backend::DeviceCredit& device_;
  const decompose::Decomposition& d_;
  const Options& options_;
  std::vector<int> layers_;
  const EdgesTarget& target_;
  Bundle bundle_;
  std::vector<LayerArrays> arrays_;
};

std::vector<int> all_of(int count) {
  std::vector<int> all(count);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

backend::Array neurons_asked(const decompose::Decomposition& d, const Options& options, int layer) {
  return options.mlp == MlpRule::l2 ? backend::Array() : neuron_entries(d, options, layer);
}

backend::DeviceCredit::Layer device_layer(const decompose::Decomposition& d,
                                          const backend::AttentionView& view,
                                          const backend::AttentionSums& sums,
                                          const LayerArrays& a) {
  return {view,
          d.mlp_view(view.layer),
          &sums,
          a.heads,
          {a.neurons[0].edge, a.neurons[1].edge, a.neurons[2].edge},
          d.writers().head(view.layer, 0),
          d.writers().mlp(view.layer)};
}

// From the lowest layer up, each made, handed to the companion and left before the next: of the
// heads' edges only those that do not grow with the square of the prompt stay, on the device.
void walk_up(backend::DeviceCredit& device, const decompose::Decomposition& d,
             const Options& options, const RunContext& context, const EdgesTarget* target,
             EdgesCompanion<float>* companion, std::vector<LayerEdges<float>>& out,
             std::vector<backend::DeviceCredit::Layer>& layers, std::vector<DirectEdges>& direct) {
  backend::Backend& backend = d.backend();
  const ModelConfig& c = d.config();
  const Index length = d.length(), heads = c.n_heads, pairs = backend::tri(length);
  const std::vector<int> queries = all_of(d.length());
  static const backend::AttentionSums no_sums;
  std::optional<DirectQueue> towards;
  if (target != nullptr) towards.emplace(device, d, options, all_of(c.n_layers), *target);
  for (int l = 0; l < c.n_layers; ++l) {
    context.report("layers", l, c.n_layers);
    d.enter(l);
    LayerArrays a;
    LayerEdges<float>& to = out[l];
    const Index cl = d.writers().visible_to_attention(l), cm = d.writers().visible_to_mlp(l);
    a.heads.query_edge = backend.uninitialized(heads * length * cl);
    a.heads.value_edge = backend.uninitialized(c.n_kv_heads * length * cl);
    a.heads.doubt = backend.zeros(heads * length);
    const std::size_t sides = backend::mlp_readers(c.layer(l)).size();
    for (std::size_t i = 0; i < sides; ++i) a.neurons[i].edge = backend.zeros(length * cm);
    a.neurons[0].doubt = backend.zeros(length);
    a.neurons[1].doubt = a.neurons[2].doubt = a.neurons[0].doubt;
    queue_neurons(device, d, options, l, queries, neurons_asked(d, options, l), a);
    const backend::AttentionView view = d.attention_view(l);
    a.heads.entry = backend.uninitialized(heads * pairs);
    a.heads.key_coef = backend.uninitialized(heads * pairs);
    device.head_edges(view, d.attention(l, options.scores, context), queries,
                      head_entries(d, options, l), options, a.heads);
    if (towards) towards->queue(l);
    d.leave_sums();
    layers.push_back(device_layer(d, view, no_sums, a));
    if (companion != nullptr) companion->built(device, layers.back(), options.scores);
    layers.back().heads.entry = layers.back().heads.key_coef = {};
    const auto fetch = [&](const backend::Array& array, auto& values) {
      const auto host = backend.host(array);
      const float* from = static_cast<const float*>(host.get());
      values.assign(from, from + array.size());
    };
    fetch(a.heads.doubt, to.head_doubt);
    for (std::size_t i = 0; i < sides; ++i) fetch(a.neurons[i].edge, to.mlp_edge[i]);
    fetch(a.neurons[0].doubt, to.mlp_doubt);
  }
  if (towards) towards->fetch(direct);
}

}  // namespace

DeviceLayer remade_layer(backend::DeviceCredit& device, const decompose::Decomposition& d,
                         const Options& options, const backend::DeviceCredit::Layer& kept) {
  backend::Backend& backend = d.backend();
  const int l = kept.attention.layer;
  d.enter(l);
  d.leave_sums();
  DeviceLayer out;
  out.layer = kept;
  const backend::AttentionView view = d.attention_view(l);
  const Index size = d.config().n_heads * backend::tri(d.length());
  auto sums = std::make_shared<backend::AttentionSums>(d.key_sums(l, options.scores));
  backend::DeviceCredit::HeadEdges made;
  made.entry = backend.uninitialized(size);
  made.key_coef = backend.uninitialized(size);
  device.head_edges(view, *sums, all_of(d.length()), head_entries(d, options, l), options, made);
  out.layer.heads.entry = made.entry;
  out.layer.heads.key_coef = made.key_coef;
  sums->k_sum = sums->k_abs = sums->v_scores = {};
  out.layer.sums = sums.get();
  out.sums = std::move(sums);
  return out;
}

backend::DeviceCredit* edges_on_device(const decompose::Decomposition& d, const Options& options,
                                       const RunContext& context, const EdgesTarget* target,
                                       EdgesCompanion<float>* companion,
                                       std::vector<LayerEdges<float>>& out,
                                       std::vector<backend::DeviceCredit::Layer>& layers,
                                       std::vector<DirectEdges>& direct) {
  backend::DeviceCredit* device = d.backend().device_credit();
  if (device == nullptr) return nullptr;
  if (d.by_layer()) {
    walk_up(*device, d, options, context, target, companion, out, layers, direct);
    return device;
  }
  const ModelConfig& c = d.config();
  const Index length = d.length(), heads = c.n_heads;
  const std::vector<int> queries = all_of(d.length());
  const bool fetch_entries = 2 * heads * backend::tri(length) * c.n_layers <= kFetchedAtOnce;
  Bundle bundle(d.backend());
  std::vector<LayerArrays> arrays(c.n_layers);
  for (int l = 0; l < c.n_layers; ++l) {
    LayerArrays& a = arrays[l];
    const Index cl = d.writers().visible_to_attention(l), cm = d.writers().visible_to_mlp(l);
    if (fetch_entries) {
      bundle.add(a.heads.entry, heads * backend::tri(length));
      bundle.add(a.heads.key_coef, heads * backend::tri(length));
    } else {
      a.heads.entry = d.backend().zeros(heads * backend::tri(length));
      a.heads.key_coef = d.backend().zeros(heads * backend::tri(length));
    }
    bundle.add(a.heads.query_edge, heads * length * cl);
    bundle.add(a.heads.value_edge, c.n_kv_heads * length * cl);
    bundle.add(a.heads.doubt, heads * length);
    for (std::size_t i = 0; i < backend::mlp_readers(c.layer(l)).size(); ++i)
      bundle.add(a.neurons[i].edge, length * cm);
    bundle.add(a.neurons[0].doubt, length);
  }
  bundle.make();
  std::optional<DirectQueue> towards;
  if (target != nullptr) towards.emplace(*device, d, options, all_of(c.n_layers), *target);
  for (int l = 0; l < c.n_layers; ++l) {
    context.check();
    LayerArrays& a = arrays[l];
    a.neurons[1].doubt = a.neurons[2].doubt = a.neurons[0].doubt;
    const backend::AttentionView view = d.attention_view(l);
    const backend::AttentionSums& sums = d.attention(l, options.scores, context);
    device->head_edges(view, sums, queries, head_entries(d, options, l), options, a.heads);
    queue_neurons(*device, d, options, l, queries, neurons_asked(d, options, l), a);
    layers.push_back(device_layer(d, view, sums, a));
    if (towards) towards->queue(l);
  }
  if (towards) towards->fetch(direct);
  bundle.fetch();
  const auto read_layer = [&](Index l) {
    const LayerArrays& a = arrays[l];
    LayerEdges<float>& to = out[l];
    bundle.read(a.heads.entry, to.entry);
    bundle.read(a.heads.key_coef, to.key_coef);
    bundle.read(a.heads.query_edge, to.query_edge);
    bundle.read(a.heads.value_edge, to.value_edge);
    bundle.read(a.heads.doubt, to.head_doubt);
    for (std::size_t i = 0; i < backend::mlp_readers(c.layer(l)).size(); ++i)
      bundle.read(a.neurons[i].edge, to.mlp_edge[i]);
    bundle.read(a.neurons[0].doubt, to.mlp_doubt);
  };
  // One thread takes long over new memory; waking others takes longer where there is little of it.
  constexpr Index kMuch = Index{1} << 20;
  if (bundle.size() > kMuch) {
    d.backend().parallel_for(c.n_layers, read_layer);
  } else {
    for (int l = 0; l < c.n_layers; ++l) read_layer(l);
  }
  return device;
}

bool direct_on_device(const decompose::Decomposition& d, const Options& options,
                      std::span<const int> layers, int query, const backend::Array& direction,
                      std::vector<DirectEdges>& out) {
  backend::DeviceCredit* device = d.backend().device_credit();
  if (device == nullptr) return false;
  const EdgesTarget target{query, direction};
  DirectQueue direct(*device, d, options, layers, target);
  for (std::size_t i = 0; i < layers.size(); ++i) direct.queue(i);
  direct.fetch(out);
  return true;
}

}  // namespace unpack::credit
