// Indirect-object identification: rerooted at the heads of each role, where do the heads of the
// other roles rank among what feeds them?
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "experiments/ioi_roles.h"
#include "experiments/statistics.h"
#include "unpack/error.h"
#include "unpack/prepared.h"

namespace unpack::experiments {

namespace {

constexpr double kFoundPath = 1e-3;
constexpr std::size_t kMostPaths = 10'000;
constexpr int kCellDraws = 400;  // of the bootstrap of a cell
constexpr const char* kPublishedRoles = "ioi_roles_gpt2.txt";
constexpr std::pair<const char*, Branch> kBranches[] = {
    {"all", Branch::none}, {"K", Branch::K}, {"Q", Branch::Q}, {"V", Branch::V}};
constexpr const char* kNotions[] = {"mass", "best", "paths"};
// Names whose token credit has a sign that the task tells, and that sign.
constexpr std::pair<const char*, int> kSigns[] = {{"IO", 1}, {"S1", -1}, {"S2", 1}};

bool ranked(const Writer& w) { return w.kind == WriterKind::head && w.layer >= 1; }

// Best place of each role's heads in a ranking: [rank, measure], null for a role without a head in
// it.
Json places(const std::vector<std::pair<int, double>>& order, const std::vector<HeadRole>& roles) {
  Json out = Json::array();
  for (const HeadRole& role : roles) {
    const auto best = std::find_if(order.begin(), order.end(), [&](const auto& entry) {
      return std::find(role.heads.begin(), role.heads.end(), entry.first) != role.heads.end();
    });
    out.push_back(best == order.end() ? Json(nullptr)
                                      : Json({best - order.begin() + 1, best->second}));
  }
  return out;
}

// Components by the summed size of the listed paths that take them as their last hop.
std::vector<std::pair<int, double>> by_paths(const TraceResult& result, const Writers& writers,
                                             Branch branch) {
  std::map<int, double> sum;
  for (const Path& path : result.paths) {
    if (path.nodes.size() < 2 || (branch != Branch::none && path.branches.back() != branch))
      continue;
    const int last = path.nodes[path.nodes.size() - 2].writer;
    if (ranked(writers[last])) sum[last] += std::fabs(path.credit);
  }
  std::vector<std::pair<int, double>> order(sum.begin(), sum.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return order;
}

Json reroot(const ModelSession& session, const Prepared& prepared, const Target& target, int head,
            int position, const std::vector<HeadRole>& roles) {
  const Writers& writers = session.model.writers();
  Question question;
  question.target = target;
  question.options = session.options.options;
  question.root = to_string(writers, Node{head, position});
  // The paper's enumeration walks neuron by neuron, which the other MLP rules do not have.
  const bool walk = question.options.mlp == MlpRule::per_neuron;
  question.paths.top = walk ? kMostPaths : 0;
  if (walk) {
    question.paths.tau = kFoundPath;
    question.paths.rule = TauRule::entry;
  }
  const TraceResult result = prepared.trace(question, session.context);
  question.options = preset_options("best");
  question.paths = {};
  question.paths.top = 0;
  const TraceResult best = prepared.trace(question, session.context);
  Json out = Json::object();
  for (const auto& [name, branch] : kBranches) {
    const auto by_mass = [&, of = branch](const TraceResult& trace) {
      std::vector<std::pair<int, double>> mass;
      for (const CompositionEntry& e : trace.composition.at(of)) {
        if (ranked(writers[e.writer])) mass.emplace_back(e.writer, e.mass);
      }
      return places(mass, roles);
    };
    out[name]["mass"] = by_mass(result);
    out[name]["best"] = by_mass(best);
    out[name]["paths"] = walk ? places(by_paths(result, writers, branch), roles) : Json(nullptr);
  }
  return out;
}

// Token credit at the three names.
Json name_credit(const TraceResult& result, const IoiPrompt& p) {
  Json out = Json::object();
  for (const auto& [name, sign] : kSigns) out[name] = result.token_credit[position_named(p, name)];
  return out;
}

Json measure(const ModelSession& session, const IoiPrompt& p, const std::vector<HeadRole>& roles) {
  const Prepared prepared = session.model.prepare(p.ids, session.context);
  Question plain;
  plain.target.ids = {session.model.single_token(" " + p.io)};
  plain.target.versus = std::vector<TokenId>{session.model.single_token(" " + p.s)};
  plain.options = session.options.options;
  plain.paths.top = 0;
  const TraceResult base = prepared.trace(plain, session.context);
  Question best = plain;
  best.options = preset_options("best");
  Json roots = Json::object();
  for (const HeadRole& role : roles) {
    if (role.root == "-") continue;
    for (const int head : role.heads) {
      roots[role.name][session.model.writers().name(head)] =
          reroot(session, prepared, plain.target, head, position_named(p, role.root), roles);
    }
  }
  return {{"text", p.text},
          {"kind", p.kind},
          {"logit_difference", *base.target.logit_difference},
          {"top", base.predictions.at(0).id == plain.target.ids[0]},
          {"credit", name_credit(base, p)},
          {"credit_best", name_credit(prepared.trace(best, session.context), p)},
          {"roots", std::move(roots)}};
}

std::vector<HeadRole> roles_of(ModelSession& session, const std::vector<IoiPrompt>& prompts,
                               RoleSearch& search) {
  const ExperimentOptions& o = session.options;
  // The model that the published table is about needs no search.
  const ModelInfo info = session.model.info();
  const bool published = (info.name == "gpt2" || info.name.ends_with("/gpt2")) &&
                         info.layers == 12 && info.heads == 12;
  if (!o.roles && published) return read_roles(session.model.writers(), data_file(kPublishedRoles));
  if (o.roles && *o.roles != "find")
    return read_roles(session.model.writers(), *o.roles == "gpt2"
                                                   ? data_file(kPublishedRoles)
                                                   : std::filesystem::path(*o.roles));
  return find_roles(session, prompts, search);
}

using Rerootings = std::vector<std::vector<const Json*>>;  // of a role's heads, prompt by prompt

// The middle rank where found, and how often that is, with intervals over prompts; null where the
// notion is not known.
Json cell(const Rerootings& rerootings, const char* branch, const char* notion, std::size_t role,
          std::uint64_t seed) {
  std::vector<std::vector<double>> ranks;  // prompt by prompt
  std::vector<std::size_t> in_order;
  double tested = 0;
  for (const auto& heads : rerootings) {
    in_order.push_back(ranks.size());
    ranks.emplace_back();
    for (const Json* record : heads) {
      const Json& all = record->at(branch).at(notion);
      if (all.is_null()) return nullptr;
      const Json& place = all.at(role);
      tested += 1 / static_cast<double>(rerootings.size());
      if (!place.is_null() && place[1].get<double>() >= kFoundPath)
        ranks.back().push_back(place[0]);
    }
  }
  const auto of_draw = [&](const std::vector<std::size_t>& draw) {
    std::vector<double> out;
    for (const std::size_t i : draw) out.insert(out.end(), ranks[i].begin(), ranks[i].end());
    return out;
  };
  const auto middle = [&](const std::vector<std::size_t>& draw) {
    const std::vector<double> drawn = of_draw(draw);
    return drawn.empty() ? NAN : median(drawn);
  };
  const auto found = [&](const std::vector<std::size_t>& draw) {
    return 100.0 * of_draw(draw).size() / (tested * draw.size());
  };
  const auto ends = [&](const DrawStatistic& statistic) {
    const Interval interval = bootstrap_statistic(ranks.size(), seed, kCellDraws, statistic);
    return std::isnan(interval.low) ? Json(nullptr) : Json({interval.low, interval.high});
  };
  const double rank = middle(in_order);
  return {{"rank", std::isnan(rank) ? Json(nullptr) : Json(rank)},
          {"rank_interval", ends(middle)},
          {"found_percent", found(in_order)},
          {"found_interval", ends(found)}};
}

}  // namespace

Json run_ioi(ModelSession& session) {
  const Writers& writers = session.model.writers();
  const std::vector<IoiPrompt> prompts =
      ioi_prompts(session.model, session.n, session.options.seed, false);
  Json summary = {{"prompts", session.n},
                  {"search_prompts", search_prompts(prompts.size())},
                  {"narrow_paths", session.options.narrow_paths},
                  {"search", nullptr}};
  RoleSearch search;
  const std::vector<HeadRole> roles = roles_of(session, prompts, search);
  summary["search"] = search.report;
  summary["attention_halfwidth"] = search.attention_halfwidth;
  summary["candidates"] = Json::array();
  for (const int w : search.candidates) summary["candidates"].push_back(writers.name(w));
  std::map<std::string, Rerootings> rerootings;
  std::vector<double> difference, right;
  std::map<std::string, std::map<std::string, std::vector<double>>> credit;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    session.context.report("prompts", i, prompts.size());
    const IoiPrompt& p = prompts[i];
    const std::string key = session.key(fmt::format("prompt {}", i));
    const Json* record = session.record(i, key, [&] { return measure(session, p, roles); });
    if (!record) continue;
    difference.push_back(record->at("logit_difference"));
    right.push_back(record->at("top").get<bool>() ? 100.0 : 0.0);
    for (const char* setting : {"credit", "credit_best"}) {
      for (const auto& [name, value] : record->at(setting).items())
        credit[setting][name].push_back(value);
    }
    for (const auto& [role, heads] : record->at("roots").items()) {
      rerootings[role].emplace_back();
      for (const auto& head : heads) rerootings[role].back().push_back(&head);
    }
  }
  if (session.records.partial()) return {};
  summary["logit_difference"] = mean(difference);
  summary["top_percent"] = mean(right);
  const auto interval_of = [&](const std::vector<double>& values) {
    const Interval interval = bootstrap_interval(values, session.options.seed);
    return Json({interval.low, interval.high});
  };
  summary["logit_interval"] = interval_of(difference);
  summary["top_interval"] = interval_of(right);
  summary["seed"] = session.options.seed;
  for (const auto& [setting, names] : credit) {
    for (const auto& [name, sign] : kSigns) {
      std::vector<double> as_told;
      for (const double x : names.at(name)) as_told.push_back(x * sign > 0 ? 100.0 : 0.0);
      summary["signs"][setting][name] = {{"percent", mean(as_told)},
                                         {"interval", interval_of(as_told)},
                                         {"mean", mean(names.at(name))}};
    }
  }
  for (const HeadRole& role : roles) {
    Json heads = Json::array();
    for (const int w : role.heads) heads.push_back(writers.name(w));
    summary["roles"].push_back({{"name", role.name}, {"root", role.root}, {"heads", heads}});
  }
  for (const char* notion : kNotions) {
    for (const auto& [branch, ignored] : kBranches) {
      for (const HeadRole& root : roles) {
        if (!rerootings.contains(root.name)) continue;
        int last = 0;  // the latest layer that is rerooted at
        for (const int w : root.heads) last = std::max(last, writers[w].layer);
        for (std::size_t r = 0; r < roles.size(); ++r) {
          const bool below = std::any_of(roles[r].heads.begin(), roles[r].heads.end(), [&](int w) {
            return ranked(writers[w]) && writers[w].layer < last;
          });
          summary["tables"][notion][branch][root.name][roles[r].name] =
              below ? cell(rerootings[root.name], branch, notion, r, session.options.seed)
                    : Json(nullptr);
        }
      }
    }
  }
  return summary;
}

}  // namespace unpack::experiments
