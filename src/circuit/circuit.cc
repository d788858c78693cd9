#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>

#include "circuit/rank.h"
#include "engine/state.h"
#include "unpack/choice.h"
#include "unpack/error.h"
#include "unpack/prepared.h"

namespace unpack {

namespace {

constexpr std::pair<CircuitMethod, const char*> kMethods[] = {
    {CircuitMethod::ours, "ours"},         {CircuitMethod::ifr, "ifr"},
    {CircuitMethod::eap, "eap"},           {CircuitMethod::eap_ig, "eap-ig"},
    {CircuitMethod::patching, "patching"}, {CircuitMethod::random, "random"}};

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / values.size();
}

bool compares(const CircuitOptions& o) {
  return o.method == CircuitMethod::eap || o.method == CircuitMethod::eap_ig || o.contrast ||
         o.ablation == EdgeAblation::counterfactual;
}

void check_circuit_options(const CircuitOptions& o) {
  o.options.check();
  if (o.steps < 1)
    throw UsageError(fmt::format("steps takes a number of 1 or more, not {}", o.steps));
  if (o.minimality < 0)
    throw UsageError(fmt::format("minimality takes a number of 0 or more, not {}", o.minimality));
  if (!(o.faithful > 0 && o.faithful <= 1))
    throw UsageError(
        fmt::format("faithful takes a number above 0 and up to 1, not {}", o.faithful));
  if (o.sizes.empty()) throw UsageError("sizes names no size");
  if (o.patched < 0)
    throw UsageError(fmt::format("patched takes a number of 0 or more, not {}", o.patched));
  if (o.nodes && o.positions)
    throw UsageError(
        "nodes and positions do not go together: a component is kept at all positions");
  if (o.contrast && o.method != CircuitMethod::ours)
    throw UsageError("contrast goes with the method ours");
}

// Prompts on which the model prefers the target; the others are counted.
Task right_prompts(const Model& model, const Task& task, std::size_t& wrong,
                   const RunContext& context) {
  Task out{task.name, {}};
  for (const circuit::PromptChunk& chunk :
       circuit::cut_chunks(model.config(), task.prompts, 1024)) {
    forward::ForwardOptions plain;
    plain.keep = false;
    const forward::ForwardPass pass =
        forward::forward(*engine::state_of(model)->backend, chunk.prompts, plain, context);
    const std::vector<double> values =
        circuit::differences(model, task.prompts, chunk, pass.x_final);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const TaskPrompt& prompt = task.prompts[chunk.members[i]];
      bool right = values[i] > 0;
      if (!prompt.versus) {
        PredictOptions one;
        one.top = 1;
        one.log_probabilities = false;
        const TokenId said = model.predict(prompt.ids, one, context).predictions[0].id;
        right = std::find(prompt.target.begin(), prompt.target.end(), said) != prompt.target.end();
      }
      if (right) out.prompts.push_back(prompt);
      wrong += right ? 0 : 1;
    }
  }
  if (out.prompts.empty())
    throw InputError(
        fmt::format("the model prefers another answer on all {} prompts of {}: there is no "
                    "behaviour to explain",
                    task.prompts.size(), task.name));
  return out;
}

// Positions of several prompts are the same where the prompts have one length: the commonest one is
// kept, the others are counted.
int keep_one_length(Task& task, std::size_t& left_out) {
  std::map<std::size_t, int> lengths;
  for (const TaskPrompt& prompt : task.prompts) ++lengths[prompt.ids.size()];
  const auto commonest =
      std::max_element(lengths.begin(), lengths.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  left_out = std::erase_if(task.prompts, [&](const TaskPrompt& prompt) {
    return prompt.ids.size() != commonest->first;
  });
  return commonest->first;
}

void check_prompts(const Model& model, const Task& task, bool counterfactuals) {
  if (task.prompts.empty()) throw InputError("the task has no prompts");
  for (std::size_t i = 0; i < task.prompts.size(); ++i) {
    const TaskPrompt& prompt = task.prompts[i];
    model.check(prompt.ids);
    if (prompt.target.empty()) throw InputError(fmt::format("prompt {} has no target", i + 1));
    if (!prompt.counterfactual.empty()) {
      model.check(prompt.counterfactual);
      if (prompt.counterfactual.size() != prompt.ids.size())
        throw InputError(
            fmt::format("prompt {}: the counterfactual has {} tokens, the prompt {}: they must be "
                        "of one length",
                        i + 1, prompt.counterfactual.size(), prompt.ids.size()));
    } else if (counterfactuals) {
      throw InputError(fmt::format(
          "prompt {} has no counterfactual: give one, or ablate with mean or zero", i + 1));
    }
  }
}

circuit::EdgeScores score_edges(const Model& model, const circuit::EdgeTable& table,
                                const Task& task, const CircuitOptions& o,
                                const RunContext& context, CircuitMemory* memory) {
  switch (o.method) {
    case CircuitMethod::ours:
      return circuit::rank_ours(model, table, task, o, context, memory);
    case CircuitMethod::ifr:
      return circuit::rank_ifr(model, table, task, context, memory);
    case CircuitMethod::eap:
      return circuit::rank_gradients(model, table, task, 1, context, memory);
    case CircuitMethod::eap_ig:
      return circuit::rank_gradients(model, table, task, o.steps, context, memory);
    case CircuitMethod::patching: {
      Task some = task;
      if (o.patched > 0 && static_cast<std::size_t>(o.patched) < some.prompts.size())
        some.prompts.resize(o.patched);
      return circuit::rank_patching(model, table, some, o.ablation, context, memory);
    }
    case CircuitMethod::random:
      return circuit::rank_random(table, o.seed);
  }
  throw InternalError("unknown method");
}

// What is kept or ablated as one: an edge, or a component with all edges between kept ones.
class Units {
 public:
  Units(const circuit::EdgeTable& table, const std::vector<double>& strength, bool nodes)
      : table_(table), nodes_(nodes) {
    std::vector<double> of_unit = strength;
    if (nodes) {
      of_unit.assign(table.writers().count(), 0.0);
      for (std::size_t e = 0; e < strength.size(); ++e)
        of_unit[table.edge(e).writer] += strength[e];
    }
    const std::size_t first = nodes ? table.writers().terminals() : 0;
    order_.resize(of_unit.size() - first);
    std::iota(order_.begin(), order_.end(), first);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return of_unit[a] > of_unit[b]; });
  }

  int count() const { return order_.size(); }

  int number(const CircuitSize& size) const {
    const double exact = size.share > 0 ? size.share * count() : size.count;
    const int n = exact + 1e-9;
    if (n < 1)
      throw UsageError(fmt::format("{:g}% of {} {} leaves nothing: ask for a larger size",
                                   100 * size.share, count(), nodes_ ? "components" : "edges"));
    return std::min(n, count());
  }

  circuit::EdgeMask strongest(int number) const {
    circuit::EdgeMask mask = table_.none();
    if (!nodes_) {
      for (int i = 0; i < number; ++i) mask[order_[i]] = 1;
      return table_.connected(std::move(mask));
    }
    std::vector<char> kept(table_.writers().count(), 0);
    std::fill(kept.begin(), kept.begin() + table_.writers().terminals(), 1);
    for (int i = 0; i < number; ++i) kept[order_[i]] = 1;
    for (std::size_t e = 0; e < mask.size(); ++e) {
      const CircuitEdge edge = table_.edge(e);
      mask[e] = kept[edge.writer] != 0 && (edge.reader < 0 || kept[edge.reader] != 0);
    }
    return table_.connected(std::move(mask));
  }

 private:
  const circuit::EdgeTable& table_;
  bool nodes_;
  std::vector<std::size_t> order_;
};

// Faithfulness and necessity of circuits over one set of prompts.
class Prover {
 public:
  Prover(const Model& model, const circuit::EdgeTable& table, const Task& task,
         EdgeAblation ablation, const RunContext& context, CircuitMemory* memory = nullptr)
      : table_(table),
        runner_(model, table, task.prompts, ablation, context, memory),
        context_(context) {
    clean_ = mean_of(runner_.clean());
    ablated_ = mean_of(runner_.measure(table.none(), context));
    if (std::fabs(clean_ - ablated_) < 1e-9 * std::max(std::fabs(clean_), 1.0))
      throw InputError(
          "ablating every edge changes nothing: the counterfactuals give the same answers");
  }

  double clean() const { return clean_; }
  double ablated() const { return ablated_; }
  circuit::CircuitRunner& runner() { return runner_; }
  double faithfulness(double value) const { return (value - ablated_) / (clean_ - ablated_); }

  void measure(const circuit::EdgeMask& kept, CircuitPoint& point) {
    point.edges = circuit::count_kept(kept);
    point.value = value(kept);
    point.faithfulness = faithfulness(point.value);
    circuit::EdgeMask rest = kept;
    for (char& x : rest) x = x == 0;
    point.necessity = 1 - faithfulness(value(rest));
  }

 private:
  double value(const circuit::EdgeMask& kept) {
    const auto [found, fresh] = known_.try_emplace(kept, 0.0);
    if (fresh) found->second = mean_of(runner_.measure(kept, context_));
    return found->second;
  }

  const circuit::EdgeTable& table_;
  circuit::CircuitRunner runner_;
  const RunContext& context_;
  double clean_ = 0, ablated_ = 0;
  std::map<circuit::EdgeMask, double> known_;
};

// MIB's areas: trapezoids over the linear size.
void add_areas(CircuitMeasure& measure) {
  for (std::size_t i = 1; i < measure.points.size(); ++i) {
    const CircuitPoint &a = measure.points[i - 1], &b = measure.points[i];
    const double width = b.share - a.share;
    measure.cpr += width * (a.faithfulness + b.faithfulness) / 2;
    measure.cmd += width * (std::fabs(1 - a.faithfulness) + std::fabs(1 - b.faithfulness)) / 2;
  }
}

// What each edge of the final circuit is worth, one removed at a time.
void add_drops(CircuitResult& result, const circuit::EdgeTable& table,
               const circuit::EdgeMask& final_mask, Prover& prover, const RunContext& context) {
  std::vector<std::size_t> edges;
  std::vector<RankedEdge*> places;
  for (RankedEdge& ranked : result.edges) {
    const std::size_t e = table.index(ranked.edge);
    ranked.kept = final_mask[e] != 0;
    if (!ranked.kept || static_cast<int>(edges.size()) >= result.options.minimality) continue;
    edges.push_back(e);
    places.push_back(&ranked);
  }
  if (static_cast<int>(edges.size()) < result.final_point.edges && result.options.minimality > 0)
    result.warnings.push_back(
        fmt::format("only the strongest {} of {} edges were removed one by one", edges.size(),
                    result.final_point.edges));
  if (edges.empty()) return;
  const auto values = prover.runner().measure_without(final_mask, edges, context);
  for (std::size_t i = 0; i < edges.size(); ++i)
    places[i]->drop = result.final_point.faithfulness - prover.faithfulness(mean_of(values[i]));
}

}  // namespace

const char* to_string(CircuitMethod method) {
  for (const auto& [known, name] : kMethods) {
    if (known == method) return name;
  }
  return "";
}

std::vector<CircuitMethod> circuit_methods() {
  std::vector<CircuitMethod> out;
  for (const auto& known : kMethods) out.push_back(known.first);
  return out;
}

CircuitMethod parse_circuit_method(const std::string& name) {
  return read_word("method", text_field(name), words_of(circuit_methods()));
}

const char* to_string(EdgeAblation ablation) {
  return ablation == EdgeAblation::counterfactual ? "counterfactual"
         : ablation == EdgeAblation::mean         ? "mean"
                                                  : "zero";
}

std::vector<CircuitSize> parse_sizes(const std::string& text) {
  std::vector<CircuitSize> out;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::string part = text.substr(begin, end - begin);
    begin = end + 1;
    const bool percent = part.ends_with('%');
    if (percent) part.pop_back();
    double value = 0;
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    const bool read = error == std::errc() && stop == part.data() + part.size();
    const bool fits = percent ? value > 0 && value <= 100
                              : value >= 1 && value <= 1e9 && value == std::floor(value);
    if (!read || !fits)
      throw UsageError(fmt::format(
          "a size is a percentage above 0 and up to 100% or a whole number of edges, not '{}{}'",
          part, percent ? "%" : ""));
    out.push_back(percent ? CircuitSize{value / 100, 0} : CircuitSize{0, static_cast<int>(value)});
  }
  return out;
}

CircuitSize parse_size(const std::string& text) {
  const std::vector<CircuitSize> one = parse_sizes(text);
  if (one.size() != 1) throw UsageError("size takes one size; sizes takes several");
  return one[0];
}

std::vector<CircuitSize> default_sizes() {
  return parse_sizes("0.1%,0.2%,0.5%,1%,2%,5%,10%,20%,50%,100%");
}

CircuitResult find_circuit(const Model& model, const Task& task, const CircuitOptions& options,
                           const RunContext& context, CircuitMemory* memory) {
  check_circuit_options(options);
  check_prompts(model, task, compares(options));
  CircuitResult result;
  result.model = model.info();
  result.program = model.program();
  result.layout = model.config();
  result.options = options;
  result.all_nodes = model.writers().count() - model.writers().terminals();
  result.task = right_prompts(model, task, result.wrong, context);
  const circuit::EdgeTable table(
      model, options.positions ? keep_one_length(result.task, result.other_length) : 0);
  result.all_edges = table.size();

  const circuit::EdgeScores scores =
      score_edges(model, table, result.task, options, context, memory);
  result.cost.ranking = scores.passes;
  Prover prover(model, table, result.task, options.ablation, context, memory);
  result.clean = prover.clean();
  result.ablated = prover.ablated();
  // Gradients and patches measure in logits: one scale for all of them.
  const bool in_logits = options.method == CircuitMethod::eap ||
                         options.method == CircuitMethod::eap_ig ||
                         options.method == CircuitMethod::patching;
  const double scale = in_logits ? std::fabs(result.clean - result.ablated) : 1.0;
  std::vector<double> strength = scores.absolute;
  // Their authors add signed scores up over prompts before they take the size.
  for (std::size_t e = 0; in_logits && e < strength.size(); ++e)
    strength[e] = std::fabs(scores.credit[e]);
  std::vector<std::size_t> order(table.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return strength[a] > strength[b]; });
  for (const std::size_t e : order) {
    if (scores.absolute[e] > 0)
      result.edges.push_back({table.edge(e), scores.credit[e] / scale, scores.absolute[e] / scale,
                              static_cast<int>(result.edges.size()) + 1, false, std::nullopt});
  }

  const Units units(table, strength, options.nodes);
  std::map<int, double> sizes;  // number -> share as it was asked for
  for (const CircuitSize& size : options.sizes) {
    const int number = units.number(size);
    sizes.try_emplace(number, size.share > 0 ? size.share : double(number) / units.count());
  }
  double done = 0;
  for (const auto& [number, share] : sizes) {
    context.report("sizes", done++, sizes.size());
    CircuitPoint point;
    point.share = share;
    point.asked = number;
    const circuit::EdgeMask mask = units.strongest(number);
    prover.measure(mask, point);
    if (point.edges == 0)
      result.warnings.push_back(
          fmt::format("the strongest {} {} leave no way from a token to the target", number,
                      options.nodes ? "components" : "edges"));
    result.measure.points.push_back(point);
  }
  add_areas(result.measure);

  result.final_point = result.measure.points.back();
  for (const CircuitPoint& point : result.measure.points) {
    if (options.size || point.faithfulness < options.faithful) continue;
    result.final_point = point;
    break;
  }
  if (options.size) {
    result.final_point.asked = units.number(*options.size);
    result.final_point.share = static_cast<double>(result.final_point.asked) / units.count();
    prover.measure(units.strongest(result.final_point.asked), result.final_point);
    if (result.final_point.edges == 0)
      throw InputError(fmt::format(
          "the strongest {} {} leave no way from a token to the target: ask for a larger size",
          result.final_point.asked, options.nodes ? "components" : "edges"));
  } else if (result.final_point.faithfulness < options.faithful) {
    result.warnings.push_back(
        fmt::format("no measured size reaches a faithfulness of {:g}", options.faithful));
  }
  add_drops(result, table, units.strongest(result.final_point.asked), prover, context);
  result.cost.proof = prover.runner().passes();
  result.cost.proof_cost = prover.runner().cost();
  return result;
}

CircuitProof prove_circuits(const Model& model, const Task& task,
                            const std::vector<std::vector<CircuitEdge>>& circuits,
                            EdgeAblation ablation, const RunContext& context) {
  check_prompts(model, task, ablation == EdgeAblation::counterfactual);
  bool placed = false;
  for (const std::vector<CircuitEdge>& circuit : circuits)
    for (const CircuitEdge& edge : circuit) placed |= edge.position >= 0;
  const auto length = task.prompts[0].ids.size();
  for (const std::vector<CircuitEdge>& circuit : circuits) {
    for (const CircuitEdge& edge : circuit) {
      if (placed && (edge.position < 0 || static_cast<std::size_t>(edge.position) >= length))
        throw InputError(fmt::format("{}: every edge needs a position below {}, or none has one",
                                     to_string(model.writers(), edge), length));
    }
  }
  for (const TaskPrompt& prompt : task.prompts) {
    if (placed && prompt.ids.size() != length)
      throw InputError("edges with positions are measured on prompts of one length");
  }
  const circuit::EdgeTable table(model, placed ? length : 0);
  Prover prover(model, table, task, ablation, context);
  CircuitProof proof{prover.clean(), prover.ablated(), {}, 0};
  for (const std::vector<CircuitEdge>& circuit : circuits) {
    circuit::EdgeMask mask = table.none();
    for (const CircuitEdge& edge : circuit) mask[table.index(edge)] = 1;
    CircuitPoint point;
    point.asked = circuit.size();
    point.share = static_cast<double>(circuit.size()) / table.size();
    prover.measure(table.connected(std::move(mask)), point);
    proof.points.push_back(point);
  }
  proof.cost = prover.runner().cost();
  return proof;
}

}  // namespace unpack
