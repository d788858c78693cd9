// The forward pass against plain loops in double precision, alone and in batches, and the edges of
// what a prompt may be.
#include "forward/forward.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/naive/forward.h"
#include "unit/random_model.h"

namespace unpack {
namespace {

std::vector<std::pair<std::string, double>> with_limits(double in_double, double in_float) {
  std::vector<std::pair<std::string, double>> devices = {{"reference", in_double}};
  for (const std::string& device : testing::float_devices()) devices.emplace_back(device, in_float);
  return devices;
}

TEST(ForwardPass, IsThatOfPlainLoopsForEveryFamily) {
  for (const auto& [device, limit] : with_limits(1e-11, 2e-5)) {
    EXPECT_TRUE(rc::check(device, [device = device, limit = limit] {
      testing::Shape shape = testing::draw_shape(3, 4, 9);
      shape.activation = *rc::gen::element<std::string>("gelu", "gelu_new", "relu", "silu");
      const auto ids = testing::draw_prompt(8, shape.vocabulary);
      const Model model =
          testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000)).model(device);
      RC_LOG(shape.config());
      const naive::Forward f(testing::weights_of(model), ids);
      const Prepared prepared = model.prepare(ids);
      naive::Difference logits, pattern, stream;
      const std::vector<double> got = prepared.cache("logits", 0).values;
      RC_ASSERT(got.size() == ids.size() * static_cast<std::size_t>(shape.vocabulary));
      for (std::size_t i = 0; i < got.size(); ++i)
        logits.see(got[i], f.logits[i / shape.vocabulary][i % shape.vocabulary]);
      RC_ASSERT(logits.relative() < limit);
      const std::vector<double> alpha = prepared.cache("pattern", shape.layers - 1).values;
      for (int h = 0; h < shape.heads; ++h) {
        for (int q = 0; q < f.S; ++q) {
          for (int s = 0; s <= q; ++s)
            pattern.see(alpha[(h * f.S + q) * f.S + s], f.layers.back().alpha[h][q][s]);
        }
      }
      RC_ASSERT(pattern.relative() < limit * 10);
      const std::vector<double> x = prepared.cache("resid_post", shape.layers - 1).values;
      for (std::size_t i = 0; i < x.size(); ++i)
        stream.see(x[i], f.x_final[i / f.c.d_model][i % f.c.d_model]);
      RC_ASSERT(stream.relative() < limit);
    }));
  }
}

TEST(ForwardPass, OfABatchIsThatOfItsPrompts) {
  for (const auto& [device, limit] : with_limits(1e-12, 1e-5)) {
    EXPECT_TRUE(rc::check(device, [device = device, limit = limit] {
      const testing::Shape shape = testing::draw_shape(2, 3, 6);
      const Model model =
          testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000))
              .model(device, 2);
      std::vector<std::vector<TokenId>> prompts;
      for (int i = 0; i < 4; ++i) prompts.push_back(testing::draw_prompt(7, shape.vocabulary));
      Backend& backend = *model.state()->backend;
      ForwardOptions options;
      options.keep = *rc::gen::arbitrary<bool>();
      const ForwardTrace batch = forward(backend, prompts, options);
      std::int64_t row = 0;
      for (const auto& prompt : prompts) {
        const ForwardTrace alone = forward(backend, {prompt}, options);
        for (std::size_t s = 0; s < prompt.size(); ++s, ++row) {
          std::vector<double> a, b;
          backend.logits(batch.x_final, std::vector<std::int64_t>{row}, a);
          backend.logits(alone.x_final, std::vector<std::int64_t>{static_cast<std::int64_t>(s)}, b);
          RC_ASSERT(naive::difference(a, b) < limit);
        }
      }
    }));
  }
}

TEST(ForwardPass, StepByStepIsThatOfTheWholePrompt) {
  for (const auto& [device, limit] : with_limits(1e-12, 1e-5)) {
    EXPECT_TRUE(rc::check(device, [device = device, limit = limit] {
      const testing::Shape shape = testing::draw_shape(2, 3, 6);
      const Model model =
          testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000)).model(device);
      const auto ids = testing::draw_prompt(8, shape.vocabulary);
      const int first = testing::draw_int(1, static_cast<int>(ids.size()) + 1);
      KeyValueCache cache(*model.state()->backend, static_cast<int>(ids.size()));
      std::vector<double> logits = cache.step(std::span(ids).first(first));
      for (std::size_t i = first; i < ids.size(); ++i)
        logits = cache.step(std::span(ids).subspan(i, 1));
      const std::vector<double> all = model.prepare(ids).cache("logits", 0).values;
      RC_ASSERT(naive::difference(
                    logits, std::vector<double>(all.end() - shape.vocabulary, all.end())) < limit);
    }));
  }
}

class Generation : public testing::OnEveryDevice {};
UNPACK_ON_EVERY_DEVICE(Generation);

TEST_P(Generation, TakesTheLikeliestTokenOfEveryLongerPrompt) {
  for (const char* family : {"gpt2", "gpt_neox", "llama", "qwen3"}) {
    testing::Shape shape;
    shape.family = family;
    const Model model = testing::random_tensors_of(shape.config(), 8).model(device());
    std::vector<TokenId> ids = {3, 1};
    SamplingOptions options;
    options.max_tokens = 5;
    const std::vector<TokenId> made = model.generate(ids, options);
    ASSERT_EQ(made.size(), 5U);
    for (const TokenId next : made) {
      const std::vector<double> all = model.prepare(ids).cache("logits", 0).values;
      EXPECT_EQ(next, std::max_element(all.end() - shape.vocabulary, all.end()) -
                          (all.end() - shape.vocabulary))
          << family << " after " << ids.size();
      ids.push_back(next);
    }
  }
}

TEST(ForwardPass, FillsTheContextAndRefusesMore) {
  testing::Shape shape;
  shape.context = 64;
  shape.d_head = 2;
  for (const std::string& device : testing::float_devices()) {
    const Model model = testing::random_tensors_of(shape.config(), 1).model(device, 2);
    std::vector<TokenId> ids(64);
    for (int i = 0; i < 64; ++i) ids[i] = (i * 5) % shape.vocabulary;
    Question question;
    question.target.ids = {1};
    question.paths.top = 5;
    const TraceResult full = model.prepare(ids).trace(question);
    EXPECT_EQ(full.paths.size(), 5U);
    EXPECT_EQ(full.token_credit.size(), 64U);
    ids.push_back(1);
    EXPECT_THROW(model.prepare(ids), InputError);
    EXPECT_THROW(model.predict(ids), InputError);
  }
}

TEST(ForwardPass, RefusesPromptsThatAreNone) {
  testing::Shape shape;
  const Model model = testing::random_tensors_of(shape.config(), 1).model("cpu");
  EXPECT_THROW(model.prepare(std::vector<TokenId>{}), InputError);
  EXPECT_THROW(model.prepare(std::vector<TokenId>{shape.vocabulary}), InputError);
  EXPECT_THROW(model.prepare(std::vector<TokenId>{-1}), InputError);
  EXPECT_NO_THROW(model.prepare(std::vector<TokenId>{shape.vocabulary - 1}));
}

}  // namespace
}  // namespace unpack
