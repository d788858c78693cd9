#include "engine/read_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "base/index.h"
#include "decompose/host_math.h"
#include "engine/check_question.h"
#include "engine/masses.h"
#include "engine/read_paths.h"
#include "engine/read_sweep.h"
#include "unpack/reads.h"

namespace unpack {

namespace {

std::vector<double> direction_to(const engine::PreparedState& state, const TargetInfo& target) {
  const decompose::Decomposition& d = *state.decomposition;
  backend::Array direction = d.backend().zeros(d.config().d_model);
  d.backend().target_direction(d.kept_pass().x_final, target.position, target.ids,
                               target.versus_ids ? &*target.versus_ids : nullptr, target.raw,
                               direction);
  return decompose::fetch(d.backend(), direction);
}

engine::ReadStart start_of(const engine::PreparedState& state, const Question& question,
                           const TraceResult& result) {
  const decompose::Decomposition& d = *state.decomposition;
  engine::ReadStart start;
  start.position = result.root ? result.root->position : result.target.position;
  start.root = result.root;
  if (!result.root || question.options.reroot == Reroot::target) {
    start.direction = direction_to(state, result.target);
    return start;
  }
  const Writer& writer = d.writers()[result.root->writer];
  const forward::LayerPass& layer = d.kept_pass().layers[writer.layer];
  start.direction.resize(d.config().d_model);
  d.backend().download(writer.kind == WriterKind::mlp ? layer.mlp_out : layer.attn_out,
                       static_cast<Index>(start.position) * d.config().d_model, start.direction);
  return start;
}

// What the root sends to every writer at every position by a branch, [C][S].
using Sent = std::map<Branch, std::vector<std::vector<double>>>;

Sent sent_by_root(const engine::ReadSweep& sweep, const Node& root) {
  const decompose::Decomposition& d = sweep.decomposition();
  const Writer& writer = d.writers()[root.writer];
  const std::size_t count = d.writers().count(), length = d.length();
  const engine::ReadSweep::Layer& layer = sweep.layer(writer.layer);
  Sent out;
  if (writer.kind == WriterKind::mlp) {
    const std::vector<backend::MlpReader> readers =
        backend::mlp_readers(d.config().layer(writer.layer));
    const int visible = d.writers().visible_to_mlp(writer.layer);
    const std::size_t s = root.position;
    for (std::size_t side = 0; side < readers.size(); ++side) {
      auto& to = out[readers[side].branch];
      to.assign(count, std::vector<double>(length, 0.0));
      std::vector<double> products;
      sweep.ops().position_dots(d.writer_vectors(), d.writers().count(), 0, visible,
                                layer.mlp[side], products);
      for (std::size_t j = 0; j < static_cast<std::size_t>(visible); ++j)
        to[j][s] = products[s * visible + j];
    }
    return out;
  }
  const backend::AttentionView view = d.attention_view(writer.layer);
  const std::size_t visible = view.visible;
  const backend::ReadOps::EdgesFrom sent =
      sweep.ops().edges_from(view, layer.heads, layer.offsets, writer.head, root.position);
  const std::array<std::pair<Branch, const std::vector<double>*>, 3> parts = {
      {{Branch::K, &sent.k}, {Branch::Q, &sent.q}, {Branch::V, &sent.v}}};
  for (const auto& [branch, credit] : parts) {
    auto& to = out[branch];
    to.assign(count, std::vector<double>(length, 0.0));
    for (std::size_t i = 0; i < credit->size(); ++i) to[i % visible][i / visible] = (*credit)[i];
  }
  return out;
}

// What the root sends by each branch.
void add_root(const engine::ReadSweep& sweep, TraceResult& result) {
  const decompose::Decomposition& d = sweep.decomposition();
  const Node root = *result.root;
  result.incoming = sent_by_root(sweep, root);
  if (d.writers()[root.writer].kind == WriterKind::head) {
    result.entries = sweep.root_entries();
  } else {
    engine::add_neuron_entries(d, root, sweep.root_entries(), result);
  }
}

// Edges of every layer, and of the target. `other`: [S, C, D] what is read, where it is not what
// was written.
template <typename T>
void read_edges(const engine::ReadSweep& sweep, const backend::Array* other, bool positions,
                engine::EdgeSums& sums) {
  const decompose::Decomposition& d = sweep.decomposition();
  const Writers& writers = d.writers();
  const backend::Array& vectors = other != nullptr ? *other : d.writer_vectors();
  const std::size_t length = d.length(), heads = d.config().n_heads;
  const auto place = [&](std::size_t s) { return positions ? static_cast<int>(s) : 0; };
  const std::array<Branch, 3> branches = {Branch::K, Branch::Q, Branch::V};
  for (int l = 0; l < d.config().n_layers; ++l) {
    const engine::ReadSweep::Layer& layer = sweep.layer(l);
    backend::AttentionView view = d.attention_view(l);
    view.writers = &vectors;
    const std::size_t cl = view.visible;
    std::vector<std::vector<double>> parts(length);  // per source [3, H, Cl], added up in order
    backend::ReadOps::HeadReads reads = layer.heads;
    backend::ReadOps::KeyOffsets offsets = layer.offsets;
    if (other != nullptr) {  // what was kept is that of the writers themselves
      offsets = {};
      reads.values = reads.keys = {};
      sweep.ops().keep_for_edges(view, reads);
    }
    std::vector<double> totals;
    if (sweep.ops().edge_totals(view, reads, offsets, positions, totals)) {
      const std::size_t size = 3 * heads * cl;
      for (std::size_t s = 0; s < totals.size() / size; ++s)
        parts[s].assign(totals.begin() + (s * size), totals.begin() + ((s + 1) * size));
    } else {
      sweep.ops().visit_edges(view, reads, offsets, [&](const backend::ReadOps::Edges& edges) {
        std::vector<double>& part = parts[edges.source];
        part.resize(3 * heads * cl, 0.0);
        const std::size_t which = edges.branch == Branch::K ? 0 : edges.branch == Branch::Q ? 1 : 2;
        double* to = part.data() + (which * heads + edges.head) * cl;
        const T* credit = static_cast<const T*>(edges.credit);
        for (int i = 0; i < edges.queries; ++i, credit += cl)
          for (std::size_t j = 0; j < cl; ++j) to[j] += credit[j];
      });
    }
    for (std::size_t s = 0; s < length; ++s) {
      for (std::size_t i = 0; i < parts[s].size(); ++i)
        sums[{writers.head(l, i / cl % heads), branches[i / cl / heads], static_cast<int>(i % cl),
              place(s)}] += parts[s][i];
    }
    const std::vector<backend::MlpReader> readers = backend::mlp_readers(d.config().layer(l));
    const std::size_t visible = writers.visible_to_mlp(l);
    for (std::size_t side = 0; side < readers.size(); ++side) {
      std::vector<double> credit;
      sweep.ops().position_dots(vectors, writers.count(), 0, visible, layer.mlp[side], credit);
      for (std::size_t i = 0; i < credit.size(); ++i)
        sums[{writers.mlp(l), readers[side].branch, static_cast<int>(i % visible),
              place(i / visible)}] += credit[i];
    }
  }
  const std::size_t count = writers.count(), at = sweep.start().position;
  std::vector<double> first = sweep.first();
  if (other != nullptr) {
    std::vector<double> directions(length * sweep.start().direction.size(), 0.0), products;
    std::copy(sweep.start().direction.begin(), sweep.start().direction.end(),
              directions.begin() + (at * sweep.start().direction.size()));
    sweep.ops().position_dots(vectors, writers.count(), 0, writers.count(), directions, products);
    first.assign(products.begin() + (at * count), products.begin() + ((at + 1) * count));
  }
  for (std::size_t w = 0; w < count; ++w)
    sums[{-1, Branch::none, static_cast<int>(w), place(at)}] += first[w];
}

}  // namespace

void engine::answer_along_reading(const engine::PreparedState& state, const Question& question,
                                  const credit::PathFilter& filter, const RunContext& context,
                                  TraceResult& result) {
  const decompose::Decomposition& d = *state.decomposition;
  const Writers& writers = d.writers();
  const bool with_edges = result.root || question.paths.top > 0;
  const engine::ReadSweep sweep(
      d, question.options, start_of(state, question, result),
      with_edges ? engine::ReadSweep::Keep::all : engine::ReadSweep::Keep::nothing, context);
  const std::size_t count = writers.count();
  const std::size_t length = d.length();
  result.ill_conditioned = sweep.doubtful();
  result.node_credit.assign(count, std::vector<double>(length, 0.0));
  result.token_credit.assign(length, 0.0);
  for (std::size_t s = 0; s < length; ++s) {
    for (std::size_t w = 0; w < count; ++w) result.node_credit[w][s] = sweep.credit(s, w);
    for (int w = 0; w < writers.terminals(); ++w)
      result.token_credit[s] += result.node_credit[w][s];
  }
  result.importance = sweep.first();
  if (result.root) result.importance[result.root->writer] = 1.0;
  result.conservation_first =
      std::accumulate(result.importance.begin(), result.importance.end(), 0.0);
  if (!with_edges) return;
  if (result.root) add_root(sweep, result);
  const bool ranked = result.root && question.composition;
  if (!ranked && question.paths.top == 0) return;
  const engine::ReadPaths paths(sweep, filter, context);
  if (ranked) {
    const std::vector<double> below = paths.masses_below();
    engine::add_composition(result, writers.count(),
                            [&](int s, int w) { return below[s * count + w]; });
  }
  if (question.paths.tau) {
    credit::ThresholdPaths found;
    found.paths = paths.best(question.paths.top + 1, *question.paths.tau);
    found.more = found.paths.size() > question.paths.top;
    if (found.more) found.paths.pop_back();
    engine::take_paths(std::move(found), question.paths, result);
  } else {
    result.paths = paths.best(question.paths.top, 0.0);
  }
  result.coverage.paths = result.paths.size();
  for (const Path& path : result.paths) result.coverage.absolute += std::fabs(path.credit);
  result.coverage.absolute_matching = paths.absolute_matching();
  result.coverage.absolute_total = paths.absolute_total();
}

TraceResult node_reads(const Prepared& prepared, const Question& asked, const RunContext& context) {
  const engine::PreparedState& state = *engine::state_of(prepared);
  const decompose::Decomposition& d = *state.decomposition;
  Question question = asked;
  question.composition = false;
  question.paths.top = 0;
  engine::check_question(question, prepared.model(), d.length());
  (void)question.options.settle();
  if (!question.root) throw UsageError("give the head or MLP whose reads are asked for");
  if (question.options.direction != Direction::read) return prepared.trace(question, context);
  d.begin(question.options, context);
  TraceResult result;
  result.layout = d.config();
  for (int w = 0; w < d.writers().count(); ++w) result.writers.push_back(d.writers().name(w));
  result.root = parse_node(d.writers(), *question.root, d.length());
  const int position = resolve_position(question.target.position, d.length());
  result.target =
      engine::resolve_target(state.model, question.target, d.length(), *state.logits_at(position));
  const engine::ReadSweep sweep(d, question.options, start_of(state, question, result),
                                engine::ReadSweep::Keep::root, context);
  add_root(sweep, result);
  return result;
}

std::vector<double> engine::masses_below(const engine::PreparedState& state, const Question& asked,
                                         const TraceResult& rooted, const RunContext& context) {
  const decompose::Decomposition& d = *state.decomposition;
  Question question = asked;
  question.options.settle();
  if (question.options.direction == Direction::read) {
    const engine::ReadSweep sweep(d, question.options, start_of(state, question, rooted),
                                  engine::ReadSweep::Keep::all, context);
    return engine::ReadPaths(sweep, {}, context).masses_below();
  }
  const auto masses = engine::path_masses(state, question.options, context);
  std::vector<double> out;
  for (int s = 0; s < d.length(); ++s) {
    for (int w = 0; w < d.writers().count(); ++w) out.push_back(masses->mass_all(s, w));
  }
  return out;
}

engine::EdgeAnswer engine::edge_sums(const engine::PreparedState& state, const Question& asked,
                                     const engine::EdgeQuestion& how, const RunContext& context) {
  const decompose::Decomposition& d = *state.decomposition;
  Question question = asked;
  question.options.check();
  question.options.settle();
  if (question.root) throw UsageError("edges are those of a target: leave root out");
  const int position = resolve_position(question.target.position, d.length());
  const TargetInfo target =
      engine::resolve_target(state.model, question.target, d.length(), *state.logits_at(position));
  const auto alone = d.alone();
  d.begin(question.options, context);
  engine::EdgeAnswer out;
  engine::EdgeSums& sums = out.sums;
  if (question.options.direction == Direction::output) {
    if (how.other != nullptr) throw UsageError("differences of prompts take the direction read");
    if (d.backend().is_double()) {
      engine::output_edges<double>(state, question, target, how.positions, context, sums);
    } else {
      engine::output_edges<float>(state, question, target, how.positions, context, sums);
    }
    for (const auto& [key, credit] : sums)
      if (std::get<0>(key) < 0) out.first += std::fabs(credit);
    return out;
  }
  engine::ReadStart start;
  start.position = target.position;
  start.direction = direction_to(state, target);
  const engine::ReadSweep sweep(d, question.options, start, engine::ReadSweep::Keep::all, context);
  for (const double credit : sweep.first()) out.first += std::fabs(credit);
  backend::Array change;
  if (how.other != nullptr) {
    backend::Backend& backend = d.backend();
    const backend::Array& own = d.writer_vectors();
    change = backend.zeros(own.size());
    backend.copy(own, 0, change, 0, own.size());
    backend.add(how.other->decomposition->writer_vectors(), change, own.size(), -1.0);
  }
  const backend::Array* vectors = change.empty() ? nullptr : &change;
  if (d.backend().is_double()) {
    read_edges<double>(sweep, vectors, how.positions, sums);
  } else {
    read_edges<float>(sweep, vectors, how.positions, sums);
  }
  return out;
}

std::vector<EdgeCredit> Prepared::edge_credit(const Question& question,
                                              const RunContext& context) const {
  std::vector<EdgeCredit> out;
  for (const auto& [key, credit] : engine::edge_sums(*state_, question, {}, context).sums) {
    const auto& [reader, branch, writer, position] = key;
    if (credit != 0) out.push_back({writer, reader, branch, credit});
  }
  return out;
}

}  // namespace unpack
