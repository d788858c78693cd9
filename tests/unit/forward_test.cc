// The forward pass against plain loops in double precision, alone and in batches, and the edges of
// what a prompt may be.
#include "forward/forward.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstdint>

#include "backend/rotary.h"
#include "unit/devices.h"
#include "unit/filter.h"
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
      RC_PRE(f.routing_margin > 10 * limit);  // otherwise rounding chooses the experts
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

// How far the logits of a prompt move, in double precision and row by row, when every weight moves
// by the last bit of a float: what float arithmetic cannot know of them. Norms of small vectors
// make it large.
double moved_by_the_last_bit(const testing::Tensors& tensors, const std::vector<TokenId>& prompt) {
  testing::Tensors near = tensors;
  std::uint32_t random = 1;
  for (auto& [name, values] : near.values) {
    for (float& x : values) {
      random = random * 1664525U + 1013904223U;
      x = std::nextafter(x, (random >> 30 & 1U) != 0 ? 1e30F : -1e30F);
    }
  }
  const std::vector<double>
      a = tensors.model("reference").prepare(prompt).cache("logits", 0).values,
      b = near.model("reference").prepare(prompt).cache("logits", 0).values;
  const std::size_t width = a.size() / prompt.size();
  double most = 0;
  for (std::size_t begin = 0; begin < a.size(); begin += width) {
    naive::Difference row;
    for (std::size_t i = begin; i < begin + width; ++i) row.see(b[i], a[i]);
    most = std::max(most, row.relative());
  }
  return most;
}

// Above 1: the last bit moves logits by less than a fifth of the limit.
double room_for_rounding(const std::string& device, double limit, const testing::Tensors& tensors,
                         const std::vector<TokenId>& prompt) {
  return device == "reference" ? 2 : limit / 5 / moved_by_the_last_bit(tensors, prompt);
}

TEST(ForwardPass, OfABatchIsThatOfItsPrompts) {
  for (const auto& [device, limit] : with_limits(1e-12, 1e-5)) {
    testing::Filter filter(1, 0.85);
    EXPECT_TRUE(rc::check(device, [&filter, device = device, limit = limit] {
      const testing::Shape shape = testing::draw_shape(2, 3, 6);
      const testing::Tensors tensors =
          testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000));
      const Model model = tensors.model(device, 2);
      std::vector<std::vector<TokenId>> prompts;
      for (int i = 0; i < 4; ++i) {
        prompts.push_back(testing::draw_prompt(7, shape.vocabulary));
        // Short and long prompts of some models are turned differently, and stay apart.
        if (!backend::same_rotary(model.config(), static_cast<int>(prompts[0].size()),
                                  static_cast<int>(prompts.back().size())))
          prompts.pop_back();
      }
      backend::Backend& backend = *engine::state_of(model)->backend;
      forward::ForwardOptions options;
      options.keep = *rc::gen::arbitrary<bool>();
      const forward::ForwardPass batch = forward::forward(backend, prompts, options);
      std::int64_t row = 0;
      for (const auto& prompt : prompts) {
        if (!filter.keeps(room_for_rounding(device, limit, tensors, prompt))) {
          row += static_cast<std::int64_t>(prompt.size());
          continue;
        }
        const forward::ForwardPass alone = forward::forward(backend, {prompt}, options);
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
    testing::Filter filter(1, 0.85);
    EXPECT_TRUE(rc::check(device, [&filter, device = device, limit = limit] {
      const testing::Shape shape = testing::draw_shape(2, 3, 6);
      const testing::Tensors tensors =
          testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000));
      const Model model = tensors.model(device);
      const auto ids = testing::draw_prompt(8, shape.vocabulary);
      RC_PRE(filter.keeps(room_for_rounding(device, limit, tensors, ids)));
      const int first = testing::draw_int(1, static_cast<int>(ids.size()) + 1);
      forward::KeyValueCache cache(*engine::state_of(model)->backend, static_cast<int>(ids.size()));
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
  for (const std::string& family : testing::kFamilies) {
    testing::Shape shape;
    shape.family = family;
    shape.window = 3;
    nlohmann::json config = nlohmann::json::parse(shape.config());
    for (const char* key : {"eos_token_id", "bos_token_id"})
      (family == "gemma3" ? config["text_config"] : config)[key] = nullptr;
    const Model model = testing::random_tensors_of(config.dump(), 8).model(device());
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

TEST_P(Generation, EndsAtTheEndOfTextTokenOfTheFamily) {
  for (const std::string& family : testing::kFamilies) {
    testing::Shape shape;
    shape.family = family;
    SamplingOptions options;
    options.max_tokens = 5;
    const std::vector<TokenId> ids = {3, 1};
    testing::Tensors tensors = testing::random_tensors_of(shape.config(), 8);
    const auto with_ends = [&](const nlohmann::json& ends) {
      nlohmann::json config = nlohmann::json::parse(shape.config());
      (family == "gemma3" ? config["text_config"] : config)["eos_token_id"] = ends;
      config["bos_token_id"] = nullptr;  // that of GPT-2 ends a text too
      tensors.config = config.dump();
      return tensors.model(device()).generate(ids, options);
    };
    const std::vector<TokenId> whole = with_ends(nullptr);
    ASSERT_EQ(whole.size(), 5U) << family;
    const auto before = [&](TokenId end) {
      return std::vector<TokenId>(whole.begin(), std::find(whole.begin(), whole.end(), end));
    };
    for (const TokenId end : whole) {
      EXPECT_EQ(with_ends(end), before(end)) << family;
      TokenId other = 0;
      while (std::find(whole.begin(), whole.end(), other) != whole.end()) ++other;
      EXPECT_EQ(with_ends({other, end}), before(end)) << family << ", one of several";
    }
  }
}

TEST_P(Generation, GoesOnRightWhereATextBecomesALongOne) {
  testing::Shape shape;
  shape.family = "phi3";
  shape.rope = 4;  // from 5 tokens on
  const Model model = testing::random_tensors_of(shape.config(), 3).model(device());
  std::vector<TokenId> ids = {3, 1, 4};
  SamplingOptions options;
  options.max_tokens = 5;
  for (const TokenId next : model.generate(ids, options)) {
    EXPECT_EQ(next, model.predict(ids).predictions.front().id) << "after " << ids.size();
    ids.push_back(next);
  }
  EXPECT_EQ(ids.size(), 8U);
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
