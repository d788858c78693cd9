// The lower half of the backends that work in host memory (host_backend.h): weights and memory, and
// the forward pass.
#pragma once

#include <list>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/host/panels.h"
#include "base/once.h"
#include "base/thread_pool.h"
#include "unpack/writers.h"

namespace unpack::backend {

inline constexpr std::int64_t kRowBlock = 128;
inline constexpr std::int64_t kVocabularyBlock = 512;

template <typename T>
class HostBase : public Backend {
 public:
  HostBase(std::shared_ptr<const model::ModelWeights> weights, const BackendOptions& options);

  bool is_double() const override { return sizeof(T) == 8; }
  int threads() const override { return pool_.threads(); }
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    pool_.parallel_for(count, task);
  }
  bool layers_side_by_side() const override { return keep_layers_ == layers_.size(); }
  Peaks measure_peaks() override;

  Array zeros(std::int64_t size) override;
  Array slice(const Array& from, std::int64_t offset, std::int64_t size) override;
  void upload(Array& to, std::int64_t offset, std::span<const double> from) override;
  void download(const Array& from, std::int64_t offset, std::span<double> to) override;
  void copy(const Array& from, std::int64_t from_offset, Array& to, std::int64_t to_offset,
            std::int64_t size) override;
  std::shared_ptr<const void> host(const Array& from) override;

 protected:
  // C[m, n] = A[m, k] op(B) (+ C), single-threaded, row-major; B is [k, n], or [n, k] with
  // b_transposed.
  virtual void gemm(bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
                    std::int64_t lda, const T* b, std::int64_t ldb, bool accumulate, T* c,
                    std::int64_t ldc) = 0;

  // From now on panels are made where they are used, not kept, if the model's take more than so
  // many bytes (of weights in half precision; more than all that is kept for good, of others).
  void read_as_stored(std::size_t halves);

  static T* ptr(const Array& a) { return static_cast<T*>(a.raw()); }
  Array uninitialized(std::int64_t size);

  // Layer weights in panels. All layers stay when they fit the budget; otherwise the last ones used
  // do, and the stored form is converted anew.
  std::shared_ptr<const LayerPanels<T>> layer(int index);
  // An expert's, made when a prompt first uses it; the ones used last stay within the same budget.
  std::shared_ptr<const MlpPanels<T>> expert(int layer, int index);

  // A matrix that many small products are made with, whole in panels: itself, or where it is not
  // packed made now, for as long as it is held.
  std::shared_ptr<const Panels<T>> widened(const Panels<T>& w);

  // C[m, out] = A W (+ bias), all threads; several weights that read the same rows in one go.
  struct Product {
    const Panels<T>* w;
    const std::vector<T>* bias;
    T* c;
  };
  void multiply(std::span<const Product> products, const T* a, std::int64_t m);
  // How m rows are shared out where each of `parts` parts of a matrix meets all of them: a panel
  // that has to be made first is made for several blocks of rows, as long as no thread goes short.
  struct RowGroups {
    std::int64_t rows, count;
  };
  RowGroups row_groups(const Panels<T>& w, std::int64_t m, std::int64_t parts) const;
  void multiply(const Panels<T>& w, const T* a, std::int64_t m, const std::vector<T>& bias, T* c);
  // C[m, in] = A W^T, all threads.
  void multiply_transposed(const Panels<T>& w, const T* a, std::int64_t m, T* c);
  // Columns of one head, rows as far apart as the panel's that they stand in.
  Panel<T> head_columns(const Panels<T>& w, int head) const {
    const std::int64_t column = static_cast<std::int64_t>(head) * config_.d_head;
    return w.some_columns(column / w.width, column % w.width, config_.d_head);
  }
  // C[m, D] = A[m, E] W[:, head columns]^T for one head's columns, single-threaded.
  void head_to_model(const Panels<T>& w, int head, const T* a, std::int64_t lda, std::int64_t m,
                     T* c, std::int64_t ldc);

  struct RotaryTable {
    Rope rope;
    bool long_prompt = false;
    std::int64_t positions = 0;
    std::vector<T> cos, sin;  // [positions, rot / 2]
  };
  // Null where the layer has no rotary. `context`: tokens of the prompt.
  std::shared_ptr<const RotaryTable> rotary(int layer, std::int64_t positions, int context);
  static void rotate(const RotaryTable& table, std::int64_t position, T* head_vector, bool inverse);
  void center_row(T* row) const;

  std::shared_ptr<const model::ModelWeights> weights_;
  Writers writers_;
  base::ThreadPool pool_;
  std::mutex mutex_;

 private:
  std::vector<std::shared_ptr<const LayerPanels<T>>> layers_;
  std::list<int> recent_;  // layers in use, latest first, when not all are kept
  std::size_t keep_layers_ = 0;
  Pack pack_ = Pack::now;
  struct Expert {
    std::pair<int, int> key;  // layer, expert
    std::shared_ptr<const MlpPanels<T>> panels;
  };
  std::list<Expert> experts_;  // latest first
  std::size_t expert_bytes_ = 0;
  std::vector<std::shared_ptr<const RotaryTable>> rotary_;
};

// What the classes on top of it use of the base: the names of a base that is a template are not
// seen by themselves.
#define UNPACK_HOST_NAMES                                                                       \
  using HostBase<T>::config_, HostBase<T>::weights_, HostBase<T>::writers_, HostBase<T>::pool_, \
      HostBase<T>::mutex_, HostBase<T>::ptr, HostBase<T>::uninitialized, HostBase<T>::gemm,     \
      HostBase<T>::layer, HostBase<T>::expert, HostBase<T>::widened, HostBase<T>::multiply,     \
      HostBase<T>::multiply_transposed, HostBase<T>::head_columns, HostBase<T>::head_to_model,  \
      HostBase<T>::rotary, HostBase<T>::rotate, HostBase<T>::center_row

template <typename T>
class HostForward : public HostBase<T> {
 protected:
  UNPACK_HOST_NAMES;

 public:
  using HostBase<T>::HostBase;
  void embed(std::span<const TokenId> ids, Array& out) override;
  void embed_positions(std::span<const int> positions, Array& out) override;
  void add(const Array& x, Array& y, std::int64_t size, double scale) override;
  void add_rows(const Array& x, std::int64_t x_row, Array& y, std::int64_t y_row, std::int64_t rows,
                int cols, double scale) override;
  void add_bias(int layer, Sublayer sublayer, Array& x, std::int64_t rows, const Array& out_dev,
                const Routing* routing) override;
  void normalize(Norm kind, const Array& x, std::int64_t rows, Array& out, Array& dev) override;
  void norm_behind(int layer, Sublayer sublayer, Array& y, std::int64_t rows, Array& dev) override;
  void through_norm_behind(int layer, Sublayer sublayer, const Array& dev, std::int64_t rows,
                           Array& y) override;
  void qkv(int layer, const Array& normalized, std::span<const int> positions, int context,
           Array& q, Array& k, Array& v, Array& q_dev, Array& k_dev) override;
  void attention(int layer, const Array& q, const Array& k, const Array& v,
                 std::span<const Segment> segments, std::span<const std::int64_t> key_begin,
                 Array& pattern, Array& z) override;
  void attention_out(int layer, const Array& z, std::int64_t rows, Array& out) override;
  void router(int layer, const Array& normalized, std::int64_t rows, Array& out) override;
  void mlp_in(int layer, MlpSide side, const Array& normalized, std::int64_t rows,
              const Routing* routing, Array& out) override;
  void activate(int layer, const Array& pre, const Array& up, const Routing* routing,
                std::int64_t rows, Array& act) override;
  void mlp_out(int layer, const Array& act, std::int64_t rows, const Routing* routing,
               Array& out) override;
  void logits(const Array& x, std::span<const std::int64_t> rows,
              std::vector<double>& out) override;

 protected:
  const std::vector<T>& final_weight();

 private:
  void read_final();
  base::Once final_once_;
  std::vector<T> final_w_, final_b_;
};

extern template class HostBase<float>;
extern template class HostBase<double>;
extern template class HostForward<float>;
extern template class HostForward<double>;

}  // namespace unpack::backend
