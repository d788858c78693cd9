#include "engine/check_question.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backend/mlp_readers.h"

namespace unpack::engine {
namespace {

// What is wrong with a value is said under the name of its field.
template <class Check>
auto named(const char* field, const Check& check) {
  try {
    return check();
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", field, error.what()));
  }
}

void check_paths(const PathQuery& query, const Options& options, const Model& model, int length) {
  const ModelConfig& config = model.config();
  if (query.top > kMostPaths)
    throw UsageError(fmt::format("top_paths takes {} at most, not {}", kMostPaths, query.top));
  if (query.tau && !(*query.tau > 0 && std::isfinite(*query.tau)))
    throw UsageError(fmt::format("tau takes a number above 0, not {:g}", *query.tau));
  if (query.tau && query.rule == TauRule::entry && options.mlp != MlpRule::per_neuron)
    throw UsageError("tau_rule entry walks neuron by neuron: it needs mlp per-neuron");
  if (query.sign && *query.sign != 1 && *query.sign != -1)
    throw UsageError("sign takes positive or negative");
  if (query.min_layer && (*query.min_layer < 0 || *query.min_layer > config.n_layers))
    throw InputError(fmt::format("min_layer {} does not exist: the model has layers 0 to {}",
                                 *query.min_layer, config.n_layers - 1));
  // A source past the prompt is a filter that nothing matches; before its beginning there is none.
  if (query.from && *query.from < length)
    named("from", [&] { return resolve_position(*query.from, length); });
  if (query.through) named("through", [&] { return model.writers().parse(*query.through); });
  if (query.branch && (*query.branch == Branch::none || *query.branch == Branch::mlp))
    throw UsageError("branch takes K, Q, V, G, U or R");
}

}  // namespace

void check_ids(std::span<const TokenId> ids, const char* field, int vocabulary) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary)
      throw InputError(fmt::format("{}[{}]: token id {} is outside the vocabulary (0 to {})", field,
                                   i, ids[i], vocabulary - 1));
  }
}

std::vector<std::string> empty_filters(const PathQuery& query, const ModelConfig& config,
                                       int length) {
  std::vector<std::string> out;
  if (query.from && *query.from >= length)
    out.push_back(fmt::format("no path begins at position {}: the prompt has {} tokens",
                              *query.from, length));
  const bool heads =
      query.branch == Branch::K || query.branch == Branch::Q || query.branch == Branch::V;
  const auto has = [&](const LayerConfig& layer) {
    return backend::has_branch(layer, *query.branch);
  };
  if (query.branch && !heads && std::none_of(config.layers.begin(), config.layers.end(), has))
    out.push_back(fmt::format("no path takes branch {}: the MLPs of this model have {}",
                              to_string(*query.branch), backend::branch_words(config)));
  return out;
}

void check_question(const Question& question, const Model& model, int length) {
  question.options.check();
  resolve_position(question.target.position, length);
  check_ids(question.target.ids, "target", model.config().vocab_size);
  if (question.target.versus)
    check_ids(*question.target.versus, "versus", model.config().vocab_size);
  if (question.root) {
    const Node root =
        named("root", [&] { return parse_node(model.writers(), *question.root, length); });
    if (model.writers()[root.writer].terminal())
      throw InputError(
          fmt::format("root: '{}' is no head and no MLP, such as A0.H0@-1", *question.root));
  }
  check_paths(question.paths, question.options, model, length);
}

}  // namespace unpack::engine
