// The scores of neurons and routers, and the sums behind their denominators.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/mlp_readers.h"
#include "backend/question_tables.h"
#include "base/index.h"

namespace unpack::backend {

// Positions that a panel of neurons is put in order for (and made, where it is not packed): many
// rows for that work, as long as no thread goes short.
template <typename T>
Index HostNeurons<T>::positions_together(const Panels<T>& in, Index writers, Index length) const {
  constexpr Index kFew = 192, kPacked = 1024, kMade = 4096;  // rows
  constexpr Index kTasks = 8;                                // a thread
  const Index few = std::max<Index>(1, kFew / writers);
  const Index most = std::max(few, (in.packed() ? kPacked : kMade) / writers);
  const Index together = std::clamp(length * in.count() / (kTasks * pool_.threads()), few, most);
  const Index blocks = (length + together - 1) / together;
  return (length + blocks - 1) / blocks;
}

// Sums of the neurons of some panels, and squares[panel, position, Cl].
template <typename T>
void HostNeurons<T>::neuron_panels(const MlpView& view, const Panels<T>& in,
                                   const NeuronPanels& some, MlpSums& sums,
                                   std::vector<double>& squares) {
  const Index cl = view.visible, length = view.length;
  const bool products = some.products != nullptr;
  const Index size = this->product_size(in, source_layers(writers_, view.visible));
  constexpr Index kPositions = 64;
  const Index together =
      products ? std::min(length, kPositions) : positions_together(in, cl, length);
  const Index blocks = (length + together - 1) / together;
  pool_.parallel_for(blocks * some.count, [&](Index task) {
    // A panel's products are larger than its rows: they are used for all positions one after the
    // other.
    const Index at = products ? task / blocks : task % some.count;
    const Index begin = (products ? task % blocks : task / some.count) * together;
    const Index positions = std::min(together, length - begin);
    base::Scratch narrow, kept, added;
    const Index p = some.first + at;
    const Index n = in.columns(p), padded = padded_columns(n);
    T* last =
        sums.last.empty() || begin + positions < length ? nullptr : ptr(sums.last) + in.begin(p);
    const Index row = products ? n : padded;
    double* sum = added.of<double>(2 * positions * row);
    std::fill_n(sum, 2 * positions * row, 0.0);
    double* square = squares.data() + (p * length + begin) * cl;
    if (products) {
      this->add_with_products(view, some.products + at * size, in, p, begin, positions, sum, square,
                              last);
    } else {
      T* panel = narrow.of<T>(in.in * padded);
      in.in_narrow_panels(p, panel);
      for (Index i = 0; i < positions; ++i) {
        T* scores = last && i == positions - 1 ? kept.of<T>(cl * padded) : nullptr;
        writer_sums({cl, padded, in.in, ptr(*view.writers) + (begin + i) * view.n_writers * in.in,
                     in.in, InPanels<T>::packed(panel, in.in), sum + 2 * i * row,
                     sum + (2 * i + 1) * row, square + i * cl, scores});
        for (Index j = 0; scores && j < cl; ++j)
          keep_row(scores + j * padded, n, ptr(*view.dev)[length - 1], last + j * in.out);
      }
    }
    for (Index i = 0; i < positions; ++i) {
      const double inverse = 1.0 / ptr(*view.dev)[begin + i];
      T* to_sum = ptr(sums.sum) + (begin + i) * in.out + in.begin(p);
      T* to_abs = ptr(sums.abs) + (begin + i) * in.out + in.begin(p);
      const double* from = sum + 2 * i * row;
      for (Index c = 0; c < n; ++c) {
        to_sum[c] = from[c] * inverse;
        to_abs[c] = from[row + c] * inverse;
      }
    }
  });
}

template <typename T>
MlpSums HostNeurons<T>::mlp_sums(const MlpView& view, MlpSide side, Scores scores) {
  if (side == MlpSide::router) return router_sums(view, scores);
  if (view.routing != nullptr) return expert_sums(view, side);
  // sM_j(q, n) = norm(c_j)(q) . W_in[:, n]: a tile of writers x neurons at a time, reduced at once.
  const auto w = layer(view.layer);
  const Panels<T>& in = panels(*w, side);
  const auto way = this->plan_of(view.layer, view.length).neurons[neuron_side(side)];
  const Index cl = view.visible;
  const Index length = view.length;
  MlpSums sums;
  sums.sum = uninitialized(length * in.out);
  sums.abs = uninitialized(length * in.out);
  sums.l2 = uninitialized(length * cl);
  if (keeps_last_scores(config_, writers_, sizeof(T))) sums.last = uninitialized(cl * in.out);
  std::vector<double> squares(in.count() * length * cl, 0.0);
  if (!way.low_rank()) {
    neuron_panels(view, in, {0, in.count(), nullptr}, sums, squares);
  } else if (const auto kept = this->kept_products(view.layer, side)) {
    neuron_panels(view, in, {0, in.count(), kept->data()}, sums, squares);
  } else {
    // Made for some panels, used for all positions, and dropped.
    const int sources = source_layers(writers_, view.visible);
    const Index size = this->product_size(in, sources);
    const Index together = std::clamp<Index>(
        static_cast<Index>(kProductBytes) / (size * static_cast<Index>(sizeof(T))), 1, in.count());
    const Index most = std::min<Index>(in.count() * this->product_size(in, config_.n_layers),
                                       std::max<Index>(size, kProductBytes / sizeof(T)));
    const Array made = this->passing(together * size, most);
    for (Index first = 0; first < in.count(); first += together) {
      const Index count = std::min(together, in.count() - first);
      this->make_products(in, sources, first, count, ptr(made));
      neuron_panels(view, in, {first, count, ptr(made)}, sums, squares);
    }
    this->passed(asked_neurons(config_, view.layer + 1) ? view.layer + 1 : view.layer);
  }
  for (Index q = 0; q < length; ++q) {
    for (Index j = 0; j < cl; ++j) {
      double total = 0;
      for (Index p = 0; p < in.count(); ++p) total += squares[(p * length + q) * cl + j];
      ptr(sums.l2)[q * cl + j] = std::sqrt(total) / ptr(*view.dev)[q];
    }
  }
  return sums;
}

// The same for a mixture: every expert reads the positions that use it.
template <typename T>
MlpSums HostNeurons<T>::expert_sums(const MlpView& view, MlpSide side) {
  const Index n = config_.layer(view.layer).n_neurons, cl = view.visible, d = config_.d_model,
              length = view.length;
  const Routing& routing = *view.routing;
  MlpSums sums;
  sums.sum = uninitialized(length * routing.chosen * n);
  sums.abs = uninitialized(length * routing.chosen * n);
  sums.l2 = uninitialized(length * cl);
  std::vector<double> squares(length * cl * routing.chosen, 0.0);
  std::vector<Index> positions(length);
  std::iota(positions.begin(), positions.end(), Index{0});
  for (const ExpertRows& used : by_expert(routing, positions)) {
    const auto w = expert(view.layer, used.expert);
    const auto whole = this->widened(panels(*w, side));
    const Panels<T>& in = *whole;
    pool_.parallel_for(used.rows.size(), [&](Index i) {
      const Index q = used.rows[i];
      const Index slot = q * routing.chosen + used.slots[i];
      const double inverse = 1.0 / ptr(*view.dev)[q];
      base::Scratch scratch;
      for (Index p = 0; p < in.count(); ++p) {
        const Index columns = in.columns(p);
        T* tile = scratch.of<T>(cl * columns);
        gemm(false, cl, columns, d, ptr(*view.writers) + q * view.n_writers * d, d, in.panel(p),
             columns, false, tile, columns);
        std::vector<double> sum(2 * columns, 0.0);
        reduce_writers(tile, cl, columns, columns, sum.data(), sum.data() + columns,
                       squares.data() + slot * cl);
        for (Index c = 0; c < columns; ++c) {
          const Index at = slot * n + in.begin(p) + c;
          ptr(sums.sum)[at] = sum[c] * inverse;
          ptr(sums.abs)[at] = sum[columns + c] * inverse;
        }
      }
    });
  }
  for (Index q = 0; q < length; ++q) {
    for (Index j = 0; j < cl; ++j) {
      double total = 0;
      for (Index slot = q * routing.chosen; slot < (q + 1) * routing.chosen; ++slot)
        total += squares[slot * cl + j];
      ptr(sums.l2)[q * cl + j] = std::sqrt(total) / ptr(*view.dev)[q];
    }
  }
  return sums;
}

// sR_j(q, e) = norm(c_j)(q) . W_r[:, e] of the chosen experts, less the mean over all of them.
template <typename T>
void HostNeurons<T>::router_scores(const MlpView& view, Scores scores, int query, T* out) {
  const auto w = layer(view.layer);
  const Routing& routing = *view.routing;
  const Index d = config_.d_model, cl = view.visible, experts = routing.experts,
              chosen = routing.chosen;
  std::vector<T> all(cl * experts);
  for (Index p = 0; p < w->matrix(model::Role::w_r).count(); ++p) {
    gemm(false, cl, w->matrix(model::Role::w_r).columns(p), d,
         ptr(*view.writers) + static_cast<Index>(query) * view.n_writers * d, d,
         w->matrix(model::Role::w_r).panel(p), w->matrix(model::Role::w_r).columns(p), false,
         all.data() + w->matrix(model::Role::w_r).begin(p), experts);
  }
  const double inverse = 1.0 / ptr(*view.dev)[query];
  for (Index j = 0; j < cl; ++j) {
    const T* row = all.data() + j * experts;
    double mean = 0;
    if (scores == Scores::centered) mean = std::accumulate(row, row + experts, 0.0) / experts;
    for (int i = 0; i < chosen; ++i) {
      const int e = routing.expert[routing.slot(query, i)];
      out[j * chosen + i] = (row[e] - mean) * inverse;
    }
  }
}

template <typename T>
MlpSums HostNeurons<T>::router_sums(const MlpView& view, Scores scores) {
  const Index cl = view.visible, chosen = view.routing->chosen;
  MlpSums sums;
  sums.sum = this->zeros(view.length * chosen);
  sums.abs = this->zeros(view.length * chosen);
  sums.l2 = uninitialized(view.length * cl);
  pool_.parallel_for(view.length, [&](Index q) {
    std::vector<T> rows(cl * chosen);
    router_scores(view, scores, q, rows.data());
    std::vector<double> sum(2 * chosen, 0.0), square(cl, 0.0);
    reduce_writers(rows.data(), cl, chosen, chosen, sum.data(), sum.data() + chosen, square.data());
    for (Index i = 0; i < chosen; ++i) {
      ptr(sums.sum)[q * chosen + i] = sum[i];
      ptr(sums.abs)[q * chosen + i] = sum[chosen + i];
    }
    for (Index j = 0; j < cl; ++j) ptr(sums.l2)[q * cl + j] = std::sqrt(square[j]);
  });
  return sums;
}

template <typename T>
void HostNeurons<T>::mlp_scores(const MlpView& view, MlpSide side, Scores scores, int query,
                                Array& out) {
  if (side == MlpSide::router) return router_scores(view, scores, query, ptr(out));
  const LayerConfig& shape = config_.layer(view.layer);
  const int slots = view.routing != nullptr ? view.routing->chosen : 1;
  const Index d = config_.d_model, n = shape.n_neurons, width = slots * n;
  const T inverse = T(1) / ptr(*view.dev)[query];
  const std::vector<T> scales(view.visible, inverse);
  for (int slot = 0; slot < slots; ++slot) {
    const auto w = view.routing != nullptr
                       ? expert(view.layer, view.routing->expert[view.routing->slot(query, slot)])
                       : layer(view.layer);
    const Panels<T>& in = panels(*w, side);
    pool_.parallel_for(in.count(), [&](Index p) {
      T* to = ptr(out) + slot * n + in.begin(p);
      const Panel<T> panel = in.panel(p);
      const T* writers = ptr(*view.writers) + static_cast<Index>(query) * view.n_writers * d;
      const Index columns = in.columns(p);
      if (columns % kPanelColumns == 0) {
        packed_product<T>({view.visible, columns, d, writers, d, InPanels<T>::plain(panel, columns),
                           false, to, width, kPanelColumns, scales.data()});
        return;
      }
      gemm(false, view.visible, columns, d, writers, d, panel, columns, false, to, width);
      for (Index j = 0; j < view.visible; ++j) {
        for (Index i = 0; i < columns; ++i) to[j * width + i] *= inverse;
      }
    });
  }
}

template class HostNeurons<float>;

}  // namespace unpack::backend
