// The backends that work in host memory: one body, templated on the scalar, over a tile GEMM that
// the device-specific class provides. reference/ gives it plain loops (run in double by the tests),
// cpu/ gives it oneDNN.
#pragma once

#include <list>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/host/panels.h"
#include "base/thread_pool.h"
#include "unpack/writers.h"

namespace unpack {

template <typename T>
class HostBackend : public Backend {
 public:
  HostBackend(std::shared_ptr<const ModelWeights> weights, const BackendOptions& options);

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

  void embed(std::span<const TokenId> ids, Array& out) override;
  void embed_positions(std::span<const int> positions, Array& out) override;
  void add(const Array& x, Array& y, std::int64_t size, double scale) override;
  void add_rows(const Array& x, std::int64_t x_row, Array& y, std::int64_t y_row, std::int64_t rows,
                int cols, double scale) override;
  void add_bias(int layer, Sublayer sublayer, Array& x, std::int64_t rows) override;
  void normalize(const Array& x, std::int64_t rows, Array& out, Array& dev) override;
  void qkv(int layer, const Array& normalized, std::span<const int> positions, Array& q, Array& k,
           Array& v, Array& q_dev, Array& k_dev) override;
  void attention(const Array& q, const Array& k, const Array& v, std::span<const Segment> segments,
                 std::span<const std::int64_t> key_begin, Array& pattern, Array& z) override;
  void attention_out(int layer, const Array& z, std::int64_t rows, Array& out) override;
  void mlp_in(int layer, MlpSide side, const Array& normalized, std::int64_t rows,
              Array& out) override;
  void activate(const Array& pre, const Array& up, Array& act, std::int64_t size) override;
  void mlp_out(int layer, const Array& act, std::int64_t rows, Array& out) override;
  void logits(const Array& x, std::span<const std::int64_t> rows,
              std::vector<double>& out) override;

  void put_writer(const Array& rows, std::int64_t row, int length, Array& writers, int n_writers,
                  int index) override;
  void put_head_writers(int layer, const Array& z, std::int64_t row, int length, Array& writers,
                        int n_writers, int first) override;

  AttentionSums attention_sums(const AttentionView& view, Scores scores,
                               bool keep_key_scores) override;
  MlpSums mlp_sums(const MlpView& view, MlpSide side) override;

  void key_scores(const AttentionView& view, Scores scores, int head, int query,
                  Array& out) override;
  void query_scores(const AttentionView& view, Scores scores, int head, int query,
                    Array& out) override;
  void mlp_scores(const MlpView& view, MlpSide side, int query, Array& out) override;
  void visit_key_scores(const AttentionView& view, Scores scores, const KeyVisitor& visit) override;

  void head_numerators(const AttentionView& view, std::span<const int> queries,
                       const Array& directions, Array& out) override;
  void mlp_numerators(const MlpView& view, std::span<const int> queries, const Array& directions,
                      Array& out) override;
  void query_fold(const AttentionView& view, std::span<const int> queries,
                  std::span<const double> coef, std::vector<double>& out) override;
  void key_fold(const AttentionView& view, std::span<const double> coef,
                std::vector<double>& out) override;
  void mlp_fold(const MlpView& view, MlpSide side, std::span<const int> queries,
                std::span<const double> coef, std::vector<double>& out) override;

  void target_direction(const Array& x, std::int64_t row, std::span<const TokenId> target,
                        const std::vector<TokenId>* versus, bool raw, Array& out) override;
  void writer_dots(const Array& writers, int n_writers, int position, const Array& direction,
                   std::vector<double>& out) override;

 protected:
  // C[m, n] = A[m, k] op(B) (+ C), single-threaded, row-major; B is [k, n], or [n, k] with
  // b_transposed.
  virtual void gemm(bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, const T* a,
                    std::int64_t lda, const T* b, std::int64_t ldb, bool accumulate, T* c,
                    std::int64_t ldc) = 0;

  static T* ptr(const Array& a) { return static_cast<T*>(a.raw()); }
  Array uninitialized(std::int64_t size);

  using Rows = std::function<void(int head, int query, T* rows)>;  // rows[(q + 1), Cl]

 private:
  // Layer weights in panels. All layers stay when they fit the budget; otherwise the last ones used
  // do, and the stored form is converted anew.
  std::shared_ptr<const LayerPanels<T>> layer(int index);
  // C[m, out] = A W (+ bias), all threads; several weights that read the same rows in one go.
  struct Product {
    const Panels<T>* w;
    const std::vector<T>* bias;
    T* c;
  };
  void multiply(std::span<const Product> products, const T* a, std::int64_t m);
  void multiply(const Panels<T>& w, const T* a, std::int64_t m, const std::vector<T>& bias, T* c);
  // C[m, in] = A W^T, all threads.
  void multiply_transposed(const Panels<T>& w, const T* a, std::int64_t m, T* c);
  // C[m, D] = A[m, E] W[:, head columns]^T for one head's columns, single-threaded.
  void head_to_model(const Panels<T>& w, int head, const T* a, std::int64_t lda, std::int64_t m,
                     T* c, std::int64_t ldc);

  struct RotaryTable {
    std::int64_t positions = 0;
    std::vector<T> cos, sin;  // [positions, rot / 2]
  };
  std::shared_ptr<const RotaryTable> rotary(std::int64_t positions);
  void rotate(const RotaryTable& table, std::int64_t position, T* head_vector, bool inverse) const;
  // The adjoint of n_K (n_Q) and R at a position: what a query (key) looks like from before rotary
  // and the per-head norm.
  void pull_back(const RotaryTable* table, std::int64_t position, const std::vector<T>& norm,
                 const Array* dev, std::int64_t dev_index, T* u) const;

  // Raw scores of a layer, row block by row block; folded for short prompts (a vector per pair),
  // projected for long ones.
  bool fold_is_cheaper(const AttentionView& view) const;
  void key_pass(const AttentionView& view, T* table, const Rows& rows);
  void query_pass(const AttentionView& view, const Rows& rows);
  void folded_keys(const AttentionView& view, const LayerPanels<T>& w, T* table);
  void folded_queries(const AttentionView& view, const LayerPanels<T>& w, const Rows& rows);
  void projected_keys(const AttentionView& view, const LayerPanels<T>& w, const Rows& rows,
                      AttentionSums* sums, T* table);
  void projected_queries(const AttentionView& view, const LayerPanels<T>& w, const Rows& rows);
  void value_scores(const AttentionView& view, const LayerPanels<T>& w, AttentionSums& sums);

  // Weight products, where the model keeps them; nothing otherwise.
  struct HeadProduct {
    std::once_flag once;
    std::shared_ptr<const std::vector<T>> data;
  };
  std::shared_ptr<const std::vector<T>> head_products(int index, MlpSide side);
  const T* whole_writers(const MlpView& view, const std::vector<int>& whole, std::int64_t begin,
                         std::int64_t positions, std::vector<T>& gathered) const;
  void add_head_products(const MlpView& view, const std::vector<T>& products, const Panels<T>& in,
                         std::int64_t p, std::int64_t begin, std::int64_t positions, double* sum,
                         double* square, T* last);

  std::vector<double> vocabulary_mean();
  void center_row(T* row) const;

  std::shared_ptr<const ModelWeights> weights_;
  Writers writers_;
  ThreadPool pool_;
  std::vector<HeadProduct> products_;  // two sides a layer, or empty
  std::mutex mutex_;
  std::vector<std::shared_ptr<const LayerPanels<T>>> layers_;
  std::list<int> recent_;  // layers in use, latest first, when not all are kept
  std::size_t keep_layers_ = 0;
  std::shared_ptr<const RotaryTable> rotary_;
  std::vector<double> vocabulary_mean_;
  std::vector<T> final_w_, final_b_;
};

extern template class HostBackend<float>;
extern template class HostBackend<double>;

}  // namespace unpack
