// The backend of CUDA devices, written over a device table (device_table.h): the plugin's on a GPU,
// or the emulated one in tests.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/split_products.h"
#include "backend/device_credit.h"
#include "backend/device_memory.h"
#include "backend/device_plan.h"
#include "backend/queued_work.h"
#include "backend/read_ops.h"
#include "base/thread_pool.h"

namespace unpack::backend::cuda {

class CudaBackend final : public Backend,
                          public DeviceCredit,
                          public DeviceMemory,
                          public DevicePlan,
                          public QueuedWork,
                          public ReadOps {
 public:
  CudaBackend(std::shared_ptr<Device> device, std::shared_ptr<const model::ModelWeights> weights,
              const BackendOptions& options, std::string name);

  std::string name() const override { return name_; }
  std::string details() const override { return details_; }
  bool is_double() const override { return false; }
  int threads() const override { return pool_.threads(); }
  void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task) override {
    pool_.parallel_for(count, task);
  }
  Peaks measure_peaks() override;
  void synchronize() override { device_->wait(); }
  DeviceMemory::Use memory_use(bool start_again) override;
  std::uint64_t room_for_prompts() override;
  void keep_layers(int count) override { on_device_.keep_layers(static_cast<std::size_t>(count)); }
  bool streams() const override { return on_device_.streams(); }
  bool in_parts() const override { return split_.allowed(); }
  std::uint64_t uploaded_bytes() override { return on_device_.uploaded_bytes(); }
  std::uint64_t upload_once() override { return on_device_.upload_once(); }
  std::vector<DevicePlan::Part> plan(const Writers& writers, int tokens) override;

  Array zeros(std::int64_t size) override { return device_->zeros(size); }
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

  void put_writer(const Array& rows, std::int64_t row, int length, Array& writers, int n_writers,
                  int index) override;
  void put_head_writers(int layer, const Array& z, const Array& out_dev, std::int64_t row,
                        int length, Array& writers, int n_writers, int first) override;

  AttentionSums attention_sums(const AttentionView& view, Scores scores,
                               bool keep_key_scores) override;
  MlpSums mlp_sums(const MlpView& view, MlpSide side, Scores scores) override;

  void key_scores(const AttentionView& view, Scores scores, int head, int query,
                  Array& out) override;
  void query_scores(const AttentionView& view, Scores scores, int head, int query,
                    Array& out) override;
  void mlp_scores(const MlpView& view, MlpSide side, Scores scores, int query, Array& out) override;
  void visit_key_scores(const AttentionView& view, Scores scores, const KeyVisitor& visit) override;

  void head_numerators(const AttentionView& view, std::span<const int> queries,
                       const Array& directions, Array& out) override;
  void mlp_numerators(const MlpView& view, std::span<const int> queries, const Array& directions,
                      Array& out) override;
  void query_fold(const AttentionView& view, std::span<const int> queries,
                  std::span<const double> coef, std::vector<double>& out) override;
  void key_fold(const AttentionView& view, std::span<const double> coef,
                std::vector<double>& out) override;
  void mlp_fold(const MlpView& view, MlpSide side, Scores scores, std::span<const int> queries,
                std::span<const double> coef, std::vector<double>& out) override;

  void target_direction(const Array& x, std::int64_t row, std::span<const TokenId> target,
                        const std::vector<TokenId>* versus, bool raw, Array& out) override;
  void writer_dots(const Array& writers, int n_writers, int position, const Array& direction,
                   std::vector<double>& out) override;

  void head_edges(const AttentionView& view, const AttentionSums& sums,
                  std::span<const int> queries, const Array& numerators, const Options& options,
                  HeadEdges& out) override;
  void neuron_edges(const MlpView& view, MlpSide side, const MlpSums* sums, const Array& pre,
                    std::span<const int> queries, const Array& numerators, double weight,
                    const Options& options, NeuronEdges& out) override;
  void sweep(std::span<const Layer> layers, Scores scores, int position,
             std::span<const double> first, std::span<const Direct> direct,
             std::vector<double>& credit) override;
  void suffix(std::span<const Layer> layers, Scores scores, int terminals,
              std::vector<double>& mass, std::vector<double>& bound) override;

  void head_directions(const AttentionView& view, std::span<const int> queries,
                       std::span<const double> directions, std::vector<double>& out) override;
  HeadReads head_reads(const AttentionView& view, const AttentionSums& sums, const Options& options,
                       std::span<const double> directions) override;
  void keep_for_edges(const AttentionView& view, HeadReads& reads) override;
  Array slot_sums(const Array& entries, std::int64_t neurons) override;
  NeuronCredit neuron_credit(const Array& own, std::int64_t rows, const Array* pre,
                             const MlpSums* sums, double beta, double weight) override;
  void neuron_reads(const MlpView& view, MlpSide side, Scores scores, const Array& coef,
                    std::vector<double>& out) override;
  Array key_medians(const AttentionView& view, const AttentionSums& sums) override;
  void offset_fold(const AttentionView& view, const HeadReads& reads, const Array& offsets,
                   std::vector<double>& out) override;
  void position_dots(const Array& writers, int n_writers, int first, int end,
                     std::span<const double> vectors, std::vector<double>& out) override;
  EdgesFrom edges_from(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                       int head, int query) override;
  std::vector<EdgesInto> edges_into(std::span<const LayerReads> layers, int writer,
                                    int source) override;
  bool pass_ways(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                 const WaysAbove& above, WaysBelow& below) override;
  bool edge_masses(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                   std::span<const double> below, std::vector<double>& out) override;
  bool edge_totals(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                   bool positions, std::vector<double>& out) override;

 private:
  enum class Side { key, query };

  // Positions of some rows and where each row's sources start, on the device.
  struct Rows {
    std::shared_ptr<const int> queries;
    std::shared_ptr<const Index> begin;  // [rows + 1]
    std::vector<int> host;
    Index count = 0;
    Index total = 0;  // sources of all rows
    Index first = 0;
    bool consecutive = false;  // first, first + 1, ...
  };
  Rows rows_of(std::span<const int> queries);
  Rotary rotary(int layer, std::int64_t positions, int context);
  float head_scale(int layer) const;

  // Rows sorted by the experts they use, a row for every slot of theirs, and which row each became.
  struct Spread {
    struct Part {
      int expert = 0;
      Index begin = 0, count = 0;
    };
    std::vector<Part> parts;
    std::shared_ptr<const int> memory;
    const int* rows = nullptr;    // [total] index into the caller's list
    const int* slots = nullptr;   // [total] that index times k, and the slot
    const int* where = nullptr;   // [rows, k] the sorted row of a slot
    const int* expert = nullptr;  // [rows, k]
    Index total = 0, k = 0;
  };
  // `rows`: rows of the routing.
  Spread spread(const Routing& routing, std::span<const std::int64_t> rows);
  Spread spread(const Routing& routing, std::int64_t rows);  // all of them
  // Every expert's product with its rows.
  void multiply_experts(int layer, const Spread& spread, model::Role role, const float* a,
                        float* c);
  void multiply_experts_turned(int layer, const Spread& spread, model::Role role, const float* a,
                               float* c);
  void experts_in(int layer, MlpSide side, const float* normalized, std::int64_t rows,
                  const Routing& routing, float* out);
  void experts_out(int layer, const float* act, std::int64_t rows, const Routing& routing,
                   float* out);
  void add_expert_biases(int layer, Array& x, std::int64_t rows, const Routing& routing);
  class WriterProduct;
  MlpSums expert_sums(const MlpView& view, MlpSide side);
  MlpSums router_sums(const MlpView& view, Scores scores);
  // As many positions at a time as fit into a tile, all tiles of about one size.
  std::int64_t positions_at_once(std::int64_t positions, std::int64_t floats_each) const;
  static model::Role matrix_of(MlpSide side);
  static model::Role bias_of(MlpSide side);

  // [S, D] the sum of the writers that a reader sees. Where scores are made in parts, their signed
  // sums come from it, in single precision: they cancel, and sums of sizes do not.
  Array summed_writers(const Array& writers, int n_writers, int visible, int length);
  void neuron_read(const MlpView& view, MlpSide side, const Spread* spread, Array& sum);
  void pair_read(Side side, const AttentionView& view, Scores scores, Array& sum);
  std::shared_ptr<const DeviceRoles> reader(Side side, int layer);
  bool projects_in_parts(Side side, const AttentionView& view);
  bool reads_sums(Side side, const AttentionView& view);  // in place of adding up scores
  bool folds(Side side, const AttentionView& view);
  void finish_projected(Side side, const AttentionView& view, const DeviceRoles& layer,
                        std::int64_t first, std::int64_t count, std::int64_t positions, Array& x);

  // Head writers are z W_O: their products with a matrix through W_O C W of every source layer,
  // made and used at once. Whether that takes fewer operations at a length.
  bool low_rank(const DeviceMatrix& w, std::int64_t length);
  Array head_product(int source, const SplitProducts::Weights& w);  // [H E, w.out]
  SplitProducts::HeadWeights by_head(const Array& product, std::int64_t columns, bool bf16);
  MlpSums low_rank_neurons(const MlpView& view, MlpSide side, const DeviceMatrix& matrix);
  // How writers are projected to keys or queries.
  struct Projection {
    bool low_rank = false, split = false;
    std::int64_t width = 0;
    Operand matrix;
    SplitProducts::Weights parts;
    std::vector<Array> heads;  // products by source layer, where they are kept
  };
  Projection projection(Side side, const AttentionView& view, const DeviceRoles& layer);
  void low_rank_project(const AttentionView& view, const Projection& way, std::int64_t first,
                        std::int64_t positions, Array& out);
  int layers_seen(int visible) const;  // whose heads are among the first writers

  // C[m, out] = A[m, in] W and C[m, in] = A[m, out] W^T.
  void multiply(const DeviceMatrix& w, const float* a, std::int64_t m, float* c);
  void multiply_turned(const DeviceMatrix& w, const float* a, std::int64_t m, float* c);
  // Per head: c[.., h, :] (D apart) = a[.., h, :] W[:, columns of head h / group]^T for m rows.
  void heads_to_model(const Operand& w, int heads, const float* a, std::int64_t m, float* c);

  // Calls use(tile) for tiles of unscaled scores that together hold every head, query and source of
  // the layer.
  using TileUse = std::function<void(const Tile&)>;
  void score_tiles(Side side, const AttentionView& view, const TileUse& use);
  // From the side's keys or queries back to what the projection gave, through rotary and the
  // per-head norm, for heads of its own. The caller says where from, and at which positions.
  PullBack pull_back(Side side, const AttentionView& view, const DeviceRoles& layer);
  Array pulled_back(PullBack pull, std::int64_t size);
  void folded_tile(Side side, const AttentionView& view, const DeviceRoles& layer, const Operand& w,
                   Tile& tile);
  // Projected keys (queries) of some heads, and the queries (keys) of all that meet them.
  struct TileFactors {
    UnpackFactors factors = UNPACK_FACTORS_SINGLE;
    std::int64_t depth = 0;
    Array keep;
    const float* projected = nullptr;  // of the first position
    std::int64_t width = 0;            // of all its heads
    std::int64_t first = 0;            // which is the first of them
    const float* others = nullptr;     // [S, heads of theirs, depth]; queries in parts by group
  };
  TileFactors tile_factors(Side side, const AttentionView& view, const Projection& way,
                           const float* projected, std::int64_t positions, std::int64_t head0,
                           std::int64_t heads, const Array& others);
  void projected_tile(Side side, const AttentionView& view, const TileFactors& from, Tile& tile);
  void hide_and_center(const AttentionView& view, Scores scores, int query, Array& out);
  Array project(Side side, const AttentionView& view, const DeviceRoles& layer,
                const Projection& way, std::int64_t first, std::int64_t positions);
  void value_sums(const AttentionView& view, const DeviceRoles& layer, AttentionSums& sums);
  Array writer_values(const AttentionView& view, const Operand& w, std::int64_t first,
                      std::int64_t positions);
  // Calls use with rows that together hold every edge of a layer's heads.
  using EdgeUse = std::function<void(Branch branch, const EdgeRows& rows)>;
  void edge_rows(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                 const EdgeUse& use);

  // [S, Cl]: sum over heads and queries of coef[H, tri] times raw key scores.
  Array fold_keys(const AttentionView& view, const Array& coef);
  // Directions as a sublayer's own outputs see them: centred, and through the norm behind.
  Array directions_for(const Array& post, const Array* out_dev, const Rows& rows,
                       const Array& directions);
  void fold_to_writers(const AttentionView& view, const Rows& rows, const Array& coef, Array& out);
  // coef[rows, entries] times the weights by which a side's neurons read, [rows, D].
  Array neurons_to_model(const MlpView& view, MlpSide side, Scores scores, const Rows& rows,
                         const Array& coef);
  void fold_neurons(const MlpView& view, MlpSide side, Scores scores, const Rows& rows,
                    const Array& coef, double weight, Array& out);
  std::vector<double> vocabulary_mean();

  std::shared_ptr<Device> device_;
  std::shared_ptr<const model::ModelWeights> weights_;
  DeviceWeights on_device_;
  SplitProducts split_;
  base::ThreadPool pool_;
  std::string name_;
  std::string details_;
  std::int64_t tile_bytes_ = 0;  // scores exist a tile at a time, which stays below this
  std::mutex mutex_;
  struct RotaryTable {
    Rope rope;
    bool long_prompt = false;
    std::int64_t positions = 0;
    Array cos, sin;
  };
  std::vector<RotaryTable> rotary_tables_;  // the longest last; older ones stay for work in flight
  std::vector<double> vocabulary_mean_;
  std::vector<Rows> recent_rows_;
  std::vector<double> final_w_;
  Array final_w_device_, final_b_device_;
};

}  // namespace unpack::backend::cuda
