#include "questions.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "unpack/error.h"

namespace unpack::server {
namespace {

constexpr int kAnyInt = std::numeric_limits<int>::max();
constexpr std::size_t kBytesPerToken =
    64;  // more text than this per allowed token is not even split
constexpr std::size_t kLargestGroup = 1000;  // ids of a target or contrast set
constexpr int kMostPredictions = 100;
constexpr std::size_t kMostChanges = 1000;  // edges or positions of one intervention
constexpr double kMostInteractions = 4e6;

// A prompt as text or as ids, under the names of two fields; nothing where neither is given.
std::optional<std::vector<TokenId>> read_tokens(RequestFields& fields,
                                                const std::string& text_field,
                                                const std::string& ids_field, bool without_bos,
                                                const Model& model, const Limits& limits) {
  fields.at_most_one_of({text_field, ids_field});
  const auto longest = static_cast<std::size_t>(limits.max_tokens);
  std::optional<std::vector<TokenId>> ids =
      fields.ids(ids_field, model.config().vocab_size, longest);
  if (const std::optional<std::string> prompt = fields.text(text_field)) {
    if (prompt->size() > longest * kBytesPerToken) {
      throw InputError(fmt::format("the prompt has {} bytes, more than the limit of {}",
                                   prompt->size(), longest * kBytesPerToken));
    }
    ids = model.encode_prompt(*prompt, without_bos);
  }
  if (!ids) return std::nullopt;
  if (ids->empty()) throw InputError("the prompt is empty; give at least one token");
  const std::size_t most = std::min(longest, static_cast<std::size_t>(model.config().n_ctx));
  if (ids->size() > most)
    throw InputError(
        fmt::format("the prompt has {} tokens, more than the limit of {}", ids->size(), most));
  return ids;
}

bool read_no_bos(RequestFields& fields) { return fields.flag("no_bos").value_or(false); }

std::vector<TokenId> read_prompt(RequestFields& fields, const Model& model, const Limits& limits) {
  fields.text("model");  // chosen before
  std::optional<std::vector<TokenId>> ids =
      read_tokens(fields, "prompt", "ids", read_no_bos(fields), model, limits);
  if (!ids) throw InputError("give a \"prompt\" or its token \"ids\"");
  return std::move(*ids);
}

std::optional<std::vector<TokenId>> read_token_set(RequestFields& fields,
                                                   const std::string& text_field,
                                                   const std::string& ids_field,
                                                   const Model& model) {
  fields.at_most_one_of({text_field, ids_field});
  std::optional<std::vector<TokenId>> ids =
      fields.ids(ids_field, model.config().vocab_size, kLargestGroup);
  if (const std::optional<std::string> text = fields.text(text_field))
    ids = std::vector<TokenId>{model.single_token(*text)};
  return ids;
}

Target read_target(RequestFields& fields, const Model& model) {
  Target target;
  target.ids =
      read_token_set(fields, "target", "target_ids", model).value_or(std::vector<TokenId>{});
  target.versus = read_token_set(fields, "versus", "versus_ids", model);
  target.raw = fields.flag("raw_logit").value_or(false);
  if (target.raw && target.versus)
    throw InputError(
        "give either a contrast (\"versus\", \"versus_ids\") or \"raw_logit\", not both");
  target.position = fields.integer("position", -kAnyInt, kAnyInt).value_or(-1);
  return target;
}

Options read_options(RequestFields& fields) {
  Options options;
  options.beta = fields.number("beta").value_or(options.beta);
  if (const auto weights = fields.numbers("weights", options.weights.size()))
    std::copy(weights->begin(), weights->end(), options.weights.begin());
  if (const auto weights = fields.numbers("mlp_weights", options.mlp_weights.size()))
    std::copy(weights->begin(), weights->end(), options.mlp_weights.begin());
  if (const auto weights = fields.numbers("expert_weights", options.expert_weights.size()))
    std::copy(weights->begin(), weights->end(), options.expert_weights.begin());
  constexpr Dispatch kDispatches[] = {Dispatch::aligned, Dispatch::gate};
  if (const auto i = fields.choice("dispatch", {"aligned", "gate"}))
    options.dispatch = kDispatches[*i];
  constexpr MlpRule kRules[] = {MlpRule::per_neuron, MlpRule::linearized, MlpRule::l2};
  if (const auto i = fields.choice("mlp", {"per-neuron", "linearized", "l2"}))
    options.mlp = kRules[*i];
  constexpr Scores kScores[] = {Scores::raw, Scores::centered};
  if (const auto i = fields.choice("scores", {"raw", "centered"})) options.scores = kScores[*i];
  constexpr Reroot kReroots[] = {Reroot::output, Reroot::target};
  if (const auto i = fields.choice("reroot", {"output", "target"})) options.reroot = kReroots[*i];
  options.check();
  return options;
}

PathQuery read_paths(RequestFields& fields, const Limits& limits) {
  PathQuery query;
  query.tau = fields.number("tau");
  if (query.tau && !(*query.tau > 0)) throw InputError("field \"tau\" must be above 0");
  const int most = static_cast<int>(limits.max_paths);
  const std::optional<int> top = fields.integer("top_paths", 0, most);
  query.top = static_cast<std::size_t>(
      top.value_or(query.tau ? most : std::min<int>(static_cast<int>(query.top), most)));
  constexpr TauRule kRules[] = {TauRule::named, TauRule::entry};
  if (const auto i = fields.choice("tau_rule", {"named", "entry"})) query.rule = kRules[*i];
  constexpr Branch kBranches[] = {Branch::K, Branch::Q, Branch::V, Branch::G, Branch::U, Branch::R};
  if (const auto i = fields.choice("branch", {"K", "Q", "V", "G", "U"}))
    query.branch = kBranches[*i];
  query.through = fields.text("through");
  query.from = fields.integer("from", -kAnyInt, kAnyInt);
  query.min_layer = fields.integer("min_layer", 0, kAnyInt);
  constexpr int kSigns[] = {+1, -1};
  if (const auto i = fields.choice("sign", {"positive", "negative"})) query.sign = kSigns[*i];
  return query;
}

}  // namespace

std::vector<TokenId> read_tokenize(const nlohmann::json& body, const Model& model,
                                   const Limits& limits) {
  RequestFields fields(body);
  std::vector<TokenId> ids = read_prompt(fields, model, limits);
  fields.expect_no_others();
  return ids;
}

PredictRequest read_predict(const nlohmann::json& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  PredictRequest request;
  request.options.top = fields.integer("top", 1, kMostPredictions).value_or(request.options.top);
  request.options.lens = fields.flag("lens").value_or(false);
  request.options.position = fields.integer("position", -kAnyInt, kAnyInt).value_or(-1);
  request.ids = read_prompt(fields, model, limits);
  fields.expect_no_others();
  return request;
}

TraceRequest read_trace(const nlohmann::json& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  TraceRequest request;
  request.question.target = read_target(fields, model);
  request.question.root = fields.text("root");
  request.question.options = read_options(fields);
  request.question.paths = read_paths(fields, limits);
  constexpr Format kFormats[] = {Format::json, Format::html, Format::svg, Format::tikz};
  if (const auto i = fields.choice("format", {"json", "html", "svg", "tikz"}))
    request.format = kFormats[*i];
  request.ids = read_prompt(fields, model, limits);
  fields.expect_no_others();
  return request;
}

InteractionsRequest read_interactions(const nlohmann::json& body, const Model& model,
                                      const Limits& limits) {
  RequestFields fields(body);
  fields.at_most_one_of({"query", "all"});
  InteractionsRequest request;
  request.query = fields.integer("query", -kAnyInt, kAnyInt);
  request.all = fields.flag("all").value_or(false);
  request.ids = read_prompt(fields, model, limits);
  fields.expect_no_others();
  const double writers = model.writers().count();
  const double answers =
      request.all ? writers * writers / 2 * static_cast<double>(request.ids.size()) : 0;
  if (answers > kMostInteractions)
    throw InputError(
        "\"all\" would list too many interactions for this prompt and model; ask for one \"query\" "
        "at a time");
  return request;
}

InterveneRequest read_intervene(const nlohmann::json& body, const Model& model,
                                const Limits& limits) {
  RequestFields fields(body);
  InterveneRequest request;
  request.target = read_target(fields, model);
  Intervention& change = request.intervention;
  change.cut = fields.text("cut");
  constexpr Channel kChannels[] = {Channel::attention, Channel::mlp};
  if (const auto i = fields.choice("channel", {"attention", "mlp"})) change.channel = kChannels[*i];
  change.edges = fields.texts("edges", kMostChanges).value_or(std::vector<std::string>{});
  change.zero = fields.integers("zero", kMostChanges).value_or(std::vector<int>{});
  change.patch_from =
      read_tokens(fields, "patch_prompt", "patch_ids", read_no_bos(fields), model, limits)
          .value_or(std::vector<TokenId>{});
  request.ids = read_prompt(fields, model, limits);
  fields.expect_no_others();
  return request;
}

}  // namespace unpack::server
