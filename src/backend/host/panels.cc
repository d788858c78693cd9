#include "backend/host/panels.h"

#include <cstdlib>
#include <functional>
#include <map>
#include <new>

#include "backend/host/host_memory.h"
#include "backend/host/kernels.h"
#include "base/index.h"
#include "base/system.h"

namespace unpack::backend {

std::shared_ptr<void> PanelMemory::take(std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  const std::size_t size = (std::max<std::size_t>(bytes, 1) + kLine - 1) / kLine * kLine;
  const std::lock_guard lock(mutex_);
  if (size > left_) {
    const std::size_t all = std::max(size, together_);
    const bool mapped = all >= kMapped;
    void* place = mapped ? base::map_memory(all) : std::aligned_alloc(kLine, all);
    if (place == nullptr) throw std::bad_alloc();
    if (mapped) {
      from_ = std::shared_ptr<void>(place, [all](void* p) { base::unmap_memory(p, all); });
    } else {
      from_ = std::shared_ptr<void>(place, [](void* p) { std::free(p); });
    }
    left_ = all;
  }
  std::shared_ptr<void> piece = from_;
  left_ -= size;
  if (left_ == 0) {
    from_.reset();
  } else {
    from_ = std::shared_ptr<void>(piece, static_cast<std::byte*>(piece.get()) + size);
  }
  return piece;
}

template <typename T>
Panel<T>::Panel(const model::WeightView& w, const model::WeightBlock& part,
                const std::vector<T>& row_scale)
    : data_(nullptr), ld_(part.columns) {
  T* to = made_.of<T>(part.rows * ld_);
  model::read_block(w, part, row_scale.empty() ? nullptr : row_scale.data(), to, ld_);
  data_ = to;
}

template <typename T>
void Panels<T>::in_narrow_panels(Index p, T* to) const {
  const Index n = columns(p);
  if (packed()) {
    // Row by row, as it lies: most of it comes from memory.
    const T* from = data.data() + in * begin(p);
    const Index whole = n / kPanelColumns, rest = n % kPanelColumns;
    for (Index row = 0; row < in; ++row, from += n) {
      T* place = to + row * kPanelColumns;
      for (Index i = 0; i < whole; ++i, place += in * kPanelColumns)
        std::copy_n(from + i * kPanelColumns, kPanelColumns, place);
      if (rest == 0) continue;
      std::copy_n(from + whole * kPanelColumns, rest, place);
      std::fill_n(place + rest, kPanelColumns - rest, T(0));
    }
    return;
  }
  for (Index first = 0; first < n; first += kPanelColumns, to += in * kPanelColumns) {
    const Index some = std::min(kPanelColumns, n - first);
    if (some < kPanelColumns) std::fill_n(to, in * kPanelColumns, T(0));
    model::read_block(stored, {0, in, begin(p) + first, some},
                      row_scale.empty() ? nullptr : row_scale.data(), to, kPanelColumns);
  }
}

template class Panel<float>;
template class Panel<double>;
template struct Panels<float>;
template struct Panels<double>;

namespace {

constexpr Index kRowsAtOnce = 64;

// bias + norm_bias W, [1, out]; empty where both are.
template <typename T>
std::vector<T> folded_bias(const model::WeightView& bias, const model::WeightView& norm_bias,
                           const model::WeightView& w) {
  if (!bias && !norm_bias) return {};
  std::vector<double> sum(w.out, 0.0);
  if (bias) model::read_rows(bias, 0, 1, sum.data());
  if (norm_bias) {
    std::vector<double> beta(w.in);
    model::read_rows(norm_bias, 0, 1, beta.data());
    std::vector<double> rows(kRowsAtOnce * w.out);
    for (Index i = 0; i < w.in; i += kRowsAtOnce) {
      const Index n = std::min(kRowsAtOnce, w.in - i);
      model::read_rows(w, i, n, rows.data());
      for (Index r = 0; r < n; ++r) {
        const double scale = beta[i + r];
        const double* row = rows.data() + r * w.out;
        for (Index o = 0; o < w.out; ++o) sum[o] += scale * row[o];
      }
    }
  }
  return {sum.begin(), sum.end()};
}

}  // namespace

template <typename T>
std::vector<T> read_vector(const model::WeightView& w) {
  std::vector<T> out(w ? w.out : 0);
  if (w) model::read_rows(w, 0, 1, out.data());
  return out;
}

namespace {

constexpr Index kWidth = 256;

// Panels that are on their way: what they take is set aside at once, and all are made together.
template <typename T>
class PanelMaker {
 public:
  explicit PanelMaker(const Packing& packing)
      : packing_(packing), memory_(packing.memory != nullptr ? *packing.memory : own_) {}

  // A norm's weight, which scales the rows of matrices; null where there is none.
  const std::vector<T>* scale(const model::WeightView& w) {
    if (!w) return nullptr;
    const auto [known, fresh] = scales_.try_emplace(&w);
    if (fresh) known->second = read_vector<T>(w);
    return &known->second;
  }

  // `to` stays where it is until finish().
  void matrix(Panels<T>& to, const model::WeightView& w, Index width,
              const std::vector<T>* row_scale) {
    if (!w) return;
    to.in = w.in;
    to.out = w.out;
    to.width = width;
    if (packing_.pack == Pack::never || model::is_quantised(w)) {
      to.stored = w;
      if (row_scale) to.row_scale = *row_scale;
      return;
    }
    to.data = PanelValues<T>(memory_, w.in * w.out);
    for (Index p = 0; p < to.count(); ++p) {
      tasks_.push_back([&to, &w, p, row_scale] {
        model::read_block(w, {0, w.in, to.begin(p), to.columns(p)},
                          row_scale ? row_scale->data() : nullptr,
                          to.data.data() + w.in * to.begin(p), to.columns(p));
      });
    }
  }

  void bias(std::vector<T>& to, const model::WeightView& bias, const model::WeightView& norm_bias,
            const model::WeightView& w) {
    tasks_.push_back([&to, &bias, &norm_bias, &w] { to = folded_bias<T>(bias, norm_bias, w); });
  }

  void finish() {
    const auto run = [&](Index i) { tasks_[i](); };
    const Index count = tasks_.size();
    if (packing_.pool != nullptr) {
      packing_.pool->parallel_for(count, run);
    } else {
      for (Index i = 0; i < count; ++i) run(i);
    }
  }

 private:
  const Packing& packing_;
  PanelMemory own_;
  PanelMemory& memory_;
  std::map<const model::WeightView*, std::vector<T>> scales_;
  std::vector<std::function<void()>> tasks_;
};

// A weight for every head, whether it is stored once or for all of them.
template <typename T>
std::vector<T> for_heads(const model::WeightView& w, Index n) {
  std::vector<T> out = read_vector<T>(w);
  const std::size_t stored = out.size();
  if (stored == 0) return out;
  out.resize(n);
  for (std::size_t i = stored; i < out.size(); ++i) out[i] = out[i - stored];
  return out;
}

}  // namespace

template <typename T>
RolePanels<T> make_panels(const ModelConfig& config, const model::RoleViews& w,
                          const model::RoleViews& norms, const Packing& packing) {
  using model::Role;
  using Heads = model::RoleFacts::Heads;
  RolePanels<T> out;
  PanelMaker<T> maker(packing);
  // Heads never straddle a panel.
  const Index e = config.d_head, head_width = e * std::max<Index>(1, kWidth / e);
  for (const Role role : model::kMatrices) {
    if (!w[role]) continue;
    const model::RoleFacts facts = model::facts_of(role);
    const bool reads_norm = facts.norm_w != Role::count;
    maker.matrix(out.matrix(role), w[role], facts.heads == Heads::none ? kWidth : head_width,
                 reads_norm ? maker.scale(norms[facts.norm_w]) : nullptr);
    if (reads_norm) {
      maker.bias(out.vector(facts.bias), w[facts.bias], norms[facts.norm_b], w[role]);
    } else {
      out.vector(facts.bias) = read_vector<T>(w[facts.bias]);
    }
  }
  for (std::size_t i = 0; i < model::kRoles; ++i) {
    const Role role = static_cast<Role>(i);
    const model::RoleFacts facts = model::facts_of(role);
    if (!model::kept_as_vector(role) || facts.kind == model::RoleKind::bias) continue;
    const Index heads = facts.heads == Heads::queries ? config.n_heads
                        : facts.heads == Heads::keys  ? config.n_kv_heads
                                                      : 0;
    out.vector(role) = heads > 0 ? for_heads<T>(w[role], heads * e) : read_vector<T>(w[role]);
  }
  maker.finish();
  return out;
}

template std::vector<float> read_vector<float>(const model::WeightView&);
template std::vector<double> read_vector<double>(const model::WeightView&);
template RolePanels<float> make_panels<float>(const ModelConfig&, const model::RoleViews&,
                                              const model::RoleViews&, const Packing&);
template RolePanels<double> make_panels<double>(const ModelConfig&, const model::RoleViews&,
                                                const model::RoleViews&, const Packing&);

}  // namespace unpack::backend
