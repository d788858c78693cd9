#include "unpack/intervene.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/rotary.h"
#include "base/index.h"
#include "engine/finite.h"
#include "engine/state.h"
#include "intervene/variants.h"

namespace unpack {

namespace {

void check_lengths(std::span<const TokenId> patch_from, std::span<const TokenId> ids) {
  if (patch_from.size() != ids.size())
    throw InputError(
        fmt::format("patch_from has {} tokens, the prompt {}: they must be of one length",
                    patch_from.size(), ids.size()));
}

constexpr Index kBatchRows = 2048;
constexpr std::size_t kLogitRows = 64;
constexpr int kPredictions = 10;

// Summed negative log-likelihood of tokens 1 .. S-1 of every segment.
std::vector<double> losses(backend::Backend& backend, const backend::Array& x,
                           const std::vector<backend::Segment>& segments,
                           const std::vector<std::vector<TokenId>>& prompts) {
  struct Row {
    Index row;
    TokenId next;
    std::size_t prompt;
  };
  std::vector<Row> rows;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    for (int s = 0; s + 1 < segments[i].length; ++s)
      rows.push_back({segments[i].begin + s, prompts[i][s + 1], i});
  }
  std::vector<double> out(segments.size(), 0.0), logits, loss(rows.size());
  const std::size_t vocabulary = backend.config().vocab_size;
  for (std::size_t begin = 0; begin < rows.size(); begin += kLogitRows) {
    std::vector<Index> chunk;
    for (std::size_t i = begin; i < std::min(begin + kLogitRows, rows.size()); ++i)
      chunk.push_back(rows[i].row);
    backend.logits(x, chunk, logits);
    backend.parallel_for(std::ssize(chunk), [&](Index i) {
      const std::span<double> row(logits.data() + i * vocabulary, vocabulary);
      engine::cap_logits(backend.config(), row);
      const std::size_t at = begin + i;
      loss[at] = engine::log_sum_exp(row) - row[rows[at].next];
    });
  }
  for (std::size_t i = 0; i < rows.size(); ++i) out[rows[i].prompt] += loss[i];
  return out;
}

std::vector<double> logits_of(backend::Backend& backend, const backend::Array& x, Index row) {
  std::vector<double> out;
  const std::vector<Index> rows = {row};
  backend.logits(x, rows, out);
  return out;
}

InterventionReading read(const Model& model, backend::Backend& backend, const backend::Array& x,
                         std::span<const TokenId> ids, const TargetInfo& target) {
  const int length = ids.size();
  Target same;
  same.ids = target.ids;
  same.versus = target.versus_ids;
  same.raw = target.raw;
  same.position = target.position;
  const TargetInfo now =
      engine::resolve_target(model, same, length, logits_of(backend, x, target.position));
  const std::vector<backend::Segment> segments = {{0, length, 0}};
  return {losses(backend, x, segments, {{ids.begin(), ids.end()}})[0],
          now.logit_difference.value_or(now.logit), now.probability,
          engine::top_predictions(model, logits_of(backend, x, target.position), kPredictions)};
}

// "A3.H1" is the component at every position, "A3.H1@5" the node.
interventions::OutputChange output_change(const Writers& writers, const std::string& text,
                                          int length, const Intervention& intervention) {
  if (text.find('@') == std::string::npos)
    return {writers.parse(text), std::nullopt, intervention.ablation, intervention.scale};
  const Node node = parse_node(writers, text, length);
  return {node.writer, node.position, intervention.ablation, intervention.scale};
}

// Every head and MLP but those of the list, each at the positions at which the list does not have
// it.
std::vector<interventions::OutputChange> all_but(const Writers& writers, int length,
                                                 const Intervention& intervention) {
  std::vector<interventions::OutputChange> changes;
  for (int w = writers.terminals(); w < writers.count(); ++w)
    changes.push_back({w, std::nullopt, intervention.ablation, intervention.scale});
  std::vector<char> whole(writers.count(), 0);
  for (const std::string& text : intervention.ablate) {
    const interventions::OutputChange kept = output_change(writers, text, length, intervention);
    if (!kept.position) whole[kept.writer] = 1;
    if (kept.position && !writers[kept.writer].terminal())
      changes[kept.writer - writers.terminals()].except.push_back(*kept.position);
  }
  std::erase_if(changes, [&](const interventions::OutputChange& change) {
    return whole[change.writer] != 0;
  });
  return changes;
}

void check_intervention(const Intervention& intervention) {
  if (!intervention.cut && intervention.edges.empty() && intervention.zero.empty() &&
      intervention.ablate.empty() && !intervention.keep) {
    throw UsageError(
        "nothing to change: name a component to ablate or to cut, an edge to patch or a position "
        "to zero");
  }
  if (!std::isfinite(intervention.scale))
    throw UsageError(fmt::format("the scale must be a finite number, not {}", intervention.scale));
  const bool resamples = (!intervention.ablate.empty() || intervention.keep) &&
                         intervention.ablation == Ablation::resample;
  const bool needs_other = resamples || !intervention.edges.empty();
  if (needs_other && intervention.patch_from.empty())
    throw UsageError(resamples ? "resampling needs a prompt to patch from"
                               : "a patched edge needs a prompt to patch from");
  if (!needs_other && !intervention.patch_from.empty())
    throw UsageError(
        "a prompt to patch from needs an edge to patch, or a component to ablate by resampling");
}

// A prompt as it is, and what becomes of it.
class Changed {
 public:
  Changed(const Model& model, std::span<const TokenId> ids, const std::vector<TokenId>& patch_from,
          const Target& target, const RunContext& context)
      : model_(model),
        backend_(*engine::state_of(model)->backend),
        ids_(ids),
        clean_(backend_, model.writers(), {{ids.begin(), ids.end()}}, context) {
    const int length = ids.size();
    if (!patch_from.empty())
      other_.emplace(backend_, model.writers(), std::vector<std::vector<TokenId>>{patch_from},
                     context);
    target_ = engine::resolve_target(
        model, target, length,
        logits_of(backend_, clean_.pass().x_final, resolve_position(target.position, length)));
  }

  const TargetInfo& target() const { return target_; }
  InterventionReading before() const { return checked(clean_.pass().x_final); }
  InterventionReading after(const interventions::Variant& variant,
                            const RunContext& context) const {
    return checked(interventions::run_variants(clean_, other_ ? &*other_ : nullptr, {variant},
                                               target_.position, context)
                       .x);
  }

 private:
  InterventionReading checked(const backend::Array& x) const {
    InterventionReading reading = read(model_, backend_, x, ids_, target_);
    engine::check_logits(std::vector<double>{reading.nll, reading.target, reading.probability});
    return reading;
  }

  const Model& model_;
  backend::Backend& backend_;
  std::span<const TokenId> ids_;
  interventions::CleanRun clean_;
  std::optional<interventions::CleanRun> other_;
  TargetInfo target_;
};

// As the pass is run; throws for whatever is not there.
interventions::Variant variant_of(const Model& model, std::span<const TokenId> ids,
                                  const Intervention& intervention) {
  const int length = ids.size();
  const Writers& writers = model.writers();
  check_intervention(intervention);
  interventions::Variant variant;
  if (intervention.cut) variant.cut = Cut{writers.parse(*intervention.cut), intervention.channel};
  for (const std::string& edge : intervention.edges)
    variant.edges.push_back(parse_edge(writers, model.config(), edge, length));
  for (const int position : intervention.zero)
    variant.zero.push_back(resolve_position(position, length));
  if (intervention.keep) {
    variant.outputs = all_but(writers, length, intervention);
  } else {
    for (const std::string& text : intervention.ablate)
      variant.outputs.push_back(output_change(writers, text, length, intervention));
  }
  if (!intervention.patch_from.empty()) check_lengths(intervention.patch_from, ids);
  return variant;
}

}  // namespace

const char* to_string(Ablation ablation) {
  switch (ablation) {
    case Ablation::zero:
      return "zero";
    case Ablation::mean:
      return "mean";
    case Ablation::resample:
      return "resample";
  }
  return "";
}

InterventionResult intervene(const Model& model, std::span<const TokenId> ids,
                             const Intervention& intervention, const Target& target,
                             const RunContext& context) {
  forward::check_prompt(model.config(), ids);
  const interventions::Variant variant = variant_of(model, ids, intervention);
  const Changed changed(model, ids, intervention.patch_from, target, context);
  return {model.info(), model.tokens(ids), changed.target(),
          intervention, changed.before(),  changed.after(variant, context)};
}

NodesProof prove_nodes(const Model& model, std::span<const TokenId> ids,
                       const std::vector<std::string>& components, Ablation ablation,
                       const std::vector<TokenId>& patch_from, const Target& target,
                       const RunContext& context) {
  forward::check_prompt(model.config(), ids);
  if (components.empty()) throw UsageError("nothing to prove: name components, as A5.H3 or MLP2@7");
  Intervention change;
  change.ablate = components;
  change.ablation = ablation;
  change.patch_from = patch_from;
  const interventions::Variant without = variant_of(model, ids, change);
  change.keep = true;
  const interventions::Variant only = variant_of(model, ids, change);
  change.ablate.clear();
  const interventions::Variant none = variant_of(model, ids, change);
  const Changed changed(model, ids, patch_from, target, context);
  NodesProof proof{model.info(),
                   changed.target(),
                   components,
                   ablation,
                   changed.before(),
                   changed.after(without, context),
                   changed.after(only, context),
                   changed.after(none, context),
                   {},
                   {}};
  const double span = proof.clean.target - proof.none.target;
  if (std::fabs(span) >= 1e-9 * std::max(std::fabs(proof.clean.target), 1.0)) {
    proof.faithfulness = (proof.only.target - proof.none.target) / span;
    proof.necessity = 1 - (proof.without.target - proof.none.target) / span;
  }
  return proof;
}

std::vector<std::vector<double>> knockout_losses(const Model& model,
                                                 const std::vector<std::vector<TokenId>>& prompts,
                                                 const std::vector<Cut>& cuts,
                                                 const RunContext& context) {
  backend::Backend& backend = *engine::state_of(model)->backend;
  std::vector<std::vector<double>> out(cuts.size() + 1, std::vector<double>(prompts.size(), 0.0));
  std::size_t next = 0;
  while (next < prompts.size()) {
    std::vector<std::vector<TokenId>> batch;
    const std::size_t begin = next;
    Index rows = 0;
    while (next < prompts.size() &&
           (batch.empty() ||
            (rows + std::ssize(prompts[next]) <= kBatchRows &&
             backend::same_rotary(model.config(), batch.front().size(), prompts[next].size())))) {
      rows += std::ssize(prompts[next]);
      batch.push_back(prompts[next++]);
    }
    const interventions::CleanRun clean(backend, model.writers(), batch, context);
    const auto store = [&](std::size_t row, const std::vector<double>& values) {
      std::copy(values.begin(), values.end(), out[row].begin() + begin);
    };
    store(0, losses(backend, clean.pass().x_final, clean.pass().segments, batch));
    for (std::size_t i = 0; i < cuts.size(); ++i) {
      context.report("cuts", begin * cuts.size() + i * batch.size(), prompts.size() * cuts.size());
      std::vector<interventions::Variant> variants(batch.size());
      for (std::size_t p = 0; p < batch.size(); ++p) {
        variants[p].prompt = p;
        variants[p].cut = cuts[i];
      }
      if (interventions::first_changed_layer(model.writers(), model.config(), variants[0]) ==
          model.config().n_layers) {
        std::copy(out[0].begin() + begin, out[0].begin() + next, out[i + 1].begin() + begin);
        continue;
      }
      const interventions::VariantStreams changed =
          interventions::run_variants(clean, nullptr, variants, 0, context);
      store(i + 1, losses(backend, changed.x, changed.segments, batch));
    }
  }
  return out;
}

std::vector<double> patched_targets(const Model& model, std::span<const TokenId> ids,
                                    std::span<const TokenId> other,
                                    const std::vector<std::vector<Edge>>& patches,
                                    const Target& target, const RunContext& context,
                                    PatchRoute route) {
  check_lengths(other, ids);
  backend::Backend& backend = *engine::state_of(model)->backend;
  const int length = ids.size();
  const int position = resolve_position(target.position, length);
  const interventions::CleanRun clean(backend, model.writers(), {{ids.begin(), ids.end()}},
                                      context);
  const interventions::CleanRun from(backend, model.writers(), {{other.begin(), other.end()}},
                                     context);
  const TargetInfo info = engine::resolve_target(
      model, target, length, logits_of(backend, clean.pass().x_final, position));
  Target same{info.ids, info.versus_ids, info.raw, info.position};
  // Patches that begin at the same layer go together, so that none recomputes more than it has to.
  std::vector<std::size_t> order(patches.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<int> first;
  for (const auto& edges : patches)
    first.push_back(interventions::first_changed_layer(model.writers(), model.config(),
                                                       {0, {}, {}, edges, false, {}}));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return first[a] < first[b]; });
  const std::size_t per_batch = std::max<Index>(1, kBatchRows / length);
  std::vector<double> out(patches.size(), 0.0);
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin;
    while (end < order.size() && end - begin < per_batch &&
           first[order[end]] == first[order[begin]])
      ++end;
    std::vector<interventions::Variant> variants;
    for (std::size_t i = begin; i < end; ++i)
      variants.push_back({0, {}, {}, patches[order[i]], route == PatchRoute::heads_frozen, {}});
    const interventions::VariantStreams changed =
        route == PatchRoute::through_mlps
            ? interventions::run_paths(clean, from, variants, position, context)
            : interventions::run_variants(clean, &from, variants, position, context);
    for (std::size_t i = begin; i < end; ++i) {
      const TargetInfo now = engine::resolve_target(
          model, same, length,
          logits_of(backend, changed.x, changed.segments[i - begin].begin + position));
      out[order[i]] = now.logit_difference.value_or(now.logit);
    }
    begin = end;
  }
  return out;
}

}  // namespace unpack
