#include "api.h"

#include <memory>

#include "unpack/error.h"
#include "unpack/intervene.h"
#include "unpack/report.h"

namespace unpack::server {
namespace {

using nlohmann::json;

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

// The part of a trace that a change of path filters changes.
std::string paths_only(const std::string& trace) {
  json whole = json::parse(trace);
  json part = json::object();
  for (const char* field : {"version", "target", "root", "paths", "coverage", "warnings"}) {
    if (whole.contains(field)) part[field] = std::move(whole[field]);
  }
  return dump(part);
}

// The attention of the root's head, to stand beside the credit of its sources.
std::string with_pattern(std::string trace, const Prepared& prepared, const Node& root) {
  const Writer& writer = prepared.model().writers()[root.writer];
  if (writer.kind != WriterKind::head) return trace;
  const CachedArray pattern = prepared.cache("pattern", writer.layer);  // [H, S, S]
  const auto length = static_cast<std::size_t>(prepared.length()),
             head = static_cast<std::size_t>(writer.head),
             query = static_cast<std::size_t>(root.position);
  const auto row =
      pattern.values.begin() + static_cast<std::ptrdiff_t>((head * length + query) * length);
  const std::size_t end = trace.rfind('}');
  trace.insert(end, ",\"pattern\":" + dump(std::vector<double>(row, row + root.position + 1)));
  return trace;
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
  static const std::vector<std::string> kNames = {"tokenize", "predict",      "trace",    "paths",
                                                  "reroot",   "interactions", "intervene"};
  return kNames;
}

Answer Api::ask(const std::string& name, const std::string& model_name, const Model& model,
                const json& body) const {
  if (name == "tokenize") return tokenize(model, body);
  if (name == "predict") return predict(model, body);
  if (name == "interactions") return interactions(model_name, model, body);
  if (name == "intervene") return intervention(model, body);
  return trace(name, model_name, model, body);
}

Answer Api::tokenize(const Model& model, const json& body) const {
  json tokens = json::array();
  for (const Token& token : model.tokens(read_tokenize(body, model, limits_)))
    tokens.push_back({{"position", token.position}, {"id", token.id}, {"text", token.text}});
  return {[text = dump({{"tokens", std::move(tokens)}})](const Model&, const RunContext&) {
            return text;
          },
          "application/json", true};
}

Answer Api::predict(const Model& model, const json& body) const {
  PredictRequest request = read_predict(body, model, limits_);
  return {[request = std::move(request)](const Model& m, const RunContext& context) {
    return to_json(m.predict(request.ids, request.options, context));
  }};
}

Prepared Api::prepare(const std::string& model_name, const Model& model,
                      const std::vector<TokenId>& ids, const RunContext& context) const {
  const std::size_t bytes = prepared_bytes(model.config(), ids.size(), context.memory_budget);
  return cache_.get(model_name, ids, bytes, [&] { return model.prepare(ids, context); });
}

Answer Api::trace(const std::string& name, const std::string& model_name, const Model& model,
                  const json& body) const {
  auto request = std::make_shared<const TraceRequest>(read_trace(body, model, limits_));
  const Question& question = request->question;
  if (name == "reroot" && !question.root)
    throw InputError("give the node to reroot at as \"root\", for example \"A3.H1@5\"");
  if (name != "trace" && request->format != Format::json)
    throw InputError("\"format\" can be chosen with /api/trace only");
  // What is not there is said now, before anything waits.
  const int length = static_cast<int>(request->ids.size());
  resolve_position(question.target.position, length);
  if (question.paths.from) resolve_position(*question.paths.from, length);
  std::optional<Node> root;
  if (question.root) root = parse_node(model.writers(), *question.root, length);
  return {[this, name, model_name, request, root](const Model& m, const RunContext& context) {
            const Prepared prepared = prepare(model_name, m, request->ids, context);
            const TraceResult result = prepared.trace(request->question, context);
            if (name == "paths") return paths_only(to_json(result));
            if (name == "reroot") return with_pattern(to_json(result), prepared, *root);
            return render(result, request->format);
          },
          mime(request->format)};
}

Answer Api::interactions(const std::string& model_name, const Model& model,
                         const json& body) const {
  InteractionsRequest request = read_interactions(body, model, limits_);
  if (request.query) resolve_position(*request.query, static_cast<int>(request.ids.size()));
  return {
      [this, model_name, request = std::move(request)](const Model& m, const RunContext& context) {
        return to_json(prepare(model_name, m, request.ids, context)
                           .interactions(request.query, request.all, context));
      }};
}

Answer Api::intervention(const Model& model, const json& body) const {
  InterveneRequest request = read_intervene(body, model, limits_);
  resolve_position(request.target.position, static_cast<int>(request.ids.size()));
  return {[request = std::move(request)](const Model& m, const RunContext& context) {
    return to_json(intervene(m, request.ids, request.intervention, request.target, context));
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
          {"parallel", config.block == Block::parallel},
          {"positions", config.has_pos_writer()},
          {"context", config.n_ctx},
          {"device", program.device},
          {"version", program.version}};
}

json default_options() {
  const Options options;
  return {{"beta", options.beta},
          {"weights", options.weights},
          {"mlp_weights", options.mlp_weights},
          {"expert_weights", options.expert_weights},
          {"dispatch", to_string(options.dispatch)},
          {"mlp", to_string(options.mlp)},
          {"scores", to_string(options.scores)},
          {"reroot", to_string(options.reroot)}};
}

}  // namespace unpack::server
