#include "inspect_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "unpack/chat.h"
#include "unpack/error.h"
#include "unpack/explain.h"
#include "unpack/inspect.h"
#include "unpack/reads.h"
#include "unpack/report.h"

namespace unpack::server {
namespace {

using json = JsonValue;

constexpr int kAnyInt = std::numeric_limits<int>::max();
constexpr int kMostTokens = 100;               // of a list of promoted tokens or of suggestions
constexpr std::size_t kMostHeads = 1024;       // patterns in one answer
constexpr std::size_t kMostWeights = 4000000;  // numbers of all patterns of one answer
constexpr std::size_t kMostNeurons = 100;
constexpr int kMostSentences = 20;
constexpr int kMostNodes = 1000;  // that a branch is listed with

json effects(const std::vector<TokenEffect>& list) {
  json out = json::array();
  for (const TokenEffect& effect : list)
    out.push_back({{"id", effect.id}, {"text", effect.text}, {"logit", effect.logit}});
  return out;
}

json prediction(const Prediction& p) {
  return {{"id", p.id}, {"text", p.text}, {"probability", p.probability}};
}

double short_weight(double x) { return std::round(x * 1e4) / 1e4; }

}  // namespace

std::vector<double> pattern_of(const Prepared& prepared, const Node& node) {
  const Writer& writer = prepared.model().writers()[node.writer];
  if (writer.kind != WriterKind::head) return {};
  const CachedArray pattern = prepared.cache("pattern", writer.layer);  // [H, S, S]
  const std::size_t length = prepared.length(), head = writer.head, query = node.position;
  const auto row = pattern.values.begin() + ((head * length + query) * length);
  return {row, row + node.position + 1};
}

const std::vector<std::string>& InspectApi::names() {
  static const std::vector<std::string> kNames = {"reads",   "writes", "attention", "lens",
                                                  "suggest", "words",  "attribute"};
  return kNames;
}

std::optional<Answer> InspectApi::ask(const std::string& name, const std::string& model_name,
                                      const Model& model, const Fields& body) const {
  if (name == "reads") return reads(model_name, model, body);
  if (name == "writes") return writes(model_name, model, body);
  if (name == "attention") return attention(model_name, model, body);
  if (name == "lens") return lens(model_name, model, body);
  if (name == "suggest") return suggest(model_name, model, body);
  if (name == "words") return words(model_name, model, body);
  if (name == "attribute") return attribute(model, body);
  return std::nullopt;
}

Answer InspectApi::reads(const std::string& model_name, const Model& model,
                         const Fields& body) const {
  RequestFields fields(body);
  const int top = fields.integer("top", 1, kMostNodes).value_or(10);
  const std::vector<TokenId> ids = read_prompt(fields, model, limits_);
  std::vector<std::string> allowed = target_fields();
  for (const std::string& name : option_fields()) allowed.push_back(name);
  allowed.emplace_back("root");
  Question question = read_question(fields, model, limits_, ids, allowed);
  if (!question.root) throw InputError("give the head or MLP as \"root\", for example \"A3.H1@5\"");
  const Node root = parse_node(model.writers(), *question.root, ids.size());
  return {[this, model_name, ids, question, root, top](const Model& m, const RunContext& context) {
    const Prepared prepared = prepare_(model_name, m, ids, context);
    return reads_to_json(node_reads(prepared, question, context), top, pattern_of(prepared, root));
  }};
}

Answer InspectApi::writes(const std::string& model_name, const Model& model,
                          const Fields& body) const {
  RequestFields fields(body);
  const std::optional<std::string> name = fields.text("node");
  const int top = fields.integer("top", 1, kMostTokens).value_or(10);
  const std::vector<int> neurons =
      fields.integers("neurons", kMostNeurons).value_or(std::vector<int>{});
  const std::vector<TokenId> ids = read_prompt(fields, model, limits_);
  fields.expect_no_others();
  if (!name) throw InputError("give the node as \"node\", for example \"A3.H1@5\"");
  const Node node = parse_node(model.writers(), *name, ids.size());
  return {[this, model_name, ids, node, top, neurons](const Model& m, const RunContext& context) {
    const Writing written = writing(prepare_(model_name, m, ids, context), node, top, neurons);
    json list = json::array();
    for (const NeuronWriting& neuron : written.neurons)
      list.push_back({{"neuron", neuron.neuron},
                      {"value", neuron.value},
                      {"promoted", effects(neuron.promoted)}});
    return dump({{"node", to_string(m.writers(), node)},
                 {"promoted", effects(written.promoted)},
                 {"lowered", effects(written.lowered)},
                 {"neurons", list}});
  }};
}

Answer InspectApi::attention(const std::string& model_name, const Model& model,
                             const Fields& body) const {
  RequestFields fields(body);
  const std::optional<std::vector<std::string>> heads = fields.texts("heads", kMostHeads);
  const std::vector<TokenId> ids = read_prompt(fields, model, limits_);
  fields.expect_no_others();
  if (!heads || heads->empty())
    throw InputError("give the heads as \"heads\", for example [\"A3.H1\"]");
  const std::size_t triangle = ids.size() * (ids.size() + 1) / 2;
  if (heads->size() * triangle > kMostWeights)
    throw InputError(fmt::format("{} patterns of {} tokens are too many for one answer; ask for {}",
                                 heads->size(), ids.size(),
                                 std::max<std::size_t>(1, kMostWeights / triangle)));
  std::vector<Writer> wanted;
  for (const std::string& name : *heads) {
    const Writer& writer = model.writers()[model.writers().parse(name)];
    if (writer.kind != WriterKind::head)
      throw InputError(fmt::format("{} has no attention pattern; only heads do", name));
    wanted.push_back(writer);
  }
  return {[this, model_name, ids, wanted](const Model& m, const RunContext& context) {
    const Prepared prepared = prepare_(model_name, m, ids, context);
    json list = json::array();
    CachedArray pattern;
    int layer = -1;
    const std::size_t length = ids.size();
    for (const Writer& writer : wanted) {
      context.check();
      if (writer.layer != layer) pattern = prepared.cache("pattern", layer = writer.layer);
      json rows = json::array();
      for (std::size_t q = 0; q < length; ++q) {
        json row = json::array();
        for (std::size_t s = 0; s <= q; ++s)
          row.push_back(short_weight(pattern.values[(writer.head * length + q) * length + s]));
        rows.push_back(std::move(row));
      }
      list.push_back({{"head", m.writers().name(m.writers().head(writer.layer, writer.head))},
                      {"pattern", std::move(rows)}});
    }
    return dump({{"heads", std::move(list)}});
  }};
}

Answer InspectApi::lens(const std::string& model_name, const Model& model,
                        const Fields& body) const {
  RequestFields fields(body);
  const std::vector<TokenId> ids = read_prompt(fields, model, limits_);
  const Target target = read_question(fields, model, limits_, ids, target_fields()).target;
  return {[this, model_name, ids, target](const Model& m, const RunContext& context) {
    const Prepared prepared = prepare_(model_name, m, ids, context);
    const TokenId id = target.ids.empty()
                           ? unpack::suggest(prepared, target.position, "", 1).front().id
                           : target.ids.front();
    json layers = json::array();
    for (const auto& cells : unpack::lens(prepared, id, context)) {
      json row = json::array();
      for (const LensCell& cell : cells) {
        json entry = prediction(cell.top);
        entry["target"] = cell.target;
        row.push_back(std::move(entry));
      }
      layers.push_back(std::move(row));
    }
    return dump(
        {{"target", {{"id", id}, {"text", m.token_text(id)}}}, {"layers", std::move(layers)}});
  }};
}

Answer InspectApi::suggest(const std::string& model_name, const Model& model,
                           const Fields& body) const {
  RequestFields fields(body);
  const std::string text = fields.text("text").value_or("");
  const int top = fields.integer("top", 1, kMostTokens).value_or(8);
  const int position = fields.integer("position").value_or(-1);
  const std::vector<TokenId> ids = read_prompt(fields, model, limits_);
  fields.expect_no_others();
  resolve_position(position, ids.size());
  return {[this, model_name, ids, text, top, position](const Model& m, const RunContext& context) {
    json list = json::array();
    for (const Prediction& p :
         unpack::suggest(prepare_(model_name, m, ids, context), position, text, top))
      list.push_back(prediction(p));
    return dump({{"suggestions", std::move(list)}});
  }};
}

Answer InspectApi::words(const std::string& model_name, const Model& model,
                         const Fields& body) const {
  RequestFields fields(body);
  fields.at_most_one_of({"node", "sentences"});
  const int count = fields.integer("sentences", 1, kMostSentences).value_or(5);
  const std::optional<std::string> name = fields.text("node");
  const std::vector<TokenId> ids = read_prompt(fields, model, limits_);
  std::vector<std::string> allowed = target_fields();
  for (const std::string& field : option_fields()) allowed.push_back(field);
  allowed.emplace_back("root");
  Question question = read_question(fields, model, limits_, ids, allowed);
  question.paths.top = 0;
  question.composition = false;
  std::optional<Node> node;
  if (name) node = parse_node(model.writers(), *name, ids.size());
  if (node && model.writers()[node->writer].terminal())
    throw InputError(fmt::format("{} reads nothing: sentences are about heads and MLPs", *name));
  return {
      [this, model_name, ids, question, count, node](const Model& m, const RunContext& context) {
        const Prepared prepared = prepare_(model_name, m, ids, context);
        const TraceResult result = prepared.trace(question, context);
        const std::vector<Sentence> sentences =
            node ? std::vector<Sentence>{explain_node(prepared, question, result, *node, context)}
                 : explain(prepared, question, result, count, context);
        return to_json(sentences, m.writers());
      }};
}

Answer InspectApi::attribute(const Model& model, const Fields& body) const {
  RequestFields fields(body);
  fields.at_most_one_of({"continuation", "generate"});
  const std::optional<std::string> continuation = fields.text("continuation");
  const int generate =
      fields.integer("generate", 1, limits_.max_tokens).value_or(kAttributedTokens);
  const MadePrompt prompt = make_request_prompt(fields, model, limits_);
  const std::vector<TokenId>& ids = prompt.ids;
  const Options options = read_question(fields, model, limits_, ids, option_fields()).options;
  std::vector<TokenId> given;
  if (continuation) {
    given = encode_after(model, prompt, *continuation);
    if (given.empty()) throw InputError("the continuation has no tokens");
    if (ids.size() + given.size() > static_cast<std::size_t>(limits_.max_tokens))
      throw InputError(
          fmt::format("prompt and continuation have {} tokens, more than the limit of {}",
                      ids.size() + given.size(), limits_.max_tokens));
  }
  const int room = limits_.max_tokens - ids.size();
  if (room < 1) throw InputError("the prompt leaves no room for a continuation");
  return {[ids, stops = prompt.stops, given, generate, room, options](const Model& m,
                                                                      const RunContext& context) {
    std::vector<TokenId> next = given;
    if (next.empty()) {
      SamplingOptions sampling;
      sampling.max_tokens = std::min(generate, room);
      next = generate_until(m, ids, sampling, stops, {}, context);
      if (next.empty()) throw InputError("the model ends the text here: nothing to explain");
    }
    return to_json(unpack::attribute(m, ids, next, options, context));
  }};
}

}  // namespace unpack::server
