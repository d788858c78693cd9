// The lower half of the backends that work in host memory (host_backend.h): memory, weights and the
// other primitives, and attention.
#pragma once

#include <list>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/host/host_memory.h"
#include "backend/host/panels.h"
#include "base/index.h"
#include "base/once.h"
#include "base/thread_pool.h"
#include "unpack/writers.h"

namespace unpack::backend {

inline constexpr Index kRowBlock = 128;
inline constexpr Index kVocabularyBlock = 512;

template <typename T>
class HostBase : public Backend {
 public:
  HostBase(std::shared_ptr<const model::ModelWeights> weights, const BackendOptions& options);

  bool is_double() const override { return sizeof(T) == 8; }
  int threads() const override { return pool_.threads(); }
  void parallel_for(Index count, const std::function<void(Index)>& task) override {
    pool_.parallel_for(count, task);
  }
  void together(Index count, const std::function<void(Index)>& caller) override {
    pool_.together(count, caller);
  }
  bool layers_side_by_side() const override { return keep_layers_ == layers_.size(); }
  bool looks_at_values() const override { return few_halves_ > 0; }
  Peaks measure_peaks() override;

  Array uninitialized(Index size) override;
  Array zeros(Index size) override;
  void upload(Array& to, Index offset, std::span<const double> from) override;
  void download(const Array& from, Index offset, std::span<double> to) override;
  void copy(const Array& from, Index from_offset, Array& to, Index to_offset, Index size) override;
  std::shared_ptr<const void> host(const Array& from) override;

 protected:
  // C[m, n] = A[m, k] op(B) (+ C), single-threaded, row-major; B is [k, n], or [n, k] with
  // b_transposed.
  virtual void gemm(bool b_transposed, Index m, Index n, Index k, const T* a, Index lda, const T* b,
                    Index ldb, bool accumulate, T* c, Index ldc) = 0;

  // From now on panels are made where they are used, not kept, if the model's take more than so
  // many bytes (of weights in half precision; more than all that is kept for good, of others).
  // Up to `few` rows are then multiplied with halves without widening these first.
  void read_as_stored(std::size_t halves, Index few);

  static T* ptr(const Array& a) { return static_cast<T*>(a.raw()); }
  static T* ptr(const Any* p) { return reinterpret_cast<T*>(const_cast<Any*>(p)); }

  // Memory that one layer works in and leaves to the next, so that the system need not clear it
  // again: not initialised, at least `size` values of `most`, what any layer needs of it.
  Array passing(Index size, Index most);
  // The last layer of a walk has no next one.
  void passed(int layer) {
    if (layer == config_.n_layers - 1) passing_->clear();
  }

  // Layer weights in panels. All layers stay when they fit the budget; otherwise the last ones used
  // do, and the stored form is converted anew.
  std::shared_ptr<const RolePanels<T>> layer(int index);
  // An expert's, made when a prompt first uses it; the ones used last stay within the same budget.
  std::shared_ptr<const RolePanels<T>> expert(int layer, int index);

  // A matrix that many small products are made with, whole in panels: itself, or where it is not
  // packed made now, for as long as it is held.
  std::shared_ptr<const Panels<T>> widened(const Panels<T>& w);
  // Its panels to `to`, one after the other.
  void widen(const Panels<T>& w, T* to);

  // C[m, out] = A W (+ bias), all threads; several weights that read the same rows in one go.
  struct PanelProduct {
    const Panels<T>* w;
    const std::vector<T>* bias;
    T* c;
  };
  void multiply(std::span<const PanelProduct> products, const T* a, Index m);
  // The same, and the vocabulary's, for few rows and halves as they are stored (host_halves.cc);
  // false, and nothing done, where it is not that.
  bool multiply_halves(std::span<const PanelProduct> products, const T* a, Index m);
  bool vocabulary_halves(const T* x, Index n, std::span<double> out);
  // How m rows are shared out where each of `parts` parts of a matrix meets all of them: a panel
  // that has to be made first is made for several blocks of rows, as long as no thread goes short.
  struct RowGroups {
    Index rows, count;
  };
  RowGroups row_groups(const Panels<T>& w, Index m, Index parts) const;
  void multiply(const Panels<T>& w, const T* a, Index m, const std::vector<T>& bias, T* c);
  // C[m, in] = A W^T, all threads.
  void multiply_transposed(const Panels<T>& w, const T* a, Index m, T* c);
  // Columns of one head, rows as far apart as the panel's that they stand in.
  Panel<T> head_columns(const Panels<T>& w, int head) const {
    const Index column = static_cast<Index>(head) * config_.d_head;
    return w.some_columns(column / w.width, column % w.width, config_.d_head);
  }
  // C[m, D] = A[m, E] W[:, head columns]^T for one head's columns, single-threaded.
  void head_to_model(const Panels<T>& w, int head, const T* a, Index lda, Index m, T* c, Index ldc);

  using Backend::multiply;
  using typename Backend::RotaryTable;
  static void rotate(const RotaryTable& table, Index position, T* head_vector, bool inverse);

  base::ThreadPool pool_;

 private:
  std::vector<std::shared_ptr<const RolePanels<T>>> layers_;
  std::vector<std::mutex> making_;  // one of each, so that several prompts do not make it each
  std::list<int> recent_;           // layers in use, latest first, when not all are kept
  std::size_t keep_layers_ = 0;
  Pack pack_ = Pack::now;
  Index few_halves_ = 0;
  void looked_at(const std::byte* matrix, std::size_t bytes, bool finite);
  // Layers that stay lie behind each other; others give theirs back one by one.
  PanelMemory kept_panels_{std::size_t{32} << 20}, passing_panels_;
  PanelMemory& panel_memory() {
    return keep_layers_ == layers_.size() ? kept_panels_ : passing_panels_;
  }
  struct Expert {
    std::pair<int, int> key;  // layer, expert
    std::shared_ptr<const RolePanels<T>> panels;
  };
  std::list<Expert> experts_;  // latest first
  std::size_t expert_bytes_ = 0;
  std::shared_ptr<PassingMemory> passing_;
};

// What the classes on top of it use of the base: the names of a base that is a template are not
// seen by themselves.
#define UNPACK_HOST_NAMES                                                                       \
  using HostBase<T>::config_, HostBase<T>::weights_, HostBase<T>::writers_, HostBase<T>::pool_, \
      HostBase<T>::mutex_, HostBase<T>::ptr, HostBase<T>::uninitialized, HostBase<T>::gemm,     \
      HostBase<T>::layer, HostBase<T>::expert, HostBase<T>::widened, HostBase<T>::multiply,     \
      HostBase<T>::multiply_transposed, HostBase<T>::head_columns, HostBase<T>::head_to_model,  \
      HostBase<T>::rotary, HostBase<T>::rotate

// The primitives that are about weights, which it finds by their name, and kernels. The reference
// device is this with plain products.
template <typename T>
class HostPrimitives : public HostBase<T> {
 protected:
  UNPACK_HOST_NAMES;

 public:
  using HostBase<T>::HostBase;
  Array vector(const WeightName& name) override;
  void multiply(std::span<const Primitives::Product> products, const View& a) override;
  void multiply_turned(const WeightName& weight, const View& a, const View& c) override;
  void heads_to_model(const WeightName& weight, Index heads, const View& a, const View& c) override;
  void heads_out(const WeightName& weight, Index heads, const View& a, const Tail& c,
                 Index row) override;
  void vocabulary_product(const View& x, std::span<double> out) override;
  std::vector<double> vocabulary_sum() override;
  void multiply_batch(const BatchedProduct& product) override;

 protected:
  void run_kernel(kernels::Name name, const void* parameters, std::size_t bytes,
                  Index count) override;
  std::shared_ptr<const void> upload_bytes(std::span<const std::byte> from) override;

 private:
  // A layer's or an expert's weights by role, for as long as `keep` is held.
  struct Weight {
    std::shared_ptr<const void> keep;
    const Panels<T>* matrix = nullptr;
    const std::vector<T>* vector = nullptr;
  };
  Weight weight(const WeightName& name);
};

// Attention in one go.
template <typename T>
class HostForward : public HostPrimitives<T> {
 protected:
  UNPACK_HOST_NAMES;

 public:
  using HostPrimitives<T>::HostPrimitives;
  void attention(int layer, const Array& q, const Array& k, const Array& v,
                 std::span<const Segment> segments, std::span<const Index> key_begin,
                 Array& pattern, Array& z) override;
};

template <>
bool HostBase<float>::multiply_halves(std::span<const PanelProduct>, const float*, Index);
template <>
bool HostBase<double>::multiply_halves(std::span<const PanelProduct>, const double*, Index);
template <>
bool HostBase<float>::vocabulary_halves(const float*, Index, std::span<double>);
template <>
bool HostBase<double>::vocabulary_halves(const double*, Index, std::span<double>);

extern template class HostBase<float>;
extern template class HostBase<double>;
extern template class HostPrimitives<float>;
extern template class HostPrimitives<double>;
extern template class HostForward<float>;

}  // namespace unpack::backend
