// Ablated outputs against models whose weights were changed to the same effect, and against the
// other interventions.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "unit/devices.h"
#include "unit/random_model.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack {
namespace {

using testing::Shape;
using testing::Tensors;

class Ablations : public testing::OnEveryDevice {
 protected:
  const std::vector<TokenId> ids = {3, 1, 4, 1, 5};
  const std::vector<TokenId> other = {2, 7, 1, 8, 2};

  Tensors tensors(const std::string& family) const {
    Shape shape;
    shape.family = family;
    shape.layers = 3;
    return testing::random_tensors_of(shape.config(), 11);
  }
  // The columns of W_O that a head of 4 numbers writes through, or all of W_out, times `factor`.
  static void scale(Tensors& tensors, const std::string& name, bool inputs_first, int head,
                    float factor) {
    const auto found = std::find_if(tensors.values.begin(), tensors.values.end(),
                                    [&](const auto& entry) { return entry.first.ends_with(name); });
    ASSERT_NE(found, tensors.values.end()) << name;
    const auto& shape = tensors.shapes.at(found->first);
    for (std::int64_t i = 0; i < shape[0]; ++i) {
      for (std::int64_t j = 0; j < shape[1]; ++j) {
        const std::int64_t input = inputs_first ? i : j;
        if (head < 0 || input / 4 == head) found->second[i * shape[1] + j] *= factor;
      }
    }
  }
  InterventionResult change(const Model& model, const std::vector<std::string>& components,
                            Ablation ablation, double scale = 0) const {
    Intervention wanted;
    wanted.ablate = components;
    wanted.ablation = ablation;
    wanted.scale = scale;
    if (ablation == Ablation::resample) wanted.patch_from = other;
    return intervene(model, ids, wanted, target());
  }
  static Target target() { return {{2}, std::vector<TokenId>{5}, false, -1}; }
  double clean(const Model& model) const {
    Intervention nothing;
    nothing.ablate = {"MLP0"};
    nothing.scale = 1;
    return intervene(model, ids, nothing, target()).clean.target;
  }
};
UNPACK_ON_EVERY_DEVICE(Ablations);

TEST_P(Ablations, AZeroedOrScaledHeadIsAModelWithItsOutputWeightsZeroedOrScaled) {
  for (const std::string family : {"gpt2", "gpt_neox", "llama"}) {
    const char* const name = family == "gpt2"       ? "h.1.attn.c_proj.weight"
                             : family == "gpt_neox" ? "layers.1.attention.dense.weight"
                                                    : "layers.1.self_attn.o_proj.weight";
    for (const float factor : {0.0F, 2.0F, -1.0F}) {
      Tensors changed = tensors(family);
      const Model model = changed.model(load());
      scale(changed, name, family == "gpt2", 1, factor);
      const InterventionResult got = change(model, {"A1.H1"}, Ablation::zero, factor);
      EXPECT_NEAR(got.cut.target, clean(changed.model(load())), limit(1e-9, 2e-4)) << family;
      EXPECT_GT(std::fabs(got.cut.target - got.clean.target), 1e-3) << family;
    }
  }
}

TEST_P(Ablations, AZeroedMlpIsAModelWithItsOutputWeightsZeroed) {
  for (const std::string family : {"gpt2", "gpt_neox", "llama"}) {
    const char* const name = family == "gpt2"       ? "h.1.mlp.c_proj.weight"
                             : family == "gpt_neox" ? "layers.1.mlp.dense_4h_to_h.weight"
                                                    : "layers.1.mlp.down_proj.weight";
    Tensors changed = tensors(family);
    const Model model = changed.model(load());
    scale(changed, name, family == "gpt2", -1, 0);
    const InterventionResult got = change(model, {"MLP1"}, Ablation::zero);
    EXPECT_NEAR(got.cut.target, clean(changed.model(load())), limit(1e-9, 2e-4)) << family;
    EXPECT_GT(std::fabs(got.cut.target - got.clean.target), 1e-3) << family;
  }
}

TEST_P(Ablations, SeveralAtOnceAreAModelWithAllOfThemChanged) {
  Tensors changed = tensors("llama");
  const Model model = changed.model(load());
  scale(changed, "layers.0.self_attn.o_proj.weight", false, 0, 0);
  scale(changed, "layers.2.mlp.down_proj.weight", false, -1, 0);
  EXPECT_NEAR(change(model, {"A0.H0", "MLP2"}, Ablation::zero).cut.target,
              clean(changed.model(load())), limit(1e-9, 2e-4));
}

TEST_P(Ablations, AblatingEveryPositionOneByOneIsAblatingTheComponent) {
  const Model model = tensors("gpt2").model(load());
  for (const char* const component : {"A1.H0", "MLP0", "emb", "pos"}) {
    std::vector<std::string> nodes;
    for (std::size_t s = 0; s < ids.size(); ++s)
      nodes.push_back(fmt::format("{}@{}", component, s));
    for (const Ablation by : {Ablation::zero, Ablation::mean, Ablation::resample}) {
      EXPECT_NEAR(change(model, nodes, by).cut.nll, change(model, {component}, by).cut.nll,
                  limit(1e-9, 1e-5))
          << component;
    }
    nodes.pop_back();
    EXPECT_GT(std::fabs(change(model, nodes, Ablation::zero).cut.target -
                        change(model, {component}, Ablation::zero).cut.target),
              1e-4)
        << component << ": one position more must matter";
  }
}

TEST_P(Ablations, AZeroedEmbeddingIsTheOtherWayToZeroIt) {
  const Model model = tensors("llama").model(load());
  Intervention zero;
  zero.zero = {1};
  EXPECT_NEAR(change(model, {"emb@1"}, Ablation::zero).cut.target,
              intervene(model, ids, zero, target()).cut.target, limit(1e-9, 1e-5));
}

TEST_P(Ablations, AllWritersResampledIsTheOtherPrompt) {
  const Model model = tensors("gpt2").model(load());
  std::vector<std::string> all;
  for (int w = 0; w < model.writers().count(); ++w) all.push_back(model.writers().name(w));
  Intervention nothing;
  nothing.ablate = {"MLP0"};
  nothing.scale = 1;
  EXPECT_NEAR(change(model, all, Ablation::resample).cut.target,
              intervene(model, other, nothing, target()).clean.target, limit(1e-9, 2e-4));
}

// The mean over positions of an embedding, added up by hand at one position.
TEST_P(Ablations, TheMeanIsTheOneOverThePositionsOfThePrompt) {
  const Tensors weights = tensors("llama");
  const Model model = weights.model(load());
  const auto& table = weights.values.at("model.embed_tokens.weight");
  const std::size_t width = table.size() / 11;
  Tensors changed = weights;
  std::vector<float>& row = changed.values.at("model.embed_tokens.weight");
  for (std::size_t i = 0; i < width; ++i) {
    double sum = 0;
    for (const TokenId id : ids) sum += table[static_cast<std::size_t>(id) * width + i];
    row[4 * width + i] = static_cast<float>(sum / static_cast<double>(ids.size()));
  }
  // Token 4 stands at position 2 alone.
  if (!changed.values.contains("lm_head.weight")) GTEST_SKIP() << "tied";
  EXPECT_NEAR(change(model, {"emb@2"}, Ablation::mean).cut.target, clean(changed.model(load())),
              limit(1e-6, 2e-4));
}

TEST_P(Ablations, AScaleOfOneChangesNothingWhateverTheReplacement) {
  const Model model = tensors("gpt_neox").model(load());
  for (const Ablation by : {Ablation::zero, Ablation::mean, Ablation::resample}) {
    const InterventionResult got = change(model, {"A1.H1", "MLP0"}, by, 1);
    EXPECT_NEAR(got.cut.nll, got.clean.nll, limit(1e-9, 1e-4));
    ASSERT_EQ(got.clean.predictions.size(), 10U);
    EXPECT_EQ(got.clean.predictions[0].id, got.cut.predictions[0].id);
  }
}

// Keeping is ablating everything else, node by node, on every device and whatever the replacement.
TEST_P(Ablations, WhatIsKeptAloneIsWhatIsLeftWhenEveryOtherNodeIsAblated) {
  const Model model = tensors("gpt2").model(load());
  const std::vector<std::string> kept = {"A1.H1", "MLP0@2", "A0.H0@0", "emb@1"};
  std::vector<std::string> rest;
  for (int w = model.writers().terminals(); w < model.writers().count(); ++w) {
    const std::string name = model.writers().name(w);
    for (std::size_t s = 0; s < ids.size(); ++s) {
      const std::string node = fmt::format("{}@{}", name, s);
      if (name != "A1.H1" && std::find(kept.begin(), kept.end(), node) == kept.end())
        rest.push_back(node);
    }
  }
  for (const Ablation by : {Ablation::zero, Ablation::mean, Ablation::resample}) {
    const double by_hand = change(model, rest, by).cut.target;
    const NodesProof proof = prove_nodes(
        model, ids, kept, by, by == Ablation::resample ? other : std::vector<TokenId>{}, target());
    EXPECT_NEAR(proof.only.target, by_hand, limit(1e-9, 2e-4));
    EXPECT_NEAR(proof.without.target, change(model, kept, by).cut.target, limit(1e-9, 2e-4));
    EXPECT_NEAR(proof.clean.target, clean(model), limit(1e-9, 2e-4));
    ASSERT_TRUE(proof.faithfulness && proof.necessity);
    const double way = proof.clean.target - proof.none.target;
    EXPECT_NEAR(*proof.faithfulness * way, proof.only.target - proof.none.target, 1e-9);
    EXPECT_NEAR((1 - *proof.necessity) * way, proof.without.target - proof.none.target, 1e-9);
    EXPECT_GT(std::fabs(proof.only.target - proof.none.target), 1e-4);
  }
}

TEST(Ablation, RefusesWhatIsNotThere) {
  const Model model = testing::random_tensors_of(Shape().config(), 1).model("reference");
  Intervention change;
  change.ablate = {"A9.H0"};
  EXPECT_THROW(intervene(model, std::vector<TokenId>{1, 2}, change), InputError);
  change.ablate = {"A1.H0@7"};
  EXPECT_THROW(intervene(model, std::vector<TokenId>{1, 2}, change), InputError);
  change.ablate = {"A1.H0"};
  change.ablation = Ablation::resample;
  EXPECT_THROW(intervene(model, std::vector<TokenId>{1, 2}, change), UsageError);
  change.patch_from = {1, 2, 3};
  EXPECT_THROW(intervene(model, std::vector<TokenId>{1, 2}, change), InputError);
  change = {};
  change.ablate = {"MLP0"};
  change.scale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THROW(intervene(model, std::vector<TokenId>{1, 2}, change), UsageError);
}

}  // namespace
}  // namespace unpack
