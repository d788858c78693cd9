// What stands behind the public Model and Prepared.
#pragma once

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

namespace unpack {

struct ModelState {
  std::shared_ptr<const ModelWeights> weights;
  std::shared_ptr<Backend> backend;
  std::optional<Tokenizer> tokenizer;
  std::string tokenizer_problem;  // why there is none
  std::string name;
  Writers writers;
  LoadOptions options;
  ChatSource chat;
  std::string stored_as = {};  // the type of quantised weights; empty: the config's dtype

  ModelState(std::shared_ptr<const ModelWeights> w, const LoadOptions& load_options);
};

// Edges for one set of options, with what depends on them alone.
template <typename T>
struct EdgeSet {
  Options options;
  std::shared_ptr<const Edges<T>> edges;
  bool whole = true;                     // with every edge of the last layer's MLP
  std::shared_ptr<const Suffix> suffix;  // unfiltered, made when first needed
};

struct PreparedState {
  Model model;
  std::shared_ptr<Decomposition> decomposition;

  // Kept for the next question: the last few edge sets and rows of logits.
  mutable std::mutex mutex;
  mutable std::vector<EdgeSet<float>> float_edges;
  mutable std::vector<EdgeSet<double>> double_edges;
  mutable std::vector<std::pair<int, std::shared_ptr<const std::vector<double>>>> logits;

  PreparedState(Model m, std::shared_ptr<Decomposition> d)
      : model(std::move(m)), decomposition(std::move(d)) {}
  Backend& backend() const { return decomposition->backend(); }
  std::shared_ptr<const std::vector<double>> logits_at(int position) const;
};

// The ten most likely next tokens of a row of logits, and other readings of it.
std::vector<Prediction> top_predictions(const Model& model, const std::vector<double>& logits,
                                        int top);
double log_sum_exp(std::span<const double> logits);
// What the model itself calls logits: those of Backend::logits through a final soft cap.
void cap_logits(const ModelConfig& config, std::span<double> logits);
// Which experts every position used, layer by layer; `routings` holds nothing for dense layers.
ExpertUses expert_uses(std::span<const std::shared_ptr<const Routing>> routings, int length);
// Fills ids (default: the top prediction), texts, logit, difference, probability. Throws InputError
// for ids outside the vocabulary.
TargetInfo resolve_target(const Model& model, const Target& target, int length,
                          const std::vector<double>& logits);

}  // namespace unpack
