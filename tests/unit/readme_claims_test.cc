// What the documentation promises of the bundled models.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "test_paths.h"
#include "unit/naive/compare.h"
#include "unpack/unpack.h"

namespace unpack {
namespace {

// Sanitizers make the maths an order of magnitude slower; fewer prompts then show the same code.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int kPrompts = kSanitized ? 20 : 100;

Model pocket(const std::string& name) {
  LoadOptions options;
  options.device = "cpu";
  return Model::load(std::string(UNPACK_SOURCE_DIR) + "/models/" + name, options);
}

struct GiftPrompt {
  std::string text, subject, object;  // who gives, who gets
};

// "A and B went to the store. B gave a drink to": names, places, things and who comes first differ
// from prompt to prompt.
std::vector<GiftPrompt> gift_prompts(const Model& model, std::size_t count) {
  std::vector<std::string> names;
  for (const char* name :
       {"Mary",    "John",   "Tom",    "James",   "Anna",    "Peter",  "Paul",    "Sarah",
        "Alice",   "Jane",   "George", "Henry",   "William", "Robert", "Charles", "David",
        "Michael", "Daniel", "Simon",  "Richard", "Thomas",  "Edward", "Frank",   "Arthur"}) {
    // A name must be one token where a sentence starts and inside one.
    if (model.tokenizer().encode(name).size() == 1 &&
        model.tokenizer().encode(fmt::format(" {}", name)).size() == 1)
      names.push_back(name);
  }
  EXPECT_GE(names.size(), 12U);
  const std::vector<std::string> places = {"store", "park",   "school", "station",
                                           "house", "garden", "church"};
  const std::vector<std::string> things = {"drink", "book", "letter", "ring", "ball"};
  std::vector<GiftPrompt> out;
  for (std::size_t i = 0; out.size() < count; ++i) {
    GiftPrompt p;
    p.object = names[i % names.size()];
    p.subject = names[(i * 5 + 1 + i / names.size()) % names.size()];
    if (p.object == p.subject) continue;
    const bool object_first = i % 2 == 0;
    p.text = fmt::format("{} and {} went to the {}. {} gave a {} to",
                         object_first ? p.object : p.subject, object_first ? p.subject : p.object,
                         places[i % places.size()], p.subject, things[i % things.size()]);
    out.push_back(p);
  }
  return out;
}

// Positions of the tokens that read as the name.
std::vector<std::size_t> mentions(const TraceResult& trace, const std::string& name) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < trace.tokens.size(); ++i) {
    if (trace.tokens[i].text == name || trace.tokens[i].text == " " + name) out.push_back(i);
  }
  return out;
}

Question who_gets(const Model& model, const GiftPrompt& p) {
  Question question;
  question.target.ids = {model.single_token(" " + p.object)};
  question.target.versus = {{model.single_token(" " + p.subject)}};
  question.paths.top = 0;
  return question;
}

class IndirectObject : public ::testing::TestWithParam<const char*> {};

TEST_P(IndirectObject,
       GetsPositiveCreditAndTheSubjectIsHeldDownAtItsFirstMentionAndCountsAtItsSecond) {
  const Model model = pocket(GetParam());
  const std::vector<GiftPrompt> prompts = gift_prompts(model, kPrompts);
  std::vector<std::vector<TokenId>> ids;
  for (const GiftPrompt& p : prompts) ids.push_back(model.encode_prompt(p.text));
  const std::vector<Prepared> prepared = model.prepare(ids);
  int object_positive = 0, first_negative = 0, second_positive = 0;
  std::string odd;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const TraceResult trace = prepared[i].trace(who_gets(model, prompts[i]));
    const auto object = mentions(trace, prompts[i].object),
               subject = mentions(trace, prompts[i].subject);
    ASSERT_EQ(object.size(), 1U) << prompts[i].text;
    ASSERT_EQ(subject.size(), 2U) << prompts[i].text;
    const double io = trace.token_credit[object[0]], s1 = trace.token_credit[subject[0]],
                 s2 = trace.token_credit[subject[1]];
    object_positive += io > 0;
    first_negative += s1 < 0;
    second_positive += s2 > 0;
    if (!(io > 0 && s1 < 0 && s2 > 0))
      odd += fmt::format("{}: {:.3f} {:.3f} {:.3f}\n", prompts[i].text, io, s1, s2);
  }
  EXPECT_GE(object_positive, kPrompts * 95 / 100) << odd;
  EXPECT_GE(first_negative, kPrompts * 95 / 100) << odd;
  EXPECT_GE(second_positive, kPrompts * 95 / 100) << odd;
}

INSTANTIATE_TEST_SUITE_P(PocketModels, IndirectObject,
                         ::testing::Values("pocket-gpt2", "pocket-neox"),
                         [](const ::testing::TestParamInfo<const char*>& about) {
                           return std::string(about.param).substr(std::string("pocket-").size());
                         });

TEST(PocketLlama, GivesMaryTheMostCreditAndTheFirstJohnNegativeCredit) {
  const Model model = pocket("pocket-llama");
  const GiftPrompt p{"Mary and John went to the store. John gave a drink to", "John", "Mary"};
  const TraceResult trace = model.prepare(model.encode_prompt(p.text)).trace(who_gets(model, p));
  const auto mary = mentions(trace, "Mary"), john = mentions(trace, "John");
  ASSERT_EQ(mary.size(), 1U);
  ASSERT_EQ(john.size(), 2U);
  for (const double credit : trace.token_credit) EXPECT_LE(credit, trace.token_credit[mary[0]]);
  EXPECT_LT(trace.token_credit[john[0]], 0);
}

class PocketModel : public ::testing::TestWithParam<const char*> {};

TEST_P(PocketModel, HasTheLogitsThatAnotherProgramFound) {
  static const nlohmann::json expected = nlohmann::json::parse(
      std::ifstream(std::string(UNPACK_TEST_DATA) + "/golden/pocket_logits.json"));
  const Model model = pocket(GetParam());
  ASSERT_EQ(expected.at(GetParam()).size(), 3U);
  for (const auto& want : expected.at(GetParam())) {
    const std::string text = want.at("text");
    const auto ids = model.encode_prompt(text);
    EXPECT_EQ(ids, want.at("ids").get<std::vector<TokenId>>()) << text;
    PredictOptions options;
    options.top = model.config().vocab_size;
    const PredictResult got = model.predict(ids, options);
    const auto want_logits = want.at("logits_last").get<std::vector<double>>();
    std::vector<double> logits(want_logits.size(), NAN);
    for (const Prediction& prediction : got.predictions) logits[prediction.id] = prediction.logit;
    EXPECT_LE(naive::difference(logits, want_logits), 1e-4) << text;
    const auto top = want.at("top_ids").get<std::vector<TokenId>>();
    for (std::size_t i = 0; i < top.size(); ++i) EXPECT_EQ(got.predictions[i].id, top[i]) << text;
  }
}

TEST_P(PocketModel, Closes) {
  const Model model = pocket(GetParam());
  for (const ClosureCheck& check :
       model.prepare(model.encode_prompt("Mary and John went to the store. John gave a drink to"))
           .validate()) {
    EXPECT_TRUE(check.passed()) << check.name << ' ' << check.error;
  }
}

TEST_P(PocketModel, TakesPromptsFromOneTokenToTheFullContextAndNoMore) {
  const Model model = pocket(GetParam());
  Question question;
  question.paths.top = 5;
  const std::vector<TokenId> one = {790};
  const TraceResult single = model.prepare(one).trace(question);
  EXPECT_EQ(single.token_credit.size(), 1U);
  EXPECT_EQ(single.paths.size(), 5U);

  std::vector<TokenId> full(static_cast<std::size_t>(model.config().n_ctx));
  for (std::size_t i = 0; i < full.size(); ++i) full[i] = static_cast<TokenId>((i * 37) % 4000);
  const PredictResult predicted = model.predict(full);
  EXPECT_EQ(predicted.log_probability.size(), full.size());
  full.push_back(1);
  EXPECT_THROW(model.predict(full), InputError);
  EXPECT_THROW(model.prepare(full), InputError);
}

INSTANTIATE_TEST_SUITE_P(All, PocketModel,
                         ::testing::Values("pocket-gpt2", "pocket-neox", "pocket-llama"),
                         [](const ::testing::TestParamInfo<const char*>& about) {
                           return std::string(about.param).substr(std::string("pocket-").size());
                         });

TEST(PocketGpt2, TracesAPromptThatFillsItsContext) {
  if (kSanitized)
    GTEST_SKIP() << "takes minutes with sanitizers; ForwardPass.FillsTheContextAndRefusesMore does "
                    "the same on a smaller model";
  const Model model = pocket("pocket-gpt2");
  ASSERT_EQ(model.config().n_ctx, 512);
  std::vector<TokenId> ids(512);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>((i * 37) % 4000);
  Question question;
  question.paths.top = 5;
  const TraceResult trace = model.prepare(ids).trace(question);
  EXPECT_EQ(trace.token_credit.size(), 512U);
  EXPECT_EQ(trace.paths.size(), 5U);
  EXPECT_GT(trace.coverage.absolute_total, trace.coverage.absolute);
}

}  // namespace
}  // namespace unpack
