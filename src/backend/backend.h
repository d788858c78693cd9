// The narrow interface between the maths and a device. A Backend holds one model's weights in the
// form its device likes; arrays are opaque to the code above. `center` is the identity for RMSNorm,
// here as everywhere.
//
// Shapes: T rows of one or several prompts, S positions of one prompt, Cl the writers a sublayer
// can see (a prefix of all C), and tri = S (S + 1) / 2 pairs s <= q stored at q (q + 1) / 2 + s.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/weights.h"
#include "unpack/config.h"
#include "unpack/options.h"
#include "unpack/run_context.h"

namespace unpack {

inline std::int64_t tri(std::int64_t q) { return q * (q + 1) / 2; }

// An array of the backend's scalar on the backend's device.
class Array {
 public:
  Array() = default;
  Array(std::shared_ptr<void> data, std::int64_t size) : data_(std::move(data)), size_(size) {}
  std::int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void* raw() const { return data_.get(); }

 private:
  std::shared_ptr<void> data_;
  std::int64_t size_ = 0;
};

enum class Sublayer { attention, mlp };
enum class MlpSide { gate, up, router };  // gate is the only one of a plain MLP

// Which experts of a mixture the rows of a batch use, and what the router said of all of them.
struct Routing {
  int chosen = 0;              // k
  int experts = 0;             // E
  std::vector<int> expert;     // [T, k], the strongest first
  std::vector<double> weight;  // [T, k] what their outputs are multiplied by
  std::vector<double> logits;  // [T, E]

  std::size_t slot(std::int64_t row, int i) const {
    return static_cast<std::size_t>(row * chosen + i);
  }
  Routing of_row(std::int64_t row) const {
    const auto cut = [row](const auto& all, int width) {
      return std::remove_cvref_t<decltype(all)>(all.begin() + row * width,
                                                all.begin() + (row + 1) * width);
    };
    return {chosen, experts, cut(expert, chosen), cut(weight, chosen), cut(logits, experts)};
  }
};

// Rows [begin, begin + length) of a batch are one prompt; `past` positions of it were seen before
// (generation).
struct Segment {
  std::int64_t begin = 0;
  int length = 0;
  int past = 0;
};

// What the attention of one layer realised, for one prompt.
struct AttentionView {
  int layer = 0;
  int length = 0;                   // S
  int visible = 0;                  // Cl
  const Array* writers = nullptr;   // [S, C, D] centred
  int n_writers = 0;                // C
  const Array* dev = nullptr;       // [S] deviation of the stream at the norm
  const Array* q = nullptr;         // [S, H, E]
  const Array* k = nullptr;         // [S, G, E]
  const Array* v = nullptr;         // [S, G, E]
  const Array* q_dev = nullptr;     // [S, H] deviation inside the norm of queries, else empty
  const Array* k_dev = nullptr;     // [S, G]
  const Array* pattern = nullptr;   // [H, tri]
  const Array* out_dev = nullptr;   // [S] deviation of the norm behind, else empty
  const Array* q_scores = nullptr;  // of the sums, where they are there already
  std::vector<const Array*> z;      // [S, H, E] of every layer
};

struct MlpView {
  int layer = 0;
  int length = 0;
  int visible = 0;
  const Array* writers = nullptr;
  int n_writers = 0;
  const Array* dev = nullptr;  // [S]
  const Array* act = nullptr;  // [S, entries] the neurons' values a_n, times their expert's weight
  const Array* out_dev = nullptr;    // [S] deviation of the norm behind, else empty
  const Routing* routing = nullptr;  // of a mixture
  std::vector<const Array*> z;       // [S, H, E] of every layer
  const Array* last = nullptr;       // of the sums, where they are there already
  int last_at = -1;                  // whose scores these are; -1: the last position's
};

// Sums over the visible writers of scores and of their sizes, one pair per denominator.
struct AttentionSums {
  Array k_sum, k_abs, q_sum, q_abs;  // [H, tri]
  Array v_sum, v_abs;                // [G, S]
  Array v_scores;                    // [G, S, Cl]
  Array k_std;     // [H, S, Cl] over s <= q of the raw key scores: the interaction score
  Array k_mean;    // [H, S, Cl] their mean over s <= q
  Array k_scores;  // [H, tri, Cl], only when asked for
  Array q_scores;  // [H, tri, Cl], with k_scores and where a backend has it and it is small
};

struct MlpSums {
  Array sum, abs;  // [S, entries]; of the router [S, k]
  Array l2;        // [S, Cl] || sM_j(q, .) ||_2
  Array last;  // [Cl, N] the scores at the last position, which most targets start from; where a
               // backend has it and it is small
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string name() const = 0;     // "cpu", "reference", "cuda"
  virtual std::string details() const = 0;  // kernels or device in words
  virtual bool is_double() const = 0;       // the scalar: double or float
  virtual int threads() const = 0;
  const ModelConfig& config() const { return config_; }
  // Host threads for the code above the backend; every task must write its own output.
  virtual void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& task) = 0;
  // Whether such tasks may call the backend, each for a layer of its own, without weights being
  // converted over and over.
  virtual bool layers_side_by_side() const { return false; }

  // What the device reaches by itself: a large GEMM over packed weights in flop/s, and reading
  // memory in bytes/s.
  struct Peaks {
    double flops = 0;
    double bytes = 0;
  };
  virtual Peaks measure_peaks() = 0;

  // Memory
  // ------------------------------------------------------------------------------------------------------------------------
  virtual Array zeros(std::int64_t size) = 0;
  virtual Array slice(const Array& from, std::int64_t offset,
                      std::int64_t size) = 0;  // shares the memory
  virtual void upload(Array& to, std::int64_t offset, std::span<const double> from) = 0;
  virtual void download(const Array& from, std::int64_t offset, std::span<double> to) = 0;
  virtual void copy(const Array& from, std::int64_t from_offset, Array& to, std::int64_t to_offset,
                    std::int64_t size) = 0;
  // The array as host memory of the backend's scalar; host backends give their own memory, others a
  // copy.
  virtual std::shared_ptr<const void> host(const Array& from) = 0;

  // Forward pass
  // ------------------------------------------------------------------------------------------------------------------
  virtual void embed(std::span<const TokenId> ids, Array& out) = 0;  // out[T, D] = W_E[ids]
  virtual void embed_positions(std::span<const int> positions,
                               Array& out) = 0;  // out[T, D] = W_pos[positions]
  virtual void add(const Array& x, Array& y, std::int64_t size,
                   double scale = 1.0) = 0;  // y += scale * x
  virtual void add_rows(const Array& x, std::int64_t x_row, Array& y, std::int64_t y_row,
                        std::int64_t rows, int cols, double scale) = 0;
  // x[T, D] += b_O or b_out, through the norm behind where there is one (out_dev), of the chosen
  // experts where it is a mixture.
  virtual void add_bias(int layer, Sublayer sublayer, Array& x, std::int64_t rows,
                        const Array& out_dev, const Routing* routing) = 0;
  // out[T, D] = center(x) / dev, the norm without its weight and bias (these live in the weights);
  // dev[T].
  virtual void normalize(Norm kind, const Array& x, std::int64_t rows, Array& out, Array& dev) = 0;
  // The norm behind a sublayer: dev[T] of y + bias, and y[T, D] *= w_post / dev.
  virtual void norm_behind(int layer, Sublayer sublayer, Array& y, std::int64_t rows,
                           Array& dev) = 0;
  // The same with the deviation held fixed; nothing where there is no such norm.
  virtual void through_norm_behind(int layer, Sublayer sublayer, const Array& dev,
                                   std::int64_t rows, Array& y) = 0;
  // q[T, H, E], k, v[T, G, E] with biases, norms and rotary; q_dev, k_dev are filled where the
  // layer has such norms. `context`: tokens of the prompt, which some rotaries depend on.
  virtual void qkv(int layer, const Array& normalized, std::span<const int> positions, int context,
                   Array& q, Array& k, Array& v, Array& q_dev, Array& k_dev) = 0;
  // z[T, H, E]; pattern[H, tri] per segment, one after the other (empty: not kept). Keys and values
  // of segment i start at row key_begin[i] and reach over past + length rows.
  virtual void attention(int layer, const Array& q, const Array& k, const Array& v,
                         std::span<const Segment> segments, std::span<const std::int64_t> key_begin,
                         Array& pattern, Array& z) = 0;
  virtual void attention_out(int layer, const Array& z, std::int64_t rows,
                             Array& out) = 0;  // out[T, D] = z W_O
  // out[T, experts] with bias.
  virtual void router(int layer, const Array& normalized, std::int64_t rows, Array& out) = 0;
  // out[T, entries] with bias; of a mixture the chosen experts' neurons, slot after slot.
  virtual void mlp_in(int layer, MlpSide side, const Array& normalized, std::int64_t rows,
                      const Routing* routing, Array& out) = 0;
  // phi(pre), gated: phi(pre) * up, times the expert's weight.
  virtual void activate(int layer, const Array& pre, const Array& up, const Routing* routing,
                        std::int64_t rows, Array& act) = 0;
  virtual void mlp_out(int layer, const Array& act, std::int64_t rows, const Routing* routing,
                       Array& out) = 0;  // out[T, D] = act W_out
  // logits[rows.size(), V] of chosen rows of the final stream, before a soft cap.
  virtual void logits(const Array& x, std::span<const std::int64_t> rows,
                      std::vector<double>& out) = 0;

  // Writers
  // -----------------------------------------------------------------------------------------------------------------------
  // writers[s, index, :] = center(rows[row + s, :]).
  virtual void put_writer(const Array& rows, std::int64_t row, int length, Array& writers,
                          int n_writers, int index) = 0;
  // writers[s, first + h, :] = center(z[row + s, h, :] W_O[h]), through the norm behind.
  virtual void put_head_writers(int layer, const Array& z, const Array& out_dev, std::int64_t row,
                                int length, Array& writers, int n_writers, int first) = 0;

  // Denominators
  // ------------------------------------------------------------------------------------------------------------------
  virtual AttentionSums attention_sums(const AttentionView& view, Scores scores,
                                       bool keep_key_scores) = 0;
  // `scores` concerns the router alone: its scores less their mean over all experts.
  virtual MlpSums mlp_sums(const MlpView& view, MlpSide side, Scores scores) = 0;

  // Scores on demand
  // --------------------------------------------------------------------------------------------------------------
  // out[(q + 1), Cl] for one head and query; scores as asked.
  virtual void key_scores(const AttentionView& view, Scores scores, int head, int query,
                          Array& out) = 0;
  // Of all heads, out[H, (q + 1), Cl].
  virtual void key_scores_of_heads(const AttentionView& view, Scores scores, int query,
                                   Array& out) {
    const std::int64_t each = (std::int64_t{query} + 1) * view.visible;
    for (int h = 0; h < config_.n_heads; ++h) {
      Array own = slice(out, h * each, each);
      key_scores(view, scores, h, query, own);
    }
  }
  virtual void query_scores(const AttentionView& view, Scores scores, int head, int query,
                            Array& out) = 0;
  // [Cl, entries]; of the router [Cl, k].
  virtual void mlp_scores(const MlpView& view, MlpSide side, Scores scores, int query,
                          Array& out) = 0;
  // Calls visit(head, query, scores[(q + 1), Cl]) for every head and query of the layer, from
  // several threads, each pair once.
  using KeyVisitor = std::function<void(int head, int query, const void* scores)>;
  virtual void visit_key_scores(const AttentionView& view, Scores scores,
                                const KeyVisitor& visit) = 0;

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
  // -----------------------------------------------------------------------------------------------------------
  // For each row i with query queries[i] and direction directions[i, D]: alpha[h, q, s] <
  // center(U[h, s]), d >, out[H][sum of (q_i + 1)].
  virtual void head_numerators(const AttentionView& view, std::span<const int> queries,
                               const Array& directions, Array& out) = 0;
  // t_n = a_n < center(W_out[n]), d >; out[rows, entries].
  virtual void mlp_numerators(const MlpView& view, std::span<const int> queries,
                              const Array& directions, Array& out) = 0;
  // out[H, rows, Cl] = sum_s coef[h, i, s] sQ_j(q_i, s) with raw scores (centred ones where the
  // view has them and coef sums to 0); coef laid out as head_numerators' output.
  virtual void query_fold(const AttentionView& view, std::span<const int> queries,
                          std::span<const double> coef, std::vector<double>& out) = 0;
  // out[S, Cl] = sum over heads and queries of coef[h, tri(q) + s] sK_j(q, s), raw scores.
  virtual void key_fold(const AttentionView& view, std::span<const double> coef,
                        std::vector<double>& out) = 0;
  // out[rows, Cl] = sum_n coef[i, n] sM_j(q_i, n).
  virtual void mlp_fold(const MlpView& view, MlpSide side, Scores scores,
                        std::span<const int> queries, std::span<const double> coef,
                        std::vector<double>& out) = 0;

  // Targets
  // -----------------------------------------------------------------------------------------------------------------------
  // d_t[D] for a stream row: logit scale * w_lnf / dev(x) * (mean of target rows - mean of versus
  // rows; nothing: the whole vocabulary; raw: none).
  virtual void target_direction(const Array& x, std::int64_t row, std::span<const TokenId> target,
                                const std::vector<TokenId>* versus, bool raw, Array& out) = 0;
  // out[C] = < writers[s, k, :], d >.
  virtual void writer_dots(const Array& writers, int n_writers, int position,
                           const Array& direction, std::vector<double>& out) = 0;

 protected:
  ModelConfig config_;
};

struct BackendOptions {
  std::string device = "auto";
  int threads = 0;
  bool tf32 = false;
  bool exact_fp32 = false;
  std::function<void(const std::string&)> notice;
  bool weight_products = false;
};
std::shared_ptr<Backend> make_backend(std::shared_ptr<const ModelWeights> weights,
                                      const BackendOptions& options);

}  // namespace unpack
