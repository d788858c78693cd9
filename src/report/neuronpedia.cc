// Attribution graphs in the format of Neuronpedia's viewer.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "report/json.h"
#include "report/text.h"
#include "unpack/circuit.h"

namespace unpack {

namespace {

using Json = OrderedJson;

// Nodes as they are named first, and one link a pair.
class AttributionGraph {
 public:
  AttributionGraph(const Writers& writers, int layers) : writers_(writers), layers_(layers) {}

  std::string component(int writer, int position, const std::string& token, double influence) {
    const Writer& w = writers_[writer];
    const std::string layer = w.terminal() ? "E" : std::to_string(w.layer);
    const std::string id = fmt::format("{}_{}_{}", layer, writer, position);
    if (known_.try_emplace(id, true).second) {
      constexpr const char* kTypes[] = {"embedding", "embedding", "attention head", "mlp"};
      nodes_.push_back({{"node_id", id},
                        {"feature", writer},
                        {"layer", layer},
                        {"ctx_idx", position},
                        {"feature_type", kTypes[static_cast<std::size_t>(w.kind)]},
                        {"jsNodeId", fmt::format("{}_{}-{}", layer, writer, position)},
                        {"clerp", w.kind == WriterKind::emb
                                      ? fmt::format("Emb: {}", report::quoted_token(token, {true}))
                                      : writers_.name(writer)},
                        {"influence", influence},
                        {"activation", nullptr}});
    }
    return id;
  }

  std::string logit(const std::vector<TokenId>& ids, int position, const std::string& text,
                    double probability) {
    const std::string layer = std::to_string(layers_ + 1);
    const TokenId token = ids.empty() ? 0 : ids[0];
    const std::string id = fmt::format("{}_{}_{}", layer, token, position);
    nodes_.push_back({{"node_id", id},
                      {"feature", token},
                      {"layer", layer},
                      {"ctx_idx", position},
                      {"feature_type", "logit"},
                      {"jsNodeId", fmt::format("{}_{}-{}", layer, token, position)},
                      {"clerp", fmt::format("{} (p={:.2f})", text, probability)},
                      {"influence", 1.0},
                      {"activation", nullptr},
                      {"token_prob", probability},
                      {"is_target_logit", true}});
    return id;
  }

  void link(const std::string& from, const std::string& to, double weight) {
    links_[{from, to}] += std::isfinite(weight) ? weight : 0;
  }

  std::string text(const std::string& slug, const ModelInfo& model,
                   const std::vector<Token>& tokens) const {
    std::vector<std::string> texts;
    std::string prompt;
    for (const Token& token : tokens) {
      texts.push_back(token.text);
      prompt += token.text;
    }
    Json links = Json::array();
    for (const auto& [ends, weight] : links_)
      links.push_back({{"source", ends.first}, {"target", ends.second}, {"weight", weight}});
    const Json object = {
        {"metadata",
         {{"slug", slug}, {"scan", model.name}, {"prompt_tokens", texts}, {"prompt", prompt}}},
        {"qParams",
         {{"linkType", "both"},
          {"pinnedIds", Json::array()},
          {"clickedId", ""},
          {"supernodes", Json::array()},
          {"sg_pos", ""}}},
        {"nodes", nodes_},
        {"links", links}};
    return object.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  }

 private:
  const Writers& writers_;
  int layers_;
  Json nodes_ = Json::array();
  std::map<std::string, bool> known_;
  std::map<std::pair<std::string, std::string>, double> links_;
};

// Letters, digits and hyphens.
std::string slug_of(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z');
    if (plain) out += c;
    if (!plain && !out.empty() && out.back() != '-') out += '-';
  }
  while (out.ends_with('-')) out.pop_back();
  return out.empty() ? "unpack" : out.substr(0, 60);
}

}  // namespace

std::string to_neuronpedia(const TraceResult& r) {
  const Writers writers = r.writer_table();
  AttributionGraph graph(writers, r.layout.n_layers);
  double total = 0;
  for (const auto& row : r.node_credit) {
    for (const double x : row) total = std::max(total, std::fabs(x));
  }
  const auto node_at = [&](const Node& node) {
    const std::size_t s = node.position;
    const double credit = r.node_credit.at(node.writer).at(s);
    return graph.component(node.writer, node.position, r.tokens.at(s).text,
                           total > 0 ? std::fabs(credit) / total : 0);
  };
  std::string target;
  if (!r.root)
    target = graph.logit(r.target.ids, r.target.position, r.target.text, r.target.probability);
  for (const Path& path : r.paths) {
    for (std::size_t i = 1; i < path.nodes.size(); ++i)
      graph.link(node_at(path.nodes[i - 1]), node_at(path.nodes[i]), path.credit);
    if (!r.root) graph.link(node_at(path.nodes.back()), target, path.credit);
  }
  std::string name = r.target.text;
  for (const Token& token : r.tokens) name += token.text;
  return graph.text(slug_of(name), r.model, r.tokens);
}

std::string to_neuronpedia(const CircuitResult& result, const Model& model) {
  const CircuitResult r = without_positions(result);
  const Writers writers = r.writer_table();
  AttributionGraph graph(writers, r.layout.n_layers);
  const TaskPrompt& prompt = r.task.prompts.at(0);
  const std::vector<Token> tokens = model.tokens(prompt.ids);
  const int last = tokens.size() - 1;
  PredictOptions all;
  all.top = model.config().vocab_size;
  all.log_probabilities = false;
  double probability = 0;
  for (const Prediction& p : model.predict(prompt.ids, all).predictions) {
    if (std::find(prompt.target.begin(), prompt.target.end(), p.id) != prompt.target.end())
      probability += p.probability;
  }
  const std::string target =
      graph.logit(prompt.target, last, model.token_text(prompt.target[0]), probability);
  double largest = 0;
  for (const RankedEdge& e : r.edges) largest = std::max(largest, e.absolute);
  const auto place = [&](int writer, double influence) {
    return graph.component(writer, last, tokens.back().text, influence / largest);
  };
  for (const RankedEdge& e : r.edges) {
    if (!e.kept) continue;
    const std::string from = place(e.edge.writer, e.absolute);
    graph.link(from, e.edge.reader < 0 ? target : place(e.edge.reader, e.absolute), e.credit);
  }
  return graph.text(slug_of(r.task.name), r.model, tokens);
}

}  // namespace unpack
