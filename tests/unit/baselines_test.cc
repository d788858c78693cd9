// Baselines against stored values, and what must hold for them on any model.
#include "unpack/baselines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "experiments/token_rankings.h"
#include "test_paths.h"
#include "unit/devices.h"
#include "unit/naive/baselines.h"
#include "unit/naive/compare.h"
#include "unit/random_model.h"
#include "unpack/error.h"
#include "unpack/intervene.h"

namespace unpack {
namespace {

class Baselines : public testing::OnEveryDevice {};
UNPACK_ON_EVERY_DEVICE(Baselines);

// The target's logit less the mean of all of them, at the last position, with some embeddings
// zeroed.
double centred_logit(const Model& model, const std::vector<TokenId>& ids, TokenId target,
                     const std::vector<int>& zeroed) {
  const std::vector<double> logits = zeroed_logits(model, ids, {zeroed}, -1)[0];
  return logits[target] -
         std::accumulate(logits.begin(), logits.end(), 0.0) / static_cast<double>(logits.size());
}

// An RMSNorm has next to nothing to divide by where the way begins, at embeddings of zero: all of
// the change lies there, between two steps. LayerNorms of these shapes have a larger epsilon.
TEST_P(Baselines, IntegratedGradientsAddUpToWhatTheEmbeddingsChange) {
  for (const char* family : {"gpt2", "gpt_neox"}) {
    testing::Shape shape;
    shape.family = family;
    const Model model = testing::random_tensors_of(shape.config(), 5).model(device());
    const std::vector<TokenId> ids = {1, 2, 3, 4, 5};
    Target target;
    target.ids = {2};
    const std::vector<double> scores = gradient_scores(model, ids, target, 1, 2000);
    EXPECT_EQ(scores.size(), ids.size());
    const double change =
        centred_logit(model, ids, 2, {}) - centred_logit(model, ids, 2, {1, 2, 3, 4});
    // The first token stays as it is on the way, so that its part is none of the change.
    EXPECT_NEAR(std::accumulate(scores.begin() + 1, scores.end(), 0.0), change,
                0.01 * (1 + std::fabs(change)))
        << family;
  }
}

TEST_P(Baselines, GradientTimesInputIsTheSlopeAlongAnEmbedding) {
  for (const auto& [family, table] :
       {std::pair{"gpt2", "wte.weight"}, std::pair{"llama", "model.embed_tokens.weight"}}) {
    testing::Shape shape;
    shape.family = family;
    const std::vector<TokenId> ids = {1, 2, 3, 4, 5};
    Target target;
    target.ids = {2};
    const auto scaled = [&, name = std::string(table)](TokenId id, float factor) {
      testing::Tensors tensors = testing::random_tensors_of(shape.config(), 5);
      const auto known = std::find_if(tensors.values.begin(), tensors.values.end(),
                                      [&](const auto& t) { return t.first.ends_with(name); });
      const auto width = static_cast<std::size_t>(tensors.shapes.at(known->first)[1]);
      for (std::size_t i = 0; i < width; ++i)
        known->second[static_cast<std::size_t>(id) * width + i] *= factor;
      return centred_logit(tensors.model("reference"), ids, 2, {});
    };
    const std::vector<double> scores = gradient_scores(
        testing::random_tensors_of(shape.config(), 5).model(device()), ids, target, 0, 1);
    double largest = 0;
    for (const double x : scores) largest = std::max(largest, std::fabs(x));
    EXPECT_GT(largest, 1e-3);
    for (std::size_t s = 0; s < ids.size(); ++s) {
      constexpr float kStep = 1.0F / 512;
      const double slope = (scaled(ids[s], 1 + kStep) - scaled(ids[s], 1 - kStep)) /
                           (2 * static_cast<double>(kStep));
      EXPECT_NEAR(scores[s], slope, 0.01 * largest) << family << " " << s;
    }
  }
}

TEST_P(Baselines, GradientsOfMixturesAreNotKnown) {
  testing::Shape shape;
  shape.family = "mixtral";
  const Model model = testing::random_tensors_of(shape.config(), 5).model(device());
  Target target;
  target.ids = {2};
  EXPECT_FALSE(gradients_known(model.config()));
  EXPECT_THROW(gradient_scores(model, std::vector<TokenId>{1, 2}, target, 0, 1), InputError);
}

// Against the product of the layers' matrices, all of it.
TEST_P(Baselines, RolloutIsTheProductOfTheLayers) {
  testing::Shape shape;
  shape.layers = 3;
  const Model model = testing::random_tensors_of(shape.config(), 5).model(device());
  const Prepared prepared = model.prepare(std::vector<TokenId>{1, 2, 3, 4});
  constexpr std::size_t kLength = 4;
  std::vector<double> product(kLength * kLength, 0.0);
  for (std::size_t i = 0; i < kLength; ++i) product[i * kLength + i] = 1;
  for (int l = 0; l < shape.layers; ++l) {
    const CachedArray pattern = prepared.cache("pattern", l);
    std::vector<double> next(kLength * kLength, 0.0);
    for (std::size_t q = 0; q < kLength; ++q) {
      for (std::size_t s = 0; s < kLength; ++s) {
        double mixed = q == s ? 0.5 : 0.0;
        for (std::size_t h = 0; h < 2; ++h)
          mixed += 0.25 * pattern.values[(h * kLength + q) * kLength + s];
        for (std::size_t t = 0; t < kLength; ++t)
          next[q * kLength + t] += mixed * product[s * kLength + t];
      }
    }
    product = next;
  }
  const std::vector<double> got = experiments::attention_rollout(prepared);
  for (std::size_t t = 0; t < kLength; ++t)
    EXPECT_NEAR(got[t], product[(kLength - 1) * kLength + t], limit(1e-12, 1e-6));
}

TEST_P(Baselines, GiveTheStoredScoresOfEveryGoldenCase) {
  const std::filesystem::path golden = std::filesystem::path(UNPACK_TEST_DATA) / "golden";
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden)) {
    if (!std::filesystem::exists(entry.path() / "expected.json")) continue;
    ++cases;
    std::ifstream in(entry.path() / "expected.json");
    const nlohmann::json want = nlohmann::json::parse(in);
    const Model model = Model::load(entry.path().string(), load());
    const Prepared prepared = model.prepare(want["ids"].get<std::vector<TokenId>>());
    for (const char* kind : {"contrast", "single"}) {
      Target target;
      target.ids = want["target_ids"].get<std::vector<TokenId>>();
      if (std::string(kind) == "contrast" && !want["versus_ids"].is_null())
        target.versus = want["versus_ids"].get<std::vector<TokenId>>();
      for (const Method method : {Method::ifr, Method::attnlrp, Method::cplrp}) {
        const nlohmann::json& values = want["baselines"][kind][to_string(method)];
        if (values.is_null()) {  // not defined for this family
          EXPECT_THROW(baseline(prepared, target, method), InputError) << entry.path();
          continue;
        }
        const TraceResult result = baseline(prepared, target, method);
        const auto compare = [&](const std::vector<double>& got, const nlohmann::json& stored,
                                 const char* part) {
          const auto expected = stored.get<std::vector<double>>();
          ASSERT_EQ(got.size(), expected.size());
          double largest = 1e-12;
          for (const double x : expected) largest = std::max(largest, std::fabs(x));
          for (std::size_t i = 0; i < got.size(); ++i)
            EXPECT_NEAR(got[i], expected[i], limit(1e-6, 1e-3) * largest)
                << entry.path().filename() << " " << kind << " " << to_string(method) << part;
        };
        compare(result.token_credit, method == Method::ifr ? values : values["token"], " token");
        if (method == Method::ifr) continue;
        const BaselineScores scores = lrp_scores(prepared, result.target, method == Method::cplrp);
        if (!scores.position.empty()) compare(scores.position, values["position"], " position");
      }
    }
  }
  EXPECT_GE(cases, device().starts_with("cuda") ? 10 : 19);
}

// A random Llama has no bias anywhere, so that nothing of the seeded logit is lost on the way down.
TEST_P(Baselines, CpLrpConservesTheSeededLogitWithoutBiases) {
  const Model model =
      Model::random(R"({"model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 4, )"
                    R"("num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 48,
          "vocab_size": 50, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
          "tie_word_embeddings": false})",
                    5, load());
  const std::vector<TokenId> ids = {3, 17, 5, 41, 8};
  const Prepared prepared = model.prepare(ids);
  Target target;
  target.ids = {7};
  target.versus = std::vector<TokenId>{11};
  const TraceResult result = baseline(prepared, target, Method::cplrp);
  const double sum = std::accumulate(result.token_credit.begin(), result.token_credit.end(), 0.0);
  EXPECT_NEAR(sum, *result.target.logit_difference,
              limit(1e-9, 1e-4) * std::max(1.0, std::fabs(sum)));
}

TEST_P(Baselines, CpLrpConservesTheSeededLogitInEveryFamilyWithItsBiasesZero) {
  EXPECT_TRUE(rc::check(device(), [this] {
    const testing::Shape shape = testing::draw_shape(3, 3, 6);
    RC_PRE(shape.family != "gpt_oss");  // not defined there
    testing::Tensors tensors = testing::random_tensors_of(shape.config(), 7);
    for (auto& [name, values] : tensors.values) {
      if (name.ends_with("bias")) std::fill(values.begin(), values.end(), 0.0F);
    }
    const Model model = tensors.model(device());
    const Prepared prepared = model.prepare(testing::draw_prompt(6, shape.vocabulary));
    Target target;
    target.ids = {1};
    if (*rc::gen::arbitrary<bool>()) target.versus = std::vector<TokenId>{2, 5};
    const TraceResult result = baseline(prepared, target, Method::cplrp);
    const BaselineScores scores = lrp_scores(prepared, result.target, true);
    double sum = std::accumulate(scores.token.begin(), scores.token.end(), 0.0), size = 1;
    for (const double x : scores.token) size += std::fabs(x);
    for (const double x : scores.position) {
      sum += x;
      size += std::fabs(x);
    }
    RC_ASSERT(scores.position.empty() != (shape.family == "gpt2"));
    RC_ASSERT(std::fabs(sum - *result.target.logit_difference) <= limit(1e-9, 1e-4) * size);
  }));
}

TEST_P(Baselines, AreThoseOfPlainLoopsInEveryFamily) {
  EXPECT_TRUE(rc::check(device(), [this] {
    const testing::Shape shape = testing::draw_shape(3, 3, 6);
    RC_LOG(shape.config());
    const Model model =
        testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000)).model(device());
    const std::vector<TokenId> ids = testing::draw_prompt(7, shape.vocabulary);
    const naive::Forward f(testing::weights_of(model), ids);
    RC_PRE(f.routing_margin > limit(1e-9, 1e-3));
    const Prepared prepared = model.prepare(ids);
    const int position = testing::draw_int(0, f.S);
    RC_ASSERT(naive::difference(ifr_scores(prepared, position).token, naive::ifr(f, position)) <
              limit(1e-9, 1e-4));
    Target target;
    target.ids = {1, 5};
    target.position = position;
    if (*rc::gen::arbitrary<bool>()) target.versus = std::vector<TokenId>{2};
    for (const Method method : {Method::attnlrp, Method::cplrp}) {
      if (shape.family == "gpt_oss") {
        RC_ASSERT_THROWS_AS(baseline(prepared, target, method), InputError);
        continue;
      }
      const bool cp = method == Method::cplrp;
      const BaselineScores got =
          lrp_scores(prepared, baseline(prepared, target, method).target, cp);
      const naive::Lrp want(f, position, target.ids, target.versus, cp);
      RC_LOG(to_string(method));
      // What is left where larger parts cancel is held against their size.
      const double floor = limit(0, 0.01 * naive::size_of(f.logits[position]));
      RC_ASSERT(naive::difference(got.token, want.scores(0), floor) < limit(1e-9, 1e-3));
      RC_ASSERT(got.position.empty() != f.c.has_pos_writer());
      if (f.c.has_pos_writer())
        RC_ASSERT(naive::difference(got.position, want.scores(1), floor) < limit(1e-9, 1e-3));
    }
  }));
}

TEST_P(Baselines, IfrScoresAreSharesOfOne) {
  const Model model = Model::load(
      (std::filesystem::path(UNPACK_TEST_DATA) / "golden" / "tiny-neox").string(), load());
  const Prepared prepared = model.prepare(std::vector<TokenId>{1, 2, 3, 4});
  const BaselineScores scores = ifr_scores(prepared, 2);
  EXPECT_NEAR(std::accumulate(scores.token.begin(), scores.token.end(), 0.0), 1.0,
              limit(1e-12, 1e-5));
  EXPECT_EQ(scores.token[3], 0.0) << "what lies behind the target position cannot matter";
}

TEST(BaselineMethods, RandomScoresDependOnTheSeedAlone) {
  EXPECT_EQ(random_scores(6, 3), random_scores(6, 3));
  EXPECT_NE(random_scores(6, 3), random_scores(6, 4));
}

TEST(BaselineMethods, AnUnknownMethodIsAUsageError) {
  EXPECT_THROW(parse_method("lrp"), UsageError);
}

}  // namespace
}  // namespace unpack
