// Products of the weights of two layers.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "backend/host/host_backend.h"
#include "backend/host/kernels.h"
#include "backend/question_tables.h"

namespace unpack {

template <typename T>
HostProducts<T>::HostProducts(std::shared_ptr<const ModelWeights> weights,
                              const BackendOptions& options)
    : HostHeads<T>(std::move(weights), options),
      products_(options.weight_products ? 2 * static_cast<std::size_t>(config_.n_layers) : 0) {}

template <typename T>
std::shared_ptr<const std::vector<T>> HostProducts<T>::head_products(int index, MlpSide side) {
  if (products_.empty()) return nullptr;
  HeadProduct& product =
      products_[static_cast<std::size_t>(index) * 2 + (side == MlpSide::gate ? 0 : 1)];
  product.once([&] {
    // [panel][visible head, E][columns]
    const auto target = layer(index);
    const Panels<T>& in = side == MlpSide::gate ? target->mlp.in : target->mlp.up;
    const std::int64_t d = config_.d_model;
    const std::int64_t rows = static_cast<std::int64_t>(config_.n_heads) * config_.d_head;
    const int sources = config_.block == Block::parallel ? index : index + 1;
    auto made = std::make_shared<std::vector<T>>(static_cast<std::size_t>(sources * rows * in.out));
    for (int source = 0; source < sources; ++source) {
      const auto w = layer(source);
      std::vector<T> centered(static_cast<std::size_t>(rows * d));
      pool_.parallel_for(rows, [&](std::int64_t r) {
        for (std::int64_t p = 0; p < w->o.count(); ++p) {
          std::copy_n(w->o.panel(p) + r * w->o.columns(p), w->o.columns(p),
                      centered.data() + r * d + w->o.begin(p));
        }
        center_row(centered.data() + r * d);
      });
      const std::int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
      pool_.parallel_for(in.count() * blocks, [&](std::int64_t task) {
        const std::int64_t p = task / blocks;
        const std::int64_t row = task % blocks * kRowBlock;
        const std::int64_t n = in.columns(p);
        T* to = made->data() + sources * rows * in.begin(p) + (source * rows + row) * n;
        gemm(false, std::min(kRowBlock, rows - row), n, d, centered.data() + row * d, d,
             in.panel(p), n, false, to, n);
      });
    }
    product.data = made;
  });
  return product.data;
}

// Scores of the heads for one panel of neurons: sum[position, {sum, abs}, n] and square[position,
// Cl] get their parts; the scores of the last of the positions go to last[Cl, N] where that is
// given.
template <typename T>
void HostProducts<T>::add_head_products(const MlpView& view, const std::vector<T>& products,
                                        const Panels<T>& in, std::int64_t p, std::int64_t begin,
                                        std::int64_t positions, double* sum, double* square,
                                        T* last) {
  constexpr std::int64_t kHeads = 8;
  const std::int64_t heads = config_.n_heads;
  const std::int64_t e = config_.d_head;
  const std::int64_t n = in.columns(p);
  const std::int64_t sources = config_.block == Block::parallel ? view.layer : view.layer + 1;
  const T* panel = products.data() + sources * heads * e * in.begin(p);
  Scratch scratch;
  T* tile = scratch.of<T>(kHeads * positions * n);
  for (std::int64_t first = 0; first < sources * heads; first += kHeads) {
    const std::int64_t count = std::min(kHeads, sources * heads - first);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t head = first + i;
      const T* z = ptr(*view.z[static_cast<std::size_t>(head / heads)]) + begin * heads * e +
                   head % heads * e;
      gemm(false, positions, n, e, z, heads * e, panel + head * e * n, n, false,
           tile + i * positions * n, n);
    }
    for (std::int64_t q = 0; q < positions; ++q) {
      double squares[kHeads] = {};
      reduce_writers(tile + q * n, count, n, positions * n, sum + 2 * q * n, sum + (2 * q + 1) * n,
                     squares);
      for (std::int64_t i = 0; i < count; ++i) {
        square[q * view.visible + writers_.head(static_cast<int>((first + i) / heads),
                                                static_cast<int>((first + i) % heads))] =
            squares[i];
      }
    }
    for (std::int64_t i = 0; last && i < count; ++i) {
      const int writer = writers_.head(static_cast<int>((first + i) / heads),
                                       static_cast<int>((first + i) % heads));
      keep_row(tile + (i * positions + positions - 1) * n, n, ptr(*view.dev)[begin + positions - 1],
               last + writer * in.out);
    }
  }
}

template class HostProducts<float>;
template class HostProducts<double>;

}  // namespace unpack
