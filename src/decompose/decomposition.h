// A prompt taken apart: writers, and the sums behind every denominator. Beta, branch weights,
// dispatch, targets and roots come later and share it.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "backend/backend.h"
#include "base/once.h"
#include "decompose/asked_neurons.h"
#include "forward/forward.h"
#include "unpack/run_context.h"
#include "unpack/writers.h"

namespace unpack::decompose {

class Decomposition {
 public:
  // Writers and the sums that every question needs, in one walk over the layers; the sums of heads,
  // those of raw or of centred scores, are made when a question first asks for them. Where a device
  // does not hold all layers, all of it waits for the first question (`begin`), so that one walk,
  // which takes each layer up once, makes what that one needs.
  // `by_layer`: of a long prompt, after a lean pass, nothing is made but what a layer that was
  // entered needs, and nothing that grows with the square of the prompt is kept.
  Decomposition(std::shared_ptr<backend::Backend> backend, const Writers& writers,
                forward::ForwardPass pass, const RunContext& context, bool by_layer = false);

  // What the first question will ask for, where nothing was made yet.
  void begin(const Options& options, const RunContext& context = {}) const;

  backend::Backend& backend() const { return *backend_; }
  const ModelConfig& config() const { return backend_->config(); }
  const Writers& writers() const { return writers_; }
  int length() const { return length_; }
  // What the forward pass kept, and [S, C, D] the centred writers: all of it. Those who go layer by
  // layer take what is there; others are told that a long prompt has no such thing.
  const forward::ForwardPass& pass() const;
  const backend::Array& writer_vectors() const;
  const forward::ForwardPass& kept_pass() const { return pass_; }
  void writer_dots(int position, const backend::Array& direction, std::vector<double>& out) const;
  void position_dots(int first, int end, std::span<const double> vectors,
                     std::vector<double>& out) const;

  // Layer by layer
  // -----------------------------------------------------------------------------------------------
  bool by_layer() const { return by_layer_; }
  // Whoever asks such a prompt has it for himself.
  std::unique_lock<std::mutex> alone() const;
  // Brings the pattern and the neurons of a layer back. What was made of another layer goes, its
  // sums too; references to them end.
  void enter(int layer) const;
  // Sums of the layer that was entered, which nobody keeps.
  backend::AttentionSums key_sums(int layer, Scores scores) const {
    return backend_->key_sums(attention_view(layer), scores);
  }
  void leave_sums() const { now_.attention.reset(); }

  backend::AttentionView attention_view(int layer) const;
  backend::MlpView mlp_view(int layer) const;
  // What a side's neurons read, [S, entries]: pre-activation or up; of the router [S, k] the logits
  // of the chosen experts.
  backend::Array pre(int layer, backend::MlpSide side, Scores scores) const;

  // Computed when first asked for, all layers at once. Thread-safe.
  const backend::AttentionSums& attention(int layer, Scores scores,
                                          const RunContext& context = {}) const;
  // Lets `make` make them all, layer by layer from the lowest; false, and nothing done, where they
  // are there already.
  bool make_attention(Scores scores,
                      const std::function<backend::AttentionSums(int layer)>& make) const;
  // Means and deviations of raw key scores.
  const backend::AttentionSums& moments(int layer, const RunContext& context = {}) const;
  // Lower medians over sources of centred key scores, [H, S, Cl], where the backend has ReadOps.
  const backend::Array& key_medians(int layer, const RunContext& context = {}) const;
  // What the heads' values see of every writer, [S, Cl, G, E]; empty where it is not kept.
  backend::Array writer_values(int layer, const RunContext& context = {}) const;
  // What their queries meet of every writer, the same way.
  backend::Array writer_keys(int layer, const RunContext& context = {}) const;
  const backend::MlpSums& mlp(int layer, backend::MlpSide side, Scores scores = Scores::raw,
                              const RunContext& context = {}) const;
  // l2 of a side, where the sums have it or not.
  backend::Array mlp_norms(int layer, backend::MlpSide side, const RunContext& context = {}) const;
  // Whether those of a layer are made only for who asks: a target wants them at its own position,
  // and nobody else reads them. mlp() then makes those of all positions.
  bool neurons_when_asked(int layer) const;
  // Sums of such neurons at one position, without the axis of positions.
  backend::MlpSums mlp_at(int layer, backend::MlpSide side, int query) const;
  // Stage 1 numerators in the direction of what the sublayer wrote itself: heads [H, tri], MLP [S,
  // entries].
  backend::Array head_numerators(int layer) const;
  backend::Array mlp_numerators(int layer) const;
  // The same at one query in the direction of a target: heads [H, q + 1], neurons [N]. The last
  // direction's are kept, for they do not depend on beta.
  struct DirectNumerators {
    std::vector<double> heads, neurons;
  };
  DirectNumerators direct_numerators(int layer, int query, const backend::Array& direction) const;

  // Whether the key scores of all layers are kept; otherwise they are computed again where needed.
  bool keeps_key_scores() const { return keeps_.key_scores; }
  // The same of one kind: raw ones are left out where the backend is quicker without.
  bool keeps_key_scores(Scores scores) const;
  static bool wants_key_scores(const backend::Backend& backend, Scores scores, int length);
  // What questions leave for the next ones.
  struct Kept {
    bool key_scores = false;  // of every pair of positions
    bool numerators = false;
    bool values = false;  // of writers; and
    bool keys = false;    // from these the scores can be made again
  };
  static Kept kept_within(const ModelConfig& config, const Writers& writers, int length,
                          std::size_t memory_budget, int scalar);
  // What it holds by now; what one holds when all of it has been asked for, and whether its key
  // scores stay within a budget.
  std::size_t bytes() const;
  static std::size_t bytes(const ModelConfig& config, const Writers& writers, int length,
                           const Kept& kept, int scalar);
  static bool table_fits(const ModelConfig& config, const Writers& writers, int length,
                         std::size_t memory_budget, int scalar);

 private:
  template <typename Value>
  struct Lazy {
    base::Once once;
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

  // Writers and sums of neurons; with a kind of scores also those of heads, and what else a
  // question needs of every layer.
  struct Walk {
    bool heads = false, numerators = false, medians = false;
    Scores scores = Scores::raw;
  };
  void walk(const Walk& what, const RunContext& context) const;
  void walked() const;  // makes sure of it
  template <typename Value>
  void keep(Lazy<Value>& lazy, std::vector<Value> made) const;
  backend::Array kept(Lazy<backend::Array>& lazy, int layer,
                      const std::function<backend::Array(int)>& make) const;
  backend::Array kept_numerators(Lazy<backend::Array>& lazy, int layer,
                                 const std::function<backend::Array(int)>& make) const;
  std::vector<const backend::Array*> head_states() const;
  backend::Array make_head_numerators(int layer) const;
  backend::Array make_mlp_numerators(int layer) const;

  // What there is of the layer that was entered.
  struct Now {
    int layer = -1;
    std::optional<backend::AttentionSums> attention;
    Scores scores = Scores::raw;
    std::array<std::optional<backend::MlpSums>, 2> mlp;  // gate, up
    std::optional<backend::Array> medians;
  };

  std::shared_ptr<backend::Backend> backend_;
  Writers writers_;
  mutable forward::ForwardPass pass_;
  int length_;
  bool by_layer_;
  mutable base::Once walk_;
  mutable std::atomic<bool> walked_ = false;
  mutable std::atomic<std::thread::id> walker_ = {};
  mutable backend::Array vectors_;
  backend::WriterParts parts_;
  mutable Now now_;
  mutable std::mutex alone_;
  Kept keeps_;
  mutable std::atomic<std::size_t> held_ = 0;  // numbers in all arrays that are kept
  mutable std::array<Lazy<backend::AttentionSums>, 2> attention_;
  mutable Lazy<backend::AttentionSums> moments_;            // where the sums have none
  mutable std::array<Lazy<backend::MlpSums>, 4> mlp_;       // gate, up, router raw and centred
  mutable std::array<Lazy<backend::Array>, 2> norms_;       // gate, up, where the sums have none
  mutable std::array<Lazy<backend::MlpSums>, 2> last_mlp_;  // of the last layer: gate, up
  mutable AskedNeurons asked_;
  mutable Lazy<backend::Array> head_numerators_, mlp_numerators_, key_medians_, values_, keys_;
  mutable DirectCache direct_;
};

}  // namespace unpack::decompose
