// Every golden case (golden/README.md) through the library, on the float backend and on the double
// one with the same code above it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "test_paths.h"
#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unpack/unpack.h"

namespace unpack {
namespace {

using naive::Difference;
using nlohmann::json;

const char* const kCases[] = {
    "one-token",    "small-gpt2", "small-llama",          "small-neox",   "tiny-gemma2",
    "tiny-gemma3",  "tiny-gpt2",  "tiny-gptoss",          "tiny-granite", "tiny-llama",
    "tiny-mixtral", "tiny-neox",  "tiny-neox-sequential", "tiny-olmo2",   "tiny-phi3",
    "tiny-qwen2",   "tiny-qwen3", "tiny-qwen3moe",        "tiny-smollm3"};

std::string folder_of(const std::string& name) {
  return std::string(UNPACK_TEST_DATA) + "/golden/" + name;
}

const json& expected_of(const std::string& name) {
  static std::map<std::string, json> read;
  auto [slot, fresh] = read.try_emplace(name);
  if (fresh) slot->second = json::parse(std::ifstream(folder_of(name) + "/expected.json"));
  return slot->second;
}

template <typename T>
std::optional<T> optional_of(const json& object, const char* key) {
  if (!object.contains(key) || object.at(key).is_null()) return std::nullopt;
  return object.at(key).get<T>();
}

Options options_of(const json& run) {
  const json& j = run.at("options");
  Options o;
  o.beta = j.at("beta");
  o.weights = j.at("weights").get<std::array<double, 3>>();
  o.mlp_weights = j.at("mlp_weights").get<std::array<double, 2>>();
  if (j.contains("expert_weights"))
    o.expert_weights = j.at("expert_weights").get<std::array<double, 3>>();
  o.dispatch = j.at("dispatch") == "gate" ? Dispatch::gate : Dispatch::aligned;
  const std::string mlp = j.at("mlp");
  o.mlp = mlp == "l2"           ? MlpRule::l2
          : mlp == "linearized" ? MlpRule::linearized
                                : MlpRule::per_neuron;
  o.scores = j.at("scores") == "centered" ? Scores::centered : Scores::raw;
  if (run.contains("reroot"))
    o.reroot = run.at("reroot") == "target" ? Reroot::target : Reroot::output;
  return o;
}

Branch branch_of(const std::string& name) {
  for (const Branch b :
       {Branch::K, Branch::Q, Branch::V, Branch::R, Branch::G, Branch::U, Branch::mlp}) {
    if (name == to_string(b)) return b;
  }
  return Branch::none;  // "all"
}

// Names of nodes joined with the branches that are written on them.
std::string path_key(const Writers& writers, const Path& path) {
  std::string key;
  for (std::size_t i = 0; i < path.nodes.size(); ++i) {
    const Branch b = path.branches[i];
    key += to_string(writers, path.nodes[i]) +
           (b == Branch::none || b == Branch::mlp ? "" : to_string(b)) + " ";
  }
  return key;
}

std::string path_key(const json& path) {
  std::string key;
  for (std::size_t i = 0; i < path.at("nodes").size(); ++i) {
    const json& b = path.at("branches")[i];
    key += path.at("nodes")[i].get<std::string>() +
           (b.is_null() || b == "MLP" ? "" : b.get<std::string>()) + " ";
  }
  return key;
}

// All numbers of nested arrays, in order.
void flatten(const json& array, std::vector<double>& out) {
  if (array.is_array()) {
    for (const json& x : array) flatten(x, out);
  } else {
    out.push_back(array.get<double>());
  }
}

struct Limits {
  double usual, logits, beta0;
};

class Golden : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  Golden()
      : name_(std::get<0>(GetParam())),
        case_(expected_of(name_)),
        model_(load()),
        ids_(case_.at("ids").get<std::vector<TokenId>>()),
        prepared_(model_.prepare(ids_)) {
    limits_ = std::string(std::get<1>(GetParam())) != "reference" ? Limits{1e-4, 1e-5, 5e-3}
                                                                  : Limits{1e-9, 1e-9, 1e-8};
  }

  static bool available() {
    return std::string(std::get<1>(GetParam())) != "cuda" || testing::has_gpu();
  }
  void SetUp() override {
    if (!available()) GTEST_SKIP() << "no CUDA device here";
  }

  Model load() const {
    LoadOptions options;
    options.device = available() ? std::get<1>(GetParam()) : "cpu";
    options.threads = 2;
    return Model::load(folder_of(name_), options);
  }

  Question question_of(const json& run) const {
    Question question;
    question.options = options_of(run);
    question.target.ids = case_.at("target_ids").get<std::vector<TokenId>>();
    const json& about = run.contains("versus_ids") ? run : case_;
    question.target.versus = optional_of<std::vector<TokenId>>(about, "versus_ids");
    question.target.raw = run.value("raw", false);
    question.target.position =
        run.contains("position") ? run.at("position").get<int>() : case_.at("position").get<int>();
    question.root = optional_of<std::string>(run, "root");
    question.paths.top = 0;
    return question;
  }

  double limit(const std::string& run) const {
    return run.starts_with("beta0/") ? limits_.beta0 : limits_.usual;
  }

  // {"A0.H1": [..S..], ...} against [C][S]; a name that is missing stands for zeros.
  double by_writer(const std::vector<std::vector<double>>& got, const json& want) const {
    Difference d;
    for (int w = 0; w < model_.writers().count(); ++w) {
      const auto known = want.find(model_.writers().name(w));
      d.see(got[w], known != want.end() ? known->get<std::vector<double>>()
                                        : std::vector<double>(ids_.size(), 0.0));
    }
    for (const auto& [writer, values] : want.items()) model_.writers().parse(writer);
    return d.relative();
  }

  // The experts in use, each once; those that are not are stored with weight 0.
  void expect_experts(const std::vector<ExpertEntry>& got, const json& want,
                      const std::string& run) const {
    std::vector<double> weight(want.size(), 0.0), credit(want.size(), 0.0), want_weight,
        want_credit;
    std::size_t used = 0;
    for (const json& e : want) {
      want_weight.push_back(e.at("weight"));
      want_credit.push_back(e.at("credit"));
      used += want_weight.back() > 0 ? 1 : 0;
    }
    for (const ExpertEntry& e : got) {
      EXPECT_EQ(weight.at(e.expert), 0) << run;
      weight[e.expert] = e.weight;
      credit[e.expert] = e.credit;
    }
    EXPECT_EQ(got.size(), used) << run;
    EXPECT_TRUE(std::is_sorted(got.begin(), got.end(), [](const auto& a, const auto& b) {
      return a.weight > b.weight;
    })) << run;
    EXPECT_LE(naive::difference(weight, want_weight), limit(run)) << run;
    EXPECT_LE(naive::difference(credit, want_credit), limit(run)) << run;
  }

  void expect_paths(const std::vector<Path>& got, const json& want, double tolerance,
                    const std::string& where) const {
    ASSERT_EQ(got.size(), want.size()) << where;
    Difference sizes, by_name;
    std::map<std::string, double> credit;
    for (std::size_t i = 0; i < got.size(); ++i) {
      sizes.see(std::fabs(got[i].credit), std::fabs(want[i].at("credit").get<double>()));
      credit[path_key(want[i])] = want[i].at("credit");
    }
    std::size_t known = 0;
    for (const Path& p : got) {
      const auto it = credit.find(path_key(model_.writers(), p));
      if (it == credit.end()) continue;
      ++known;
      by_name.see(p.credit, it->second);
    }
    EXPECT_LE(sizes.relative(), tolerance) << where;
    EXPECT_LE(by_name.relative(), tolerance) << where;
    // Only paths as strong as the last one, which may have taken each other's place at the cut, are
    // not in both.
    const double last = got.empty() ? 0 : std::fabs(got.back().credit);
    const double slack = got.empty() ? 0 : tolerance * std::fabs(got.front().credit);
    for (const Path& p : got) {
      if (!credit.contains(path_key(model_.writers(), p))) {
        EXPECT_LE(std::fabs(p.credit), last + 2 * slack)
            << where << ": " << path_key(model_.writers(), p);
      }
    }
    EXPECT_TRUE(want.empty() || known > 0) << where;
  }

  std::string name_;
  const json& case_;
  Model model_;
  std::vector<TokenId> ids_;
  Prepared prepared_;
  Limits limits_{};
};

TEST_P(Golden, LogitsAndLogProbabilities) {
  PredictOptions options;
  options.top = model_.config().vocab_size;
  const PredictResult got = model_.predict(ids_, options);
  const auto want = case_.at("logits_last").get<std::vector<double>>();
  std::vector<double> logits(want.size(), NAN);
  for (const Prediction& p : got.predictions) logits[p.id] = p.logit;
  EXPECT_LE(naive::difference(logits, want), limits_.logits);
  Difference d;
  EXPECT_FALSE(got.log_probability[0].has_value());
  for (std::size_t i = 1; i < ids_.size(); ++i)
    d.see(got.log_probability[i].value(), case_.at("log_probability")[i]);
  EXPECT_LE(d.relative(), limits_.logits);
}

TEST_P(Golden, WritersHaveTheirNamesAndOrder) {
  std::vector<std::string> names;
  for (int w = 0; w < model_.writers().count(); ++w) names.push_back(model_.writers().name(w));
  EXPECT_EQ(names, case_.at("writers").get<std::vector<std::string>>());
}

TEST_P(Golden, Interactions) {
  const InteractionResult every = prepared_.interactions({}, true),
                          mean = prepared_.interactions({}, false);
  const InteractionResult last = prepared_.interactions(-1, false);
  const auto compare = [&](const char* part, const std::vector<Interaction>& got,
                           const std::vector<Interaction>& got_mean,
                           const std::vector<Interaction>& got_last) {
    std::map<std::string, double> by_name, by_pair;
    for (const Interaction& x : got)
      by_name[fmt::format("{}|{}|{}", x.reader, x.query, x.writer)] = x.score;
    for (const Interaction& x : got_mean)
      by_pair[model_.writers().name(x.reader) + "|" + model_.writers().name(x.writer)] = x.score;
    Difference all, means, one;
    const json& want = case_.at("interactions").at(part);
    EXPECT_EQ(want.size(), got.size()) << part;
    for (const json& x : want) {
      const std::string key = fmt::format(
          "{}|{}|{}", model_.writers().parse(x.at("reader").get<std::string>()),
          x.at("query").get<int>(), model_.writers().parse(x.at("writer").get<std::string>()));
      all.see(by_name.contains(key) ? by_name[key] : NAN, x.at("score"));
    }
    const json& want_mean = case_.at("interactions_mean").at(part);
    EXPECT_EQ(want_mean.size(), got_mean.size()) << part;
    for (const auto& [key, score] : want_mean.items())
      means.see(by_pair.contains(key) ? by_pair[key] : NAN, score);
    for (const Interaction& x : got_last)
      one.see(x.score, by_name[fmt::format("{}|{}|{}", x.reader, ids_.size() - 1, x.writer)]);
    EXPECT_LE(all.relative(), limits_.usual) << part;
    EXPECT_LE(means.relative(), limits_.usual) << part;
    EXPECT_EQ(one.relative(), 0) << part;
  };
  compare("attention", every.attention, mean.attention, last.attention);
  compare("mlp", every.mlp, mean.mlp, last.mlp);
}

TEST_P(Golden, Scores) {
  if (!case_.contains("scores")) return;  // the tiny cases hold them
  for (const json& layer : case_.at("scores")) {
    const int l = layer.at("layer");
    EXPECT_EQ(static_cast<int>(layer.at("writers_attn").size()),
              model_.writers().visible_to_attention(l));
    EXPECT_EQ(static_cast<int>(layer.at("writers_mlp").size()), model_.writers().visible_to_mlp(l));
    for (const auto& [key, branch] :
         {std::pair{"K", Branch::K}, std::pair{"Q", Branch::Q}, std::pair{"V", Branch::V},
          std::pair{"M", Branch::mlp}, std::pair{"R", Branch::R}, std::pair{"G", Branch::G},
          std::pair{"U", Branch::U}}) {
      if (!layer.contains(key)) {
        EXPECT_THROW(prepared_.scores(l, branch), UsageError);
        continue;
      }
      std::vector<double> want;
      flatten(layer.at(key), want);
      EXPECT_LE(naive::difference(prepared_.scores(l, branch).values, want), limits_.usual)
          << "layer " << l << ' ' << key;
    }
  }
}

TEST_P(Golden, CreditOfTargets) {
  int compared = 0;
  for (const auto& [run, want] : case_.at("runs").items()) {
    if (want.contains("root")) continue;
    ++compared;
    const TraceResult got = prepared_.trace(question_of(want));
    Difference importance;
    for (int w = 0; w < model_.writers().count(); ++w) {
      importance.see(got.importance[w], want.at("importance").value(model_.writers().name(w), 0.0));
    }
    EXPECT_LE(importance.relative(), limit(run)) << run;
    const auto tokens = want.at("token_credit").get<std::vector<double>>();
    EXPECT_LE(naive::difference(got.token_credit, tokens), limit(run)) << run;
    EXPECT_LE(by_writer(got.node_credit, want.at("node_credit")), limit(run)) << run;
    double positive = 0, absolute = 0;
    for (const double x : tokens) positive += std::max(x, 0.0), absolute += std::fabs(x);
    if (positive > 0.2 * absolute) {
      EXPECT_LE(
          naive::difference(got.token_percent, want.at("token_percent").get<std::vector<double>>()),
          limit(run))
          << run;
    }
  }
  EXPECT_GE(compared, 10);
}

TEST_P(Golden, RootsWithEntriesIncomingAndComposition) {
  int compared = 0;
  for (const auto& [run, want] : case_.at("runs").items()) {
    if (!want.contains("root")) continue;
    ++compared;
    const TraceResult got = prepared_.trace(question_of(want));
    EXPECT_LE(
        naive::difference(got.token_credit, want.at("token_credit").get<std::vector<double>>()),
        limit(run))
        << run;
    EXPECT_LE(by_writer(got.node_credit, want.at("node_credit")), limit(run)) << run;
    const bool mixture = want.at("entries").is_object();
    const auto entries = (mixture ? want.at("entries").at("neurons") : want.at("entries"))
                             .get<std::vector<double>>();
    std::vector<double> got_entries = got.entries;
    if (got_entries.empty()) {
      got_entries.assign(entries.size(), mixture ? 0.0 : NAN);
      const int neurons = model_.config().layer(model_.writers()[got.root->writer].layer).n_neurons;
      for (const NeuronEntry& n : got.neuron_entries) {
        EXPECT_EQ(n.expert >= 0, mixture) << run;
        got_entries.at(static_cast<std::size_t>(std::max(n.expert, 0) * neurons + n.neuron)) =
            n.credit;
      }
    }
    EXPECT_LE(naive::difference(got_entries, entries), limit(run)) << run;
    if (mixture) expect_experts(got.expert_entries, want.at("entries").at("experts"), run);
    EXPECT_EQ(got.expert_entries.empty(), !mixture) << run;
    for (const auto& [branch, by_name] : want.at("incoming").items()) {
      ASSERT_TRUE(got.incoming.contains(branch_of(branch))) << run << ' ' << branch;
      EXPECT_LE(by_writer(got.incoming.at(branch_of(branch)), by_name), limit(run))
          << run << " incoming " << branch;
    }
    for (const auto& [branch, by_name] : want.at("composition").items()) {
      ASSERT_TRUE(got.composition.contains(branch_of(branch))) << run << ' ' << branch;
      Difference mass, credit;
      std::map<std::string, CompositionEntry> listed;
      for (const CompositionEntry& e : got.composition.at(branch_of(branch)))
        listed[model_.writers().name(e.writer)] = e;
      for (const auto& [component, x] : by_name.items()) {
        mass.see(listed[component].mass, x.at("mass"));
        credit.see(listed[component].credit, x.at("credit"));
      }
      EXPECT_EQ(listed.size(), by_name.size()) << run << " composition " << branch;
      EXPECT_LE(mass.relative(), limit(run)) << run << " composition " << branch;
      EXPECT_LE(credit.relative(), limit(run)) << run << " composition " << branch;
    }
  }
  EXPECT_GE(compared, 8);
}

TEST_P(Golden, Paths) {
  for (const auto& [run, want] : case_.at("runs").items()) {
    if (!want.contains("paths")) continue;
    Question question = question_of(want);
    const json& top = want.at("paths").at("top");
    const auto count = want.at("paths").at("count").get<std::size_t>();
    question.paths.top = count + 100;
    TraceResult got = prepared_.trace(question);
    const double total = want.at("paths").at("absolute_total");
    // Edges that cancel to 0 in double may leave rounding behind in float.
    std::erase_if(got.paths, [&](const Path& p) { return std::fabs(p.credit) < 1e-20 * total; });
    EXPECT_EQ(got.paths.size(), count) << run;
    EXPECT_LE(std::fabs(got.coverage.absolute_total - total), limit(run) * total) << run;
    EXPECT_LE(std::fabs(got.coverage.absolute - total), limit(run) * total)
        << run << ": all paths listed";
    question.paths.top = top.size();
    expect_paths(prepared_.trace(question).paths, top, limit(run), run);
  }
}

TEST_P(Golden, PathsThatMatchFilters) {
  for (const auto& [run, want] : case_.at("runs").items()) {
    for (const json& filtered : want.value("filtered", json::array())) {
      Question question = question_of(want);
      const json& f = filtered.at("filter");
      if (f.contains("branch")) question.paths.branch = branch_of(f.at("branch"));
      question.paths.through = optional_of<std::string>(f, "through");
      question.paths.from = optional_of<int>(f, "from");
      question.paths.min_layer = optional_of<int>(f, "min_layer");
      if (f.contains("sign")) question.paths.sign = f.at("sign") == "positive" ? 1 : -1;
      const std::string where = run + " " + f.dump();
      question.paths.top = filtered.at("top").size();
      const TraceResult got = prepared_.trace(question);
      expect_paths(got.paths, filtered.at("top"), limit(run), where);
      const double matching = filtered.at("absolute_matching");
      EXPECT_LE(std::fabs(got.coverage.absolute_matching - matching),
                limit(run) * (matching > 0 ? matching : 1))
          << where;
      question.paths.top = filtered.at("count").get<std::size_t>() + 100;
      TraceResult all = prepared_.trace(question);
      std::erase_if(all.paths, [&](const Path& p) {
        return std::fabs(p.credit) < 1e-20 * all.coverage.absolute_total;
      });
      EXPECT_EQ(all.paths.size(), filtered.at("count").get<std::size_t>()) << where;
    }
  }
}

TEST_P(Golden, PathsAboveAThreshold) {
  for (const auto& [run, want] : case_.at("runs").items()) {
    for (const json& t : want.value("threshold", json::array())) {
      Question question = question_of(want);
      question.paths.top = 1'000'000;
      question.paths.tau = t.at("tau").get<double>();
      question.paths.rule = t.at("rule") == "entry" ? TauRule::entry : TauRule::named;
      const TraceResult got = prepared_.trace(question);
      const std::string where =
          fmt::format("{} {} tau {}", run, to_string(question.paths.rule), *question.paths.tau);
      EXPECT_EQ(got.coverage.paths, t.at("count").get<std::size_t>()) << where;
      const double absolute = t.at("absolute");
      EXPECT_LE(std::fabs(got.coverage.absolute - absolute), limit(run) * absolute) << where;
      std::vector<double> by_source(ids_.size(), 0.0);
      for (const Path& p : got.paths) by_source[p.nodes.front().position] += p.credit;
      EXPECT_LE(naive::difference(by_source, t.at("by_source").get<std::vector<double>>()),
                limit(run))
          << where;
    }
  }
}

TEST_P(Golden, Closes) {
  for (const ClosureCheck& check : prepared_.validate())
    EXPECT_TRUE(check.passed()) << check.name << ' ' << check.error;
}

INSTANTIATE_TEST_SUITE_P(Cases, Golden,
                         ::testing::Combine(::testing::ValuesIn(kCases),
                                            ::testing::Values("cpu", "reference", "cuda-emulated",
                                                              "cuda")),
                         [](const ::testing::TestParamInfo<Golden::ParamType>& about) {
                           std::string name = std::string(std::get<0>(about.param)) + "_" +
                                              std::get<1>(about.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace unpack
