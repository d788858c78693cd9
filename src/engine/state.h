// What stands behind the public Model and Prepared.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "credit/edges.h"
#include "credit/suffix.h"
#include "decompose/decomposition.h"
#include "unpack/chat.h"
#include "unpack/model.h"
#include "unpack/prepared.h"

namespace unpack::engine {

struct Inside {
  static const std::shared_ptr<const ModelState>& of(const Model& model) { return model.state_; }
  static const std::shared_ptr<const PreparedState>& of(const Prepared& prepared) {
    return prepared.state_;
  }
  static Model model(std::shared_ptr<const ModelState> state) { return Model(std::move(state)); }
  static Prepared prepared(std::shared_ptr<const PreparedState> state) {
    return Prepared(std::move(state));
  }
};
inline const std::shared_ptr<const ModelState>& state_of(const Model& model) {
  return Inside::of(model);
}
inline const std::shared_ptr<const PreparedState>& state_of(const Prepared& prepared) {
  return Inside::of(prepared);
}

struct ModelState {
  std::shared_ptr<const model::ModelWeights> weights;
  std::shared_ptr<backend::Backend> backend;
  std::optional<Tokenizer> tokenizer;
  std::string tokenizer_problem;  // why there is none
  std::string name;
  Writers writers;
  LoadOptions options;
  ChatSource chat;
  std::string stored_as = {};  // the type of quantised weights; empty: the config's dtype

  ModelState(std::shared_ptr<const model::ModelWeights> w, const LoadOptions& load_options);
};

// Edges for one set of options, with what depends on them alone.
template <typename T>
struct EdgeSet {
  Options options;
  std::shared_ptr<const credit::Edges<T>> edges;
  bool whole = true;                             // with every edge of the last layer's MLP
  std::shared_ptr<const credit::Suffix> suffix;  // unfiltered, made when first needed
};

struct PreparedState {
  Model model;
  std::shared_ptr<decompose::Decomposition> decomposition;

  // Kept for the next question: the last few edge sets and rows of logits.
  mutable std::mutex mutex;
  mutable std::vector<EdgeSet<float>> float_edges;
  mutable std::vector<EdgeSet<double>> double_edges;
  mutable std::vector<std::pair<int, std::shared_ptr<const std::vector<double>>>> logits;

  PreparedState(Model m, std::shared_ptr<decompose::Decomposition> d)
      : model(std::move(m)), decomposition(std::move(d)) {}
  backend::Backend& backend() const { return decomposition->backend(); }
  std::shared_ptr<const std::vector<double>> logits_at(int position) const;
};

// Whether a prompt is traced layer by layer: where a device has no room for it otherwise. Throws
// InputError where it does not fit at all. $UNPACK_CUDA_BY_LAYER=1 says yes, 0 no.
bool goes_by_layer(const ModelState& state, int tokens, const RunContext& context);

// Calls work(model, i) once for every i below `count`, several at once with models like this one,
// on a device that gains by it, of prompts of no more than `longest` tokens and as far as memory
// goes. The first exception is thrown on. False, and nothing done, where there is no such device.
bool side_by_side(const Model& model, std::size_t count, int longest, const RunContext& context,
                  const std::function<void(const Model&, std::size_t)>& work);

// The ten most likely next tokens of a row of logits, and other readings of it.
std::vector<Prediction> top_predictions(const Model& model, const std::vector<double>& logits,
                                        int top);
// With the backend's threads, where there is one: the same bits.
double log_sum_exp(std::span<const double> logits, backend::Backend* backend = nullptr);
// What the model itself calls logits: those of Backend::logits through a final soft cap.
void cap_logits(const ModelConfig& config, std::span<double> logits);
// Which experts every position used, layer by layer; `routings` holds nothing for dense layers.
ExpertUses expert_uses(std::span<const std::shared_ptr<const backend::Routing>> routings,
                       int length);
// Fills ids (default: the top prediction), texts, logit, difference, probability. Throws InputError
// for ids outside the vocabulary.
TargetInfo resolve_target(const Model& model, const Target& target, int length,
                          const std::vector<double>& logits);

}  // namespace unpack::engine
