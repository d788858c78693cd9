#include "experiments/source.h"

#include <fmt/format.h>

#include <system_error>

#include "unpack/error.h"
#include "unpack/field_json.h"
#include "unpack/question.h"

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

}  // namespace

Json source_json(const ExperimentOptions& o) {
  Json models = Json::array();
  for (const std::string& name : o.models) models.push_back(model_source(name));
  Json source = {{"name", o.name},
                 {"models", models},
                 {"n", o.n ? Json(*o.n) : Json(nullptr)},
                 {"seed", o.seed},
                 {"corpus", path_json(o.corpus)},
                 {"prompts", path_json(o.prompts)},
                 {"roles", table_json(o.roles)},
                 {"claims", table_json(o.claims)},
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
  source.update(fields_json(to_fields(o.options)));
  return source;
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
  for (const std::string& name : option_fields()) {
    if (name != "reroot") (void)source.at(name);  // all but this one were always written
  }
  o.options = read_options(fields_of(source), Options());
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
