// Products of the weights of two layers.
#include <algorithm>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/mlp_readers.h"
#include "base/index.h"
#include "base/scratch.h"

namespace unpack::backend {

// The reference takes every writer as it is, so that what the tests hold against it goes another
// way.
template <typename T>
HostProducts<T>::HostProducts(std::shared_ptr<const model::ModelWeights> weights,
                              const BackendOptions& options)
    : HostForward<T>(std::move(weights), options),
      kept_(options.weight_products ? 2 * config_.n_layers : 0) {}

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
std::vector<DevicePlan::Part> HostProducts<T>::plan(const Writers& writers, int tokens,
                                                    bool /*by_layer*/) {
  using Part = DevicePlan::Part;
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
Index HostProducts<T>::product_size(const Panels<T>& w, int sources) const {
  return Index{sources} * config_.n_heads * config_.d_head *
         padded_columns(std::min(w.width, w.out));
}

// As it lies where its columns fill panels.
template <typename T>
InPanels<T> HostProducts<T>::in_panels(const T* b, Index depth, Index n, base::Scratch& packed) {
  if (n % kPanelColumns == 0) return InPanels<T>::plain(b, n);
  T* to = packed.of<T>(depth * padded_columns(n));
  pack_columns(false, depth, n, b, n, to);
  return InPanels<T>::packed(to, depth);
}

template <typename T>
void HostProducts<T>::make_products(const Panels<T>& w, int sources, Index first, Index count,
                                    T* out) {
  constexpr Index kRows = 256;  // of W_O at once
  // Layers that are held: where W_O has to be widened first, as few as keep the threads busy.
  constexpr int kSources = 8, kWidened = 2;
  const Index d = config_.d_model, e = config_.d_head, heads = config_.n_heads;
  const Index size = product_size(w, sources), width = padded_columns(w.width);
  // C goes to the side of W, whose columns it centres.
  base::Scratch sides;
  T* right = sides.of<T>(count * d * width);
  pool_.parallel_for(count, [&](Index i) {
    const Index n = w.columns(first + i);
    const Panel<T> panel = w.panel(first + i);
    if (config_.norm == Norm::rms) {
      pack_columns<T>(false, d, n, panel, n, right + i * d * width);
      return;
    }
    base::Scratch scratch;
    T* centered = scratch.of<T>(d * n);
    std::copy_n(static_cast<const T*>(panel), d * n, centered);
    std::vector<double> mean(n, 0.0);
    add_columns(centered, d, n, mean.data());
    for (double& m : mean) m /= d;
    subtract_columns(centered, d, n, mean.data());
    pack_columns<T>(false, d, n, centered, n, right + i * d * width);
  });
  const Index together = std::clamp<Index>(kRows / e, 1, heads);
  const Index blocks = (heads + together - 1) / together;
  const int held = layer(0)->matrix(model::Role::w_o).packed() ? kSources : kWidened;
  const Index whole = heads * e * d;
  Array outputs;
  for (int from = 0; from < sources; from += held) {
    const int some = std::min(held, sources - from);
    std::vector<std::shared_ptr<const RolePanels<T>>> layers;
    for (int i = 0; i < some; ++i) {
      layers.push_back(layer(from + i));
      if (layers.back()->matrix(model::Role::w_o).packed()) continue;
      if (outputs.empty()) outputs = uninitialized(held * whole);
      this->widen(layers.back()->matrix(model::Role::w_o), ptr(outputs) + i * whole);
    }
    pool_.parallel_for(some * count * blocks, [&](Index task) {
      const Index i = task / blocks % count;
      const Index source = task / blocks / count;
      const Index head = task % blocks * together;
      const Index columns = padded_columns(w.columns(first + i));
      const Index rows = std::min(together, heads - head) * e;
      const auto b = InPanels<T>::packed(right + i * d * width, d);
      T* to = out + i * size + ((from + source) * heads + head) * e * columns;
      const Panels<T>& o = layers[source]->matrix(model::Role::w_o);
      for (Index p = 0; p < o.count(); ++p) {
        const T* left = o.packed() ? static_cast<const T*>(o.rows(p, head * e, rows))
                                   : ptr(outputs) + source * whole + o.in * o.begin(p) +
                                         head * e * o.columns(p);
        for (Index panel = 0; panel < columns / kPanelColumns; ++panel) {
          for (Index r = 0; r < rows; r += e)
            packed_product<T>({e, kPanelColumns, o.columns(p), left + r * o.columns(p),
                               o.columns(p), b.from_row(o.begin(p)).from_panel(panel), p > 0,
                               to + r * columns + panel * e * kPanelColumns, kPanelColumns, 0});
        }
      }
    });
  }
}

template <typename T>
std::shared_ptr<const PanelValues<T>> HostProducts<T>::kept_products(int index, MlpSide side) {
  if (kept_.empty()) return nullptr;
  Kept& kept = kept_[index * 2 + neuron_side(side)];
  kept.once([&] {
    const base::ThreadPool::Apart apart;
    const auto target = layer(index);
    const Panels<T>& in = target->matrix(Backend::matrix_of(side));
    const int sources = source_layers(writers_, writers_.visible_to_mlp(index));
    PanelMemory memory;
    auto made = std::make_shared<PanelValues<T>>(memory, in.count() * product_size(in, sources));
    make_products(in, sources, 0, in.count(), made->data());
    kept.data = made;
  });
  return kept.data;
}

// Scores of writers for one panel of neurons, of heads through their packed products: sum[position,
// {sum, abs}, n] and square[position, Cl] get their parts; the scores of the last of the positions
// go to last[Cl, N] where that is given.
template <typename T>
void HostProducts<T>::add_with_products(const MlpView& view, const T* products, const Panels<T>& in,
                                        Index p, Index begin, Index positions, double* sum,
                                        double* square, T* last) {
  constexpr int kTogether = 8;  // writers whose scores are added before they go to double
  const Index d = config_.d_model, n = in.columns(p);
  const Index padded = padded_columns(n);
  base::Scratch scores, packed;
  const Index places = 2 * positions * padded;
  T* some = scores.of<T>(places + padded);
  T* abs = some + positions * padded;
  T* row = some + places;
  std::fill_n(some, places, T(0));
  const Panel<T> panel = in.panel(p);
  const InPanels<T> whole = in_panels(panel, d, n, packed);
  int added = 0;
  const auto add = [&](int writer) {
    const Writer& of = writers_[writer];
    HeadProduct<T> product{positions,
                           padded,
                           d,
                           ptr(*view.writers) + (begin * view.n_writers + writer) * d,
                           view.n_writers * d,
                           whole,
                           some,
                           abs,
                           padded,
                           square + writer,
                           view.visible};
    through_weights(view.z, of, begin, products, padded, product);
    if (last) product.last = row;
    head_sums(product);
    if (last) keep_row(row, n, ptr(*view.dev)[begin + positions - 1], last + writer * in.out);
    if (++added % kTogether != 0 && added != view.visible) return;
    for (Index q = 0; q < positions; ++q) {
      double* to = sum + 2 * q * n;
      const T* from = some + q * padded;
      for (Index c = 0; c < n; ++c) {
        to[c] += from[c];
        to[n + c] += from[positions * padded + c];
      }
    }
    std::fill_n(some, places, T(0));
  };
  // The panel stays in the cache while it is used; products are read once.
  for (const bool heads : {false, true}) {
    for (int j = 0; j < view.visible; ++j) {
      if ((writers_[j].kind == WriterKind::head) == heads) add(j);
    }
  }
}

template class HostProducts<float>;

}  // namespace unpack::backend
