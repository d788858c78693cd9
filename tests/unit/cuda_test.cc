// What is the CUDA backend's own: weights as stored, models larger than the device, falling back, and agreement with the CPU at true sizes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "backend/queued_work.h"
#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/random_model.h"
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
    EXPECT_NEAR(std::fabs(got.paths[i].credit), std::fabs(want.paths[i].credit), 1e-3 * std::fabs(want.paths[0].credit)) << where << " path " << i;
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
        expect_agreement(trace_on(Model::random(shape.config(), 3, on(device), dtype), 6), want, fmt::format("{} {} {}", device, family, to_string(dtype)));
      }
    }
  }
}

TEST(Cuda, UploadsLayersAsTheyAreNeededWhereTheyDoNotFit) {
  testing::Shape shape;
  shape.layers = 5;
  for (const char* family : {"gpt2", "qwen3"}) {
    shape.family = family;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const TraceResult want = trace_on(Model::random(shape.config(), 4, on("cuda-emulated"), dtype), 5);
      const Environment little("UNPACK_EMULATED_MEMORY", "4000");
      const Model model = Model::random(shape.config(), 4, on("cuda-emulated"), dtype);
      EXPECT_NE(model.state()->backend->details().find("as they are needed"), std::string::npos);
      const TraceResult got = trace_on(model, 5);
      EXPECT_EQ(got.node_credit, want.node_credit) << family;
      EXPECT_EQ(trace_on(model, 5).node_credit, want.node_credit) << family << " once more";
    }
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
  EXPECT_NE(lines[0].find(cuda::driver_present() ? "/nowhere/libunpack_cuda.so" : "driver"), std::string::npos) << lines[0];
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
  EXPECT_NE(lines[0].find("--weight-products is left out"), std::string::npos) << lines[0];
}

// Otherwise the bench would time how fast work is queued.
TEST(Cuda, CanBeWaitedFor) {
  testing::Shape shape;
  for (const std::string& device : cuda_devices()) {
    const Model model = Model::random(shape.config(), 1, on(device));
    auto* queued = dynamic_cast<QueuedWork*>(model.state()->backend.get());
    ASSERT_NE(queued, nullptr) << device;
    EXPECT_NO_THROW(queued->synchronize());
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
  std::printf("%s, %d tokens: largest difference %.2e of the largest credit\n", shape, tokens, naive::difference(got.node_credit, want.node_credit));
  EXPECT_EQ(trace_on(model, tokens).node_credit, got.node_credit) << "another run gives other bits";
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaAtTrueSize, ::testing::Combine(::testing::Values("gpt2-small", "pythia-160m", "qwen3-0.6b"), ::testing::Values(16, 300)),
                         [](const ::testing::TestParamInfo<CudaAtTrueSize::ParamType>& about) {
                           std::string name = fmt::format("{}_{}", std::get<0>(about.param), std::get<1>(about.param));
                           for (char& x : name) x = std::isalnum(static_cast<unsigned char>(x)) ? x : '_';
                           return name;
                         });

}  // namespace
}  // namespace unpack
