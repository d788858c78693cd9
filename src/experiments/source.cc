#include "experiments/source.h"

#include <fmt/format.h>

#include <initializer_list>
#include <system_error>

#include "unpack/error.h"

namespace unpack::experiments {

namespace {

using OptionalPath = std::optional<std::filesystem::path>;

Json path_json(const OptionalPath& path) {
  return path ? Json(std::filesystem::absolute(*path).string()) : Json(nullptr);
}
OptionalPath path_from(const Json& json) {
  return json.is_null() ? OptionalPath() : OptionalPath(json.get<std::string>());
}

// A table of roles or claims by its path, or the word that stands for one.
Json table_json(const std::optional<std::string>& table) {
  if (!table || *table == "find" || *table == "gpt2") return table ? Json(*table) : Json(nullptr);
  return std::filesystem::absolute(*table).string();
}
std::optional<std::string> table_from(const Json& json) {
  return json.is_null() ? std::optional<std::string>() : std::optional(json.get<std::string>());
}

// A folder stays one wherever the merge is called from.
std::string model_source(const std::string& name) {
  std::error_code error;
  return std::filesystem::is_directory(name, error) ? std::filesystem::absolute(name).string()
                                                    : name;
}

template <typename T>
T word(const Json& json, std::initializer_list<T> values) {
  for (const T value : values) {
    if (json == to_string(value)) return value;
  }
  throw InputError("run.json was written by another version of this program");
}

}  // namespace

Json source_json(const ExperimentOptions& o) {
  Json models = Json::array();
  for (const std::string& name : o.models) models.push_back(model_source(name));
  return {{"name", o.name},
          {"models", models},
          {"n", o.n ? Json(*o.n) : Json(nullptr)},
          {"seed", o.seed},
          {"corpus", path_json(o.corpus)},
          {"prompts", path_json(o.prompts)},
          {"roles", table_json(o.roles)},
          {"claims", table_json(o.claims)},
          {"beta", o.options.beta},
          {"weights", o.options.weights},
          {"mlp_weights", o.options.mlp_weights},
          {"expert_weights", o.options.expert_weights},
          {"dispatch", to_string(o.options.dispatch)},
          {"mlp", to_string(o.options.mlp)},
          {"scores", to_string(o.options.scores)},
          {"direction", to_string(o.options.direction)},
          {"floor", o.options.floor},
          {"keys", to_string(o.options.keys)},
          {"logit", o.readout == FaithfulnessReadout::logit},
          {"raw_logit", o.raw_logit},
          {"whole_sentences", o.whole_sentences},
          {"narrow_paths", o.narrow_paths},
          {"all", o.all},
          {"stop_at_bad_line", o.stop_at_bad_line},
          {"program", o.compiled.program ? Json(*o.compiled.program) : Json(nullptr)},
          {"format", o.compiled.format ? Json(*o.compiled.format) : Json(nullptr)},
          {"noise", o.compiled.noise},
          {"sharpness", o.compiled.sharpness},
          {"command", o.command}};
}

ExperimentOptions options_from(const Json& source) try {
  ExperimentOptions o;
  o.name = source.at("name");
  o.models = source.at("models").get<std::vector<std::string>>();
  if (!source.at("n").is_null()) o.n = source["n"].get<int>();
  o.seed = source.at("seed");
  o.corpus = path_from(source.at("corpus"));
  o.prompts = path_from(source.at("prompts"));
  o.roles = table_from(source.at("roles"));
  o.claims = table_from(source.at("claims"));
  o.options.beta = source.at("beta");
  o.options.weights = source.at("weights").get<std::array<double, 3>>();
  o.options.mlp_weights = source.at("mlp_weights").get<std::array<double, 2>>();
  o.options.expert_weights = source.at("expert_weights").get<std::array<double, 3>>();
  o.options.dispatch = word(source.at("dispatch"), {Dispatch::aligned, Dispatch::gate});
  o.options.mlp = word(source.at("mlp"), {MlpRule::per_neuron, MlpRule::linearized, MlpRule::l2});
  o.options.scores = word(source.at("scores"), {Scores::raw, Scores::centered});
  o.options.direction = word(source.at("direction"), {Direction::output, Direction::read});
  o.options.floor = source.at("floor");
  o.options.keys = word(source.at("keys"), {Keys::source, Keys::spread});
  o.readout = source.at("logit").get<bool>() ? FaithfulnessReadout::logit
                                             : FaithfulnessReadout::probability;
  o.raw_logit = source.at("raw_logit");
  o.whole_sentences = source.at("whole_sentences");
  o.narrow_paths = source.at("narrow_paths");
  o.all = source.at("all");
  o.stop_at_bad_line = source.at("stop_at_bad_line");
  if (!source.at("program").is_null()) o.compiled.program = source["program"].get<std::string>();
  if (!source.at("format").is_null()) o.compiled.format = source["format"].get<std::string>();
  o.compiled.noise = source.at("noise").get<std::vector<double>>();
  o.compiled.sharpness = source.at("sharpness");
  o.command = source.at("command");
  o.options.check();
  return o;
} catch (const Json::exception&) {
  throw InputError("run.json: its source is not one of this version, or was changed");
} catch (const UsageError& error) {
  throw InputError(fmt::format("run.json: {}", error.what()));
}

}  // namespace unpack::experiments
