// Prompts that a device has no room for whole are traced layer by layer: the same answers, and
// memory that is counted beforehand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <optional>

#include "backend/cuda/emulated.h"
#include "backend/device_memory.h"
#include "engine/plan.h"
#include "engine/state.h"
#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/random_model.h"
#include "unpack/bench.h"
#include "unpack/reads.h"
#include "unpack/unpack.h"

namespace unpack {
namespace {

class ByLayer {
 public:
  ByLayer() { setenv("UNPACK_CUDA_BY_LAYER", "1", 1); }
  ~ByLayer() { unsetenv("UNPACK_CUDA_BY_LAYER"); }
  ByLayer(const ByLayer&) = delete;
  ByLayer& operator=(const ByLayer&) = delete;
};

std::vector<TokenId> prompt_of(int tokens, int vocabulary) {
  std::vector<TokenId> ids;
  for (int i = 0; i < tokens; ++i) ids.push_back((i * i * 7 + 3 * i + 1) % vocabulary);
  return ids;
}

LoadOptions on(const std::string& device) {
  LoadOptions options;
  options.device = device;
  return options;
}

std::vector<std::string> cuda_devices() {
  std::vector<std::string> devices = testing::float_devices();
  devices.erase(devices.begin());  // the CPU
  return devices;
}

Prepared prepared_by_layer(const Model& model, const std::vector<TokenId>& ids) {
  const ByLayer forced;
  Prepared prepared = model.prepare(ids);
  const bool is = engine::state_of(prepared)->decomposition->by_layer();
  EXPECT_EQ(is, !model.config().mixture());
  return prepared;
}

testing::Shape shape_of(const char* family) {
  testing::Shape shape;
  shape.family = family;
  shape.layers = 3;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.d_model = 16;
  shape.context = 64;
  shape.window = 9;
  return shape;
}

void expect_same(const TraceResult& got, const TraceResult& want, const std::string& where) {
  constexpr double kApart = 1e-4;  // of the largest
  EXPECT_LT(naive::difference(got.node_credit, want.node_credit), kApart) << where;
  EXPECT_LT(naive::difference(got.token_credit, want.token_credit), kApart) << where;
  EXPECT_NEAR(got.ill_conditioned, want.ill_conditioned, 1e-3) << where;
  EXPECT_NEAR(got.coverage.absolute_total, want.coverage.absolute_total,
              kApart * want.coverage.absolute_total)
      << where;
  EXPECT_NEAR(got.coverage.absolute_matching, want.coverage.absolute_matching,
              kApart * want.coverage.absolute_total)
      << where;
  ASSERT_EQ(got.paths.size(), want.paths.size()) << where;
  for (std::size_t i = 0; i < got.paths.size(); ++i) {
    EXPECT_NEAR(std::fabs(got.paths[i].credit), std::fabs(want.paths[i].credit),
                kApart * std::fabs(want.paths[0].credit))
        << where << " path " << i;
  }
  ASSERT_EQ(got.entries.size(), want.entries.size()) << where;
  EXPECT_LT(naive::difference(got.entries, want.entries), kApart) << where;
  for (const auto& [branch, sent] : want.incoming)
    EXPECT_LT(naive::difference(got.incoming.at(branch), sent), kApart) << where;
  for (const auto& [branch, ranked] : want.composition)
    EXPECT_EQ(got.composition.at(branch).size(), ranked.size()) << where;
}

using Asked = std::pair<std::string, std::function<void(Question&)>>;

TEST(ByLayerTest, GivesWhatTheWholePromptGives) {
  const std::vector<Asked> all = {
      {"target", [](Question&) {}},
      {"centered", [](Question& q) { q.options.scores = Scores::centered; }},
      {"gate", [](Question& q) { q.options.dispatch = Dispatch::gate; }},
      {"l2", [](Question& q) { q.options.mlp = MlpRule::l2; }},
      {"linearized", [](Question& q) { q.options.mlp = MlpRule::linearized; }},
      {"no queries",
       [](Question& q) {
         q.options.weights = {0.5, 0, 0.5};
       }},
      {"root",
       [](Question& q) {
         q.root = "A2.H1@-1";
         q.composition = true;
       }},
      {"root towards a target",
       [](Question& q) {
         q.root = "A1.H2@-2";
         q.options.reroot = Reroot::target;
       }},
      {"mlp", [](Question& q) { q.root = "MLP1@-1"; }},
      {"filters",
       [](Question& q) {
         q.paths.branch = Branch::K;
         q.paths.from = 1;
         q.paths.sign = 1;
       }},
      {"through", [](Question& q) { q.paths.through = "A0.H1"; }},
      {"tau", [](Question& q) { q.paths.tau = 1e-3; }},
      {"tokens along reading",
       [](Question& q) {
         q.options = default_options();
         q.paths.top = 0;
       }},
  };
  for (const char* family : {"gpt2", "gpt_neox", "llama", "mistral", "gemma2", "qwen3"}) {
    const testing::Shape shape = shape_of(family);
    for (const std::string& device : cuda_devices()) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Model model = Model::random(shape.config(), 6, on(device), dtype);
        for (const int tokens : {2, 19, 45}) {
          if (dtype == DType::bf16 && tokens != 19) continue;
          const auto ids = prompt_of(tokens, model.config().vocab_size);
          const Prepared whole = model.prepare(ids), long_one = prepared_by_layer(model, ids);
          for (const auto& [name, change] : all) {
            Question question;
            question.paths.top = 20;
            question.target.ids = {1};
            change(question);
            expect_same(long_one.trace(question), whole.trace(question),
                        fmt::format("{} {} {} {} tokens: {}", device, family, to_string(dtype),
                                    tokens, name));
          }
        }
      }
    }
  }
}

TEST(ByLayerTest, AnswersAFurtherQuestionAndRefusesWhatItDoesNotKeep) {
  const testing::Shape shape = shape_of("llama");
  const Model model = Model::random(shape.config(), 6, on("cuda-emulated"));
  const auto ids = prompt_of(17, model.config().vocab_size);
  const Prepared whole = model.prepare(ids), long_one = prepared_by_layer(model, ids);
  for (const int target : {1, 4}) {
    for (const double beta : {0.8, 0.3}) {
      Question question;
      question.paths.top = 5;
      question.target.ids = {target};
      question.options.beta = beta;
      expect_same(long_one.trace(question), whole.trace(question), fmt::format("beta {}", beta));
    }
  }
  const InteractionResult got = long_one.interactions(std::nullopt, false),
                          want = whole.interactions(std::nullopt, false);
  ASSERT_EQ(got.attention.size(), want.attention.size());
  for (std::size_t i = 0; i < want.attention.size(); ++i)
    EXPECT_NEAR(got.attention[i].score, want.attention[i].score, 1e-4) << i;
  const auto expect_refused = [](const std::function<void()>& ask) {
    try {
      ask();
      ADD_FAILURE() << "a long prompt has no such thing";
    } catch (const InputError& e) {
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    }
  };
  Question along;
  along.options = default_options();
  along.paths.top = 3;
  expect_refused([&] { (void)long_one.trace(along); });
  expect_refused([&] { (void)long_one.edge_credit(along); });
  along.root = "A1.H0@-1";
  expect_refused([&] { (void)node_reads(long_one, along); });
  Question entries;
  entries.paths.tau = 0.01;
  entries.paths.rule = TauRule::entry;
  expect_refused([&] { (void)long_one.trace(entries); });
  expect_refused([&] { (void)long_one.cache("pattern", 0); });
}

// A further question takes as long as the first: bench asks one, and its plan has what is made more
// than once.
TEST(ByLayerTest, IsMeasuredWithOneTrace) {
  const ByLayer forced;
  BenchOptions options;
  options.shape = shape_of("llama").config();
  options.tokens = {12};
  options.repeat = 1;
  options.prompts = 0;
  options.load.device = "cuda-emulated";
  const BenchResult result = run_bench(options);
  const BenchResult::Length& length = result.lengths.at(0);
  ASSERT_EQ(length.rows.size(), 3U);
  EXPECT_EQ(length.rows[1].name, "one-shot trace");
  EXPECT_EQ(length.plan.size(), 7U);
  for (const BenchPlan& part : length.plan) EXPECT_GT(part.gflop, 0) << part.what;
  EXPECT_GT(length.device_peak_mib, 0);
  EXPECT_GT(length.device_counted_mib + result.device_weights_mib, length.device_peak_mib);
}

// Mixtures are traced whole or not at all.
TEST(ByLayerTest, LeavesMixturesAsTheyAre) {
  testing::Shape shape = shape_of("mixtral");
  const Model model = Model::random(shape.config(), 6, on("cuda-emulated"));
  (void)prepared_by_layer(model, prompt_of(6, model.config().vocab_size));
}

// Without the work space of products, which the emulated device lacks.
TEST(ByLayerTest, TakesTheMemoryThatIsCounted) {
  testing::Shape shape = shape_of("llama");
  shape.d_head = 64;
  shape.d_model = 64;
  shape.neurons = 96;
  shape.context = 256;
  for (const int tokens : {96, 192}) {
    const Model model = Model::random(shape.config(), 6, on("cuda-emulated"));
    backend::DeviceMemory* memory = engine::state_of(model)->backend->device_memory();
    Question question;
    question.paths.top = 5;
    question.target.ids = {1};
    (void)prepared_by_layer(model, prompt_of(2, model.config().vocab_size)).trace(question);
    (void)memory->memory_use(true);
    const double before = static_cast<double>(memory->memory_use().peak);
    (void)prepared_by_layer(model, prompt_of(tokens, model.config().vocab_size)).trace(question);
    const double taken = static_cast<double>(memory->memory_use().peak) - before;
    const double counted =
        engine::by_layer_memory_cost(model.config(), model.writers(), tokens, memory->in_parts(),
                                     true, static_cast<double>(backend::cuda::kEmulatedTile)) -
        (32 << 20);
    EXPECT_GT(counted, taken) << tokens;
    EXPECT_LT(counted, 1.15 * taken) << tokens;
    RecordProperty(fmt::format("counted_over_taken_{}", tokens),
                   fmt::format("{:.3f}", counted / taken));
  }
}

}  // namespace
}  // namespace unpack
