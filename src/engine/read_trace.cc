#include "engine/read_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "decompose/host_math.h"
#include "engine/read_paths.h"
#include "engine/read_sweep.h"

namespace unpack {

namespace {

std::vector<double> direction_to(const PreparedState& state, const TargetInfo& target) {
  const Decomposition& d = *state.decomposition;
  Array direction = d.backend().zeros(d.config().d_model);
  d.backend().target_direction(d.trace().x_final, target.position, target.ids,
                               target.versus_ids ? &*target.versus_ids : nullptr, target.raw,
                               direction);
  return fetch(d.backend(), direction);
}

ReadStart start_of(const PreparedState& state, const Question& question,
                   const TraceResult& result) {
  const Decomposition& d = *state.decomposition;
  ReadStart start;
  start.position = result.root ? result.root->position : result.target.position;
  start.root = result.root;
  if (!result.root || question.options.reroot == Reroot::target) {
    start.direction = direction_to(state, result.target);
    return start;
  }
  const Writer& writer = d.writers()[result.root->writer];
  const LayerTrace& layer = d.trace().layers[static_cast<std::size_t>(writer.layer)];
  start.direction.resize(static_cast<std::size_t>(d.config().d_model));
  d.backend().download(writer.kind == WriterKind::mlp ? layer.mlp_out : layer.attn_out,
                       static_cast<std::int64_t>(start.position) * d.config().d_model,
                       start.direction);
  return start;
}

// What the root sends by each branch, and the ranking of those it sends to.
void add_root(const ReadSweep& sweep, const ReadPaths& paths, const Writers& writers,
              TraceResult& result) {
  const Node root = *result.root;
  const Writer& writer = writers[root.writer];
  const auto count = static_cast<std::size_t>(writers.count());
  const auto length = static_cast<std::size_t>(result.length());
  SentRows rows;
  sweep.sent(root.writer, root.position, rows);
  const auto put = [&](Branch branch, const std::vector<double>& row, std::size_t visible,
                       std::size_t first, std::size_t positions) {
    auto& by_writer = result.incoming[branch];
    by_writer.assign(count, std::vector<double>(length, 0.0));
    for (std::size_t s = 0; s < positions; ++s) {
      for (std::size_t j = 0; j < visible; ++j) by_writer[j][first + s] = row[s * visible + j];
    }
  };
  const auto q = static_cast<std::size_t>(root.position);
  if (writer.kind == WriterKind::head) {
    put(Branch::K, rows.k, rows.q.size(), 0, q + 1);
    put(Branch::Q, rows.q, rows.q.size(), q, 1);
    put(Branch::V, rows.v, rows.q.size(), 0, q + 1);
    result.entries = sweep.root_entries();
  } else {
    const std::vector<MlpReader> readers =
        mlp_readers(sweep.decomposition().config().layer(writer.layer));
    for (std::size_t i = 0; i < readers.size(); ++i)
      put(readers[i].branch, rows.mlp[i], rows.mlp[i].size(), q, 1);
    add_neuron_entries(sweep.decomposition(), root, sweep.root_entries(), result);
  }
  std::vector<CompositionEntry> all(count);
  const auto ranked = [](std::vector<CompositionEntry> entries) {
    std::erase_if(entries, [](const CompositionEntry& e) { return e.mass == 0 && e.credit == 0; });
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto& a, const auto& b) { return a.mass > b.mass; });
    return entries;
  };
  for (const auto& [branch, credit] : result.incoming) {
    std::vector<CompositionEntry> entries(count);
    for (std::size_t w = 0; w < count; ++w) {
      entries[w].writer = all[w].writer = static_cast<int>(w);
      for (std::size_t s = 0; s < length; ++s) {
        entries[w].credit += std::fabs(credit[w][s]);
        entries[w].mass +=
            paths.mass_of_edge({static_cast<int>(w), static_cast<int>(s)}, credit[w][s]);
      }
      all[w].credit += entries[w].credit;
      all[w].mass += entries[w].mass;
    }
    result.composition[branch] = ranked(std::move(entries));
  }
  result.composition[Branch::none] = ranked(std::move(all));
}

}  // namespace

void answer_along_reading(const PreparedState& state, const Question& question,
                          const PathFilter& filter, const RunContext& context,
                          TraceResult& result) {
  const Decomposition& d = *state.decomposition;
  const Writers& writers = d.writers();
  const bool with_edges = result.root || question.paths.top > 0;
  const ReadSweep sweep(state, question.options, start_of(state, question, result), with_edges,
                        context);
  const auto count = static_cast<std::size_t>(writers.count());
  const auto length = static_cast<std::size_t>(d.length());
  result.ill_conditioned = sweep.doubtful();
  result.node_credit.assign(count, std::vector<double>(length, 0.0));
  result.token_credit.assign(length, 0.0);
  for (std::size_t s = 0; s < length; ++s) {
    for (std::size_t w = 0; w < count; ++w)
      result.node_credit[w][s] = sweep.credit(static_cast<int>(s), static_cast<int>(w));
    for (int w = 0; w < writers.terminals(); ++w)
      result.token_credit[s] += result.node_credit[static_cast<std::size_t>(w)][s];
  }
  result.importance = sweep.first();
  if (result.root) result.importance[static_cast<std::size_t>(result.root->writer)] = 1.0;
  result.conservation_first =
      std::accumulate(result.importance.begin(), result.importance.end(), 0.0);
  if (!with_edges) return;
  const ReadPaths paths(sweep, filter, context);
  if (result.root) add_root(sweep, paths, writers, result);
  result.paths = paths.best(question.paths.top, question.paths.tau.value_or(0.0));
  result.coverage.paths = result.paths.size();
  for (const Path& path : result.paths) result.coverage.absolute += std::fabs(path.credit);
  result.coverage.absolute_matching = paths.absolute_matching();
  result.coverage.absolute_total = paths.absolute_total();
}

std::vector<EdgeCredit> Prepared::edge_credit(const Question& asked,
                                              const RunContext& context) const {
  const Decomposition& d = *state_->decomposition;
  Question question = asked;
  question.options.check();
  question.options.settle();
  if (question.root) throw UsageError("edges are those of a target: leave --root out");
  const int position = resolve_position(question.target.position, d.length());
  const TargetInfo target =
      resolve_target(model(), question.target, d.length(), *state_->logits_at(position));
  EdgeSums sums;
  if (question.options.direction == Direction::output) {
    if (d.backend().is_double()) {
      output_edges<double>(*state_, question, target, context, sums);
    } else {
      output_edges<float>(*state_, question, target, context, sums);
    }
  } else {
    ReadStart start;
    start.position = target.position;
    start.direction = direction_to(*state_, target);
    const ReadSweep sweep(*state_, question.options, start, true, context);
    for (int w = 0; w < d.writers().count(); ++w)
      sums[{-1, Branch::none, w}] += sweep.first()[static_cast<std::size_t>(w)];
    const ReadPaths paths(sweep, {}, context);
    for (int w = d.writers().terminals(); w < d.writers().count(); ++w) {
      for (int q = 0; q < d.length(); ++q) {
        paths.for_each_edge({w, q}, [&](const Node& child, Branch branch, double credit) {
          sums[{w, branch, child.writer}] += credit;
        });
      }
    }
  }
  std::vector<EdgeCredit> out;
  for (const auto& [key, credit] : sums) {
    const auto& [reader, branch, writer] = key;
    if (credit != 0) out.push_back({writer, reader, branch, credit});
  }
  return out;
}

}  // namespace unpack
