// What the writers and the constants add up to is what the model formed.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/naive/recursion.h"
#include "unit/random_model.h"

namespace unpack {
namespace {

class Closure : public testing::OnEveryDevice {};
UNPACK_ON_EVERY_DEVICE(Closure);

TEST_P(Closure, HoldsOnRandomModelsOfEveryFamily) {
  EXPECT_TRUE(rc::check(device(), [this] {
    const testing::Shape shape = testing::draw_shape(3, 4, 9);
    const auto ids = testing::draw_prompt(8, shape.vocabulary);
    const Model model =
        testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000)).model(device());
    RC_LOG(shape.config());
    const std::vector<ClosureCheck> checks = model.prepare(ids).validate();
    RC_ASSERT(checks.size() == 6U);
    for (const ClosureCheck& check : checks) {
      RC_LOG(fmt::format("{} {}", check.name, check.error));
      RC_ASSERT(check.passed());
    }
  }));
}

TEST_P(Closure, FailsWhereAWriterIsWrong) {
  // The same prompt with one writer's vector spoilt: the residual sums and what is read from them
  // no longer close.
  testing::Shape shape;
  shape.family = "llama";
  const Model model = testing::random_tensors_of(shape.config(), 3).model(device());
  const Prepared prepared = model.prepare(std::vector<TokenId>{1, 2, 3});
  for (const ClosureCheck& check : prepared.validate()) EXPECT_TRUE(check.passed()) << check.name;
  backend::Array vectors = engine::state_of(prepared)->decomposition->writer_vectors();
  engine::state_of(prepared)->backend().upload(vectors, 0, std::vector<double>(4, 9.0));
  const std::vector<ClosureCheck> checks = prepared.validate();
  EXPECT_FALSE(checks[0].passed()) << checks[0].name << ' ' << checks[0].error;
}

TEST_P(Closure, OfImportancesIsTheLogitDifference) {
  // Without biases and with RMSNorm nothing is lost between the writers and the logits.
  EXPECT_TRUE(rc::check(device(), [this] {
    testing::Shape shape = testing::draw_shape(3, 3, 6);
    shape.family = "llama";
    shape.biases = false;
    const auto ids = testing::draw_prompt(6, shape.vocabulary);
    const Model model =
        testing::random_tensors_of(shape.config(), testing::draw_int(0, 1'000'000)).model(device());
    Question question;
    question.target = testing::draw_target(static_cast<int>(ids.size()), shape.vocabulary);
    const TraceResult got = model.prepare(ids).trace(question);
    double sum = 0, size = 0;
    for (const double x : got.importance) sum += x, size += std::fabs(x);
    const double want =
        question.target.raw ? got.target.logit : got.target.logit_difference.value();
    RC_ASSERT(std::fabs(sum - want) <= limit(1e-10, 1e-5) * size);
  }));
}

}  // namespace
}  // namespace unpack
