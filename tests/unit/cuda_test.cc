// What is the CUDA backend's own: weights as stored, models larger than the device, falling back,
// and agreement with the CPU at true sizes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include "backend/cuda/device_weights.h"
#include "backend/cuda/emulated.h"
#include "backend/device_memory.h"
#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/random_model.h"
#include "unpack/bench.h"
#include "unpack/unpack.h"

namespace unpack {
namespace {

class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    if (before_) {
      setenv(name_, before_->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
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

TraceResult trace_on(const Model& model, int tokens) {
  Question question;
  question.paths.top = 20;
  question.target.ids = {1};
  return model.prepare(prompt_of(tokens, model.config().vocab_size)).trace(question);
}

void expect_agreement(const TraceResult& got, const TraceResult& want, const std::string& where) {
  EXPECT_LT(naive::difference(got.node_credit, want.node_credit), 1e-3) << where;
  EXPECT_LT(naive::difference(got.token_credit, want.token_credit), 1e-3) << where;
  EXPECT_NEAR(got.coverage.absolute_total / want.coverage.absolute_total, 1, 1e-3) << where;
  ASSERT_EQ(got.paths.size(), want.paths.size()) << where;
  for (std::size_t i = 0; i < got.paths.size(); ++i) {
    EXPECT_NEAR(std::fabs(got.paths[i].credit), std::fabs(want.paths[i].credit),
                1e-3 * std::fabs(want.paths[0].credit))
        << where << " path " << i;
  }
}

std::vector<std::string> cuda_devices() {
  std::vector<std::string> devices = testing::float_devices();
  devices.erase(devices.begin());  // the CPU
  return devices;
}

TEST(Cuda, KeepsHalvesAsTheyAreStored) {
  for (const char* family : {"gpt2", "gpt_neox", "llama", "qwen3"}) {
    testing::Shape shape;
    shape.family = family;
    for (const DType dtype : {DType::f16, DType::bf16}) {
      const TraceResult want = trace_on(Model::random(shape.config(), 3, on("cpu"), dtype), 6);
      for (const std::string& device : cuda_devices()) {
        expect_agreement(trace_on(Model::random(shape.config(), 3, on(device), dtype), 6), want,
                         fmt::format("{} {} {}", device, family, to_string(dtype)));
      }
    }
  }
}

// Several tiles of queries and heads, with and without a table of key scores; windows that leave
// out most sources of a tile.
TEST(Cuda, TakesLongerPromptsTileByTile) {
  for (const char* family : {"gpt2", "llama", "mistral", "gemma2"}) {
    testing::Shape shape;
    shape.family = family;
    shape.heads = 4;
    shape.kv_heads = 2;
    shape.d_model = 16;
    shape.context = 64;
    shape.window = 9;
    for (const std::size_t budget : {std::size_t{0}, RunContext{}.memory_budget}) {
      for (const Scores scores : {Scores::raw, Scores::centered}) {
        Question question;
        question.paths.top = 20;
        question.target.ids = {1};
        question.options.scores = scores;
        RunContext context;
        context.memory_budget = budget;
        const auto trace = [&](const std::string& device) {
          const Model model = Model::random(shape.config(), 6, on(device));
          return model.prepare(prompt_of(45, model.config().vocab_size), context)
              .trace(question, context);
        };
        const TraceResult want = trace("cpu");
        for (const std::string& device : cuda_devices()) {
          expect_agreement(
              trace(device), want,
              fmt::format("{} {} {} {}", device, family, budget > 0, scores == Scores::centered));
        }
      }
    }
  }
}

// Every width of heads whose scores are added up on the chip, alone and in groups, with and without
// a window, without a table of key scores; more positions and writers than a block has at a time.
class PairSums : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(PairSums, OnTheChipAgreeWithTheCpu) {
  const auto [family, width] = GetParam();
  testing::Shape shape;
  shape.family = family;
  shape.layers = 4;
  shape.heads = 8;
  shape.kv_heads = 4;
  shape.d_head = width;
  shape.d_model = 512;
  shape.neurons = 64;
  shape.vocabulary = 50;
  shape.context = 512;
  shape.window = 37;
  Question question;
  question.paths.top = 20;
  question.target.ids = {1};
  RunContext context;
  context.memory_budget = 0;
  for (const std::string& device : cuda_devices()) {
    const int tokens = device == "cuda" ? 300 : 11;
    const auto trace = [&, family = family, width = width](const std::string& on_device) {
      const Model model = Model::random(shape.config(), 6, on(on_device));
      return model.prepare(prompt_of(tokens, 50), context).trace(question, context);
    };
    const TraceResult want = trace("cpu"), got = trace(device);
    expect_agreement(got, want, fmt::format("{} {} {}", device, family, width));
    EXPECT_LT(naive::difference(got.node_credit, want.node_credit), 1e-4)
        << device << ' ' << family << ' ' << width;
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, PairSums,
                         ::testing::Combine(::testing::Values("gpt2", "llama", "mistral"),
                                            ::testing::Values(64, 80, 96, 128)));

TEST(Cuda, UploadsLayersAsTheyAreNeededWhereTheyDoNotFit) {
  testing::Shape shape;
  shape.layers = 5;
  for (const char* family : {"gpt2", "qwen3"}) {
    shape.family = family;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const std::string& device : cuda_devices()) {
        const TraceResult want = trace_on(Model::random(shape.config(), 4, on(device), dtype), 5);
        const Environment little("UNPACK_CUDA_MEMORY", "4000");
        const Model model = Model::random(shape.config(), 4, on(device), dtype);
        EXPECT_NE(engine::state_of(model)->backend->details().find("as they are needed"),
                  std::string::npos);
        const TraceResult got = trace_on(model, 5);
        EXPECT_EQ(got.node_credit, want.node_credit) << device << ' ' << family;
        EXPECT_EQ(trace_on(model, 5).node_credit, want.node_credit)
            << device << ' ' << family << " once more";
      }
    }
  }
}

TEST(Cuda, WantsItsMemoryInBytes) {
  testing::Shape shape;
  for (const char* text : {"4G", "-1", "much"}) {
    const Environment bound("UNPACK_CUDA_MEMORY", text);
    EXPECT_THROW(Model::random(shape.config(), 1, on("cuda-emulated")), InputError) << text;
  }
}

// An emulated device where a layer does not go up before other work begins. One that nothing runs
// beside gives up.
struct Watched {
  static inline std::atomic<int> pieces_of_a_layer = 0, pieces = 0, launches = 0, beside = 0,
                                 alone = 0;

  static bool wait_for(int milliseconds, const std::function<bool()>& reached) {
    for (int i = 0; i < milliseconds; ++i) {
      if (reached()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return reached();
  }
  static int upload(void* device, void* to, UnpackFill fill, const void* context,
                    std::size_t bytes) {
    const int piece = pieces++;
    if (pieces_of_a_layer > 0 && piece % pieces_of_a_layer == 0) {
      const int before = launches;
      ++(wait_for(700, [&] { return launches > before; }) ? beside : alone);
    }
    return backend::cuda::emulated_table()->to_device_beside(device, to, fill, context, bytes);
  }
  static int launch(void* device, int id, const void* parameters, std::size_t bytes,
                    std::int64_t count) {
    ++launches;
    return backend::cuda::emulated_table()->launch(device, id, parameters, bytes, count);
  }
  static std::shared_ptr<backend::cuda::Device> device() {
    static const UnpackDeviceTable table = [] {
      UnpackDeviceTable t = *backend::cuda::emulated_table();
      t.to_device_beside = upload;
      t.launch = launch;
      return t;
    }();
    return backend::cuda::Device::open(&table, nullptr, false);
  }
};

TEST(Cuda, UploadsTheNextLayerBesideTheWorkOnThisOne) {
  testing::Shape shape;
  shape.family = "llama";
  shape.layers = 5;
  const Model model = testing::random_tensors_of(shape.config(), 4).model("cpu");
  const std::shared_ptr<backend::cuda::Device> device = Watched::device();
  backend::cuda::DeviceWeights on_device(device, engine::state_of(model)->weights);
  (void)on_device.upload_once();
  Watched::pieces_of_a_layer = Watched::pieces / shape.layers;
  Watched::pieces = 0;
  on_device.keep_layers(2);
  const backend::Array x = device->zeros(4);
  const auto expect_uploads = [&](int layer, int how_many) {
    (void)on_device.layer(layer);
    EXPECT_TRUE(Watched::wait_for(5000,
                                  [&] {
                                    device->launch(backend::cuda::AddBias{backend::cuda::ptr(x),
                                                                          backend::cuda::ptr(x), 4,
                                                                          nullptr, nullptr},
                                                   4);
                                    return Watched::beside + Watched::alone == how_many;
                                  }))
        << "at layer " << layer << ": " << Watched::beside << " and " << Watched::alone;
  };
  expect_uploads(0, 2);  // itself and the next
  for (const int layer : {1, 2, 3}) expect_uploads(layer, layer + 2);
  expect_uploads(4, 6);  // another walk may begin at 0,
  expect_uploads(3, 6);  // but this one turns,
  expect_uploads(2, 8);  // which nobody could know
  expect_uploads(1, 9);
  expect_uploads(0, 10);
  EXPECT_EQ(Watched::beside, 8);
  EXPECT_EQ(Watched::alone, 2) << "the first, and that of the turn";
}

TEST(Cuda, TellsHowMuchOfTheDeviceIsInUse) {
  testing::Shape shape;
  shape.layers = 5;
  for (const std::string& device : cuda_devices()) {
    const Model model = Model::random(shape.config(), 1, on(device));
    backend::DeviceMemory* memory = engine::state_of(model)->backend->device_memory();
    ASSERT_NE(memory, nullptr) << device;
    (void)trace_on(model, 8);
    (void)memory->memory_use(true);
    const std::uint64_t at_rest = memory->memory_use().peak;
    (void)trace_on(model, 8);
    EXPECT_GT(memory->memory_use().peak, at_rest) << device;
    EXPECT_GE(memory->memory_use().held, memory->memory_use().peak) << device;
    const std::uint64_t before = memory->uploaded_bytes();
    (void)trace_on(model, 8);
    EXPECT_EQ(memory->uploaded_bytes(), before) << device << ": all layers are there";
    const std::uint64_t once = memory->upload_once();
    EXPECT_EQ(once, before) << device;
    memory->keep_layers(2);
    (void)trace_on(model, 8);
    EXPECT_GT(memory->uploaded_bytes(), before + 2 * once)
        << device << ": each pass over the layers takes them up again";
  }
}

TEST(Cuda, IsMeasuredWithLayersThatGoUpAsTheyAreNeeded) {
  testing::Shape shape;
  shape.layers = 4;
  BenchOptions options;
  options.shape = shape.config();
  options.tokens = {4};
  options.repeat = 1;
  options.prompts = 0;
  options.keep_layers = 2;
  options.load = on("cpu");
  EXPECT_THROW(run_bench(options), UsageError);
  for (const std::string& device : cuda_devices()) {
    options.load = on(device);
    const BenchResult result = run_bench(options);
    ASSERT_TRUE(result.lengths.at(0).streamed) << device;
    const BenchStreamed& streamed = *result.lengths[0].streamed;
    EXPECT_EQ(streamed.layers_kept, 2) << device;
    EXPECT_GT(streamed.seconds, 0) << device;
    EXPECT_GT(streamed.uploaded_gbytes, 0) << device;
    EXPECT_GT(streamed.upload_seconds, 0) << device;
    EXPECT_GT(result.lengths[0].device_peak_mib, 0) << device;
    EXPECT_GT(result.lengths[0].device_counted_mib, 0) << device;
    EXPECT_NE(to_json(result).find("\"device_peak_mib\""), std::string::npos);
    EXPECT_NE(to_json(result).find("\"device_counted_mib\""), std::string::npos);
  }
  options.keep_layers = 0;
  options.memory_only = true;
  EXPECT_TRUE(run_bench(options).lengths.at(0).rows.empty());
  EXPECT_GT(run_bench(options).lengths.at(0).device_peak_mib, 0);
  options.memory_only = false;
  for (const int layers : {1, 4}) {
    options.keep_layers = layers;
    options.load = on("cuda-emulated");
    EXPECT_THROW(run_bench(options), UsageError) << layers;
  }
}

TEST(Cuda, IsLeftOutInOneLineThatSaysWhy) {
  const Environment nowhere("UNPACK_CUDA_PLUGIN", "/nowhere/libunpack_cuda.so");
  testing::Shape shape;
  std::vector<std::string> lines;
  LoadOptions options = on("auto");
  options.notice = [&](const std::string& line) { lines.push_back(line); };
  EXPECT_EQ(Model::random(shape.config(), 1, options).program().device, "cpu");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("computing on the CPU"), std::string::npos) << lines[0];
  EXPECT_NE(
      lines[0].find(backend::cuda::driver_present() ? "/nowhere/libunpack_cuda.so" : "driver"),
      std::string::npos)
      << lines[0];
  EXPECT_EQ(lines[0].find('\n'), std::string::npos);
  EXPECT_THROW(Model::random(shape.config(), 1, on("cuda")), InputError);
}

TEST(Cuda, WantsNoWeightProducts) {
  testing::Shape shape;
  LoadOptions options = on("cuda");
  options.weight_products = true;
  EXPECT_THROW(Model::random(shape.config(), 1, options), UsageError);
  if (!testing::has_gpu()) return;
  std::vector<std::string> lines;
  options.device = "auto";
  options.notice = [&](const std::string& line) { lines.push_back(line); };
  EXPECT_EQ(Model::random(shape.config(), 1, options).program().device, "cuda");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("weight_products are left out"), std::string::npos) << lines[0];
}

// Otherwise the bench would time how fast work is queued.
TEST(Cuda, CanBeWaitedFor) {
  testing::Shape shape;
  for (const std::string& device : cuda_devices()) {
    const Model model = Model::random(shape.config(), 1, on(device));
    bool queued = false;
    EXPECT_NO_THROW(queued = engine::state_of(model)->backend->synchronize());
    EXPECT_TRUE(queued) << device;
  }
}

// On the GPU alone: emulation of these sizes takes minutes.
class CudaAtTrueSize : public ::testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(CudaAtTrueSize, AgreesWithTheCpu) {
  if (!testing::has_gpu()) GTEST_SKIP() << "no CUDA device here";
  const auto [shape, tokens] = GetParam();
  const TraceResult want = trace_on(Model::random(shape, 7, on("cpu")), tokens);
  const Model model = Model::random(shape, 7, on("cuda"));
  const TraceResult got = trace_on(model, tokens);
  expect_agreement(got, want, fmt::format("{} {}", shape, tokens));
  std::printf("%s, %d tokens: largest difference %.2e of the largest credit\n", shape, tokens,
              naive::difference(got.node_credit, want.node_credit));
  EXPECT_EQ(trace_on(model, tokens).node_credit, got.node_credit) << "another run gives other bits";
}

class PartsAtTrueSize : public ::testing::TestWithParam<std::tuple<DType, int>> {};

TEST_P(PartsAtTrueSize, AgreeWithSinglePrecision) {
  if (!testing::has_gpu()) GTEST_SKIP() << "no CUDA device here";
  const auto [dtype, tokens] = GetParam();
  LoadOptions load = on("cuda");
  const Model parts = Model::random("qwen3-0.6b", 7, load, dtype);
  load.exact_fp32 = true;
  const Model single = Model::random("qwen3-0.6b", 7, load, dtype);
  const TraceResult got = trace_on(parts, tokens), want = trace_on(single, tokens);
  const double apart = naive::difference(got.node_credit, want.node_credit);
  std::printf("%s, %d tokens: in parts %.2e of the largest credit apart\n",
              std::string(to_string(dtype)).c_str(), tokens, apart);
  EXPECT_LT(apart, 2e-5);
  EXPECT_EQ(trace_on(parts, tokens).node_credit, got.node_credit) << "another run, other bits";
}

INSTANTIATE_TEST_SUITE_P(Shapes, PartsAtTrueSize,
                         ::testing::Combine(::testing::Values(DType::bf16, DType::f16),
                                            ::testing::Values(16, 300, 1024)));

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAtTrueSize,
                         ::testing::Combine(::testing::Values("gpt2-small", "pythia-160m",
                                                              "qwen3-0.6b"),
                                            ::testing::Values(16, 300)),
                         [](const ::testing::TestParamInfo<CudaAtTrueSize::ParamType>& about) {
                           std::string name = fmt::format("{}_{}", std::get<0>(about.param),
                                                          std::get<1>(about.param));
                           for (char& x : name)
                             x = std::isalnum(static_cast<unsigned char>(x)) ? x : '_';
                           return name;
                         });

}  // namespace
}  // namespace unpack
