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
constexpr int kMostStrongest = 1000;        // tokens listed for a sentence of an answer
constexpr double kMostInteractions = 4e6;

// A prompt of which the text and the ids have these names; nothing where neither is given.
std::optional<MadePrompt> read_given(RequestFields& fields, const std::string& text_field,
                                     const std::string& ids_field, GivenPrompt given,
                                     const Model& model, const Limits& limits) {
  fields.at_most_one_of({text_field, ids_field});
  const std::size_t longest = limits.max_tokens;
  given.ids = fields.ids(ids_field, model.config().vocab_size, longest);
  given.text = fields.text(text_field);
  given.longest = longest * kBytesPerToken;
  if (!given.ids && !given.text && !given.messages) return std::nullopt;
  MadePrompt made = make_prompt(model, given);
  if (made.ids.empty()) throw InputError("the prompt is empty; give at least one token");
  check_length(made.ids.size(), 0, model, limits);
  return made;
}

bool read_no_bos(RequestFields& fields) { return fields.flag("no_bos").value_or(false); }

}  // namespace

void check_length(std::size_t prompt, std::size_t answer, const Model& model,
                  const Limits& limits) {
  const std::size_t most = std::min(limits.max_tokens, model.config().n_ctx);
  if (prompt > most || answer > most || prompt + answer > most)
    throw InputError(fmt::format("{} {} tokens, more than the limit of {}",
                                 answer > 0 ? "prompt and answer have" : "the prompt has",
                                 prompt + answer, most));
}

MadePrompt make_request_prompt(RequestFields& fields, const Model& model, const Limits& limits) {
  fields.text("model");  // chosen before
  GivenPrompt given;
  given.no_bos = read_no_bos(fields);
  given.chat.on = fields.flag("chat").value_or(false);
  given.chat.system = fields.text("system");
  given.chat.chat_template = fields.text("chat_template");
  given.messages = fields.json("messages");
  std::optional<MadePrompt> made =
      read_given(fields, "prompt", "ids", std::move(given), model, limits);
  if (!made) throw InputError("give a prompt or its token ids");
  return std::move(*made);
}

std::vector<TokenId> read_prompt(RequestFields& fields, const Model& model, const Limits& limits) {
  return make_request_prompt(fields, model, limits).ids;
}

// The part of a request that is a question, with the server's own limit on paths.
Asked read_asked(RequestFields& fields, const Model& model, const Limits& limits,
                 std::size_t length, const std::vector<std::string>& allowed) {
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
    read_integer("top_paths", *top, 0, limits.max_paths);
  apply_fields(own, asked, &model);
  if (!asked.top_paths)
    asked.top_paths = asked.question.paths.tau
                          ? limits.max_paths
                          : std::min(asked.question.paths.top, limits.max_paths);
  check_asked(asked, model, length);
  return asked;
}

Question read_question(RequestFields& fields, const Model& model, const Limits& limits,
                       const std::vector<TokenId>& ids, const std::vector<std::string>& allowed) {
  return read_asked(fields, model, limits, ids.size(), allowed).question;
}

namespace {

// All fields of a question but the method (the page shows unpack alone) and what belongs to the
// prompt.
std::vector<std::string> trace_fields() {
  std::vector<std::string> names = question_fields();
  std::erase_if(names, [](const std::string& x) {
    return x == "method" || x == "no_bos" || x == "chat" || x == "system" || x == "chat_template";
  });
  names.insert(names.end(), {"target_ids", "versus_ids"});
  return names;
}

}  // namespace

std::vector<std::string> target_fields() {
  return {"target",    "target_id",  "target_ids", "versus",
          "versus_id", "versus_ids", "raw_logit",  "position"};
}

std::vector<std::string> option_fields() {
  std::vector<std::string> names = unpack::option_fields();
  names.emplace_back("preset");
  return names;
}

MadePrompt read_tokenize(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  MadePrompt prompt = make_request_prompt(fields, model, limits);
  fields.expect_no_others();
  return prompt;
}

PredictRequest read_predict(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  PredictRequest request;
  request.options.top = fields.integer("top", 1, kMostPredictions).value_or(request.options.top);
  request.options.lens = fields.flag("lens").value_or(false);
  request.options.experts = fields.flag("experts").value_or(false);
  request.options.position = fields.integer("position").value_or(-1);
  request.ids = read_prompt(fields, model, limits);
  fields.expect_no_others();
  return request;
}

TraceRequest read_trace(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  TraceRequest request;
  request.format = fields
                       .word<Format>("format", {{"json", Format::json},
                                                {"html", Format::html},
                                                {"svg", Format::svg},
                                                {"tikz", Format::tikz}})
                       .value_or(request.format);
  request.prompt = make_request_prompt(fields, model, limits);
  const bool composition = fields.flag("composition").value_or(true);
  request.incoming = fields.flag("incoming").value_or(true);
  const std::size_t length = request.prompt.ids.size();
  const Asked asked = read_asked(fields, model, limits, length, trace_fields());
  request.question = asked.question;
  request.question.composition = composition;
  if (asked.answer) {
    if (request.format != Format::json) throw UsageError("an answer comes as JSON alone");
    request.answer = answer_tokens(asked, model, request.prompt);
    check_length(length, request.answer->answer.size(), model, limits);
    if (request.answer->versus) check_length(length, request.answer->versus->size(), model, limits);
  } else {
    request.spans = spans_of(asked, model, request.prompt);
  }
  return request;
}

SourcesRequest read_sources(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  SourcesRequest request;
  SourcesOptions& options = request.options;
  fields.text("model");
  request.format = fields.word<Format>("format", {{"json", Format::json}, {"html", Format::html}})
                       .value_or(request.format);
  const std::optional<std::string> question = fields.text("question");
  if (!question) throw InputError("give a question");
  const std::optional<std::string> documents = fields.json("documents");
  if (!documents) throw InputError("give documents: texts, or objects with name and text");
  fields.at_most_one_of({"answer", "generate"});
  options.question = *question;
  options.documents = parse_documents(*documents, "documents");
  options.answer = fields.text("answer");
  options.generate = fields.integer("generate", 1, limits.max_tokens).value_or(options.generate);
  options.prompt_template = fields.text("template").value_or(options.prompt_template);
  options.document_template = fields.text("document_template").value_or(options.document_template);
  options.chat = fields.flag("chat").value_or(false);
  options.strongest = fields.integer("strongest", 0, kMostStrongest).value_or(options.strongest);
  options.most_tokens = std::min(limits.max_tokens, model.config().n_ctx);
  options.options = read_asked(fields, model, limits, 1, option_fields()).question.options;
  check_sources(options);
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
  const double answers = request.all ? writers * writers / 2 * request.ids.size() : 0;
  if (answers > kMostInteractions)
    throw InputError(
        "all would list too many interactions for this prompt and model; ask for one query at a "
        "time");
  return request;
}

namespace {

// The prompt that patched edges and resampled outputs come from; nothing where none is given.
std::vector<TokenId> read_patch(RequestFields& fields, const Model& model, const Limits& limits) {
  GivenPrompt patch;
  patch.no_bos = read_no_bos(fields);
  patch.messages = fields.json("patch_messages");
  if (patch.messages) patch.chat.chat_template = fields.text("chat_template");
  return read_given(fields, "patch_prompt", "patch_ids", std::move(patch), model, limits)
      .value_or(MadePrompt{})
      .ids;
}

// Components, and what they or all others are replaced by.
void read_components(RequestFields& fields, Intervention& change) {
  change.ablate = fields.texts("components", kMostChanges).value_or(std::vector<std::string>{});
  if (const auto ablation = fields.word("ablate", words_of(kAblations))) {
    change.ablation = *ablation;
    if (change.ablate.empty() && !change.keep)
      throw InputError("ablate needs components, such as A5.H3 or MLP2@7");
  }
}

// What every request about a change ends with.
void read_changed(RequestFields& fields, const Model& model, const Limits& limits,
                  InterveneRequest& request) {
  request.intervention.patch_from = read_patch(fields, model, limits);
  request.ids = read_prompt(fields, model, limits);
  request.target = read_question(fields, model, limits, request.ids, target_fields()).target;
}

}  // namespace

InterveneRequest read_intervene(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  InterveneRequest request;
  Intervention& change = request.intervention;
  change.cut = fields.text("cut");
  change.channel = fields.word("channel", words_of(kChannels)).value_or(change.channel);
  change.edges = fields.texts("edges", kMostChanges).value_or(std::vector<std::string>{});
  change.keep = fields.flag("keep").value_or(false);
  read_components(fields, change);
  change.scale = fields.number("scale").value_or(change.scale);
  change.zero = fields.integers("zero", kMostChanges).value_or(std::vector<int>{});
  read_changed(fields, model, limits, request);
  return request;
}

InterveneRequest read_prove(const Fields& body, const Model& model, const Limits& limits) {
  RequestFields fields(body);
  InterveneRequest request;
  read_components(fields, request.intervention);
  if (request.intervention.ablate.empty())
    throw InputError("nothing to prove: give components, such as A5.H3 or MLP2@7");
  read_changed(fields, model, limits, request);
  return request;
}

}  // namespace unpack::server
