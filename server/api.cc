#include "api.h"

#include <fmt/format.h>

#include <memory>

#include "inspect_api.h"
#include "unpack/chat.h"
#include "unpack/cost.h"
#include "unpack/error.h"
#include "unpack/field_json.h"
#include "unpack/intervene.h"
#include "unpack/report.h"

namespace unpack::server {
namespace {

using json = JsonValue;

// A token may hold part of a character: its bytes as hex, nothing for one that is text.
std::string bytes_of_no_text(const std::string& token) {
  try {
    (void)json(token).dump();
    return {};
  } catch (const json::type_error&) {
    std::string hex;
    for (const char c : token)
      hex += fmt::format("{}{:02X}", hex.empty() ? "" : " ", static_cast<unsigned char>(c));
    return hex;
  }
}

std::string render(const TraceResult& result, Format format) {
  switch (format) {
    case Format::html:
      return to_html(result);
    case Format::svg:
      return to_svg(result);
    case Format::tikz:
      return to_tikz(result);
    case Format::json:
      break;
  }
  return to_json(result);
}

const char* mime(Format format) {
  switch (format) {
    case Format::html:
      return "text/html; charset=utf-8";
    case Format::svg:
      return "image/svg+xml";
    case Format::tikz:
      return "text/plain; charset=utf-8";
    case Format::json:
      break;
  }
  return "application/json";
}

}  // namespace

const std::vector<std::string>& Api::names() {
  static const std::vector<std::string> kNames = [] {
    std::vector<std::string> names = {"tokenize",     "predict",   "trace", "paths",   "reroot",
                                      "interactions", "intervene", "prove", "sources", "cost"};
    names.insert(names.end(), InspectApi::names().begin(), InspectApi::names().end());
    return names;
  }();
  return kNames;
}

Api::Api(PreparedCache& cache, Limits limits)
    : cache_(cache),
      limits_(limits),
      inspect_(std::make_unique<const InspectApi>(
          [this](const std::string& model_name, const Model& model, const std::vector<TokenId>& ids,
                 const RunContext& context) { return prepare(model_name, model, ids, context); },
          limits)) {}

Api::~Api() = default;

Answer Api::ask(const std::string& name, const std::string& model_name, const Model& model,
                const Fields& body) const {
  if (name == "tokenize") return tokenize(model, body);
  if (name == "predict") return predict(model, body);
  if (name == "interactions") return interactions(model_name, model, body);
  if (name == "intervene") return intervention(model, body);
  if (name == "prove") return proof(model, body);
  if (name == "sources") return sources(model, body);
  if (name == "cost") return cost(model, body);
  if (std::optional<Answer> answer = inspect_->ask(name, model_name, model, body))
    return std::move(*answer);
  return trace(name, model_name, model, body);
}

Answer Api::tokenize(const Model& model, const Fields& body) const {
  json tokens = json::array();
  const MadePrompt prompt = read_tokenize(body, model, limits_);
  for (const Token& token : model.tokens(prompt.ids)) {
    tokens.push_back({{"position", token.position}, {"id", token.id}, {"text", token.text}});
    const std::string stored =
        model.has_tokenizer() ? model.tokenizer().token_bytes(token.id) : token.text;
    if (const std::string bytes = bytes_of_no_text(stored); !bytes.empty())
      tokens.back()["bytes"] = bytes;
  }
  json answer = {{"tokens", std::move(tokens)}};
  if (prompt.chat) {
    answer["text"] = prompt.text;
    answer["turns"] = json::array();
    for (const Span& turn : prompt.turns)
      answer["turns"].push_back({{"name", turn.name}, {"from", turn.from}, {"to", turn.to}});
  }
  return {[text = dump(answer)](const Model&, const RunContext&) { return text; },
          "application/json", true};
}

Answer Api::predict(const Model& model, const Fields& body) const {
  PredictRequest request = read_predict(body, model, limits_);
  return {[request = std::move(request)](const Model& m, const RunContext& context) {
    return to_json(m.predict(request.ids, request.options, context));
  }};
}

Prepared Api::prepare(const std::string& model_name, const Model& model,
                      const std::vector<TokenId>& ids, const RunContext& context) const {
  return cache_.get(model_name, ids, [&] {
    check_memory(model, planned_trace(ids.size()));
    return model.prepare(ids, context);
  });
}

Answer Api::trace(const std::string& name, const std::string& model_name, const Model& model,
                  const Fields& body) const {
  auto request = std::make_shared<const TraceRequest>(read_trace(body, model, limits_));
  const Question& question = request->question;
  if (name == "reroot" && !question.root)
    throw InputError("give the node to reroot at as root, for example A3.H1@5");
  if (name != "trace" && request->format != Format::json)
    throw InputError("\"format\" can be chosen with /api/trace only");
  if (request->answer) {
    if (name != "trace") throw InputError("\"answer\" goes with /api/trace only");
    return {[request](const Model& m, const RunContext& context) {
      return to_json(
          explain_answer(m, request->prompt, *request->answer, request->question.options, context));
    }};
  }
  // What is not there is said now, before anything waits.
  std::optional<Node> root;
  if (question.root) root = parse_node(model.writers(), *question.root, request->prompt.ids.size());
  return {[this, name, model_name, request, root](const Model& m, const RunContext& context) {
            const Prepared prepared = prepare(model_name, m, request->prompt.ids, context);
            TraceResult result = prepared.trace(request->question, context);
            if (!request->incoming) result.incoming.clear();
            if (request->format == Format::json && name == "trace" && !request->spans.empty()) {
              const std::vector<SpanCredit> groups =
                  span_credits(request->spans, result.tokens, result.token_credit);
              return to_json(result, {.groups = &groups});
            }
            if (name == "paths") return to_json(result, {.paths_only = true});
            if (name == "reroot") return to_json(result, {.pattern = pattern_of(prepared, *root)});
            return render(result, request->format);
          },
          mime(request->format)};
}

Answer Api::interactions(const std::string& model_name, const Model& model,
                         const Fields& body) const {
  InteractionsRequest request = read_interactions(body, model, limits_);
  if (request.query) resolve_position(*request.query, request.ids.size());
  return {
      [this, model_name, request = std::move(request)](const Model& m, const RunContext& context) {
        return to_json(prepare(model_name, m, request.ids, context)
                           .interactions(request.query, request.all, context));
      }};
}

Answer Api::intervention(const Model& model, const Fields& body) const {
  InterveneRequest request = read_intervene(body, model, limits_);
  return {[request = std::move(request)](const Model& m, const RunContext& context) {
    return to_json(intervene(m, request.ids, request.intervention, request.target, context));
  }};
}

Answer Api::proof(const Model& model, const Fields& body) const {
  InterveneRequest request = read_prove(body, model, limits_);
  return {[request = std::move(request)](const Model& m, const RunContext& context) {
    const Intervention& asked = request.intervention;
    return to_json(prove_nodes(m, request.ids, asked.ablate, asked.ablation, asked.patch_from,
                               request.target, context));
  }};
}

Answer Api::sources(const Model& model, const Fields& body) const {
  auto request = std::make_shared<const SourcesRequest>(read_sources(body, model, limits_));
  return {[request](const Model& m, const RunContext& context) {
            const SourcesResult result = find_sources(m, request->options, context);
            return request->format == Format::html ? to_html(result) : to_json(result);
          },
          mime(request->format)};
}

// Of the question that /api/trace, or with documents /api/sources, would be asked with the same
// fields.
Answer Api::cost(const Model& model, const Fields& body) const {
  if (find_field(body, "documents")) {
    auto asked = std::make_shared<const SourcesRequest>(read_sources(body, model, limits_));
    return {[asked](const Model& m, const RunContext& context) {
      const std::vector<TokenId> prompt = sources_tokens(m, asked->options);
      const Planned planned = planned_sources(m, prompt.size(), asked->options);
      return to_json(measured_cost(m, prompt, planned, context), planned);
    }};
  }
  auto request = std::make_shared<const TraceRequest>(read_trace(body, model, limits_));
  return {[request](const Model& m, const RunContext& context) {
    const Planned planned = planned_question(request->prompt, request->question, request->answer);
    return to_json(measured_cost(m, request->prompt.ids, planned, context), planned);
  }};
}

json describe(const Model& model) {
  const ModelInfo info = model.info();
  const ProgramInfo program = model.program();
  const ModelConfig& config = model.config();
  return {{"name", info.name},
          {"family", info.family},
          {"layers", info.layers},
          {"heads", info.heads},
          {"d_model", info.d_model},
          {"dtype", info.dtype},
          {"gated", config.gated()},
          {"mixture", config.mixture()},
          {"parallel", config.block == Block::parallel},
          {"positions", config.has_pos_writer()},
          {"context", config.n_ctx},
          {"chat", has_chat_template(model)},
          {"device", program.device},
          {"version", program.version}};
}

json method_options(const std::string& preset) {
  json options = fields_json(to_fields(preset_options(preset)));
  options["preset"] = preset;
  return options;
}

json preset_list() {
  json list = json::array();
  for (const std::string& name : preset_names()) list.push_back(method_options(name));
  return list;
}

}  // namespace unpack::server
