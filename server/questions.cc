#include "questions.h"

#include <fmt/format.h>

#include <algorithm>

#include "unpack/error.h"

namespace unpack::server {
namespace {

constexpr std::size_t kBytesPerToken =
    64;  // more text than this per allowed token is not even split
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

}  // namespace

std::vector<TokenId> read_prompt(RequestFields& fields, const Model& model, const Limits& limits) {
  fields.text("model");  // chosen before
  std::optional<std::vector<TokenId>> ids =
      read_tokens(fields, "prompt", "ids", read_no_bos(fields), model, limits);
  if (!ids) throw InputError("give a prompt or its token ids");
  return std::move(*ids);
}

// The part of a request that is a question, with the server's own limit on paths.
Question read_question(RequestFields& fields, const Model& model, const Limits& limits,
                       const std::vector<TokenId>& ids, const std::vector<std::string>& allowed) {
  const Fields rest = fields.others();
  Fields own;
  std::vector<std::string> unread;
  for (const auto& field : rest) {
    const bool known = std::find(allowed.begin(), allowed.end(), field.first) != allowed.end();
    known ? own.push_back(field) : unread.push_back(field.first);
  }
  fields.expect_no_others(unread, allowed);
  Asked asked;
  if (const Field* top = find_field(own, "top_paths"))
    read_integer("top_paths", *top, 0, static_cast<int>(limits.max_paths));
  apply_fields(own, asked, &model);
  if (!asked.top_paths)
    asked.top_paths = asked.question.paths.tau
                          ? limits.max_paths
                          : std::min(asked.question.paths.top, limits.max_paths);
  check_asked(asked, model, static_cast<int>(ids.size()));
  return asked.question;
}

namespace {

// All fields of a question but the method: the page shows unpack alone.
std::vector<std::string> trace_fields() {
  std::vector<std::string> names = question_fields();
  std::erase_if(names, [](const std::string& x) { return x == "method" || x == "no_bos"; });
  names.insert(names.end(), {"target_ids", "versus_ids"});
  return names;
}

}  // namespace

std::vector<std::string> target_fields() {
  return {"target",    "target_id",  "target_ids", "versus",
          "versus_id", "versus_ids", "raw_logit",  "position"};
}

std::vector<std::string> option_fields() {
  return {"preset", "beta",   "weights", "mlp_weights", "expert_weights", "dispatch",
          "mlp",    "scores", "reroot",  "direction",   "floor",          "keys"};
}

std::vector<TokenId> read_tokenize(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  std::vector<TokenId> ids = read_prompt(fields, model, limits);
  fields.expect_no_others();
  return ids;
}

PredictRequest read_predict(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  PredictRequest request;
  request.options.top = fields.integer("top", 1, kMostPredictions).value_or(request.options.top);
  request.options.lens = fields.flag("lens").value_or(false);
  request.options.experts = fields.flag("experts").value_or(false);
  if (request.options.experts && !model.config().mixture())
    throw InputError("field \"experts\": this model is no mixture, it has no experts");
  request.options.position = fields.integer("position").value_or(-1);
  request.ids = read_prompt(fields, model, limits);
  fields.expect_no_others();
  return request;
}

TraceRequest read_trace(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  TraceRequest request;
  constexpr Format kFormats[] = {Format::json, Format::html, Format::svg, Format::tikz};
  if (const auto i = fields.choice("format", {"json", "html", "svg", "tikz"}))
    request.format = kFormats[*i];
  request.ids = read_prompt(fields, model, limits);
  request.question = read_question(fields, model, limits, request.ids, trace_fields());
  return request;
}

InteractionsRequest read_interactions(const Fields& body, const Model& model,
                                      const Limits& limits) {
  RequestFields fields(body);
  fields.at_most_one_of({"query", "all"});
  InteractionsRequest request;
  request.query = fields.integer("query");
  request.all = fields.flag("all").value_or(false);
  request.ids = read_prompt(fields, model, limits);
  fields.expect_no_others();
  const double writers = model.writers().count();
  const double answers =
      request.all ? writers * writers / 2 * static_cast<double>(request.ids.size()) : 0;
  if (answers > kMostInteractions)
    throw InputError(
        "all would list too many interactions for this prompt and model; ask for one query at a "
        "time");
  return request;
}

InterveneRequest read_intervene(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  InterveneRequest request;
  Intervention& change = request.intervention;
  change.cut = fields.text("cut");
  constexpr Channel kChannels[] = {Channel::attention, Channel::mlp};
  if (const auto i = fields.choice("channel", {"attention", "mlp"})) change.channel = kChannels[*i];
  change.edges = fields.texts("edges", kMostChanges).value_or(std::vector<std::string>{});
  change.ablate = fields.texts("components", kMostChanges).value_or(std::vector<std::string>{});
  constexpr Ablation kAblations[] = {Ablation::zero, Ablation::mean, Ablation::resample};
  if (const auto i = fields.choice("ablate", {"zero", "mean", "resample"})) {
    change.ablation = kAblations[*i];
    if (change.ablate.empty())
      throw InputError("\"ablate\" needs \"components\", for example [\"A5.H3\", \"MLP2@7\"]");
  }
  change.scale = fields.number("scale").value_or(change.scale);
  change.zero = fields.integers("zero", kMostChanges).value_or(std::vector<int>{});
  change.patch_from =
      read_tokens(fields, "patch_prompt", "patch_ids", read_no_bos(fields), model, limits)
          .value_or(std::vector<TokenId>{});
  request.ids = read_prompt(fields, model, limits);
  request.target = read_question(fields, model, limits, request.ids, target_fields()).target;
  return request;
}

}  // namespace unpack::server
