#include "circuit/edge_measures.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "circuit/gradients.h"
#include "circuit/rank.h"
#include "decompose/host_math.h"
#include "engine/state.h"
#include "unpack/baselines.h"
#include "unpack/prepared.h"

namespace unpack::circuit {

namespace {

using Values = std::vector<double>;

constexpr int kPathSteps = 5;  // of integrated gradients
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

struct Rules {
  const char* name;
  Options options;
};

Values sizes_of(Values values) {
  for (double& x : values) x = std::fabs(x);
  return values;
}

// Ours: composition masses of every reader at the target's position, and credit edge by edge.
void add_ours(const experiments::ModelSession& session, const EdgeTable& table,
              const Prepared& prepared, const TaskPrompt& prompt, const Rules& rules,
              PromptMeasures& out) {
  const Writers& writers = table.writers();
  Question question;
  question.target.ids = prompt.target;
  question.target.versus = prompt.versus;
  question.options = rules.options;
  question.paths.top = 0;
  const TraceResult base = prepared.trace(question, session.context);
  Values credit(table.size(), 0.0), mass(table.size(), 0.0), weighted(table.size(), 0.0);
  for (const EdgeCredit& edge : prepared.edge_credit(question, session.context))
    credit[table.index({edge.writer, edge.reader, edge.branch})] += edge.credit;
  const std::size_t last = base.length() - 1;
  std::map<int, TraceResult> rooted;
  for (const ReaderPort& port : table.ports()) {
    const bool target = port.reader < 0;
    if (!target && !rooted.contains(port.reader)) {
      question.root = fmt::format("{}@-1", writers.name(port.reader));
      rooted.emplace(port.reader, prepared.trace(question, session.context));
    }
    const double held = target ? 1.0 : std::fabs(base.node_credit[port.reader][last]);
    const auto put = [&](int writer, double value) {
      mass[port.first + writer] = value;
      weighted[port.first + writer] = value * held;
    };
    if (target) {
      for (int w = 0; w < port.visible; ++w) put(w, std::fabs(base.importance[w]));
    } else {
      for (const CompositionEntry& e : rooted.at(port.reader).composition.at(port.branch))
        put(e.writer, e.mass);
    }
  }
  out.edges[fmt::format("composition mass, {}", rules.name)] = std::move(mass);
  out.edges[fmt::format("composition mass x reader's credit, {}", rules.name)] =
      std::move(weighted);
  out.edges[fmt::format("edge credit, {}", rules.name)] = sizes_of(std::move(credit));
  Values nodes(writers.count(), 0.0);
  for (std::size_t w = 0; w < nodes.size(); ++w) {
    for (const double x : base.node_credit[w]) nodes[w] += x;
  }
  out.writers[fmt::format("node credit, {}", rules.name)] = sizes_of(std::move(nodes));
}

// Scores of the paper that know no target: how much a writer moves a head's keys or an MLP's
// neurons.
Values interaction_sizes(const EdgeTable& table, const Prepared& prepared,
                         const RunContext& context) {
  Values out(table.size(), kUnknown);
  std::map<int, std::size_t> first;  // reader -> its port of keys, or of what its neurons read
  for (const ReaderPort& port : table.ports()) {
    if (port.branch == Branch::K || port.branch == Branch::mlp || port.branch == Branch::G)
      first[port.reader] = port.first;
  }
  const InteractionResult scores = prepared.interactions({}, false, context);
  for (const auto* list : {&scores.attention, &scores.mlp}) {
    for (const Interaction& i : *list) out[first.at(i.reader) + i.writer] = i.score;
  }
  return out;
}

// The gradient by what each reader sees, times what each writer wrote; and the lengths of that.
void add_gradients(const experiments::ModelSession& session, const EdgeTable& table,
                   const TaskPrompt& prompt, PromptMeasures& out) {
  const Model& model = session.model;
  backend::Backend& backend = *engine::state_of(model)->backend;
  PromptChunk chunk;
  chunk.add(0, prompt.ids);
  forward::ForwardPass pass;
  const WriterRun run = record_writers(model, chunk.prompts, {}, &pass, session.context);
  std::vector<Values> written;
  Values length;
  const std::size_t d = model.config().d_model;
  for (const backend::Array& rows : run.written) {
    written.push_back(decompose::fetch(backend, rows));
    double sum = 0;
    for (std::size_t s = 0; s < prompt.ids.size(); ++s) {
      const auto row = std::span<const double>(written.back()).subspan(s * d, d);
      sum += std::sqrt(decompose::dot(row, row)) / prompt.ids.size();
    }
    length.push_back(sum);
  }
  Values lengths(table.size(), 0.0), products(table.size(), 0.0), of_writer(length.size(), 0.0);
  for (const ReaderPort& port : table.ports()) {
    for (int w = 0; w < port.visible; ++w) lengths[port.first + w] = length[w];
  }
  out.edges["length of what is written"] = std::move(lengths);
  out.writers["length of what is written"] = std::move(length);
  if (!gradients_known(model.config())) return;
  visit_gradients(model, table, {prompt}, chunk, pass,
                  [&](std::size_t index, std::span<const double> gradient) {
                    const ReaderPort& port = table.ports()[index];
                    for (std::size_t w = 0; w < static_cast<std::size_t>(port.visible); ++w) {
                      const double product = decompose::dot(written[w], gradient);
                      products[port.first + w] = std::fabs(product);
                      of_writer[w] += product;
                    }
                  });
  out.edges["gradient x input"] = std::move(products);
  out.writers["gradient x input"] = sizes_of(std::move(of_writer));
}

// A writer's share of a method that scores edges: what its edges add up to, with their signs.
Values by_writer(const EdgeTable& table, const Values& edges) {
  Values out(table.writers().count(), 0.0);
  for (const ReaderPort& port : table.ports()) {
    for (std::size_t w = 0; w < static_cast<std::size_t>(port.visible); ++w)
      out[w] += edges[port.first + w];
  }
  return sizes_of(std::move(out));
}

}  // namespace

std::vector<std::string> edge_measure_names() {
  return {"composition mass, paper",
          "composition mass x reader's credit, paper",
          "composition mass, best",
          "composition mass x reader's credit, best",
          "edge credit, paper",
          "edge credit, best",
          "interaction score",
          "IFR",
          "gradient x input",
          "gradient x change (EAP)",
          "integrated gradients (EAP-IG)",
          "length of what is written",
          "random"};
}

std::vector<std::string> writer_measure_names() {
  return {"node credit, paper",
          "node credit, best",
          "IFR",
          "gradient x input",
          "gradient x change (EAP)",
          "integrated gradients (EAP-IG)",
          "length of what is written",
          "random"};
}

PromptMeasures measure_prompt(const experiments::ModelSession& session, const EdgeTable& table,
                              const TaskPrompt& prompt, std::uint64_t seed) {
  const RunContext& context = session.context;
  PromptMeasures out;
  const Prepared prepared = session.model.prepare(prompt.ids, context);
  for (const Rules& rules :
       {Rules{"paper", preset_options("paper")}, Rules{"best", preset_options("best")}})
    add_ours(session, table, prepared, prompt, rules, out);
  out.edges["interaction score"] = interaction_sizes(table, prepared, context);
  add_gradients(session, table, prompt, out);
  const Task one{"", {prompt}};
  const auto add = [&](const std::string& name, const EdgeScores& scores) {
    out.writers[name] = by_writer(table, scores.credit);
    out.edges[name] = sizes_of(scores.credit);
  };
  add("IFR", rank_ifr(session.model, table, one, context));
  if (gradients_known(session.model.config())) {
    add("gradient x change (EAP)", rank_gradients(session.model, table, one, 1, context));
    add("integrated gradients (EAP-IG)",
        rank_gradients(session.model, table, one, kPathSteps, context));
  }
  out.edges["random"] = rank_random(table, seed).credit;
  out.writers["random"] = random_scores(table.writers().count(), seed);
  return out;
}

}  // namespace unpack::circuit
