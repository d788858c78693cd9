// Compiled models: they compute what their programs say, the plain model agrees with the engine,
// its gradients with differences, and the preset `best` finds every circuit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "experiments/compiled/measures.h"
#include "experiments/compiled/methods.h"
#include "unpack/error.h"
#include "unpack/prepared.h"

namespace unpack::experiments::compiled {
namespace {

LoadOptions on(const std::string& device) {
  LoadOptions load;
  load.device = device;
  load.threads = 1;
  return load;
}

class EveryProgram : public ::testing::TestWithParam<std::tuple<std::string, Format>> {
 protected:
  EveryProgram()
      : settings_{std::get<1>(GetParam()), 12, 0, 3},
        program_(make_program(std::get<0>(GetParam()), settings_, 2)),
        compiled_(compile(program_, settings_)),
        plain_(compiled_) {}
  Settings settings_;
  Program program_;
  CompiledModel compiled_;
  PlainModel plain_;
};

TEST_P(EveryProgram, PredictsItsTargetsAndNotThoseOfTheCounterfactual) {
  for (const Prompt& prompt : program_.prompts) {
    const auto run = plain_.run(prompt.ids, prompt.target, prompt.contrast);
    EXPECT_GT(run.difference, 1.0);
    EXPECT_EQ(std::max_element(run.logits.begin(), run.logits.end()) - run.logits.begin(),
              prompt.target);
    ASSERT_EQ(prompt.ids.size(), prompt.counterfactual.size());
    const double other =
        plain_.run(prompt.counterfactual, prompt.target, prompt.contrast).difference;
    EXPECT_GT(std::fabs(other - run.difference), 1.0);
  }
}

TEST_P(EveryProgram, IsTheSameModelInTheEngine) {
  const Model model = compiled_.open(on("reference"));
  const Prompt& prompt = program_.prompts[0];
  PredictOptions options;
  options.top = program_.vocabulary;
  const std::vector<double> logits = plain_.run(prompt.ids, prompt.target, prompt.contrast).logits;
  for (const Prediction& p : model.predict(prompt.ids, options).predictions)
    EXPECT_NEAR(p.logit, logits[p.id], 1e-9);
}

TEST_P(EveryProgram, HasTheGradientsThatDifferencesShow) {
  const Prompt& prompt = program_.prompts[0];
  RunOptions options;
  options.gradients = true;
  const auto run = plain_.run(prompt.ids, prompt.target, prompt.contrast, options);
  for (const auto& [port, gradient] : run.gradient) {
    if (port == kInputPort) continue;
    constexpr double kStep = 1e-6;  // too small to pass the kink of a ReLU
    Rows change(gradient.size(), std::vector<double>(gradient[0].size()));
    double want = 0, size = 0;
    for (std::size_t s = 0; s < change.size(); ++s) {
      for (std::size_t i = 0; i < change[s].size(); ++i) {
        const double step =
            std::sin(1.0 + 7.1 * static_cast<double>(s) + 3.3 * static_cast<double>(i));
        change[s][i] = kStep * step;
        want += gradient[s][i] * step;
        size += std::fabs(gradient[s][i]);
      }
    }
    RunOptions moved;
    moved.port = &port;
    moved.change = &change;
    const double up = plain_.run(prompt.ids, prompt.target, prompt.contrast, moved).difference;
    for (auto& row : change) {
      for (double& x : row) x = -x;
    }
    const double down = plain_.run(prompt.ids, prompt.target, prompt.contrast, moved).difference;
    EXPECT_NEAR((up - down) / (2 * kStep), want, 1e-4 * (1 + size))
        << port.layer << "." << port.head << " " << unpack::to_string(port.branch);
  }
}

TEST_P(EveryProgram, IsFoundByThePresetBest) {
  const Model model = compiled_.open(on("cpu"));
  const std::vector<EdgeName> names = program_.edges();
  std::vector<double> sizes(names.size(), 0.0);
  for (const Prompt& prompt : program_.prompts) {
    Question question;
    question.options = preset_options("best");
    question.target.ids = {prompt.target};
    question.target.versus = std::vector<TokenId>{prompt.contrast};
    std::map<EdgeName, double> credit;
    double first = 0;
    const Writers& writers = model.writers();
    for (const EdgeCredit& e : model.prepare(prompt.ids).edge_credit(question)) {
      if (e.reader < 0) first += std::fabs(e.credit);
      credit[{writers.name(e.writer), e.reader < 0 ? "target" : writers.name(e.reader), e.branch}] =
          e.credit;
    }
    for (std::size_t i = 0; i < names.size(); ++i)
      sizes[i] += std::fabs(credit[names[i]]) / first / 2;
  }
  const Measures m = measure_edges(program_, sizes);
  EXPECT_EQ(m.auroc, 1.0);
  EXPECT_GE(m.smallest, 1e-3);
  EXPECT_LE(m.decoy, 0.05);
  EXPECT_LE(m.dead, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    Programs, EveryProgram,
    ::testing::Combine(::testing::ValuesIn(program_names()),
                       ::testing::Values(Format::gpt2, Format::llama)),
    [](const ::testing::TestParamInfo<std::tuple<std::string, Format>>& about) {
      std::string name =
          fmt::format("{}_{}", std::get<0>(about.param), to_string(std::get<1>(about.param)));
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST(Programs, SayWhichEdgesAreTrue) {
  const Program p = make_program("induction", {}, 1);
  EXPECT_EQ(p.truth({"A1.H0", "A2.H0", Branch::K}), Truth::yes);
  EXPECT_EQ(p.truth({"emb", "A2.H0", Branch::V}), Truth::yes);
  EXPECT_EQ(p.truth({"A0.H0", "A2.H0", Branch::K}), Truth::no);  // the decoy
  EXPECT_EQ(p.truth({"A1.H0", "A2.H0", Branch::V}), Truth::no);
  EXPECT_EQ(p.truth({"A2.H0", "target", Branch::none}), Truth::yes);
  const Program side = make_program("side-load", {}, 1);
  EXPECT_EQ(side.truth({"A1.H1", "A2.H0", Branch::V}), Truth::no);  // carried, read by nobody
  EXPECT_THROW(make_program("no such program", {}, 1), UsageError);
}

TEST(Measures, OfRankings) {
  EXPECT_EQ(auroc({3, 2}, {1, 0}), 1.0);
  EXPECT_EQ(auroc({1}, {1}), 0.5);
  EXPECT_EQ(auroc({0}, {1, 2}), 0.0);
  EXPECT_EQ(average_precision({3, 2}, {1}), 1.0);
  EXPECT_DOUBLE_EQ(average_precision({3, 1}, {2}), (1.0 + 2.0 / 3.0) / 2);
}

}  // namespace
}  // namespace unpack::experiments::compiled
