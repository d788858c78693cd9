// A prompt taken apart: writers, and the sums behind every denominator. Beta, branch weights,
// dispatch, targets and roots come later and share it.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/backend.h"
#include "base/once.h"
#include "decompose/asked_neurons.h"
#include "forward/forward.h"
#include "unpack/run_context.h"
#include "unpack/writers.h"

namespace unpack {

class Decomposition {
 public:
  // Writers and the sums that every question needs, in one walk over the layers. Of a device that
  // does not hold them all, also what questions with the paper's settings need, so that the walk
  // takes each layer up once; elsewhere the sums of heads, those of raw or of centred scores, are
  // made when a question first asks for them.
  Decomposition(std::shared_ptr<Backend> backend, const Writers& writers, ForwardTrace trace,
                const RunContext& context);

  Backend& backend() const { return *backend_; }
  const ModelConfig& config() const { return backend_->config(); }
  const Writers& writers() const { return writers_; }
  const ForwardTrace& trace() const { return trace_; }
  int length() const { return length_; }
  const Array& writer_vectors() const { return vectors_; }  // [S, C, D] centred

  AttentionView attention_view(int layer) const;
  MlpView mlp_view(int layer) const;
  // What a side's neurons read, [S, entries]: pre-activation or up; of the router [S, k] the logits
  // of the chosen experts.
  Array pre(int layer, MlpSide side, Scores scores) const;

  // Computed when first asked for, all layers at once. Thread-safe.
  const AttentionSums& attention(int layer, Scores scores, const RunContext& context = {}) const;
  // Lets `make` make them all, layer by layer from the lowest; false, and nothing done, where they
  // are there already.
  bool make_attention(Scores scores, const std::function<AttentionSums(int layer)>& make) const;
  // Those of either kind of scores, with means and deviations of raw key scores, which both have.
  const AttentionSums& moments(int layer, const RunContext& context = {}) const {
    const bool centered = attention_[1].made && !attention_[0].made;
    return attention(layer, centered ? Scores::centered : Scores::raw, context);
  }
  // Lower medians over sources of centred key scores, [H, S, Cl], where the backend has ReadOps.
  const Array& key_medians(int layer, const RunContext& context = {}) const;
  // What the heads' values see of every writer, [S, Cl, G, E]; empty where it is not kept.
  Array writer_values(int layer, const RunContext& context = {}) const;
  // What their queries meet of every writer, the same way.
  Array writer_keys(int layer, const RunContext& context = {}) const;
  const MlpSums& mlp(int layer, MlpSide side, Scores scores = Scores::raw,
                     const RunContext& context = {}) const;
  // Whether those of a layer are made only for who asks: a target wants them at its own position,
  // and nobody else reads them. mlp() then makes those of all positions.
  bool neurons_when_asked(int layer) const;
  // Sums of such neurons at one position, without the axis of positions.
  MlpSums mlp_at(int layer, MlpSide side, int query) const;
  // Stage 1 numerators in the direction of what the sublayer wrote itself: heads [H, tri], MLP [S,
  // entries].
  Array head_numerators(int layer) const;
  Array mlp_numerators(int layer) const;
  // The same at one query in the direction of a target: heads [H, q + 1], neurons [N]. The last
  // direction's are kept, for they do not depend on beta.
  struct DirectNumerators {
    std::vector<double> heads, neurons;
  };
  DirectNumerators direct_numerators(int layer, int query, const Array& direction) const;

  // Whether the key scores of all layers are kept; otherwise they are computed again where needed.
  bool keeps_key_scores() const { return keeps_.key_scores; }
  // The same of one kind: raw ones are left out where the backend is quicker without.
  bool keeps_key_scores(Scores scores) const;
  static bool wants_key_scores(const Backend& backend, Scores scores, int length);
  // What questions leave for the next ones.
  struct Kept {
    bool key_scores = false;  // of every pair of positions
    bool numerators = false;
    bool values = false;  // of writers; and
    bool keys = false;    // from these the scores can be made again
  };
  static Kept kept_within(const ModelConfig& config, const Writers& writers, int length,
                          std::size_t memory_budget, int scalar);
  std::size_t bytes() const {
    return bytes(config(), writers_, length_, keeps_, backend_->is_double() ? 8 : 4);
  }
  // What one holds when all of it has been asked for, and whether its key scores stay within a
  // budget.
  static std::size_t bytes(const ModelConfig& config, const Writers& writers, int length,
                           const Kept& kept, int scalar);
  static bool table_fits(const ModelConfig& config, const Writers& writers, int length,
                         std::size_t memory_budget, int scalar);

 private:
  template <typename Value>
  struct Lazy {
    Once once;
    std::vector<Value> layers;
    std::atomic<bool> made = false;
  };

  // What the last target gave, layer by layer.
  struct DirectCache {
    std::mutex mutex;
    int query = -1;
    std::vector<double> direction;
    std::vector<std::shared_ptr<const DirectNumerators>> layers;
  };

  Array kept(Lazy<Array>& lazy, int layer, const std::function<Array(int)>& make) const;
  Array kept_numerators(Lazy<Array>& lazy, int layer, const std::function<Array(int)>& make) const;
  std::vector<const Array*> head_states() const;
  Array make_head_numerators(int layer) const;
  Array make_mlp_numerators(int layer) const;

  std::shared_ptr<Backend> backend_;
  Writers writers_;
  ForwardTrace trace_;
  int length_;
  Array vectors_;
  Kept keeps_;
  mutable std::array<Lazy<AttentionSums>, 2> attention_;
  mutable std::array<Lazy<MlpSums>, 4> mlp_;       // gate, up, router raw and centred
  mutable std::array<Lazy<MlpSums>, 2> last_mlp_;  // of the last layer: gate, up
  mutable AskedNeurons asked_;
  mutable Lazy<Array> head_numerators_, mlp_numerators_, key_medians_, values_, keys_;
  mutable DirectCache direct_;
};

}  // namespace unpack
