#include "experiments/token_rankings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/state.h"
#include "unpack/baselines.h"
#include "unpack/intervene.h"

namespace unpack::experiments {

namespace {

constexpr int kPathSteps = 20;  // of integrated gradients

struct Setting {
  const char* name;
  void (*change)(Options& options);
};
// What knows no direction goes with the paper's.
void along_output(Options& o) {
  o.direction = Direction::output;
  o.floor = 0;
  o.keys = Keys::source;
}

constexpr Setting kSettings[] = {
    {kBestSettings, [](Options& o) { o = preset_options("best"); }},
    {"unpack, beta 0.2", [](Options& o) { o.beta = 0.2; }},
    {"unpack, centered", [](Options& o) { o.scores = Scores::centered; }},
    {"unpack, linearized", [](Options& o) { o.mlp = MlpRule::linearized; }},
    {"unpack, linearized + centered",
     [](Options& o) {
       o.mlp = MlpRule::linearized;
       o.scores = Scores::centered;
     }},
    {"unpack, l2",
     [](Options& o) {
       along_output(o);
       o.mlp = MlpRule::l2;
     }},
    {"unpack, gate dispatch",
     [](Options& o) {
       along_output(o);
       o.dispatch = Dispatch::gate;
     }},
};

std::vector<double> credit_of(const ModelSession& session, const Prepared& prepared,
                              const Target& target, const Options& options) {
  Question question;
  question.target = target;
  question.options = options;
  question.paths.top = 0;
  return prepared.trace(question, session.context).token_credit;
}

Target target_of(const ModelSession& session, const FlipPrompt& prompt) {
  Target target;
  target.ids = {prompt.target};
  target.raw = session.options.raw_logit;
  return target;
}

// What the readout falls by when a token's embedding alone is zeroed: no ranking that looks at one
// token at a time can know more.
std::vector<double> leave_one_out(const ModelSession& session, const FlipPrompt& prompt) {
  std::vector<std::vector<int>> sets = {{}};
  for (int s = prompt.prefix; s < std::ssize(prompt.ids); ++s) sets.push_back({s});
  const auto logits = zeroed_logits(session.model, prompt.ids, sets, -1, session.context);
  const auto value = [&](std::size_t i) {
    return read_target(logits[i], prompt.target, session.options.readout);
  };
  std::vector<double> out(prompt.ids.size(), 0.0);
  for (std::size_t i = 1; i < sets.size(); ++i) out[sets[i][0]] = value(0) - value(i);
  return out;
}

std::vector<double> embedding_lengths(const Prepared& prepared) {
  const CachedArray embed = prepared.cache("embed", 0);
  const std::size_t width = embed.shape[1];
  std::vector<double> out(embed.shape[0], 0.0);
  for (std::size_t s = 0; s < out.size(); ++s) {
    for (std::size_t i = 0; i < width; ++i)
      out[s] += embed.values[s * width + i] * embed.values[s * width + i];
    out[s] = std::sqrt(out[s]);
  }
  return out;
}

}  // namespace

double read_target(const std::vector<double>& logits, TokenId id, FaithfulnessReadout readout) {
  const double logit = logits[id];
  if (readout == FaithfulnessReadout::logit) return logit;
  return std::exp(logit - engine::log_sum_exp(logits));
}

std::vector<double> attention_rollout(const Prepared& prepared) {
  const ModelConfig& c = prepared.model().config();
  const std::size_t length = prepared.length(), heads = c.n_heads;
  std::vector<double> row(length, 0.0);
  row.back() = 1;
  for (int l = c.n_layers - 1; l >= 0; --l) {
    const CachedArray pattern = prepared.cache("pattern", l);
    std::vector<double> below(length, 0.0);
    for (std::size_t q = 0; q < length; ++q) {
      below[q] += 0.5 * row[q];
      // What a head gives to a sink of its own is no token's.
      for (std::size_t h = 0; h < heads; ++h) {
        for (std::size_t s = 0; s <= q; ++s)
          below[s] += 0.5 * row[q] * pattern.values[(h * length + q) * length + s] / heads;
      }
    }
    row = std::move(below);
  }
  return row;
}

std::vector<TokenRanking> rank_by_methods(const ModelSession& session, const FlipPrompt& prompt) {
  const RunContext& context = session.context;
  const Prepared prepared = session.model.prepare(prompt.ids, context);
  const Target target = target_of(session, prompt);
  std::vector<TokenRanking> out = {
      {kOwnSettings, credit_of(session, prepared, target, session.options.options)}};
  for (const Setting& setting : kSettings) {
    Options options = session.options.options;
    setting.change(options);
    out.push_back({setting.name, credit_of(session, prepared, target, options)});
  }
  for (const auto& [name, method] :
       {std::pair{"IFR", Method::ifr}, std::pair{"AttnLRP", Method::attnlrp},
        std::pair{"CP-LRP", Method::cplrp}}) {
    out.push_back({name, baseline(prepared, target, method, context).token_credit});
  }
  if (gradients_known(session.model.config())) {
    for (const auto& [name, steps] :
         {std::pair{"gradient x input", 1}, std::pair{"integrated gradients", kPathSteps}}) {
      out.push_back({name, gradient_scores(session.model, prompt.ids, target, prompt.prefix, steps,
                                           context)});
    }
  }
  out.push_back({"attention rollout", attention_rollout(prepared)});
  out.push_back({"length of the embedding", embedding_lengths(prepared)});
  out.push_back({"leave-one-out", leave_one_out(session, prompt)});
  const std::uint64_t seed = session.options.seed * 1000003 + prompt.line;
  out.push_back({"random", random_scores(prepared.length(), seed)});
  return out;
}

std::vector<TokenRanking> rank_by_betas(const ModelSession& session, const FlipPrompt& prompt) {
  const Prepared prepared = session.model.prepare(prompt.ids, session.context);
  const Target target = target_of(session, prompt);
  std::vector<TokenRanking> out;
  const auto add = [&](const std::string& name, Options options, double beta) {
    options.beta = beta;
    out.push_back({name, credit_of(session, prepared, target, options)});
  };
  for (const double beta : {0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0})
    add(fmt::format("{:g}", beta), session.options.options, beta);
  for (const double beta : {0.0, 0.2, 0.8})
    add(fmt::format("best, {:g}", beta), preset_options("best"), beta);
  return out;
}

}  // namespace unpack::experiments
