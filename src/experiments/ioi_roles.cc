#include "experiments/ioi_roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>

#include "backend/mlp_readers.h"
#include "experiments/statistics.h"
#include "unpack/error.h"
#include "unpack/intervene.h"
#include "unpack/prepared.h"

namespace unpack::experiments {

namespace {

constexpr std::size_t kRoleSearchPrompts = 100;
constexpr std::size_t kMostRoleHeads = 4;
constexpr double kLeastRoleEffect = 0.02;  // of the clean logit difference
constexpr double kLeastScore = 0.2;        // of a head's attention

const char* const kRoots[] = {"END", "S2", "S1", "S1+1", "IO", "-"};

using Values = std::vector<double>;  // one per writer

// Loss of the logit difference as a share of it, with its 95% interval over prompts.
struct Effects {
  Values share;
  std::vector<Interval> interval;
};

// Mean of an array of the search's records over its prompts.
struct Means {
  std::map<std::string, Values> values, squares;
  int n = 0;
  void add(const Json& record) {
    ++n;
    for (const auto& [name, value] : record.items()) {
      if (!value.is_array()) continue;
      Values &sum = values[name], &square = squares[name];
      sum.resize(value.size(), 0.0);
      square.resize(value.size(), 0.0);
      for (std::size_t i = 0; i < sum.size(); ++i) {
        const double x = value[i];
        sum[i] += x;
        square[i] += x * x;
      }
    }
  }
  double get(const std::string& name, int writer) const { return values.at(name)[writer] / n; }
  // How far the 95% interval of that mean reaches to either side (normal).
  double halfwidth(const std::string& name, int writer) const {
    const double m = get(name, writer);
    const double spread = squares.at(name)[writer] / n - m * m;
    return n < 2 ? 0.0 : 1.96 * std::sqrt(std::max(spread, 0.0) / (n - 1));
  }
};

// Attention of every head between the positions that tell its kind.
Json patterns(const Prepared& prepared, const IoiPrompt& p, const Writers& writers) {
  const std::size_t length = prepared.length();
  const std::map<std::string, std::pair<int, int>> wanted = {
      {"to IO", {-1, p.io_position}},  {"to S1", {-1, p.s1}},
      {"to S2", {-1, p.s2}},           {"duplicate", {p.s2, p.s1}},
      {"induction", {p.s2, p.s1 + 1}}, {"previous", {p.s1 + 1, p.s1}}};
  Json out = Json::object();
  for (const auto& entry : wanted) out[entry.first] = Values(writers.count(), 0.0);
  const ModelConfig& c = prepared.model().config();
  for (int l = 0; l < c.n_layers; ++l) {
    const CachedArray pattern = prepared.cache("pattern", l);
    for (int h = 0; h < c.n_heads; ++h) {
      for (const auto& [name, places] : wanted) {
        const std::size_t q = resolve_position(places.first, prepared.length());
        out[name][writers.head(l, h)] = pattern.values[(h * length + q) * length + places.second];
      }
    }
  }
  return out;
}

class RolePatching {
 public:
  RolePatching(ModelSession& session, const std::vector<IoiPrompt>& prompts)
      : session_(session), writers_(session.model.writers()) {
    const std::size_t n = search_prompts(prompts.size());
    for (std::size_t i = 0; i < n; ++i) {
      prompts_.push_back(prompts[i]);
      corrupted_.push_back(
          ioi_corrupted(session.model, prompts[i], session.options.seed * 1000003 + i));
    }
  }

  // What the logit difference loses when a head's part in the given edges comes from the corrupted
  // prompt; as a share of it, per writer.
  using EdgesOf = std::function<std::vector<Edge>(const IoiPrompt& prompt, int head)>;
  Effects effects(const std::string& stage, const EdgesOf& edges_of) {
    Means means;
    const std::size_t count = writers_.count();
    std::vector<Values> lost(count);
    Values clean;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      session_.context.report("path patching, " + stage, i, prompts_.size());
      const std::string key = session_.key(fmt::format("search|{}|prompt {}", stage, i));
      const Json* record = session_.records.find(key);
      if (!record) record = &session_.records.add(key, measure(i, stage, edges_of));
      means.add(*record);
      clean.push_back(record->at("clean"));
      for (std::size_t w = 0; w < count; ++w)
        lost[w].push_back(-record->at("effects").at(w).get<double>());
    }
    if (means.values.contains("to IO")) patterns_ = means;
    Effects out;
    for (const Values& of_writer : lost) {
      out.share.push_back(mean(of_writer) / mean(clean));
      out.interval.push_back(ratio_interval(of_writer, clean, session_.options.seed));
    }
    return out;
  }

  double score(const char* name, int writer) const { return patterns_.get(name, writer); }
  double score_halfwidth(const char* name, int writer) const {
    return patterns_.halfwidth(name, writer);
  }

  // The strongest heads that pass a test and have no role yet. An effect whose interval holds 0 is
  // none.
  std::vector<int> pick(const Effects& effects, const std::function<bool(int)>& fits) {
    const std::vector<int> heads =
        strongest(effects, [&](int w) { return effects.interval[w].low > 0 && fits(w); });
    taken_.insert(taken_.end(), heads.begin(), heads.end());
    return heads;
  }

  // The same whatever the interval, which gives nobody a role.
  std::vector<int> strongest(const Effects& effects, const std::function<bool(int)>& fits) const {
    std::vector<int> heads;
    for (int w = 0; w < writers_.count(); ++w) {
      const bool free = std::find(taken_.begin(), taken_.end(), w) == taken_.end();
      if (writers_[w].kind == WriterKind::head && free && effects.share[w] >= kLeastRoleEffect &&
          fits(w))
        heads.push_back(w);
    }
    std::stable_sort(heads.begin(), heads.end(),
                     [&](int a, int b) { return effects.share[a] > effects.share[b]; });
    if (heads.size() > kMostRoleHeads) heads.erase(heads.begin() + kMostRoleHeads, heads.end());
    return heads;
  }

 private:
  Json measure(std::size_t i, const std::string& stage, const EdgesOf& edges_of) {
    const IoiPrompt& p = prompts_[i];
    Target target;
    target.ids = {session_.model.single_token(" " + p.io)};
    target.versus = std::vector<TokenId>{session_.model.single_token(" " + p.s)};
    std::vector<std::vector<Edge>> patches = {{}};
    std::vector<int> heads;
    for (int w = 0; w < writers_.count(); ++w) {
      if (writers_[w].kind != WriterKind::head) continue;
      std::vector<Edge> edges = edges_of(p, w);
      if (edges.empty()) continue;
      heads.push_back(w);
      patches.push_back(std::move(edges));
    }
    const PatchRoute route = stage == "logits"               ? PatchRoute::heads_frozen
                             : session_.options.narrow_paths ? PatchRoute::direct
                                                             : PatchRoute::through_mlps;
    const std::vector<double> got = patched_targets(session_.model, p.ids, corrupted_[i], patches,
                                                    target, session_.context, route);
    Values effects(writers_.count(), 0.0);
    for (std::size_t k = 0; k < heads.size(); ++k) effects[heads[k]] = got[k + 1] - got[0];
    Json record = {{"clean", got[0]}, {"effects", effects}};
    if (stage == "logits")
      record.update(patterns(session_.model.prepare(p.ids, session_.context), p, writers_));
    return record;
  }

  ModelSession& session_;
  const Writers& writers_;
  std::vector<IoiPrompt> prompts_;
  std::vector<std::vector<TokenId>> corrupted_;
  Means patterns_;
  std::vector<int> taken_;
};

int end_of(const IoiPrompt& p) { return p.ids.size() - 1; }

}  // namespace

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> out;
  std::stringstream in(line);
  for (std::string cell; std::getline(in, cell, '|');) {
    const std::size_t begin = cell.find_first_not_of(" \t"), end = cell.find_last_not_of(" \t");
    out.push_back(begin == std::string::npos ? "" : cell.substr(begin, end - begin + 1));
  }
  return out;
}

std::vector<int> writers_of(const Writers& writers, const std::string& list) {
  std::vector<int> out;
  std::stringstream in(list);
  for (std::string name; in >> name;) out.push_back(writers.parse(name));
  return out;
}

std::vector<HeadRole> read_roles(const Writers& writers, const std::filesystem::path& file) {
  std::vector<HeadRole> out;
  for (const TextLine& line : read_text(file, true).lines) {
    const auto fail = [&](const std::string& why) {
      throw InputError(fmt::format("{}, line {}: {}", file.string(), line.line, why));
    };
    const std::vector<std::string> cells = cells_of(line.text);
    if (cells.size() != 3 || cells[0].empty())
      fail("a role is written 'name | END, S2, S1, S1+1, IO or - | A9.H6 A9.H9'");
    if (std::find(std::begin(kRoots), std::end(kRoots), cells[1]) == std::end(kRoots))
      fail(fmt::format("'{}' is none of END, S2, S1, S1+1, IO and -", cells[1]));
    HeadRole role{cells[0], cells[1], {}};
    try {
      role.heads = writers_of(writers, cells[2]);
    } catch (const InputError& error) {
      fail(error.what());
    }
    for (const int w : role.heads) {
      if (writers[w].kind != WriterKind::head) fail(fmt::format("{} is no head", writers.name(w)));
    }
    if (std::any_of(out.begin(), out.end(), [&](const HeadRole& r) { return r.name == role.name; }))
      fail(fmt::format("role '{}' is there twice", role.name));
    out.push_back(std::move(role));
  }
  return out;
}

int position_named(const IoiPrompt& p, const std::string& name) {
  if (name == "END") return end_of(p);
  if (name == "S2") return p.s2;
  if (name == "S1") return p.s1;
  if (name == "S1+1") return p.s1 + 1;
  if (name == "IO") return p.io_position;
  throw InternalError(fmt::format("[position_named] '{}' is no position", name));
}

std::size_t search_prompts(std::size_t prompts) { return std::min(kRoleSearchPrompts, prompts); }

std::vector<HeadRole> find_roles(ModelSession& session, const std::vector<IoiPrompt>& prompts,
                                 RoleSearch& found) {
  const Writers& writers = session.model.writers();
  RolePatching search(session, prompts);
  // Edges of a head into one branch of all heads of a role that read after it.
  const auto into = [&writers](const std::vector<int>& readers, int head, Branch branch,
                               int reader_position, int first, int last) {
    std::vector<Edge> out;
    for (const int r : readers) {
      if (head >= writers.visible_to_attention(writers[r].layer)) continue;
      for (int s = first; s <= last; ++s)
        out.push_back({{head, s}, branch, Node{r, reader_position}});
    }
    return out;
  };
  // Before the first name the two prompts are the same, so that nothing there can differ.
  const auto first_name = [](const IoiPrompt& p) { return std::min(p.io_position, p.s1); };

  // MLPs are part of the way to the logits, as in the published circuit; all other heads stay as
  // they are.
  const Effects direct = search.effects("logits", [&](const IoiPrompt& p, int head) {
    const int end = end_of(p);
    std::vector<Edge> out = {{{head, end}, Branch::none, std::nullopt}};
    for (int l = 0; l < session.model.config().n_layers; ++l) {
      if (head >= writers.visible_to_mlp(l)) continue;
      for (const backend::MlpReader& reader : backend::mlp_readers(session.model.config().layer(l)))
        out.push_back({{head, end}, reader.branch, Node{writers.mlp(l), end}});
    }
    return out;
  });
  const auto looks_at_io = [&](int w) {
    return search.score("to IO", w) > search.score("to S2", w);
  };
  const HeadRole movers{"name mover", "END", search.pick(direct, looks_at_io)};

  // Where no head is a name mover, what reaches the queries of those that might be is measured all
  // the same; nobody gets a role by it.
  found.candidates =
      movers.heads.empty() ? search.strongest(direct, looks_at_io) : std::vector<int>();
  const std::vector<int>& asked = movers.heads.empty() ? found.candidates : movers.heads;
  const Effects queries =
      search.effects(movers.heads.empty() ? "queries of candidates" : "name-mover queries",
                     [&](const IoiPrompt& p, int head) {
                       return into(asked, head, Branch::Q, end_of(p), end_of(p), end_of(p));
                     });
  HeadRole inhibition{"S-inhibition", "END", {}};
  if (!movers.heads.empty()) inhibition.heads = search.pick(queries, [](int) { return true; });

  // Some models need no mover: a head that looks at the second mention writes against that name
  // itself.
  const HeadRole suppressors{"S-suppressor", "END", search.pick(direct, [&](int w) {
                               return search.score("to S2", w) >= kLeastScore;
                             })};

  std::vector<int> read_s2 = inhibition.heads;
  read_s2.insert(read_s2.end(), suppressors.heads.begin(), suppressors.heads.end());
  const Effects values = search.effects("S-inhibition values", [&](const IoiPrompt& p, int head) {
    return into(read_s2, head, Branch::V, end_of(p), first_name(p), end_of(p));
  });
  const HeadRole induction{"induction", "S2", search.pick(values, [&](int w) {
                             return search.score("induction", w) >=
                                    std::max(kLeastScore, search.score("duplicate", w));
                           })};
  const HeadRole duplicate{"duplicate token", "-", search.pick(values, [&](int w) {
                             return search.score("duplicate", w) >= kLeastScore;
                           })};

  const Effects keys = search.effects("induction keys", [&](const IoiPrompt& p, int head) {
    return into(induction.heads, head, Branch::K, p.s2, first_name(p), p.s2);
  });
  const HeadRole previous{"previous token", "-", search.pick(keys, [&](int w) {
                            return search.score("previous", w) >= kLeastScore;
                          })};

  found.report = Json::array();
  const std::pair<const char*, const Effects*> stages[] = {{"logits", &direct},
                                                           {"name-mover queries", &queries},
                                                           {"S-inhibition values", &values},
                                                           {"induction keys", &keys}};
  std::vector<HeadRole> roles = {movers, inhibition, suppressors, induction, duplicate, previous};
  for (int w = 0; w < writers.count(); ++w) {
    if (writers[w].kind != WriterKind::head) continue;
    Json row = {{"head", writers.name(w)}, {"role", nullptr}};
    double largest = 0;
    for (const auto& [stage, effects] : stages) {
      const std::size_t i = w;
      const Interval& interval = effects->interval[i];
      row[stage] = {effects->share[i], interval.low, interval.high};
      if (interval.low > 0 || interval.high < 0)
        largest = std::max(largest, std::fabs(effects->share[i]));
    }
    for (const HeadRole& role : roles) {
      if (std::find(role.heads.begin(), role.heads.end(), w) != role.heads.end())
        row["role"] = role.name;
    }
    if (row["role"].is_null() && largest < kLeastRoleEffect) continue;
    for (const char* score : {"to IO", "to S1", "to S2", "duplicate", "induction", "previous"}) {
      row[score] = search.score(score, w);
      found.attention_halfwidth =
          std::max(found.attention_halfwidth, search.score_halfwidth(score, w));
    }
    found.report.push_back(std::move(row));
  }
  return roles;
}

}  // namespace unpack::experiments
