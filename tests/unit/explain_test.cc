// A trace in words: what the sentences say must be in the numbers.
#include "unpack/explain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "test_paths.h"
#include "unit/random_model.h"
#include "unpack/error.h"
#include "unpack/inspect.h"

namespace unpack {
namespace {

const char kMary[] = "Mary and John went to the store. John gave a drink to";

class InWords : public ::testing::Test {
 protected:
  const Model model = Model::load(
      (std::filesystem::path(UNPACK_TEST_DATA).parent_path() / "models/pocket-gpt2").string());
  const Prepared prepared = model.prepare(model.encode_prompt(kMary));
  Question question(const std::string& target, const std::string& versus) const {
    Question q;
    q.target.ids = {model.single_token(target)};
    q.target.versus = std::vector<TokenId>{model.single_token(versus)};
    q.paths.top = 0;
    return q;
  }
};

TEST_F(InWords, TheNameMoverCopiesMaryAndSaysWhyItLooksThere) {
  const Question asked = question(" Mary", " John");
  const std::vector<Sentence> said = explain(prepared, asked, prepared.trace(asked), 3);
  ASSERT_EQ(said.size(), 3U);
  EXPECT_EQ(to_string(model.writers(), said[0].node), "A5.H3@13");
  EXPECT_NE(said[0].text.find("looks 83% at Mary and copies it (V)"), std::string::npos)
      << said[0].text;
  EXPECT_NE(said[0].text.find("because A1.H1 at Mary feeds its keys (K)"), std::string::npos)
      << said[0].text;
  EXPECT_GE(std::abs(said[0].credit), std::abs(said[1].credit));
}

TEST_F(InWords, ARootComesFirstAndHasNoCreditOfItsOwn) {
  Question asked = question(" Mary", " John");
  asked.root = "MLP3@5";
  const std::vector<Sentence> said = explain(prepared, asked, prepared.trace(asked), 1);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(to_string(model.writers(), said[0].node), "MLP3@5");
  EXPECT_EQ(said[0].text.find("credit"), std::string::npos) << said[0].text;
  EXPECT_EQ(said[0].text.find("later readers"), std::string::npos)
      << "nothing was asked of them: " << said[0].text;
}

TEST_F(InWords, ANodeByItselfIsToldAsAmongTheOthers) {
  const Question asked = question(" Mary", " John");
  const TraceResult trace = prepared.trace(asked);
  for (const Sentence& sentence : explain(prepared, asked, trace, 6)) {
    const Sentence alone = explain_node(prepared, asked, trace, sentence.node);
    EXPECT_EQ(alone.text, sentence.text);
    EXPECT_EQ(alone.credit, sentence.credit);
  }
}

// The effects on two tokens differ by the writer's direct credit for one against the other.
TEST_F(InWords, WhatANodeWritesIsItsDirectCredit) {
  const int p = prepared.length() - 1;
  const Writing written = writing(prepared, parse_node(model.writers(), "A5.H3@-1", p + 1), 8192);
  const auto effect = [&](const std::string& text) {
    for (const auto* list : {&written.promoted, &written.lowered}) {
      for (const TokenEffect& e : *list) {
        if (e.text == text) return e.logit;
      }
    }
    ADD_FAILURE() << text;
    return 0.0;
  };
  const TraceResult trace = prepared.trace(question(" Mary", " John"));
  const double direct = trace.importance[model.writers().parse("A5.H3")];
  EXPECT_NEAR(effect(" Mary") - effect(" John"), direct, 1e-3 * std::abs(direct));
  ASSERT_GE(written.promoted.size(), 2U);
  EXPECT_GE(written.promoted[0].logit, written.promoted[1].logit);
  EXPECT_EQ(written.promoted[0].text, " Mary");
}

TEST_F(InWords, TheNeuronsOfAnMlpSpeakForThemselves) {
  const Node node = parse_node(model.writers(), "MLP2@-1", prepared.length());
  const Writing written = writing(prepared, node, 1, {3, 7});
  ASSERT_EQ(written.neurons.size(), 2U);
  EXPECT_EQ(written.neurons[1].neuron, 7);
  EXPECT_THROW(writing(prepared, node, 1, {model.config().layer(2).n_neurons}), InputError);
  EXPECT_THROW(writing(prepared, parse_node(model.writers(), "A2.H0@0", prepared.length()), 1, {0}),
               InputError);
}

TEST_F(InWords, TheLensEndsWithTheModelsOwnPrediction) {
  const TokenId mary = model.single_token(" Mary");
  const auto layers = lens(prepared, mary);
  ASSERT_EQ(layers.size(), 9U);
  const PredictResult own = model.predict(prepared.ids());
  EXPECT_EQ(layers.back().back().top.id, own.predictions[0].id);
  EXPECT_NEAR(layers.back().back().target, own.predictions[0].probability, 1e-5);
  PredictOptions options;
  options.lens = true;
  options.position = 4;
  const PredictResult fourth = model.predict(prepared.ids(), options);
  for (std::size_t l = 0; l < layers.size(); ++l)
    EXPECT_EQ(layers[l][4].top.id, fourth.lens[l][0].id) << l;
}

TEST_F(InWords, BothSpellingsOfATokenAreSuggested) {
  const std::vector<Prediction> found = suggest(prepared, -1, "John", 8);
  ASSERT_GE(found.size(), 2U);
  EXPECT_EQ(found[0].text, " John");
  EXPECT_EQ(found[1].text, "John");
  EXPECT_GT(found[0].probability, found[1].probability);
  EXPECT_EQ(suggest(prepared, -1, "", 3).front().text, " Mary");
  EXPECT_TRUE(suggest(prepared, -1, "no token at all", 3).empty());
}

}  // namespace
}  // namespace unpack
