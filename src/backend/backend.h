// The operations of the method on a device. A Backend holds one model's weights in the form its
// device likes; arrays are opaque to the code above. `center` is the identity for RMSNorm, here as
// everywhere.
//
// Every operation is written once, over the primitives of the device (ops/). Those that are virtual
// a device may override with a way that is faster there. A new device needs the primitives alone.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/credit_on_queries.h"
#include "backend/device_credit.h"
#include "backend/device_memory.h"
#include "backend/device_plan.h"
#include "backend/primitives.h"
#include "backend/read_ops.h"
#include "backend/views.h"
#include "base/index.h"
#include "base/once.h"
#include "model/weights.h"
#include "unpack/config.h"
#include "unpack/options.h"
#include "unpack/run_context.h"
#include "unpack/writers.h"

namespace unpack::backend {

class Backend : public Primitives, public ReadOps {
 public:
  ~Backend() override = default;

  virtual std::string name() const = 0;     // "cpu", "reference", "cuda"
  virtual std::string details() const = 0;  // kernels or device in words
  virtual int threads() const = 0;
  const ModelConfig& config() const { return config_; }
  // Host threads for the code above the backend; every task must write its own output.
  virtual void parallel_for(Index count, const std::function<void(Index)>& task) = 0;
  // Calls caller(0) .. caller(count - 1), each of which works on a prompt of its own; they may
  // share what they read of the weights.
  virtual void together(Index count, const std::function<void(Index)>& caller) {
    for (Index i = 0; i < count; ++i) caller(i);
  }
  // Whether such tasks may call the backend, each for a layer of its own, without weights being
  // converted over and over.
  virtual bool layers_side_by_side() const { return false; }
  // Others like this one over the same weights, for prompts that other threads trace at the same
  // time; none where a device gains nothing by it.
  virtual std::vector<std::shared_ptr<Backend>> lanes(int /*count*/) { return {}; }

  // Looks at stored values that nobody has looked at so far, and throws InputError where one is no
  // finite number.
  void check_values();
  // Whether products of this device look at values on their way, so that a check comes behind them.
  virtual bool looks_at_values() const { return false; }

  // What the device reaches by itself: a large GEMM over packed weights in flop/s, and reading
  // memory in bytes/s.
  struct Peaks {
    double flops = 0;
    double bytes = 0;
  };
  virtual Peaks measure_peaks() = 0;

  // What some devices have, and others have not
  // -----------------------------------------------------------------------------------------------
  // Waits for work that was queued; false where everything is done at once.
  virtual bool synchronize() { return false; }
  // Memory of its own.
  virtual DeviceMemory* device_memory() { return nullptr; }
  // Passing credit on without a round trip for every array.
  virtual DeviceCredit* device_credit() { return nullptr; }
  // Keys folded with coefficients as they lie in host memory.
  virtual CreditOnQueries* credit_on_queries() { return nullptr; }
  // How the scores of a prompt will be made; empty: by the one way there is.
  virtual std::vector<DevicePlan::Part> plan(const Writers&, int /*tokens*/, bool /*by_layer*/) {
    return {};
  }
  // Whether raw key scores of such a prompt are added up without being written
  // (sums_with_reach): a table of them is not worth its memory then.
  virtual bool adds_keys_up(int /*length*/) const { return false; }

  // Forward pass
  // -----------------------------------------------------------------------------------------------
  void embed(std::span<const TokenId> ids, Array& out);  // out[T, D] = W_E[ids]
  void embed_positions(std::span<const int> positions,
                       Array& out);  // out[T, D] = W_pos[positions]
  void add(const Array& x, Array& y, Index size,
           double scale = 1.0);  // y += scale * x
  void add_rows(const Array& x, Index x_row, Array& y, Index y_row, Index rows, int cols,
                double scale);
  // x[T, D] += b_O or b_out, through the norm behind where there is one (out_dev), of the chosen
  // experts where it is a mixture.
  void add_bias(int layer, Sublayer sublayer, Array& x, Index rows, const Array& out_dev,
                const Routing* routing);
  // out[T, D] = center(x) / dev, the norm without its weight and bias (these live in the weights);
  // dev[T].
  void normalize(Norm kind, const Array& x, Index rows, Array& out, Array& dev);
  // The norm behind a sublayer: dev[T] of y + bias, and y[T, D] *= w_post / dev.
  void norm_behind(int layer, Sublayer sublayer, Array& y, Index rows, Array& dev);
  // The same with the deviation held fixed; nothing where there is no such norm.
  void through_norm_behind(int layer, Sublayer sublayer, const Array& dev, Index rows, Array& y);
  // q[T, H, E], k, v[T, G, E] with biases, norms and rotary; q_dev, k_dev are filled where the
  // layer has such norms. `context`: tokens of the prompt, which some rotaries depend on.
  void qkv(int layer, const Array& normalized, std::span<const int> positions, int context,
           Array& q, Array& k, Array& v, Array& q_dev, Array& k_dev);
  // z[T, H, E]; pattern[H, tri] per segment, one after the other (empty: not kept). Keys and values
  // of segment i start at row key_begin[i] and reach over past + length rows.
  // A host goes over the queries of a head block by block, whose logits stay in its cache.
  virtual void attention(int layer, const Array& q, const Array& k, const Array& v,
                         std::span<const Segment> segments, std::span<const Index> key_begin,
                         Array& pattern, Array& z);
  void attention_out(int layer, const Array& z, Index rows,
                     Array& out);  // out[T, D] = z W_O
  // out[T, experts] with bias.
  void router(int layer, const Array& normalized, Index rows, Array& out);
  // out[T, entries] with bias; of a mixture the chosen experts' neurons, slot after slot.
  void mlp_in(int layer, MlpSide side, const Array& normalized, Index rows, const Routing* routing,
              Array& out);
  // phi(pre), gated: phi(pre) * up, times the expert's weight.
  void activate(int layer, const Array& pre, const Array& up, const Routing* routing, Index rows,
                Array& act);
  void mlp_out(int layer, const Array& act, Index rows, const Routing* routing,
               Array& out);  // out[T, D] = act W_out
  // logits[rows.size(), V] of chosen rows of the final stream, before a soft cap.
  void logits(const Array& x, std::span<const Index> rows, std::vector<double>& out);

  // Writers
  // -----------------------------------------------------------------------------------------------
  // writers[s, index, :] = center(rows[row + s, :]).
  void put_writer(const Array& rows, Index row, int length, Array& writers, int n_writers,
                  int index);
  // writers[s, first + h, :] = center(z[row + s, h, :] W_O[h]), through the norm behind.
  void put_head_writers(int layer, const Array& z, const Array& out_dev, Index row, int length,
                        Array& writers, int n_writers, int first);

  // Writers [first, end) of positions [position, position + count), [count, end - first, D]; all
  // heads of a layer or none.
  Array make_writers(const WriterParts& parts, Index position, Index count, int first, int end);
  // How many positions of so many numbers each are made at a time.
  Index positions_at_a_time(Index numbers, Index positions) const {
    return positions_within(numbers * scalar_bytes(), positions);
  }

  // Denominators
  // -----------------------------------------------------------------------------------------------
  virtual AttentionSums attention_sums(const AttentionView& view, Scores scores,
                                       bool keep_key_scores);
  // What passing credit on by keys and values needs of them: not those of queries.
  virtual AttentionSums key_sums(const AttentionView& view, Scores scores) {
    return attention_sums(view, scores, false);
  }
  // k_std and k_mean alone, of sums that a backend made without them.
  virtual AttentionSums key_moments(const AttentionView& view) {
    return attention_sums(view, Scores::raw, false);
  }
  // `scores` concerns the router alone: its scores less their mean over all experts.
  virtual MlpSums mlp_sums(const MlpView& view, MlpSide side, Scores scores);
  // l2 alone, of sums that a backend made without it.
  virtual Array mlp_norms(const MlpView& view, MlpSide side) {
    return mlp_sums(view, side, Scores::raw).l2;
  }

  // Scores on demand
  // -----------------------------------------------------------------------------------------------
  // out[(q + 1), Cl] for one head and query; scores as asked.
  virtual void key_scores(const AttentionView& view, Scores scores, int head, int query,
                          Array& out);
  // Of all heads, out[H, (q + 1), Cl].
  virtual void key_scores_of_heads(const AttentionView& view, Scores scores, int query,
                                   Array& out) {
    const Index each = (Index{query} + 1) * view.visible;
    for (int h = 0; h < config_.n_heads; ++h) {
      Array own = slice(out, h * each, each);
      key_scores(view, scores, h, query, own);
    }
  }
  virtual void query_scores(const AttentionView& view, Scores scores, int head, int query,
                            Array& out);
  // [Cl, entries]; of the router [Cl, k].
  virtual void mlp_scores(const MlpView& view, MlpSide side, Scores scores, int query, Array& out);
  // Calls visit(head, query, scores[(q + 1), Cl]) for every head and query of the layer, from
  // several threads, each pair once.
  using KeyVisitor = std::function<void(int head, int query, const void* scores)>;
  virtual void visit_key_scores(const AttentionView& view, Scores scores, const KeyVisitor& visit);

  // The same without the scores: for every source the sum over the writers of |raw score| times
  // mass[s, j], and the largest |raw score| times bound[s, j]; both [S, C]. False, and nothing
  // done, where a backend has no quicker way to these than by the scores.
  using ReachVisitor =
      std::function<void(int head, int query, const double* mass, const double* bound)>;
  virtual bool visit_key_reach(const AttentionView&, std::span<const double>,
                               std::span<const double>, const ReachVisitor&) {
    return false;
  }

  // Sums of raw scores without a table and, while the scores are at hand, what visit_key_reach has
  // to say of every pair of positions. False, and nothing done, as there.
  struct PairReach {
    std::vector<float> mass, bound;  // [H, tri] in units of
    std::vector<double> unit;        // [S, {mass, bound}]
  };
  virtual bool sums_with_reach(const AttentionView&, std::span<const double>,
                               std::span<const double>, AttentionSums&, PairReach&) {
    return false;
  }

  // Entries and folding
  // -----------------------------------------------------------------------------------------------
  // For each row i with query queries[i] and direction directions[i, D]: alpha[h, q, s] <
  // center(U[h, s]), d >, out[H][sum of (q_i + 1)].
  void head_numerators(const AttentionView& view, std::span<const int> queries,
                       const Array& directions, Array& out);
  // The same of one query without the pattern of all, and what the heads attend to there:
  // out, pattern [H, q + 1].
  void head_numerators_at(const AttentionView& view, int query, const Array& direction, Array& out,
                          Array& pattern);
  // t_n = a_n < center(W_out[n]), d >; out[rows, entries].
  void mlp_numerators(const MlpView& view, std::span<const int> queries, const Array& directions,
                      Array& out);
  // out[H, rows, Cl] = sum_s coef[h, i, s] sQ_j(q_i, s) with raw scores (centred ones where the
  // view has them and coef sums to 0); coef laid out as head_numerators' output.
  virtual void query_fold(const AttentionView& view, std::span<const int> queries,
                          std::span<const double> coef, std::vector<double>& out);
  // out[S, Cl] = sum over heads and queries of coef[h, tri(q) + s] sK_j(q, s), raw scores.
  void key_fold(const AttentionView& view, std::span<const double> coef, std::vector<double>& out);
  // out[rows, Cl] = sum_n coef[i, n] sM_j(q_i, n).
  virtual void mlp_fold(const MlpView& view, MlpSide side, Scores scores,
                        std::span<const int> queries, std::span<const double> coef,
                        std::vector<double>& out);

  // Direction `read` (read_ops.h)
  // -----------------------------------------------------------------------------------------------
  void head_directions(const AttentionView& view, std::span<const int> queries,
                       std::span<const double> directions, std::vector<double>& out) override;
  Array slot_sums(const Array& entries, Index neurons) override;
  void neuron_reads(const MlpView& view, MlpSide side, Scores scores, const Array& coef,
                    std::vector<double>& out) override;
  void position_dots(const Array& writers, int n_writers, int first, int end,
                     std::span<const double> vectors, std::vector<double>& out) override;
  HeadReads head_reads(const AttentionView& view, const AttentionSums& sums, const Options& options,
                       std::span<const double> directions) override;
  NeuronCredit neuron_credit(const Array& own, Index rows, const Array* pre, const MlpSums* sums,
                             double beta, double weight) override;
  Array key_medians(const AttentionView& view, const AttentionSums& sums) override;
  void offset_fold(const AttentionView& view, const HeadReads& reads, const Array& offsets,
                   std::vector<double>& out) override;
  void visit_edges(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                   const EdgeVisitor& visit) override;
  EdgesFrom edges_from(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                       int head, int query) override;
  std::vector<EdgesInto> edges_into(std::span<const LayerReads> layers, int writer,
                                    int source) override;

  // Targets
  // -----------------------------------------------------------------------------------------------
  // d_t[D] for a stream row: logit scale * w_lnf / dev(x) * (mean of target rows - mean of versus
  // rows; nothing: the whole vocabulary; raw: none).
  void target_direction(const Array& x, Index row, std::span<const TokenId> target,
                        const std::vector<TokenId>* versus, bool raw, Array& out);
  // out[C] = < writers[s, k, :], d >.
  void writer_dots(const Array& writers, int n_writers, int position, const Array& direction,
                   std::vector<double>& out);

 protected:
  explicit Backend(std::shared_ptr<const model::ModelWeights> weights)
      : weights_(std::move(weights)), config_(weights_->config), writers_(config_) {}

  // Some positions of a prompt, and where the sources of each start where those of all stand one
  // after the other.
  struct Rows {
    std::shared_ptr<const int> queries;
    std::shared_ptr<const Index> begin;  // [rows + 1]
    std::vector<int> host;
    std::vector<Index> host_begin;
    Index count = 0;
    Index total = 0;  // sources of all rows
    Index first = 0;
    bool consecutive = false;  // first, first + 1, ...
    std::vector<Index> positions() const { return {host.begin(), host.end()}; }
  };
  Rows rows_of(std::span<const int> queries);

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
  Spread spread(const Routing& routing, std::span<const Index> rows);
  Spread spread(const Routing& routing, Index rows);  // all of them
  static model::Role matrix_of(MlpSide side);
  static model::Role bias_of(MlpSide side);

  struct RotaryTable {
    Rope rope;
    bool long_prompt = false;
    Index positions = 0;
    Array cos, sin;  // [positions, rot / 2]
  };
  // Null where the layer has no rotary. `context`: tokens of the prompt. A table stays for good: a
  // device may have queued work with an older one.
  std::shared_ptr<const RotaryTable> rotary(int layer, Index positions, int context);

  // Calls use(begin, n, writers, n_writers) for runs of positions that together are [first, first +
  // count): the writers of position `begin` and on, [n, n_writers, D].
  using WriterUse = std::function<void(Index begin, Index n, Any* writers, Index n_writers)>;
  template <typename ViewOf>
  void with_writers(const ViewOf& view, Index first, Index count, const WriterUse& use);
  // How many bytes of them are made at a time.
  virtual Index block_bytes() const { return Index{1} << 28; }
  Index positions_within(Index bytes_each, Index positions) const;

  // Directions as a sublayer's own outputs see them: centred, and through the norm behind.
  Array directions_for(const WeightName& post, const Array* out_dev, const Rows& rows,
                       const Array& directions);
  // [H, rows, Cl] from coef[H, sum of (q_i + 1)], as query_fold.
  void fold_to_writers(const AttentionView& view, const Rows& rows, const Array& coef, Array& out);
  Array fold_keys(const AttentionView& view, const Array& coef);  // [S, Cl], as key_fold
  // coef[rows, entries] times the weights by which a side's neurons read, [rows, D].
  Array neurons_to_model(const MlpView& view, MlpSide side, Scores scores, const Rows& rows,
                         const Array& coef);
  void fold_neurons(const MlpView& view, MlpSide side, Scores scores, const Rows& rows,
                    const Array& coef, double weight, Array& out);

  // Sums over pairs of positions, which kernels take one by one. A host, which has no threads to
  // waste, makes them as products of blocks.
  //
  // out[h, begin(i) + s] = pattern[h, q_i, s] < v[s], pulled[i, h] >
  virtual void sum_values(const AttentionView& view, const Rows& rows, const Array& pulled,
                          Array& out);
  // [rows, H, E] = sum over s of coef[h, begin(i) + s] k[s]
  virtual Array sum_keys(const AttentionView& view, const Rows& rows, const Array& coef);
  // [S, G, E] = sum over the group's heads and q >= s of coef[h, tri(q) + s] q[q, h]
  virtual Array sum_queries(const AttentionView& view, const Array& coef);

  std::shared_ptr<const model::ModelWeights> weights_;
  ModelConfig config_;
  Writers writers_;
  std::mutex mutex_;

 private:
  void embed_rows(model::Role table, std::span<const int> rows, Array& out);
  void each_run(const Rows& rows,
                const std::function<void(Index first, Index count, Index row)>& use);
  void expert_products(int layer, const Spread& spread, MlpSide side, const View& from,
                       const View& to);
  void add_expert_biases(int layer, Array& x, Index rows, const Routing& routing);
  void expert_products_turned(int layer, const Spread& spread, model::Role role, const View& from,
                              const View& to);
  // From keys or queries, of all positions or of those given, back to what the projection gave,
  // through rotary and the per-head norm.
  Array before_norm(const AttentionView& view, bool key, const Rows* rows, const Array& folded);
  std::vector<double> values_of(const Array& from);
  std::vector<double> pair_scores(const AttentionView& view, bool key, Scores scores, int query);
  std::vector<double> scores_of_head(const std::vector<double>& all, Index head, Index visible);
  struct QueryEdges {
    std::vector<double> k, v, q;
  };
  QueryEdges edges_at(const AttentionView& view, const HeadReads& reads, const KeyOffsets& offsets,
                      int query);
  struct FinalNorm {
    std::vector<double> w;
    Array weight, bias;
  };
  const FinalNorm& final_norm();
  const std::vector<double>& vocabulary_mean();

  base::Once final_once_, mean_once_;
  FinalNorm final_norm_;
  std::vector<double> vocabulary_mean_;
  std::vector<std::shared_ptr<const RotaryTable>> rotary_tables_;
  std::vector<Rows> recent_rows_;
};

template <typename ViewOf>
void Backend::with_writers(const ViewOf& view, Index first, Index count, const WriterUse& use) {
  const Index d = config_.d_model;
  if (view.parts == nullptr)
    return use(first, count, data(*view.writers, first * view.n_writers * d), view.n_writers);
  const Index at_once = positions_within(view.visible * d * scalar_bytes(), count);
  for (Index begin = first; begin < first + count; begin += at_once) {
    const Index n = std::min(at_once, first + count - begin);
    const Array made = make_writers(*view.parts, begin, n, 0, view.visible);
    use(begin, n, data(made), view.visible);
  }
}

struct BackendOptions {
  std::string device = "auto";
  int threads = 0;
  bool tf32 = false;
  bool exact_fp32 = false;
  std::function<void(const std::string&)> notice;
  bool weight_products = false;
};
std::shared_ptr<Backend> make_backend(std::shared_ptr<const model::ModelWeights> weights,
                                      const BackendOptions& options);

}  // namespace unpack::backend
