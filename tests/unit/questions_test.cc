// Questions on one prepared prompt: what is kept for the next one must not show in its answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/random_model.h"
#include "unpack/model.h"
#include "unpack/prepared.h"

namespace unpack {
namespace {

// A target at the end of the prompt finds its neurons' scores in a table, any other reads the
// weights; what comes after a target must change nothing.
TEST(Questions, OnATargetDoNotDependOnWhatFollowsIt) {
  for (const std::string& device : testing::float_devices()) {
    for (const char* family : {"gpt2", "gpt_neox", "llama", "qwen3"}) {
      testing::Shape shape;
      shape.family = family;
      shape.context = 24;
      const testing::Tensors tensors = testing::random_tensors_of(shape.config(), 11);
      std::vector<TokenId> longer;
      for (int i = 0; i < 14; ++i) longer.push_back((i * 5 + 2) % shape.vocabulary);
      const std::vector<TokenId> shorter(longer.begin(), longer.begin() + 10);
      const Model model = tensors.model(device, 2);
      for (const bool products : {false, true}) {
        if (products && device == "cuda") continue;  // they are for the CPU
        LoadOptions load;
        load.device = device;
        load.threads = 2;
        load.weight_products = products;
        const Model used = model.with(load);
        Question question;
        question.target.ids = {1};
        question.target.position = 9;
        question.options.beta = 2;
        question.paths.top = 0;
        const TraceResult a = used.prepare(shorter).trace(question),
                          b = used.prepare(longer).trace(question);
        const std::vector<double> head(b.token_credit.begin(), b.token_credit.begin() + 10);
        EXPECT_LT(naive::difference(a.token_credit, head), 1e-4)
            << device << ' ' << family << (products ? " with products" : "");
        EXPECT_NEAR(a.coverage.absolute_total / b.coverage.absolute_total, 1, 1e-4)
            << device << ' ' << family;
      }
    }
  }
}

// A root in the last MLP has sums and edges made that targets do without.
TEST(Questions, OnTargetsHaveTheSameBitsAfterARootInTheLastMlp) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const char* preset : {"paper", "best"}) {
      testing::Shape shape;
      shape.family = family;
      const testing::Tensors tensors = testing::random_tensors_of(shape.config(), 12);
      const std::vector<TokenId> ids = {1, 4, 2, 0, 3, 6};
      const Model model = tensors.model("cpu", 2);
      Question target;
      target.options = preset_options(preset);
      target.target.position = 3;
      Question root = target;
      root.root = "MLP1@4";
      const Prepared fresh = model.prepare(ids), used = model.prepare(ids);
      const TraceResult first = used.trace(root);
      EXPECT_EQ(used.trace(target).node_credit, fresh.trace(target).node_credit) << preset;
      EXPECT_EQ(fresh.trace(root).node_credit, first.node_credit) << preset;
      const TraceResult again = fresh.trace(target), plain = model.prepare(ids).trace(target);
      EXPECT_EQ(again.coverage.absolute_total, plain.coverage.absolute_total) << preset;
      const Model reference = tensors.model("reference");
      EXPECT_LT(
          naive::difference(first.token_credit, reference.prepare(ids).trace(root).token_credit),
          1e-4)
          << family << ' ' << preset;
    }
  }
}

// What one question leaves behind for the next must not show in it.
TEST(Questions, AreAnsweredAlikeInAnyOrder) {
  for (const std::string& device : testing::float_devices()) {
    testing::Shape shape;
    const Model model = testing::random_tensors_of(shape.config(), 3).model(device, 2);
    const std::vector<TokenId> ids = {1, 4, 2, 0, 3};
    std::vector<Question> questions;
    for (const double beta : {0.2, 0.8, 2.0}) {
      for (const TokenId target : {0, 2}) {
        for (const Reroot reroot : {Reroot::output, Reroot::target}) {
          Question question;
          question.target.ids = {target};
          question.target.position = target == 0 ? 4 : 2;
          question.options.beta = beta;
          question.options.reroot = reroot;
          if (reroot == Reroot::target)
            question.root = "A1.H0@" + std::to_string(question.target.position);
          questions.push_back(question);
        }
      }
    }
    const Prepared prepared = model.prepare(ids);
    for (int round = 0; round < 2; ++round) {
      for (const Question& question : questions) {
        EXPECT_EQ(prepared.trace(question).token_credit,
                  model.prepare(ids).trace(question).token_credit)
            << device << " beta " << question.options.beta;
      }
      std::reverse(questions.begin(), questions.end());
    }
  }
}

}  // namespace
}  // namespace unpack
