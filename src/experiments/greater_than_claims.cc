#include "experiments/greater_than_claims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "backend/mlp_readers.h"
#include "engine/state.h"
#include "experiments/ioi_roles.h"
#include "experiments/statistics.h"
#include "unpack/error.h"
#include "unpack/intervene.h"
#include "unpack/prepared.h"

namespace unpack::experiments {

namespace {

constexpr std::size_t kYearSearchPrompts = 100;
constexpr std::size_t kMostReceivers = 4, kMostYearHeads = 6, kMostValues = 3;
constexpr double kLeastYearEffect = 0.02;  // of what the exchanged year changes in all

using Values = std::vector<double>;  // one per writer

// Loss as a share of what the exchanged year changes in all, with its 95% interval over prompts.
struct YearEffects {
  Values share;
  std::vector<Interval> interval;
  bool counts(std::size_t w) const { return share[w] >= kLeastYearEffect && interval[w].low > 0; }
};

int end_of(const YearPrompt& p) { return p.ids.size() - 1; }

class YearPatching {
 public:
  YearPatching(ModelSession& session, const std::vector<YearPrompt>& prompts)
      : session_(session), writers_(session.model.writers()) {
    // The prompts go through the years in order: take some of all.
    const std::size_t n = search_years(prompts.size());
    for (std::size_t i = 0; i < n; ++i)
      chosen_.push_back({i * prompts.size() / n, &prompts[i * prompts.size() / n]});
  }

  using EdgesOf = std::function<std::vector<Edge>(const YearPrompt& prompt, int writer)>;
  // What the logit difference loses when a writer's part in the given edges comes from the other
  // year, as a share of what that year changes in all.
  YearEffects effects(const std::string& stage, const EdgesOf& edges_of,
                      PatchRoute route = PatchRoute::direct) {
    const std::size_t count = writers_.count();
    std::vector<Values> lost(count);
    Values whole;
    for (std::size_t i = 0; i < chosen_.size(); ++i) {
      session_.context.report("path patching, " + stage, i, chosen_.size());
      const std::string key =
          session_.key(fmt::format("search|{}|prompt {}", stage, chosen_[i].first));
      const Json* record = session_.records.find(key);
      if (!record)
        record = &session_.records.add(key, measure(*chosen_[i].second, edges_of, route));
      whole.push_back(record->at("clean").get<double>() - record->at("corrupted").get<double>());
      for (std::size_t w = 0; w < count; ++w)
        lost[w].push_back(-record->at("effects").at(w).get<double>());
    }
    if (std::fabs(mean(whole)) < 1e-9) {
      throw InputError(
          fmt::format("the year makes no difference to what {} predicts: there is nothing to find "
                      "by path patching",
                      session_.model.info().name));
    }
    YearEffects out;
    for (const Values& of_writer : lost) {
      out.share.push_back(mean(of_writer) / mean(whole));
      out.interval.push_back(ratio_interval(of_writer, whole, session_.options.seed));
    }
    return out;
  }

  std::size_t prompts() const { return chosen_.size(); }

  // What each head at the end of the prompt gives to the year's last digits: [C][prompts].
  std::vector<Values> attention_to_year() {
    std::vector<Values> out(writers_.count());
    for (const auto& [index, prompt] : chosen_) {
      const std::string key = session_.key(fmt::format("search|attention|prompt {}", index));
      const Json* record = session_.records.find(key);
      if (!record) record = &session_.records.add(key, {{"to_yy", attention(*prompt)}});
      const Values one = numbers(record->at("to_yy"));
      for (std::size_t w = 0; w < out.size(); ++w) out[w].push_back(one[w]);
    }
    return out;
  }

  // The strongest writers of a kind.
  std::vector<int> pick(const YearEffects& effects, WriterKind kind, std::size_t most) const {
    std::vector<int> out;
    for (int w = 0; w < writers_.count(); ++w) {
      if (writers_[w].kind == kind && effects.counts(w)) out.push_back(w);
    }
    std::stable_sort(out.begin(), out.end(),
                     [&](int a, int b) { return effects.share[a] > effects.share[b]; });
    out.resize(std::min(out.size(), most));
    std::sort(out.begin(), out.end());
    return out;
  }

 private:
  Values attention(const YearPrompt& p) const {
    const Prepared prepared = session_.model.prepare(p.ids, session_.context);
    const ModelConfig& c = session_.model.config();
    const std::size_t length = p.ids.size();
    Values out(writers_.count(), 0.0);
    for (int l = 0; l < c.n_layers; ++l) {
      const CachedArray pattern = prepared.cache("pattern", l);
      for (int h = 0; h < c.n_heads; ++h)
        out[writers_.head(l, h)] = pattern.values[(h * length + length - 1) * length + p.yy];
    }
    return out;
  }

  Json measure(const YearPrompt& p, const EdgesOf& edges_of, PatchRoute route) {
    Target target;
    target.ids = p.above;
    target.versus = p.up_to;
    std::vector<std::vector<Edge>> patches = {{}};
    std::vector<int> patched;
    for (int w = 0; w < writers_.count(); ++w) {
      if (writers_[w].terminal()) continue;
      std::vector<Edge> edges = edges_of(p, w);
      if (edges.empty()) continue;
      patched.push_back(w);
      patches.push_back(std::move(edges));
    }
    const std::vector<double> got = patched_targets(session_.model, p.ids, p.corrupted, patches,
                                                    target, session_.context, route);
    Values effects(writers_.count(), 0.0);
    for (std::size_t k = 0; k < patched.size(); ++k) effects[patched[k]] = got[k + 1] - got[0];
    const YearReading other =
        read_years(zeroed_logits(session_.model, p.corrupted, {{}}, -1, session_.context)[0], p);
    return {{"clean", got[0]}, {"corrupted", other.logit_difference}, {"effects", effects}};
  }

  ModelSession& session_;
  const Writers& writers_;
  std::vector<std::pair<std::size_t, const YearPrompt*>> chosen_;
};

std::string names(const Writers& writers, const std::vector<int>& list) {
  std::vector<std::string> out;
  out.reserve(list.size());
  for (const int w : list) out.push_back(writers.name(w));
  return fmt::format("{}", fmt::join(out, ", "));
}

void merge(std::vector<int>& to, const std::vector<int>& from) {
  for (const int w : from) {
    if (std::find(to.begin(), to.end(), w) == to.end()) to.push_back(w);
  }
  std::sort(to.begin(), to.end());
}

}  // namespace

std::size_t search_years(std::size_t prompts) { return std::min(kYearSearchPrompts, prompts); }

bool reads(const Writers& writers, int receiver, int source) {
  const Writer& r = writers[receiver];
  return source < (r.kind == WriterKind::head ? writers.visible_to_attention(r.layer)
                                              : writers.visible_to_mlp(r.layer));
}

YearReading read_years(const std::vector<double>& logits, const YearPrompt& prompt) {
  const double all = engine::log_sum_exp(logits);
  YearReading out;
  for (const bool above : {true, false}) {
    const std::vector<TokenId>& ids = above ? prompt.above : prompt.up_to;
    for (const TokenId id : ids) {
      const double logit = logits[id];
      out.logit_difference += (above ? logit : -logit) / ids.size();
      out.probability_difference += (above ? 1 : -1) * std::exp(logit - all);
    }
  }
  return out;
}

std::vector<Claim> read_claims(const Writers& writers, const std::filesystem::path& file) {
  std::vector<Claim> out;
  for (const TextLine& line : read_text(file, true).lines) {
    const auto fail = [&](const std::string& why) {
      throw InputError(fmt::format("{}, line {}: {}", file.string(), line.line, why));
    };
    const std::vector<std::string> cells = cells_of(line.text);
    if (cells.size() != 5 || cells[0].empty())
      fail("a claim is written 'text | receivers | sources | K, Q, V or all | END, YY or all'");
    Claim claim;
    claim.text = cells[0];
    try {
      claim.receivers = writers_of(writers, cells[1]);
      claim.sources = writers_of(writers, cells[2]);
    } catch (const InputError& error) {
      fail(error.what());
    }
    const std::pair<const char*, Branch> branches[] = {
        {"K", Branch::K}, {"Q", Branch::Q}, {"V", Branch::V}, {"all", Branch::none}};
    const auto branch = std::find_if(std::begin(branches), std::end(branches),
                                     [&](const auto& b) { return cells[3] == b.first; });
    if (branch == std::end(branches))
      fail(fmt::format("'{}' is none of K, Q, V and all", cells[3]));
    claim.branch = branch->second;
    claim.where = cells[4];
    if (claim.where != "END" && claim.where != "YY" && claim.where != "all")
      fail(fmt::format("'{}' is none of END, YY and all", claim.where));
    bool any = false;
    for (const int r : claim.receivers) {
      if (writers[r].terminal())
        fail(fmt::format("{} reads nothing: receivers are heads and MLPs", writers.name(r)));
      if (claim.branch != Branch::none && writers[r].kind != WriterKind::head)
        fail(fmt::format("{} has no branch {}: write all", writers.name(r), cells[3]));
      for (const int s : claim.sources) any |= reads(writers, r, s);
    }
    if (!any) fail("no source writes before a receiver reads");
    out.push_back(std::move(claim));
  }
  return out;
}

std::vector<Claim> find_claims(ModelSession& session, const std::vector<YearPrompt>& prompts,
                               Json& report) {
  const Writers& writers = session.model.writers();
  YearPatching search(session, prompts);
  report = Json::array();
  const auto note = [&](const std::string& stage, const YearEffects& effects) {
    for (int w = 0; w < writers.count(); ++w) {
      const std::size_t i = w;
      const Interval& interval = effects.interval[i];
      if (std::fabs(effects.share[i]) >= kLeastYearEffect &&
          (interval.low > 0 || interval.high < 0))
        report.push_back({{"stage", stage},
                          {"writer", writers.name(w)},
                          {"effect", effects.share[i]},
                          {"interval", {interval.low, interval.high}}});
    }
  };
  const YearEffects direct = search.effects("the logits", [&](const YearPrompt& p, int w) {
    return std::vector<Edge>{{{w, end_of(p)}, Branch::none, std::nullopt}};
  });
  note("the logits", direct);
  const std::vector<int> receivers = search.pick(direct, WriterKind::mlp, kMostReceivers);
  std::vector<int> heads = search.pick(direct, WriterKind::head, kMostYearHeads);
  std::vector<Claim> out;
  Claim chain{"", {}, {}, Branch::none, "END"};
  for (const int r : receivers) {
    const YearEffects into = search.effects(writers.name(r), [&](const YearPrompt& p, int w) {
      std::vector<Edge> edges;
      if (!reads(writers, r, w)) return edges;
      for (const backend::MlpReader& reader :
           backend::mlp_readers(session.model.config().layer(writers[r].layer)))
        edges.push_back({{w, end_of(p)}, reader.branch, Node{r, end_of(p)}});
      return edges;
    });
    note(writers.name(r), into);
    const std::vector<int> from_heads = search.pick(into, WriterKind::head, kMostYearHeads),
                           from_mlps = search.pick(into, WriterKind::mlp, kMostYearHeads);
    if (!from_heads.empty())
      out.push_back({fmt::format("{} relies on {}", writers.name(r), names(writers, from_heads)),
                     {r},
                     from_heads,
                     Branch::none,
                     "END"});
    merge(heads, from_heads);
    if (!from_mlps.empty()) chain.receivers.push_back(r);
    merge(chain.sources, from_mlps);
  }
  if (!chain.receivers.empty()) {
    chain.text = fmt::format("{} rely on MLPs before them ({})", names(writers, chain.receivers),
                             names(writers, chain.sources));
    out.push_back(chain);
  }
  // Heads are tested one by one: one that hardly looks at the year reads nothing there.
  std::vector<int> readers, sources;
  const std::vector<Values> seen =
      heads.empty() ? std::vector<Values>() : search.attention_to_year();
  for (const int h : heads) {
    const std::string stage = fmt::format("values of {} at YY", writers.name(h));
    const YearEffects values = search.effects(
        stage,
        [&](const YearPrompt& p, int w) {
          std::vector<Edge> edges;
          if (writers[w].kind == WriterKind::mlp && reads(writers, h, w))
            edges.push_back({{w, p.yy}, Branch::V, Node{h, end_of(p)}});
          return edges;
        },
        session.options.narrow_paths ? PatchRoute::direct : PatchRoute::through_mlps);
    note(stage, values);
    const std::vector<int> from = search.pick(values, WriterKind::mlp, kMostValues);
    const Values& looks = seen[h];
    const Interval interval = bootstrap_interval(looks, session.options.seed);
    report.push_back({{"stage", stage},
                      {"receiver", writers.name(h)},
                      {"attention", mean(looks)},
                      {"interval", {interval.low, interval.high}},
                      {"counts", !from.empty()}});
    if (from.empty()) continue;
    readers.push_back(h);
    merge(sources, from);
  }
  if (!readers.empty())
    out.push_back({fmt::format("{} read values at YY from {}", names(writers, readers),
                               names(writers, sources)),
                   readers, sources, Branch::V, "YY"});
  return out;
}

}  // namespace unpack::experiments
