#include "report/json.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "report/labels.h"
#include "unpack/field_json.h"
#include "unpack/groups.h"
#include "unpack/question.h"
#include "unpack/reads.h"
#include "unpack/report.h"

namespace unpack {

using Json = OrderedJson;

std::string report::compact(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json report::tokens_json(const std::vector<Token>& tokens) {
  Json list = Json::array();
  for (const Token& t : tokens)
    list.push_back({{"position", t.position}, {"id", t.id}, {"text", t.text}});
  return list;
}

Json report::program_json(const ProgramInfo& p) {
  return {{"version", p.version}, {"device", p.device}, {"threads", p.threads}};
}

Json report::model_json(const ModelInfo& m) {
  return {{"name", m.name},
          {"family", m.family},
          {"layers", m.layers},
          {"heads", m.heads},
          {"d_model", m.d_model},
          {"dtype", m.dtype},
          {"fingerprint", m.fingerprint}};
}

OrderedJson report::options_json(const Options& o) { return fields_json(to_fields(o)); }

namespace {

using report::compact;
using report::model_json;
using report::options_json;
using report::program_json;
using report::tokens_json;

// One top-level key a line: compact, and still easy to read and to compare. Non-finite numbers
// become null.
std::string dump(const Json& object) {
  std::string text = "{";
  for (const auto& [key, value] : object.items()) {
    text += text.size() == 1 ? "\n" : ",\n";
    text += compact(key) + ": " + compact(value);
  }
  return text + "\n}\n";
}

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json target_json(const TargetInfo& t) {
  return {{"position", t.position},
          {"ids", t.ids},
          {"versus_ids", or_null(t.versus_ids)},
          {"text", t.text},
          {"versus_text", or_null(t.versus_text)},
          {"logit", t.logit},
          {"logit_difference", or_null(t.logit_difference)},
          {"probability", t.probability}};
}

Json predictions_json(const std::vector<Prediction>& predictions, bool with_logit) {
  Json list = Json::array();
  for (const Prediction& p : predictions) {
    Json row = {{"id", p.id}, {"text", p.text}};
    if (with_logit) row["logit"] = p.logit;
    row["probability"] = p.probability;
    list.push_back(std::move(row));
  }
  return list;
}

// Keyed by writer; all-zero rows may be left out.
Json by_writer(const std::vector<std::string>& names, const std::vector<std::vector<double>>& rows,
               bool leave_zeros_out) {
  Json object = Json::object();
  for (std::size_t w = 0; w < rows.size(); ++w) {
    const bool empty = std::all_of(rows[w].begin(), rows[w].end(), [](double x) { return x == 0; });
    if (!leave_zeros_out || !empty) object[names.at(w)] = rows[w];
  }
  return object;
}

Json experts_json(const std::vector<ExpertUse>& used) {
  Json list = Json::array();
  for (const ExpertUse& use : used)
    list.push_back({{"expert", use.expert}, {"weight", use.weight}});
  return list;
}

// The strongest neurons; those of experts that are not in use have no credit and come last.
std::vector<NeuronEntry> listed_neurons(const TraceResult& r, int layer, std::size_t most) {
  std::vector<NeuronEntry> out(r.neuron_entries.begin(),
                               r.neuron_entries.begin() + std::min(most, r.neuron_entries.size()));
  if (r.expert_entries.empty()) return out;
  const LayerConfig& shape = r.layout.layer(layer);
  for (int e = 0; e < shape.n_experts && out.size() < most; ++e) {
    const bool used = std::any_of(r.expert_entries.begin(), r.expert_entries.end(),
                                  [&](const ExpertEntry& x) { return x.expert == e; });
    for (int n = 0; !used && n < shape.n_neurons && out.size() < most; ++n)
      out.push_back({n, 0.0, e});
  }
  return out;
}

Json entries_json(const TraceResult& r, const Writers& writers) {
  if (writers[r.root->writer].kind == WriterKind::head) return r.entries;
  constexpr std::size_t kListedNeurons = 20;
  Json neurons = Json::array();
  for (const NeuronEntry& e : listed_neurons(r, writers[r.root->writer].layer, kListedNeurons)) {
    Json entry = Json::object();
    if (e.expert >= 0) entry["expert"] = e.expert;
    entry["neuron"] = e.neuron;
    entry["credit"] = e.credit;
    neurons.push_back(std::move(entry));
  }
  Json object = Json::object();
  object["neurons"] = std::move(neurons);
  if (!r.expert_entries.empty()) {
    Json& experts = object["experts"] = Json::array();
    for (const ExpertEntry& e : r.expert_entries)
      experts.push_back({{"expert", e.expert}, {"weight", e.weight}, {"credit", e.credit}});
  }
  return object;
}

Json composition_json(const TraceResult& r) {
  Json object = Json::object();
  for (const auto& [branch, entries] : r.composition) {
    Json list = Json::array();
    for (const CompositionEntry& e : entries) {
      list.push_back(
          {{"component", r.writers.at(e.writer)}, {"mass", e.mass}, {"credit", e.credit}});
    }
    object[branch == Branch::none ? "all" : to_string(branch)] = std::move(list);
  }
  return object;
}

Json paths_json(const TraceResult& r, const Writers& writers) {
  Json list = Json::array();
  for (const Path& path : r.paths) {
    Json nodes = Json::array(), branches = Json::array();
    for (const Node& node : path.nodes) nodes.push_back(to_string(writers, node));
    for (const Branch b : path.branches)
      branches.push_back(b == Branch::none || b == Branch::mlp ? Json(nullptr)
                                                               : Json(to_string(b)));
    std::string text;
    for (const std::string& piece : report::path_pieces(writers, r, path)) text += piece;
    list.push_back({{"nodes", nodes},
                    {"branches", branches},
                    {"text", text},
                    {"credit", path.credit},
                    {"percent", path.percent}});
  }
  return list;
}

Json interactions_json(const InteractionResult& r, const std::vector<Interaction>& interactions) {
  Json list = Json::array();
  for (const Interaction& x : interactions) {
    Json row = Json::object();
    row["reader"] = r.writers.at(x.reader);
    if (r.per_query || x.query >= 0) row["query"] = x.query;
    row["writer"] = r.writers.at(x.writer);
    row["score"] = x.score;
    list.push_back(std::move(row));
  }
  return list;
}

Json coverage_json(const Coverage& c) {
  return {{"paths", c.paths},
          {"absolute", c.absolute},
          {"absolute_matching", c.absolute_matching},
          {"absolute_total", c.absolute_total}};
}

Json words_json(const std::vector<WordCredit>& words) {
  Json list = Json::array();
  for (const WordCredit& w : words)
    list.push_back({{"first", w.first},
                    {"last", w.last},
                    {"text", w.text},
                    {"credit", w.credit},
                    {"percent", w.percent}});
  return list;
}

}  // namespace

std::string reads_to_json(const TraceResult& r, std::size_t most,
                          const std::vector<double>& pattern) {
  const Writers writers = r.writer_table();
  Json object = {{"node", to_string(writers, *r.root)}, {"entries", entries_json(r, writers)}};
  Json& incoming = object["incoming"] = Json::object();
  for (const auto& [branch, rows] : r.incoming) {
    std::vector<std::pair<Node, double>> nodes;
    for (std::size_t w = 0; w < rows.size(); ++w) {
      for (std::size_t s = 0; s < rows[w].size(); ++s)
        if (rows[w][s] != 0)
          nodes.push_back({{static_cast<int>(w), static_cast<int>(s)}, rows[w][s]});
    }
    const std::size_t listed = std::min(most, nodes.size());
    std::partial_sort(nodes.begin(), nodes.begin() + listed, nodes.end(),
                      [](const auto& a, const auto& b) {
                        return std::tuple(-std::fabs(a.second), a.first.writer, a.first.position) <
                               std::tuple(-std::fabs(b.second), b.first.writer, b.first.position);
                      });
    Json& list = incoming[to_string(branch)] = Json::array();
    for (std::size_t i = 0; i < listed; ++i)
      list.push_back({{"node", to_string(writers, nodes[i].first)}, {"credit", nodes[i].second}});
  }
  if (!pattern.empty()) object["pattern"] = pattern;
  return dump(object);
}

namespace {

void add_trace(const TraceResult& r, Json& object) {
  object["tokens"] = tokens_json(r.tokens);
  object["target"] = target_json(r.target);
  if (r.method != "unpack") {
    object["method"] = r.method;
    object["predictions"] = predictions_json(r.predictions, false);
    object["token_credit"] = r.token_credit;
    object["token_percent"] = r.token_percent;
    return;
  }
  const Writers writers = r.writer_table();
  object["options"] = options_json(r.options);
  object["root"] = r.root ? to_string(writers, *r.root) : "target";
  object["predictions"] = predictions_json(r.predictions, false);
  Json importance = Json::object();
  for (std::size_t w = 0; w < r.importance.size(); ++w)
    importance[r.writers.at(w)] = r.importance[w];
  object["importance"] = std::move(importance);
  object["token_credit"] = r.token_credit;
  object["token_percent"] = r.token_percent;
  object["node_credit"] = by_writer(r.writers, r.node_credit, false);
  if (r.root) {
    Json incoming = Json::object();
    for (const auto& [branch, rows] : r.incoming)
      incoming[to_string(branch)] = by_writer(r.writers, rows, true);
    object["incoming"] = std::move(incoming);
    object["entries"] = entries_json(r, writers);
    if (!r.composition.empty()) object["composition"] = composition_json(r);
  }
  if (!r.experts.empty()) {
    const std::size_t at = report::explained_position(r);
    Json& layers = object["experts"] = Json::array();
    for (const auto& layer : r.experts)
      layers.push_back(layer.empty() ? Json::array() : experts_json(layer.at(at)));
  }
  object["paths"] = paths_json(r, writers);
  object["coverage"] = coverage_json(r.coverage);
  object["conservation"] = {{"first", r.conservation_first},
                            {"reached", r.conservation_reached},
                            {"ill_conditioned", r.ill_conditioned}};
  object["warnings"] = r.warnings;
}

Json edges_json(const Writers& writers, const std::vector<EdgeCredit>& edges) {
  Json out = Json::array();
  for (const EdgeCredit& e : edges) {
    Json branch;
    if (e.branch != Branch::none && e.branch != Branch::mlp) branch = to_string(e.branch);
    out.push_back({{"writer", writers.name(e.writer)},
                   {"reader", e.reader < 0 ? "target" : writers.name(e.reader)},
                   {"branch", branch},
                   {"credit", e.credit}});
  }
  return out;
}

}  // namespace

Json report::trace_json(const TraceResult& result) {
  Json object = Json::object();
  add_trace(result, object);
  return object;
}

std::string to_json(const TraceResult& r, const TraceJson& parts) {
  Json object = {{"version", 1}};
  if (parts.paths_only) {
    const Writers writers = r.writer_table();
    object["target"] = target_json(r.target);
    object["root"] = r.root ? to_string(writers, *r.root) : "target";
    object["paths"] = paths_json(r, writers);
    object["coverage"] = coverage_json(r.coverage);
    object["warnings"] = r.warnings;
    return dump(object);
  }
  object["program"] = program_json(r.program);
  object["model"] = model_json(r.model);
  add_trace(r, object);
  if (!parts.pattern.empty()) object["pattern"] = parts.pattern;
  if (parts.words) object["words"] = words_json(merge_words(r.tokens, r.token_credit));
  if (parts.sentences != nullptr)
    object["sentences"] = report::sentences_json(*parts.sentences, r.writer_table());
  if (parts.groups != nullptr) object["groups"] = report::groups_json(*parts.groups);
  if (parts.edges != nullptr) object["edges"] = edges_json(r.writer_table(), *parts.edges);
  return dump(object);
}

std::string quoted(const std::string& text) { return compact(text); }

std::string to_json(const TraceResult& r) { return to_json(r, TraceJson{}); }

std::string to_json(const std::vector<Token>& tokens) {
  return dump({{"tokens", tokens_json(tokens)}});
}

std::string to_json(const std::vector<WordCredit>& words) {
  return words_json(words).dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_json(const PredictResult& r) {
  Json tokens = tokens_json(r.tokens);
  for (std::size_t s = 0; s < tokens.size(); ++s)
    tokens[s]["log_probability"] =
        s < r.log_probability.size() ? or_null(r.log_probability[s]) : Json(nullptr);
  Json object = {{"model", model_json(r.model)},
                 {"tokens", std::move(tokens)},
                 {"predictions", predictions_json(r.predictions, true)}};
  if (!r.lens.empty()) {
    Json lens = Json::array();
    for (const auto& layer : r.lens) lens.push_back(predictions_json(layer, true));
    object["lens"] = std::move(lens);
  }
  if (!r.experts.empty()) {
    Json& layers = object["experts"] = Json::array();
    for (const auto& layer : r.experts) {
      Json positions = Json::array();
      for (const auto& used : layer) positions.push_back(experts_json(used));
      layers.push_back(std::move(positions));
    }
  }
  return dump(object);
}

std::string to_json(const InteractionResult& r) {
  return dump({{"model", model_json(r.model)},
               {"tokens", tokens_json(r.tokens)},
               {"attention", interactions_json(r, r.attention)},
               {"mlp", interactions_json(r, r.mlp)}});
}

std::string to_json(const AttributeResult& r) {
  Json rows = Json::array();
  for (const AttributeRow& row : r.rows) {
    rows.push_back({{"position", row.position},
                    {"target_id", row.target_id},
                    {"text", row.text},
                    {"probability", row.probability},
                    {"token_credit", row.token_credit},
                    {"token_percent", row.token_percent}});
  }
  return dump({{"version", 1},
               {"program", program_json(r.program)},
               {"model", model_json(r.model)},
               {"options", options_json(r.options)},
               {"tokens", tokens_json(r.tokens)},
               {"rows", std::move(rows)}});
}

}  // namespace unpack
