// Direction `read` (docs/method.md, section 5) against plain loops (naive/read_direction.h), on
// random tiny models of every family and on every device.
#include "unit/naive/read_direction.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/state.h"
#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/random_model.h"
#include "unpack/error.h"
#include "unpack/reads.h"

namespace unpack {
namespace {

using naive::Difference;
using naive::Mat;
using naive::Vec;

const std::vector<TokenId> kIds = {3, 7, 1, 7, 5};

Question question_of(const std::string& preset) {
  Question question;
  question.options = preset_options(preset);
  question.target.ids = {2};
  question.target.versus = std::vector<TokenId>{4};
  question.target.position = 4;
  question.paths.top = 0;
  return question;
}

std::vector<testing::Shape> shapes() {
  std::vector<testing::Shape> out;
  for (const char* family :
       {"gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "olmo2", "phi3",
        "smollm3", "granite", "mixtral", "qwen3_moe", "olmoe", "gpt_oss"}) {
    testing::Shape shape;
    shape.family = family;
    out.push_back(shape);
  }
  testing::Shape sequential = out[1];
  sequential.parallel = false;
  out.push_back(sequential);
  testing::Shape deep;
  deep.layers = 3;
  deep.biases = true;
  out.push_back(deep);
  return out;
}

std::vector<std::pair<std::string, Options>> settings() {
  std::vector<std::pair<std::string, Options>> out = {{"best", preset_options("best")}};
  Options raw;
  raw.direction = Direction::read;
  out.emplace_back("raw", raw);
  Options source = preset_options("best");
  source.keys = Keys::source;
  source.weights = {0.5, 0.2, 0.3};
  out.emplace_back("source", source);
  Options linearized = preset_options("best");
  linearized.mlp = MlpRule::linearized;
  linearized.beta = 0.2;
  linearized.mlp_weights = {0.7, 0.3};
  out.emplace_back("linearized", linearized);
  return out;
}

class ReadDirection : public testing::OnEveryDevice {};
UNPACK_ON_EVERY_DEVICE(ReadDirection);

TEST_P(ReadDirection, CreditOfEveryNodeAndEdgeIsThatOfPlainLoops) {
  for (const testing::Shape& shape : shapes()) {
    const Model model = testing::random_tensors_of(shape.config(), 5).model(load());
    const naive::Forward forward(testing::weights_of(model), kIds);
    const Prepared prepared = model.prepare(kIds);
    for (const auto& [name, options] : settings()) {
      Question question = question_of("best");
      question.options = options;
      const Target& t = question.target;
      naive::ReadRecursion want(forward, options);
      want.from_target(t.position, naive::direction_to(forward, t.position, t.ids, *t.versus));
      const TraceResult got = prepared.trace(question);
      EXPECT_LT(naive::difference(got.node_credit, want.credit), limit(1e-9, 2e-3))
          << shape.family << " " << name;
      std::map<std::tuple<int, Branch, int>, double> sums;
      for (const naive::ReadEdge& e : want.edges)
        sums[{e.reader.writer, e.branch, e.writer.writer}] += e.credit;
      Difference edges;
      for (const EdgeCredit& e : prepared.edge_credit(question))
        edges.see(e.credit, sums[{e.reader, e.branch, e.writer}]);
      EXPECT_LT(edges.relative(), limit(1e-9, 2e-3)) << shape.family << " " << name;
    }
  }
}

TEST_P(ReadDirection, RootsSendWhatPlainLoopsSend) {
  for (const testing::Shape& shape : shapes()) {
    const Model model = testing::random_tensors_of(shape.config(), 6).model(load());
    const naive::Forward forward(testing::weights_of(model), kIds);
    const Prepared prepared = model.prepare(kIds);
    for (const char* name : {"A1.H0@3", "MLP1@4"}) {
      for (const Reroot reroot : {Reroot::output, Reroot::target}) {
        Question question = question_of("best");
        question.root = name;
        question.options.reroot = reroot;
        const Node root = parse_node(forward.writers, name, forward.S);
        const Target& t = question.target;
        const naive::Layer& layer = forward.layers[1];
        const Vec direction =
            reroot == Reroot::target
                ? naive::direction_to(forward, t.position, t.ids, *t.versus)
                : (root.writer == forward.writers.mlp(1) ? layer.o_mlp
                                                         : layer.o_attn)[root.position];
        naive::ReadRecursion want(forward, question.options);
        want.from_root(root, direction);
        const TraceResult got = prepared.trace(question);
        EXPECT_LT(naive::difference(got.node_credit, want.credit), limit(1e-9, 2e-3))
            << shape.family << " " << name;
        std::map<Branch, Mat> incoming;
        for (const naive::ReadEdge& e : want.edges) {
          if (!(e.reader == root)) continue;
          Mat& to = incoming[e.branch];
          to.resize(forward.writers.count(), Vec(forward.S, 0.0));
          to[e.writer.writer][e.writer.position] += e.credit;
        }
        for (const auto& [branch, rows] : got.incoming)
          EXPECT_LT(naive::difference(rows, incoming[branch]), limit(1e-9, 2e-3))
              << shape.family << " " << name << " " << to_string(branch);
        const TraceResult alone = node_reads(prepared, question);
        ASSERT_EQ(alone.incoming.size(), got.incoming.size());
        for (const auto& [branch, rows] : alone.incoming)
          EXPECT_LT(naive::difference(rows, incoming[branch]), limit(1e-9, 2e-3))
              << "without what is below: " << shape.family << " " << name << " "
              << to_string(branch);
        EXPECT_LT(naive::difference(Mat{alone.entries}, Mat{got.entries}), limit(1e-9, 2e-3));
        EXPECT_EQ(alone.neuron_entries.size(), got.neuron_entries.size());
        EXPECT_EQ(alone.expert_entries.size(), got.expert_entries.size());
      }
    }
  }
}

// Longer than the blocks of positions that products are taken over, and than a window.
TEST_P(ReadDirection, LongPromptsAreThoseOfPlainLoops) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 70; ++i) ids.push_back((i * i + 3 * i) % 11);
  for (const char* family : {"gpt2", "gemma2"}) {
    testing::Shape shape;
    shape.family = family;
    shape.context = 80;
    shape.window = 9;
    const Model model = testing::random_tensors_of(shape.config(), 8).model(load());
    const naive::Forward forward(testing::weights_of(model), ids);
    Question question = question_of("best");
    question.target.position = 66;
    const Target& t = question.target;
    naive::ReadRecursion want(forward, question.options);
    want.from_target(t.position, naive::direction_to(forward, t.position, t.ids, *t.versus));
    const TraceResult got = model.prepare(ids).trace(question);
    EXPECT_LT(naive::difference(got.node_credit, want.credit), limit(1e-9, 2e-3)) << family;
  }
}

TEST(ReadThreads, DoNotChangeABit) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 70; ++i) ids.push_back((i * i + 5 * i) % 11);
  testing::Shape shape;
  shape.context = 80;
  std::vector<TraceResult> results;
  for (const int threads : {1, 3}) {
    LoadOptions options;
    options.device = "cpu";
    options.threads = threads;
    Question question = question_of("best");
    question.target.position = 69;
    question.paths.top = 30;
    results.push_back(
        testing::random_tensors_of(shape.config(), 4).model(options).prepare(ids).trace(question));
  }
  EXPECT_EQ(results[0].node_credit, results[1].node_credit);
  ASSERT_EQ(results[0].paths.size(), 30U);
  for (std::size_t i = 0; i < 30; ++i) {
    EXPECT_EQ(results[0].paths[i].credit, results[1].paths[i].credit);
    EXPECT_EQ(results[0].paths[i].nodes, results[1].paths[i].nodes);
  }
}

std::vector<int> key_of(const Path& path) {
  std::vector<int> key;
  for (std::size_t i = 0; i < path.nodes.size(); ++i) {
    if (i > 0) key.push_back(static_cast<int>(path.branches[i]));
    key.insert(key.end(), {path.nodes[i].writer, path.nodes[i].position});
  }
  return key;
}

// With the key scores kept, and computed again where they are needed.
TEST_P(ReadDirection, PathsAreThoseOfPlainLoopsWithAndWithoutAKeyTable) {
  const std::vector<TokenId> ids = {3, 7, 1};
  for (const char* family : {"gpt2", "gpt_neox", "qwen3", "gemma2", "mixtral"}) {
    testing::Shape shape;
    shape.family = family;
    shape.window = 2;
    const Model model = testing::random_tensors_of(shape.config(), 9).model(load());
    const naive::Forward forward(testing::weights_of(model), ids);
    Question question = question_of("best");
    question.target.position = 2;
    const Target& t = question.target;
    naive::ReadRecursion plain(forward, question.options);
    plain.from_target(t.position, naive::direction_to(forward, t.position, t.ids, *t.versus));
    const std::map<std::vector<int>, double> all = naive::read_paths(plain.edges, forward.writers);
    const int through = forward.writers.parse("A0.H1");
    Vec sizes, matching;
    double total = 0, fits = 0;
    for (const auto& [key, credit] : all) {
      sizes.push_back(std::fabs(credit));
      total += std::fabs(credit);
      bool passes = false;
      for (std::size_t i = 0; i < key.size(); i += 3) passes = passes || key[i] == through;
      if (!passes || credit > 0 || key.size() < 5 ||
          key[key.size() - 3] != static_cast<int>(Branch::K))
        continue;
      matching.push_back(std::fabs(credit));
      fits += std::fabs(credit);
    }
    std::sort(sizes.rbegin(), sizes.rend());
    std::sort(matching.rbegin(), matching.rend());
    ASSERT_FALSE(matching.empty()) << family;
    matching.resize(std::min<std::size_t>(matching.size(), 3));
    const double near = limit(1e-9, 2e-3) * sizes[0];
    for (const std::size_t budget : {RunContext().memory_budget, std::size_t{0}}) {
      RunContext context;
      context.memory_budget = budget;
      const Prepared prepared = model.prepare(ids, context);
      EXPECT_EQ(engine::state_of(prepared)->decomposition->keeps_key_scores(), budget > 0);
      question.paths = {};
      question.paths.top = 25;
      const TraceResult got = prepared.trace(question, context);
      ASSERT_EQ(got.paths.size(), 25U) << family;
      for (std::size_t i = 0; i < 25; ++i) {
        EXPECT_NEAR(std::fabs(got.paths[i].credit), sizes[i], near) << family << " " << i;
        EXPECT_NEAR(got.paths[i].credit, all.at(key_of(got.paths[i])), near) << family << " " << i;
      }
      EXPECT_NEAR(got.coverage.absolute_total, total, limit(1e-9, 2e-3) * total) << family;
      question.paths.top = 3;
      question.paths.branch = Branch::K;
      question.paths.sign = -1;
      question.paths.through = "A0.H1";
      const TraceResult some = prepared.trace(question, context);
      // Rounding may leave a little where plain loops have nothing.
      ASSERT_GE(some.paths.size(), matching.size()) << family;
      for (std::size_t i = 0; i < some.paths.size(); ++i)
        EXPECT_NEAR(std::fabs(some.paths[i].credit), i < matching.size() ? matching[i] : 0.0, near)
            << family << " " << i;
      EXPECT_NEAR(some.coverage.absolute_matching, fits, limit(1e-9, 2e-3) * total) << family;
    }
  }
}

// Of prompts that are long enough, the keys and values of writers are kept in place of scores, or
// with them, or neither.
TEST_P(ReadDirection, PathsOfLongerPromptsAreThoseOfTheReferenceWhateverIsKept) {
  std::vector<TokenId> ids;
  for (int i = 0; i < 45; ++i) ids.push_back((7 * i + i * i / 5) % 11);
  for (const char* family : {"gpt2", "gpt_neox", "qwen3", "gemma2"}) {
    testing::Shape shape;
    shape.family = family;
    shape.context = 64;
    shape.window = 9;
    const auto tensors = testing::random_tensors_of(shape.config(), 9);
    const Model model = tensors.model(load()), plain = tensors.model("reference");
    const Prepared reference = plain.prepare(ids);
    for (const char* root : {"", "A1.H1@40", "MLP1@44"}) {
      Question question = question_of("best");
      question.target.position = 44;
      if (*root != 0) question.root = root;
      question.paths.top = 60;
      const TraceResult want = reference.trace(question);
      ASSERT_EQ(want.paths.size(), 60U) << family;
      std::set<std::pair<bool, bool>> kept;
      for (const std::size_t budget :
           {RunContext().memory_budget, std::size_t{30'000}, std::size_t{0}}) {
        RunContext context;
        context.memory_budget = budget;
        const Prepared prepared = model.prepare(ids, context);
        const decompose::Decomposition& d = *engine::state_of(prepared)->decomposition;
        kept.emplace(d.keeps_key_scores(), !d.writer_values(1).empty());
        const TraceResult got = prepared.trace(question, context);
        ASSERT_EQ(got.paths.size(), 60U) << family;
        for (std::size_t i = 0; i < 60; ++i)
          EXPECT_NEAR(std::fabs(got.paths[i].credit), std::fabs(want.paths[i].credit),
                      limit(1e-9, 2e-3) * std::fabs(want.paths[0].credit))
              << family << " " << root << " " << budget << " " << i;
        EXPECT_NEAR(got.coverage.absolute_total, want.coverage.absolute_total,
                    limit(1e-9, 2e-3) * want.coverage.absolute_total)
            << family << " " << root << " " << budget;
      }
      if (device() == "cpu") {
        EXPECT_EQ(kept.size(), 3U) << family;
      }
    }
  }
}

class ReadPathsTest : public ::testing::Test {
 protected:
  ReadPathsTest()
      : model_(testing::random_tensors_of(testing::Shape().config(), 9).model("reference")),
        forward_(testing::weights_of(model_), ids_) {
    Question question = question_of("best");
    question.target.position = 2;
    naive::ReadRecursion plain(forward_, question.options);
    const Target& t = question.target;
    plain.from_target(t.position, naive::direction_to(forward_, t.position, t.ids, *t.versus));
    all_ = naive::read_paths(plain.edges, forward_.writers);
  }
  TraceResult ask(std::size_t top, const PathQuery& filters = {}) const {
    Question question = question_of("best");
    question.target.position = 2;
    question.paths = filters;
    question.paths.top = top;
    return model_.prepare(ids_).trace(question);
  }

  std::vector<TokenId> ids_ = {3, 7, 1};
  Model model_;
  naive::Forward forward_;
  std::map<std::vector<int>, double> all_;
};

TEST_F(ReadPathsTest, AllPathsAddUpToTheCreditOfTheirTokens) {
  const TraceResult result = ask(1'000'000);
  ASSERT_EQ(result.paths.size(), all_.size());
  Vec sums(result.token_credit.size(), 0.0);
  double absolute = 0;
  for (const Path& path : result.paths) {
    sums[path.nodes.front().position] += path.credit;
    absolute += std::fabs(path.credit);
    EXPECT_NEAR(path.credit, all_.at(key_of(path)), 1e-9);
  }
  EXPECT_LT(naive::difference(sums, result.token_credit), 1e-9);
  EXPECT_NEAR(result.coverage.absolute_total, absolute, 1e-9 * absolute);
}

TEST_F(ReadPathsTest, TheStrongestAreThoseOfTheWholeList) {
  Vec sizes;
  for (const auto& [key, credit] : all_) sizes.push_back(std::fabs(credit));
  std::sort(sizes.rbegin(), sizes.rend());
  const TraceResult result = ask(25);
  ASSERT_EQ(result.paths.size(), 25U);
  for (std::size_t i = 0; i < result.paths.size(); ++i)
    EXPECT_NEAR(std::fabs(result.paths[i].credit), sizes[i], 1e-9);
}

TEST_F(ReadPathsTest, FiltersKeepWhatMatchesAndNothingElse) {
  PathQuery query;
  query.branch = Branch::K;
  query.sign = -1;
  query.through = "A0.H1";
  Vec sizes;
  for (const Path& path : ask(1'000'000).paths) {
    const bool through = std::any_of(path.nodes.begin(), path.nodes.end(), [&](const Node& node) {
      return node.writer == forward_.writers.parse("A0.H1");
    });
    if (through && path.branches.back() == Branch::K && path.credit < 0)
      sizes.push_back(std::fabs(path.credit));
  }
  ASSERT_GT(sizes.size(), 3U);
  const TraceResult few = ask(3, query), many = ask(1'000'000, query);
  ASSERT_EQ(few.paths.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(std::fabs(few.paths[i].credit), sizes[i], 1e-9);
  EXPECT_EQ(many.paths.size(), sizes.size());
  double sum = 0;
  for (const double x : sizes) sum += x;
  EXPECT_NEAR(many.coverage.absolute_matching, sum, 1e-9 * sum);
}

TEST_F(ReadPathsTest, CompositionOfARootIsWhatItsPathsBringFromEachWriter) {
  for (const char* root : {"A1.H0@2", "MLP1@2"}) {
    Question question = question_of("best");
    question.target.position = 2;
    question.root = root;
    question.paths.top = 1'000'000;
    const TraceResult got = model_.prepare(ids_).trace(question);
    std::map<int, double> masses;
    for (const Path& path : got.paths)
      masses[path.nodes[path.nodes.size() - 2].writer] += std::fabs(path.credit);
    const auto& all = got.composition.at(Branch::none);
    ASSERT_EQ(all.size(), masses.size()) << root;
    for (const CompositionEntry& entry : all)
      EXPECT_NEAR(entry.mass, masses.at(entry.writer), 1e-9) << root;
  }
}

TEST(Presets, NameTheSettingsTheyStandFor) {
  EXPECT_EQ(preset_options("paper").direction, Direction::output);
  EXPECT_EQ(preset_options("released").mlp, MlpRule::linearized);
  EXPECT_EQ(preset_options("best").floor, 1.0);
  EXPECT_THROW(preset_options("better"), UsageError);
}

TEST(Presets, RulesWithoutADirectionTakeTheOutputAndSaySo) {
  const Model model = testing::random_tensors_of(testing::Shape().config(), 9).model("reference");
  const Prepared prepared = model.prepare(kIds);
  Question question = question_of("best");
  question.options.dispatch = Dispatch::gate;
  const TraceResult got = prepared.trace(question);
  EXPECT_EQ(got.options.direction, Direction::output);
  ASSERT_FALSE(got.warnings.empty());
  EXPECT_NE(got.warnings[0].find("gate"), std::string::npos);
}

TEST(Presets, WhatDoesNotGoTogetherIsSettled) {
  Options options = preset_options("best");
  options.scores = Scores::raw;
  EXPECT_FALSE(options.settle().empty());
  EXPECT_EQ(options.keys, Keys::source);
  options = preset_options("best");
  options.direction = Direction::output;
  EXPECT_TRUE(options.settle().empty());
  EXPECT_EQ(options.floor, 0.0);
  options.floor = -1;
  EXPECT_THROW(options.check(), UsageError);
}

}  // namespace
}  // namespace unpack
