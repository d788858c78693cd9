// Indirect-object identification: rerooted at the heads of each role, where do the heads of the
// other roles rank among what feeds them?
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "experiments/ioi_roles.h"
#include "experiments/plots.h"
#include "experiments/statistics.h"
#include "unpack/error.h"
#include "unpack/prepared.h"

namespace unpack {

namespace {

constexpr double kFound = 1e-3;
constexpr std::size_t kMostPaths = 10'000;
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
    question.paths.tau = kFound;
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
  for (const auto& [name, sign] : kSigns)
    out[name] = result.token_credit[static_cast<std::size_t>(position_named(p, name))];
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
                               Json& search) {
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

// The middle rank where found, and how often that is; null where the role has no head below the
// root in any rerooting.
Json cell(const std::vector<const Json*>& rerootings, const char* branch, const char* notion,
          std::size_t role) {
  std::vector<double> ranks;
  for (const Json* record : rerootings) {
    const Json& all = record->at(branch).at(notion);
    if (all.is_null()) return nullptr;
    const Json& place = all.at(role);
    if (!place.is_null() && place[1].get<double>() >= kFound) ranks.push_back(place[0]);
  }
  return {{"rank", ranks.empty() ? Json(nullptr) : Json(median(ranks))},
          {"found_percent",
           100.0 * static_cast<double>(ranks.size()) / static_cast<double>(rerootings.size())}};
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
  const std::vector<HeadRole> roles = roles_of(session, prompts, summary["search"]);
  std::map<std::string, std::vector<const Json*>> rerootings;
  std::vector<double> difference, right;
  std::map<std::string, std::map<std::string, std::vector<double>>> credit;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    session.context.report("prompts", static_cast<double>(i), static_cast<double>(prompts.size()));
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
      for (const auto& head : heads) rerootings[role].push_back(&head);
    }
  }
  if (session.records.partial()) return {};
  summary["logit_difference"] = mean(difference);
  summary["top_percent"] = mean(right);
  summary["seed"] = session.options.seed;
  for (const auto& [setting, names] : credit) {
    for (const auto& [name, sign] : kSigns) {
      std::vector<double> as_told;
      for (const double x : names.at(name)) as_told.push_back(x * sign > 0 ? 100.0 : 0.0);
      const Interval interval = bootstrap_interval(as_told, session.options.seed);
      summary["signs"][setting][name] = {{"percent", mean(as_told)},
                                         {"interval", {interval.low, interval.high}},
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
              below ? cell(rerootings[root.name], branch, notion, r) : Json(nullptr);
        }
      }
    }
  }
  return summary;
}

namespace {

std::string percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

std::string role_table(const Json& s) {
  std::vector<std::vector<std::string>> rows = {{"role", "rerooted at", "heads"}};
  for (const Json& role : s.at("roles")) {
    std::string heads;
    for (const Json& head : role.at("heads"))
      heads += (heads.empty() ? "" : ", ") + head.get<std::string>();
    rows.push_back({role.at("name"),
                    role.at("root") == "-" ? "" : role.at("root").get<std::string>(),
                    heads.empty() ? "none found" : heads});
  }
  return markdown_table(rows);
}

std::string search_table(const Json& search) {
  std::vector<std::vector<std::string>> rows = {
      {"head", "role", "to the logits", "to name-mover queries", "to S-inhibition values",
       "to induction keys", "END to IO / S1 / S2", "S2 to S1", "S2 to S1+1", "S1+1 to S1"}};
  for (const Json& h : search) {
    const auto share = [&](const char* name) { return percent(h.at(name).get<double>()); };
    const auto effect = [&](const char* name) {
      const Json& e = h.at(name);
      return fmt::format("{:.1f}% ({:.1f} to {:.1f})", 100 * e[0].get<double>(),
                         100 * e[1].get<double>(), 100 * e[2].get<double>());
    };
    rows.push_back({h.at("head"), h.at("role").is_null() ? "" : h.at("role").get<std::string>(),
                    effect("logits"), effect("name-mover queries"), effect("S-inhibition values"),
                    effect("induction keys"),
                    fmt::format("{} / {} / {}", share("to IO"), share("to S1"), share("to S2")),
                    share("duplicate"), share("induction"), share("previous")});
  }
  return markdown_table(rows);
}

// How often each role is found (by mass) in each branch of each root; empty where no root has a
// head of any role below it.
std::string rank_plot(const std::string& model, const Json& s) {
  std::vector<std::string> groups;
  std::vector<BarSeries> series;
  for (const Json& role : s.at("roles")) series.push_back({role.at("name"), {}, {}});
  for (const auto& [branch, by_root] : s.at("tables").at("mass").items()) {
    for (const auto& [root, cells] : by_root.items()) {
      groups.push_back(fmt::format("{} {}", branch, root));
      for (BarSeries& bars : series) {
        const Json& cell = cells.at(bars.name);
        bars.values.push_back(cell.is_null() ? NAN : cell.at("found_percent").get<double>());
      }
    }
  }
  std::erase_if(series, [](const BarSeries& bars) {
    return std::all_of(bars.values.begin(), bars.values.end(),
                       [](double x) { return std::isnan(x); });
  });
  if (series.empty()) return "";
  return bar_plot(fmt::format("{}: roles found upstream of a root, by branch", model),
                  "found, percent of rerootings", groups, series);
}

std::string sign_table(const Json& summaries) {
  std::vector<std::vector<std::string>> rows = {{"model", "settings", "prompts", "IO above 0",
                                                 "first subject below 0",
                                                 "second subject above 0"}};
  for (const auto& [model, s] : summaries.items()) {
    for (const auto& [setting, names] : s.at("signs").items()) {
      rows.push_back({model, setting == "credit" ? "the run's" : "best",
                      std::to_string(s.at("prompts").get<int>())});
      for (const auto& value : names)
        rows.back().push_back(fmt::format(
            "{:.0f}% ({:.0f} to {:.0f})", value.at("percent").get<double>(),
            value.at("interval")[0].get<double>(), value.at("interval")[1].get<double>()));
    }
  }
  return markdown_table(rows);
}

std::string matrix(const Json& s, const char* notion) {
  std::vector<std::string> head = {"branch", "root"};
  for (const Json& role : s.at("roles")) head.push_back(role.at("name"));
  std::vector<std::vector<std::string>> rows = {head};
  for (const auto& [branch, by_root] : s.at("tables").at(notion).items()) {
    for (const auto& [root, cells] : by_root.items()) {
      std::vector<std::string> row = {branch, root};
      for (const auto& cell : cells) {
        row.push_back(cell.is_null()
                          ? "-"
                          : fmt::format("{} / {:.0f}%",
                                        cell.at("rank").is_null()
                                            ? "-"
                                            : fmt::format("{:g}", cell.at("rank").get<double>()),
                                        cell.at("found_percent").get<double>()));
      }
      rows.push_back(row);
    }
  }
  return markdown_table(rows);
}

}  // namespace

std::string report_ioi(const Json& summaries, std::vector<ReportFile>& files) {
  std::string out =
      "Rerooted at the heads of a role, the upstream heads of layer 1 and later are ranked by what "
      "they send into the root through a branch. A cell is the "
      "median\nrank of a role's best head where it is found, and the share of rerootings in which "
      "it is found. Two notions of found:\n\n"
      "- mass: the ranking of the exact totals over all routes; found means 0.001 or more of the "
      "root's credit;\n"
      "- paths: the paper's enumeration (entry by entry, threshold 0.001, the strongest 10,000 "
      "kept); found means that a kept path takes the head as its last "
      "hop,\n  and the rank is that of their summed size.\n\n"
      "Mass is given with the run's settings and with `--preset best`.\n\n"
      "## Signs of token credit\n\nTarget: the indirect object against the subject. Share of "
      "prompts in which the credit of a name has the sign given, with its 95% bootstrap interval "
      "over prompts.\n\n" +
      sign_table(summaries);
  for (const auto& [model, s] : summaries.items()) {
    const std::string plot = s.contains("tables") ? rank_plot(model, s) : "";
    if (!plot.empty()) files.push_back({fmt::format("ioi-{}.svg", slug(model)), plot});
    out += fmt::format(
        "\n## {}\n\n{} prompts, seed {}; the indirect object is the first prediction in {:.0f}%, "
        "mean logit difference to the subject {:.2f}.\n\n{}",
        model, s.at("prompts").get<int>(), s.at("seed").get<std::uint64_t>(),
        s.at("top_percent").get<double>(), s.at("logit_difference").get<double>(), role_table(s));
    if (!s.at("search").is_null()) {
      out +=
          fmt::format(
              "\nHow the roles were found: loss of the logit difference (in percent of it, with "
              "its 95% bootstrap interval over {} prompts) when what the head sends along the "
              "edges named\ncomes from the same sentence with three other names, and what the "
              "head attends to. To the logits: directly and through MLPs, all other heads frozen. "
              "To queries, values and\nkeys: {}, all other heads frozen up to the reader. A head "
              "has a role only where its effect is 2% or more and the interval lies above 0; heads "
              "without a role are listed where an\neffect of 2% or more has an interval without "
              "0. An S-suppressor reads the second mention and lowers that name without a name "
              "mover; S-inhibition values are those of\nboth kinds.\n\n",
              s.at("search_prompts").get<std::size_t>(),
              s.at("narrow_paths").get<bool>() ? "directly alone (`--narrow-paths`)"
                                               : "directly and through MLPs") +
          search_table(s.at("search"));
    }
    if (!s.contains("tables")) {
      out += "\nNo role has a head to reroot at.\n";
      continue;
    }
    out += plot.empty()
               ? "\nNo head with a role lies below another one in layer 1 or later, so that "
                 "nothing can be ranked.\n"
               : fmt::format("\n![How often each role is found](ioi-{}.svg)\n", slug(model));
    out += "\n### Found by mass\n\n" + matrix(s, "mass") +
           "\n### Found by mass, `--preset best`\n\n" + matrix(s, "best") +
           "\n### Found by paths\n\n" + matrix(s, "paths");
  }
  out += "\n## GPT-2 small (paper), found by paths\n\n" +
         markdown_table(
             {{"branch", "root", "name mover", "S-inhibition", "induction", "duplicate token",
               "previous token"},
              {"all", "name mover", "6 / 33%", "4 / 100%", "14 / 84%", "22 / 29%", "21 / 77%"},
              {"all", "S-inhibition", "-", "20 / 32%", "4 / 96%", "2 / 97%", "20 / 52%"},
              {"all", "induction", "-", "-", "3 / 25%", "2 / 100%", "4 / 98%"},
              {"K", "name mover", "-", "10 / 48%", "14 / 27%", "13 / 19%", "14 / 46%"},
              {"K", "S-inhibition", "-", "-", "5 / 93%", "4 / 91%", "13 / 4%"},
              {"K", "induction", "-", "-", "21 / 3%", "8 / 10%", "3 / 98%"},
              {"Q", "name mover", "2 / 33%", "1 / 100%", "4 / 63%", "18 / 5%", "10 / 56%"},
              {"Q", "S-inhibition", "-", "9 / 32%", "3 / 66%", "13 / 35%", "11 / 42%"},
              {"Q", "induction", "-", "-", "2 / 25%", "1 / 100%", "10 / 36%"},
              {"V", "name mover", "-", "-", "4 / 24%", "6 / 10%", "6 / 9%"},
              {"V", "S-inhibition", "-", "-", "2 / 96%", "1 / 95%", "10 / 21%"},
              {"V", "induction", "-", "-", "8 / 10%", "11 / 32%", "9 / 88%"}});
  return out;
}

}  // namespace unpack
