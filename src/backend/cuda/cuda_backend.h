// The backend of CUDA devices, written over a device table (device_table.h): the plugin's on a GPU,
// or the emulated one in tests.
#pragma once

#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/device_weights.h"
#include "backend/cuda/split_products.h"
#include "base/index.h"
#include "base/thread_pool.h"

namespace unpack::backend::cuda {

class CudaBackend final : public Backend, public DeviceCredit, public DeviceMemory {
 public:
  CudaBackend(std::shared_ptr<Device> device, std::shared_ptr<const model::ModelWeights> weights,
              const BackendOptions& options, std::string name);
  // A lane of another one: the same weights, work of its own.
  CudaBackend(const CudaBackend& main, std::shared_ptr<Device> device);

  std::string name() const override { return name_; }
  std::string details() const override { return details_; }
  bool is_double() const override { return false; }
  int threads() const override { return pool_.threads(); }
  void parallel_for(Index count, const std::function<void(Index)>& task) override {
    pool_.parallel_for(count, task);
  }
  Peaks measure_peaks() override;
  bool synchronize() override {
    device_->wait();
    return true;
  }
  DeviceMemory* device_memory() override { return this; }
  DeviceCredit* device_credit() override { return this; }
  DeviceMemory::Use memory_use(bool start_again) override;
  std::uint64_t room_for_prompts() override;
  void keep_layers(int count) override { on_device_.keep_layers(count); }
  bool streams() const override { return on_device_.streams(); }
  std::vector<std::shared_ptr<Backend>> lanes(int count) override;
  bool in_parts() const override { return split_.allowed(); }
  std::uint64_t uploaded_bytes() override { return on_device_.uploaded_bytes(); }
  std::uint64_t upload_once() override { return on_device_.upload_once(); }
  std::vector<DevicePlan::Part> plan(const Writers& writers, int tokens, bool by_layer) override;

  Array uninitialized(Index size) override { return device_->floats(size); }
  Array zeros(Index size) override { return device_->zeros(size); }
  void upload(Array& to, Index offset, std::span<const double> from) override;
  void download(const Array& from, Index offset, std::span<double> to) override;
  void copy(const Array& from, Index from_offset, Array& to, Index to_offset, Index size) override;
  std::shared_ptr<const void> host(const Array& from) override;
  std::optional<bool> all_finite(const Array& x) override;
  Array vector(const WeightName& name) override;
  using Backend::multiply;
  void multiply(std::span<const Product> products, const View& a) override;
  void multiply_turned(const WeightName& weight, const View& a, const View& c) override;
  void heads_to_model(const WeightName& weight, Index heads, const View& a, const View& c) override;
  void heads_out(const WeightName& weight, Index heads, const View& a, const Tail& c,
                 Index row) override;
  void vocabulary_product(const View& x, std::span<double> out) override;
  std::vector<double> vocabulary_sum() override;
  void multiply_batch(const BatchedProduct& product) override;

  AttentionSums attention_sums(const AttentionView& view, Scores scores,
                               bool keep_key_scores) override;
  AttentionSums key_sums(const AttentionView& view, Scores scores) override;
  AttentionSums key_moments(const AttentionView& view) override;
  MlpSums mlp_sums(const MlpView& view, MlpSide side, Scores scores) override;
  Array mlp_norms(const MlpView& view, MlpSide side) override;

  void key_scores_of_heads(const AttentionView& view, Scores scores, int query,
                           Array& out) override;
  void key_scores(const AttentionView& view, Scores scores, int head, int query,
                  Array& out) override;
  void query_scores(const AttentionView& view, Scores scores, int head, int query,
                    Array& out) override;
  void mlp_scores(const MlpView& view, MlpSide side, Scores scores, int query, Array& out) override;
  void visit_key_scores(const AttentionView& view, Scores scores, const KeyVisitor& visit) override;

  void head_edges(const AttentionView& view, const AttentionSums& sums,
                  std::span<const int> queries, const Array& numerators, const Options& options,
                  HeadEdges& out) override;
  void neuron_edges(const MlpView& view, MlpSide side, const MlpSums* sums, const Array& pre,
                    std::span<const int> queries, const Array& numerators, double weight,
                    const Options& options, NeuronEdges& out) override;
  void sweep(std::span<const Layer> layers, Scores scores, int position,
             std::span<const double> first, std::span<const Direct> direct,
             std::vector<double>& credit) override;
  void suffix(std::span<const Layer> layers, Scores scores, int terminals, bool begun,
              std::vector<double>& mass, std::vector<double>& bound) override;

  HeadReads head_reads(const AttentionView& view, const AttentionSums& sums, const Options& options,
                       std::span<const double> directions) override;
  void keep_for_edges(const AttentionView& view, HeadReads& reads) override;
  NeuronCredit neuron_credit(const Array& own, Index rows, const Array* pre, const MlpSums* sums,
                             double beta, double weight) override;
  Array key_medians(const AttentionView& view, const AttentionSums& sums) override;
  void offset_fold(const AttentionView& view, const HeadReads& reads, const Array& offsets,
                   std::vector<double>& out) override;
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

  Rotary rotary(int layer, Index positions, int context);
  float head_scale(int layer) const;

  // Every expert's product with its rows.
  void multiply_experts(int layer, const Spread& spread, model::Role role, const float* a,
                        float* c);
  class WriterProduct;
  // What a tile [nq, writers, N] of neuron scores adds to a layer's sums, of writers from `first`
  // on or of listed ones; those of others are there already with `adds`.
  struct NeuronTile {
    const float* scores;
    Index nq, writers, neurons;
    NeuronRows rows;
    Index width, first = 0;
    const int* listed = nullptr;
    bool adds = false;
  };
  void sum_neurons(const NeuronTile& tile, const Array& dev, float* sum, float* abs);
  void norm_neurons(const NeuronTile& tile, const Array& dev, float* l2);
  // Sums of the neurons of a layer without experts, or only the norms, which are read for few
  // questions and take as long as the sums where a prompt is long.
  enum class Wanted { sums, norms };
  MlpSums dense_neurons(const MlpView& view, MlpSide side, Wanted wanted);
  MlpSums expert_sums(const MlpView& view, MlpSide side);
  MlpSums router_sums(const MlpView& view, Scores scores);
  // As many positions at a time as fit into a tile, all tiles of about one size.
  Index positions_at_once(Index positions, Index floats_each) const;
  // [S, D] the sum of the writers that a reader sees. Where scores are made in parts, their signed
  // sums come from it, in single precision: they cancel, and sums of sizes do not.
  template <typename ViewOf>
  Array summed_writers(const ViewOf& view) {
    return view.parts != nullptr
               ? summed_parts(*view.parts, view.visible, view.length)
               : summed_writers(*view.writers, view.n_writers, view.visible, view.length);
  }
  Array summed_writers(const Array& writers, int n_writers, int visible, int length);
  Array summed_parts(const WriterParts& parts, int visible, int length);
  Index block_bytes() const override { return tile_bytes_; }
  // Sums over pairs of positions; of a window those outside of it are 0.
  Array of_pairs(const AttentionView& view, Index each);
  void sum_pairs(Side side, const AttentionView& view, Scores scores, bool keep_scores,
                 AttentionSums& sums);
  void neuron_read(const MlpView& view, MlpSide side, const Spread* spread, Array& sum);
  void pair_read(Side side, const AttentionView& view, Scores scores, const Array& all, Array& sum);
  std::shared_ptr<const DeviceRoles> reader(Side side, int layer);
  bool projects_in_parts(Side side, const AttentionView& view);
  bool reads_sums(Side side, const AttentionView& view);  // in place of adding up scores
  bool folds(Side side, const AttentionView& view);
  bool folds(const DeviceMatrix& w, Index length, Index visible) const;
  // Sums of sizes without a tile of scores in memory: see UnpackPairSums.
  bool sums_on_chip(Side side, const AttentionView& view);
  struct ReachUnits {
    const float* mass = nullptr;
    const float* bound = nullptr;
  };
  void pair_sums(Side side, const AttentionView& view, const ReachUnits& reach, Array& sum,
                 float* most);
  // `way` for all pairs of rows a[S, H, E] and b[S, G, E], whose products it is given. A product
  // each pays from so many positions on.
  static constexpr int kManyPositions = 64;
  void sum_values(const AttentionView& view, const Rows& rows, const Array& pulled,
                  Array& out) override;
  void pair_dots(const float* a, const float* b, Index length, PairDots way);
  void key_reach(const Layer& layer, Scores scores, const Reach& reach, Index parts, double* mass,
                 double* bound);
  void finish_projected(Side side, const AttentionView& view, const DeviceRoles& layer, Index first,
                        Index count, Index positions, Array& x);

  // Head writers are z W_O: their products with a matrix through W_O C W of every source layer,
  // made and used at once. Whether that takes fewer operations at a length.
  bool low_rank(const DeviceMatrix& w, Index length);
  Array head_product(int source, const SplitProducts::Weights& w);  // [H E, w.out]
  SplitProducts::HeadWeights by_head(const Array& product, Index columns, SplitProducts::Kind kind);
  MlpSums low_rank_neurons(const MlpView& view, MlpSide side, const DeviceMatrix& matrix,
                           Wanted wanted);
  // c[.., out] = writers W, of the `plain` ones at some positions, one after the other. `listed`:
  // the same on the device.
  template <typename ViewOf>
  void multiply_plain(const ViewOf& view, const std::vector<int>& plain, const int* listed,
                      Index first, Index count, const SplitProducts::Weights& w, float* c);
  Array make_plain(const WriterParts& parts, Index first, Index count, Index plain);
  // How writers are projected to keys or queries.
  struct Projection {
    bool low_rank = false, split = false;
    Index width = 0;
    Operand matrix;
    SplitProducts::Weights parts;
    std::vector<Array> heads;  // products by source layer, where they are kept
  };
  Projection projection(Side side, const AttentionView& view, const DeviceRoles& layer);
  void low_rank_project(const AttentionView& view, const Projection& way, Index first,
                        Index positions, Array& out);

  Operand operand(const DeviceMatrix& m) { return DeviceWeights::operand(m, *device_); }
  bool few_rows(const DeviceMatrix& w, Index m) const;
  void multiply_few(const DeviceMatrix& w, bool turned, const float* a, Index m, float* c);
  // C[m, out] = A[m, in] W and C[m, in] = A[m, out] W^T.
  void multiply(const DeviceMatrix& w, const float* a, Index m, float* c);
  void multiply_turned(const DeviceMatrix& w, const float* a, Index m, float* c);
  // Per head: c[.., h, :] (D apart) = a[.., h, :] W[:, columns of head h / group]^T for m rows.
  void heads_to_model(const Operand& w, int heads, const float* a, Index m, float* c);

  // Calls use(tile) for tiles of unscaled scores that together hold every head, query and source of
  // the layer.
  using TileUse = std::function<void(const Tile&)>;
  void score_tiles(Side side, const AttentionView& view, const TileUse& use);
  // From the side's keys or queries back to what the projection gave, through rotary and the
  // per-head norm, for heads of its own. The caller says where from, and at which positions.
  PullBack pull_back(Side side, const AttentionView& view, const DeviceRoles& layer);
  Array pulled_back(PullBack pull, Index size);
  void folded_tile(Side side, const AttentionView& view, const DeviceRoles& layer, const Operand& w,
                   Tile& tile);
  // Projected keys (queries) of some heads, and the queries (keys) of all that meet them.
  struct TileFactors {
    UnpackFactors factors = UNPACK_FACTORS_SINGLE;
    Index depth = 0;
    Array keep;
    const float* projected = nullptr;  // of the first position
    Index width = 0;                   // of all its heads
    Index first = 0;                   // which is the first of them
    const float* others = nullptr;     // [S, heads of theirs, depth]; queries in parts by group
  };
  TileFactors tile_factors(Side side, const AttentionView& view, const Projection& way,
                           const float* projected, Index positions, Index head0, Index heads,
                           const Array& others);
  void projected_tile(Side side, const AttentionView& view, const TileFactors& from, Tile& tile);
  void hide_and_center(const AttentionView& view, Scores scores, int query, Array& out);
  Array project(Side side, const AttentionView& view, const DeviceRoles& layer,
                const Projection& way, Index first, Index positions);
  void value_sums(const AttentionView& view, const DeviceRoles& layer, AttentionSums& sums);
  Array writer_values(const AttentionView& view, const Operand& w, Index first, Index positions);
  // Calls use with rows that together hold every edge of a layer's heads.
  using EdgeUse = std::function<void(Branch branch, const EdgeRows& rows)>;
  void edge_rows(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                 const EdgeUse& use);

  std::shared_ptr<const DeviceRoles> roles(const WeightName& name);
  void run_kernel(kernels::Name name, const void* parameters, std::size_t bytes,
                  Index count) override;
  std::shared_ptr<const void> upload_bytes(std::span<const std::byte> from) override;

  std::shared_ptr<Device> device_;
  std::shared_ptr<DeviceWeights> kept_weights_;  // which lanes share
  DeviceWeights& on_device_;
  SplitProducts split_;
  base::ThreadPool pool_;
  std::string name_;
  std::string details_;
  std::mutex lanes_mutex_;
  std::vector<std::shared_ptr<Backend>> lanes_;
  Index few_rows_ = 0;    // see UnpackDeviceInfo
  Index tile_bytes_ = 0;  // scores exist a tile at a time, which stays below this
};

}  // namespace unpack::backend::cuda
