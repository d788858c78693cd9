// What a prepared prompt says that it holds, by which a server decides what it keeps.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "unit/random_model.h"
#include "unit/resident.h"
#include "unpack/model.h"
#include "unpack/prepared.h"

namespace unpack {
namespace {

double mib(const Prepared& prepared) { return static_cast<double>(prepared.bytes()) / (1 << 20); }

Question question_with(const Options& options) {
  Question question;
  question.target.ids = {1};
  question.options = options;
  question.paths.top = 1;
  return question;
}

// Within a third of what the process takes for it; once it was counted at twice its size, and the
// edges that questions leave behind not at all.
void expect_near(double said, double held, const std::string& what) {
  EXPECT_GT(held, 8) << what << ": too little to be told from what lies about";
  EXPECT_GT(said, held / 1.33) << what;
  EXPECT_LT(said, held * 1.33) << what;
}

TEST(PreparedMemory, IsWhatThePromptAndItsQuestionsHold) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps memory of its own";
#endif
  for (const char* family : {"gpt2", "llama"}) {
    testing::Shape shape;
    shape.family = family;
    shape.layers = 4;
    shape.heads = 8;
    shape.kv_heads = 4;
    shape.d_head = 16;
    shape.d_model = 128;
    shape.neurons = 512;
    shape.context = 290;
    const Model model = testing::random_tensors_of(shape.config(), 7).model("cpu", 2);
    std::vector<TokenId> ids;
    for (int i = 0; i < shape.context; ++i) ids.push_back((i * 5 + 2) % shape.vocabulary);
    const Options first = preset_options("paper");
    Options second = first;
    second.beta = 0.5;
    // What the model keeps from prompt to prompt is there before anything is measured.
    model.prepare(ids).trace(question_with(second));
    const double at_rest = testing::resident_mib();
    std::optional<Prepared> prepared = model.prepare(ids);
    const double before = testing::resident_mib(), prompt = mib(*prepared);
    expect_near(prompt, before - at_rest, std::string(family) + ", the prompt");
    prepared->trace(question_with(first));
    prepared->trace(question_with(second));
    expect_near(mib(*prepared) - prompt, testing::resident_mib() - before,
                std::string(family) + ", edges of two questions");
  }
}

}  // namespace
}  // namespace unpack
