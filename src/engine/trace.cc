// Prepared::trace: one question answered from the edges of a prepared prompt.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/index.h"
#include "credit/best_paths.h"
#include "credit/flow.h"
#include "credit/path_graph.h"
#include "engine/check_question.h"
#include "engine/finite.h"
#include "engine/masses.h"
#include "engine/read_trace.h"
#include "engine/state.h"
#include "engine/sums.h"
#include "unpack/prepared.h"

namespace unpack {

namespace {

constexpr std::size_t kKeptEdges = 3;
// Past this many pairs of positions, over all heads and layers, one set of edges takes so much
// memory that it has to go before the next is made.
constexpr Index kManyPairs = Index{1} << 26;

// What changes edges; the direction of a root does not.
bool same_edges(const Options& a, const Options& b) {
  return a.beta == b.beta && a.weights == b.weights && a.mlp_weights == b.mlp_weights &&
         a.expert_weights == b.expert_weights && a.dispatch == b.dispatch && a.mlp == b.mlp &&
         a.scores == b.scores;
}

template <typename T>
std::vector<engine::EdgeSet<T>>& edge_sets(const engine::PreparedState& state) {
  if constexpr (sizeof(T) == 8) {
    return state.double_edges;
  } else {
    return state.float_edges;
  }
}

template <typename T>
std::shared_ptr<const credit::Edges<T>> edges_for(const engine::PreparedState& state,
                                                  const Options& options, const RunContext& context,
                                                  bool whole,
                                                  const credit::EdgesTarget* target = nullptr) {
  {
    std::lock_guard lock(state.mutex);
    for (const auto& set : edge_sets<T>(state)) {
      if (same_edges(set.options, options) && (set.whole || !whole)) return set.edges;
    }
  }
  const ModelConfig& c = state.decomposition->config();
  if (backend::tri(state.decomposition->length()) * c.n_heads * c.n_layers > kManyPairs) {
    std::lock_guard lock(state.mutex);
    edge_sets<T>(state).clear();
  }
  std::optional<credit::SuffixAlong<T>>
      along;  // where the key scores would have to be made again for it
  if (!state.decomposition->keeps_key_scores(options.scores)) along.emplace(*state.decomposition);
  auto edges = std::make_shared<const credit::Edges<T>>(state.decomposition, options, context,
                                                        target, whole, along ? &*along : nullptr);
  std::lock_guard lock(state.mutex);
  auto& sets = edge_sets<T>(state);
  if (sets.size() >= kKeptEdges) sets.erase(sets.begin());
  sets.push_back({options, edges, whole, along ? along->take() : nullptr});
  return edges;
}

template <typename T>
std::shared_ptr<const credit::Suffix> suffix_for(const engine::PreparedState& state,
                                                 const credit::Edges<T>& edges,
                                                 const credit::SuffixFilter& filter,
                                                 const RunContext& context) {
  const bool plain = !filter.any() && !filter.by_sign;
  if (plain) {
    std::lock_guard lock(state.mutex);
    for (const auto& set : edge_sets<T>(state)) {
      if (set.edges.get() == &edges && set.suffix) return set.suffix;
    }
  }
  auto suffix =
      std::make_shared<const credit::Suffix>(credit::Suffix::compute(edges, filter, context));
  if (plain) {
    std::lock_guard lock(state.mutex);
    for (auto& set : edge_sets<T>(state)) {
      if (set.edges.get() == &edges) set.suffix = suffix;
    }
  }
  return suffix;
}

credit::PathFilter resolve_filter(const PathQuery& query, const Writers& writers, int length) {
  credit::PathFilter filter;
  filter.branch = query.branch;
  filter.sign = query.sign;
  if (query.through) filter.suffix.through = writers.parse(*query.through);
  // A source past the prompt is a filter that nothing matches.
  if (query.from)
    filter.suffix.from =
        *query.from >= length ? *query.from : resolve_position(*query.from, length);
  filter.suffix.min_layer = query.min_layer;
  filter.suffix.by_sign = query.sign.has_value();
  return filter;
}

void add_tokens(TraceResult& result, const credit::Flow& flow, const credit::Start& start,
                const Writers& writers) {
  const std::size_t count = writers.count();
  const std::size_t length = result.length();
  result.node_credit.assign(count, std::vector<double>(length, 0.0));
  for (std::size_t s = 0; s < length; ++s) {
    for (std::size_t w = 0; w < count; ++w) {
      result.node_credit[w][s] = flow.indirect[s * count + w];
      if (static_cast<int>(s) == start.position) result.node_credit[w][s] += flow.direct[w];
    }
  }
  result.token_credit.assign(length, 0.0);
  for (std::size_t s = 0; s < length; ++s) {
    for (int w = 0; w < writers.terminals(); ++w)
      result.token_credit[s] += result.node_credit[w][s];
  }
}

void add_percentages(TraceResult& result) {
  double positive = 0;
  double absolute = 0;
  double sum = 0;
  for (const double x : result.token_credit) {
    positive += std::max(x, 0.0);
    absolute += std::fabs(x);
    sum += x;
  }
  result.token_percent.clear();
  for (const double x : result.token_credit)
    result.token_percent.push_back(positive > 0 ? x / positive * 100 : 0.0);
  for (Path& path : result.paths) path.percent = positive > 0 ? path.credit / positive * 100 : 0.0;
  result.conservation_reached = sum;
  if (sum < 0) {
    result.warnings.push_back(
        fmt::format("the credit of all tokens sums to {:.4g}, below zero: percentages of the "
                    "positive part mislead here, read the raw credit",
                    sum));
  } else if (positive < 0.1 * absolute) {
    result.warnings.push_back(
        "less than a tenth of the token credit is positive: percentages of it mislead here, read "
        "the raw credit");
  }
}

template <typename T>
void answer(const engine::PreparedState& state, const Question& question, const TargetInfo& target,
            const RunContext& context, TraceResult& result) {
  const decompose::Decomposition& d = *state.decomposition;
  const Writers& writers = d.writers();
  backend::Array direction = d.backend().zeros(d.config().d_model);
  const bool needs_direction = !result.root || question.options.reroot == Reroot::target;
  if (needs_direction) {
    d.backend().target_direction(d.kept_pass().x_final, target.position, target.ids,
                                 target.versus_ids ? &*target.versus_ids : nullptr, target.raw,
                                 direction);
  }
  const credit::EdgesTarget first{target.position, direction};
  // Edges of the last MLP at every position are wanted by nobody but a root there.
  const bool last = result.root && d.writers()[result.root->writer].kind == WriterKind::mlp &&
                    d.neurons_when_asked(d.writers()[result.root->writer].layer);
  const auto edges =
      edges_for<T>(state, question.options, context, last, result.root ? nullptr : &first);
  const credit::Start start =
      result.root
          ? credit::start_at_root(*edges, *result.root, needs_direction ? &direction : nullptr)
          : credit::start_at_target(*edges, target.position, direction);
  const credit::Flow flow = credit::sweep(*edges, start, context);
  result.ill_conditioned = flow.doubtful;
  add_tokens(result, flow, start, writers);
  result.importance = start.first;
  if (result.root) {
    result.importance.assign(start.first.size(), 0.0);
    result.importance[result.root->writer] = 1.0;
  }
  result.conservation_first =
      std::accumulate(result.importance.begin(), result.importance.end(), 0.0);

  const credit::PathFilter filter = resolve_filter(question.paths, writers, d.length());
  const auto plain = suffix_for(state, *edges, {}, context);
  const auto suffix = suffix_for(state, *edges, filter.suffix, context);
  if (result.root) {
    const Writer& writer = writers[result.root->writer];
    const std::size_t count = writers.count();
    for (const auto& [branch, sent] : credit::outgoing(*edges, start, *result.root)) {
      auto& by_writer = result.incoming[branch];
      by_writer.assign(count, std::vector<double>(d.length(), 0.0));
      for (std::size_t s = 0; s < static_cast<std::size_t>(d.length()); ++s) {
        for (std::size_t w = 0; w < count; ++w) by_writer[w][s] = sent[s * count + w];
      }
    }
    std::vector<double> shares = credit::entry_shares(
        *edges, start, {result.root->writer, result.root->position, start.root_is_direct});
    if (writer.kind == WriterKind::head) {
      result.entries = std::move(shares);
    } else {
      engine::add_neuron_entries(d, *result.root, shares, result);
    }
    if (question.composition)
      engine::add_composition(result, writers.count(),
                              [&](int s, int w) { return plain->mass_all(s, w); });
  }

  const credit::PathGraph<T> graph(*edges, start, *suffix, filter);
  if (question.paths.tau) {
    const double tau = *question.paths.tau;
    credit::ThresholdPaths found =
        question.paths.rule == TauRule::named
            ? credit::named_paths(graph, tau, question.paths.top, context)
            : credit::entry_paths(graph, tau, question.paths.top, context);
    engine::take_paths(std::move(found), question.paths, result);
  } else {
    result.paths = credit::best_paths(graph, question.paths.top, context);
  }
  result.coverage.paths = result.paths.size();
  for (const Path& path : result.paths) result.coverage.absolute += std::fabs(path.credit);
  result.coverage.absolute_matching = graph.absolute_matching();
  result.coverage.absolute_total = graph.absolute_total();
}

}  // namespace

// Spec 8.4: upstream components by what they send into the root.
void engine::add_composition(TraceResult& result, int writers,
                             const std::function<double(int source, int writer)>& mass_below) {
  std::vector<CompositionEntry> all(writers);
  const auto ranked = [](std::vector<CompositionEntry> entries) {
    std::erase_if(entries, [](const CompositionEntry& e) { return e.mass == 0 && e.credit == 0; });
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto& a, const auto& b) { return a.mass > b.mass; });
    return entries;
  };
  for (const auto& [branch, credit] : result.incoming) {
    std::vector<CompositionEntry> entries(all.size());
    for (int w = 0; w < writers; ++w) {
      CompositionEntry& entry = entries[w];
      entry.writer = w;
      for (int s = 0; s < result.length(); ++s) {
        const double size = std::fabs(credit[w][s]);
        entry.credit += size;
        entry.mass += size * mass_below(s, w);
      }
      CompositionEntry& total = all[w];
      total.writer = w;
      total.credit += entry.credit;
      total.mass += entry.mass;
    }
    result.composition[branch] = ranked(std::move(entries));
  }
  result.composition[Branch::none] = ranked(std::move(all));
}

void engine::take_paths(credit::ThresholdPaths found, const PathQuery& query, TraceResult& result) {
  if (found.more && query.top >= kMostPaths)
    throw InputError(fmt::format(
        "more than {} paths are above tau {:g}: take a larger tau, or top_paths for the strongest",
        kMostPaths, *query.tau));
  if (found.more)
    result.warnings.push_back(
        fmt::format("more than {} paths are above the threshold; the {} strongest are listed",
                    found.paths.size(), found.paths.size()));
  result.paths = std::move(found.paths);
}

void engine::add_neuron_entries(const decompose::Decomposition& d, const Node& root,
                                const std::vector<double>& shares, TraceResult& result) {
  const int layer = d.writers()[root.writer].layer;
  const backend::Routing* routing = d.mlp_view(layer).routing;
  const std::size_t neurons = d.config().layer(layer).n_neurons;
  for (std::size_t n = 0; n < shares.size(); ++n) {
    NeuronEntry entry{static_cast<int>(n % neurons), shares[n], -1};
    if (routing != nullptr) {
      const std::size_t slot = routing->slot(root.position, n / neurons);
      entry.expert = routing->expert[slot];
      if (n % neurons == 0)
        result.expert_entries.push_back({entry.expert, routing->weight[slot], 0.0});
      result.expert_entries.back().credit += shares[n];
    }
    result.neuron_entries.push_back(entry);
  }
  std::stable_sort(result.neuron_entries.begin(), result.neuron_entries.end(),
                   [](const NeuronEntry& a, const NeuronEntry& b) {
                     return std::fabs(a.credit) > std::fabs(b.credit);
                   });
}

void engine::make_edges(const engine::PreparedState& state, const Options& options,
                        const RunContext& context) {
  if (state.backend().is_double()) {
    (void)edges_for<double>(state, options, context, false);
  } else {
    (void)edges_for<float>(state, options, context, false);
  }
}

std::shared_ptr<const credit::Suffix> engine::path_masses(const engine::PreparedState& state,
                                                          const Options& asked,
                                                          const RunContext& context) {
  // Without a target nothing is read yet: masses go by what sublayers write.
  Options options = asked;
  options.direction = Direction::output;
  options.floor = 0;
  options.keys = Keys::source;
  if (state.backend().is_double())
    return suffix_for(state, *edges_for<double>(state, options, context, true), {}, context);
  return suffix_for(state, *edges_for<float>(state, options, context, true), {}, context);
}

template <typename T>
void engine::output_edges(const engine::PreparedState& state, const Question& question,
                          const TargetInfo& target, bool positions, const RunContext& context,
                          engine::EdgeSums& sums) {
  const decompose::Decomposition& d = *state.decomposition;
  backend::Array direction = d.backend().zeros(d.config().d_model);
  d.backend().target_direction(d.kept_pass().x_final, target.position, target.ids,
                               target.versus_ids ? &*target.versus_ids : nullptr, target.raw,
                               direction);
  const credit::EdgesTarget first{target.position, direction};
  const auto edges = edges_for<T>(state, question.options, context, false, &first);
  const credit::Start start = credit::start_at_target(*edges, target.position, direction);
  const credit::Flow flow = credit::sweep(*edges, start, context);
  for (int w = 0; w < d.writers().count(); ++w)
    sums[{-1, Branch::none, w, positions ? target.position : 0}] += start.first[w];
  const auto plain = suffix_for(state, *edges, {}, context);
  const credit::PathGraph<T> graph(*edges, start, *plain, {});
  const std::size_t count = d.writers().count();
  for (int w = d.writers().terminals(); w < d.writers().count(); ++w) {
    const auto add = [&](int q, bool direct, double credit) {
      if (credit == 0) return;
      graph.for_each_edge({w, q, direct}, [&](const credit::GraphEdge& edge) {
        sums[{w, edge.branch, edge.writer, positions ? edge.position : 0}] += credit * edge.factor;
      });
    };
    for (int q = 0; q < d.length(); ++q) add(q, false, flow.indirect[q * count + w]);
    add(start.position, true, flow.direct[w]);
  }
}

template void engine::output_edges<float>(const engine::PreparedState&, const Question&,
                                          const TargetInfo&, bool, const RunContext&,
                                          engine::EdgeSums&);
template void engine::output_edges<double>(const engine::PreparedState&, const Question&,
                                           const TargetInfo&, bool, const RunContext&,
                                           engine::EdgeSums&);

TraceResult Prepared::trace(const Question& asked, const RunContext& context) const {
  const decompose::Decomposition& d = *state_->decomposition;
  engine::check_question(asked, model(), d.length());
  const auto alone = d.alone();
  Question question = asked;
  std::string notice = question.options.settle();
  if (question.paths.tau && question.paths.rule == TauRule::entry &&
      question.options.direction == Direction::read) {
    question.options.direction = Direction::output;
    (void)question.options.settle();
    notice = "tau_rule entry walks along what was written: direction output was taken";
  }
  d.begin(question.options, context);
  if (d.by_layer() && question.paths.tau && question.paths.rule == TauRule::entry)
    throw InputError(
        "tau_rule entry wants a prompt that the device can keep whole: this one is "
        "traced layer by layer; use tau_rule named");
  TraceResult result;
  result.program = model().program();
  result.model = model().info();
  result.tokens = model().tokens(ids());
  result.options = question.options;
  result.query = question.paths;
  if (!notice.empty()) result.warnings.push_back(notice);
  for (std::string& line : engine::empty_filters(question.paths, d.config(), d.length()))
    result.warnings.push_back(std::move(line));
  result.layout = d.config();
  for (int w = 0; w < d.writers().count(); ++w) result.writers.push_back(d.writers().name(w));
  if (question.root) result.root = parse_node(d.writers(), *question.root, d.length());
  const int position = resolve_position(question.target.position, d.length());
  const auto logits = state_->logits_at(position);
  result.target = engine::resolve_target(model(), question.target, d.length(), *logits);
  result.predictions = engine::top_predictions(model(), *logits, 10);
  if (question.options.direction == Direction::read) {
    const credit::PathFilter filter = resolve_filter(question.paths, d.writers(), d.length());
    engine::answer_along_reading(*state_, question, filter, context, result);
  } else if (d.backend().is_double()) {
    answer<double>(*state_, question, result.target, context, result);
  } else {
    answer<float>(*state_, question, result.target, context, result);
  }
  if (d.config().mixture()) {
    std::vector<std::shared_ptr<const backend::Routing>> routings;
    for (const forward::LayerPass& layer : d.kept_pass().layers) routings.push_back(layer.routing);
    result.experts = engine::expert_uses(routings, d.length());
  }
  add_percentages(result);
  engine::check_finite(result);
  if (result.ill_conditioned > 0.01) {
    result.warnings.push_back(fmt::format(
        "{:.1f}% of the credit passed denominators whose sign rounding may have decided",
        result.ill_conditioned * 100));
  }
  return result;
}

AttributeResult attribute(const Model& model, std::span<const TokenId> prompt,
                          std::span<const TokenId> continuation, const Options& options,
                          const RunContext& context) {
  if (continuation.empty()) throw InputError("the continuation has no tokens");
  if (prompt.empty()) throw InputError("the prompt has no tokens");
  std::vector<TokenId> ids(prompt.begin(), prompt.end());
  ids.insert(ids.end(), continuation.begin(), continuation.end());
  // The last token predicts nothing that was asked for, so that it is left out of the pass.
  const Prepared prepared =
      model.prepare(std::span<const TokenId>(ids).first(ids.size() - 1), context);
  AttributeResult result;
  result.program = model.program();
  result.model = model.info();
  result.options = options;
  result.tokens = model.tokens(ids);
  for (std::size_t i = 0; i < continuation.size(); ++i) {
    context.report("tokens", i, continuation.size());
    Question question;
    question.options = options;
    question.target.ids = {continuation[i]};
    question.target.position = prompt.size() + i - 1;
    question.paths.top = 0;
    const TraceResult trace = prepared.trace(question, context);
    AttributeRow row;
    row.position = trace.target.position;
    row.target_id = continuation[i];
    row.text = trace.target.text;
    row.probability = trace.target.probability;
    const std::ptrdiff_t upto = row.position + 1;
    row.token_credit.assign(trace.token_credit.begin(), trace.token_credit.begin() + upto);
    row.token_percent.assign(trace.token_percent.begin(), trace.token_percent.begin() + upto);
    result.rows.push_back(std::move(row));
  }
  return result;
}

}  // namespace unpack
