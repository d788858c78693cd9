// The CUDA backend against the CPU in every family: windows, caps, sinks, norms behind, norms of
// whole projections and mixtures of experts, and what of a mixture goes to the device.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "backend/device_memory.h"
#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/random_model.h"
#include "unit/weights_files.h"
#include "unpack/unpack.h"

namespace unpack {
namespace {

std::vector<TokenId> prompt_of(int tokens, int vocabulary) {
  std::vector<TokenId> ids;
  for (int i = 0; i < tokens; ++i) ids.push_back((i * i * 7 + 3 * i + 1) % vocabulary);
  return ids;
}

LoadOptions on(const std::string& device) {
  LoadOptions options;
  options.device = device;
  options.threads = 1;
  return options;
}

TraceResult trace_on(const Model& model, int tokens, const Options& options = {}) {
  Question question;
  question.options = options;
  question.paths.top = 5;
  question.target.ids = {1};
  return model.prepare(prompt_of(tokens, model.config().vocab_size)).trace(question);
}

std::vector<std::string> cuda_devices() {
  std::vector<std::string> devices = testing::float_devices();
  devices.erase(devices.begin());  // the CPU
  return devices;
}

void expect_agreement(const TraceResult& got, const TraceResult& want, const std::string& where) {
  EXPECT_LT(naive::difference(got.node_credit, want.node_credit), 1e-3) << where;
  EXPECT_LT(naive::difference(got.token_credit, want.token_credit), 1e-3) << where;
  ASSERT_EQ(got.paths.size(), want.paths.size()) << where;
  for (std::size_t i = 0; i < got.paths.size(); ++i) {
    EXPECT_NEAR(std::fabs(got.paths[i].credit), std::fabs(want.paths[i].credit),
                1e-3 * std::fabs(want.paths[0].credit))
        << where << " path " << i;
  }
}

// Past the length from which scores are projected in place of folded, with a window that hides.
TEST(CudaFamilies, AgreeWithTheCpu) {
  for (const std::string& family : testing::kFamilies) {
    testing::Shape shape;
    shape.family = family;
    shape.window = 3;
    shape.context = 32;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const int tokens : {5, 24}) {
        Options centered;
        centered.scores = Scores::centered;
        const Model cpu = Model::random(shape.config(), 3, on("cpu"), dtype);
        const TraceResult raw = trace_on(cpu, tokens), other = trace_on(cpu, tokens, centered);
        for (const std::string& device : cuda_devices()) {
          const std::string where =
              fmt::format("{} {} {} {}", device, family, to_string(dtype), tokens);
          const Model model = Model::random(shape.config(), 3, on(device), dtype);
          expect_agreement(trace_on(model, tokens), raw, where);
          expect_agreement(trace_on(model, tokens, centered), other, where + " centered");
        }
      }
    }
  }
}

TEST(CudaFamilies, UploadsTheExpertsInUseAlone) {
  testing::Shape shape;
  shape.family = "mixtral";
  shape.experts = 64;
  shape.chosen = 2;
  for (const std::string& device : cuda_devices()) {
    const Model model = Model::random(shape.config(), 5, on(device));
    backend::DeviceMemory* memory = engine::state_of(model)->backend->device_memory();
    ASSERT_NE(memory, nullptr);
    (void)trace_on(model, 1);
    const std::uint64_t used = memory->uploaded_bytes();
    const std::uint64_t layers = memory->upload_once();
    const auto one_expert =
        static_cast<std::uint64_t>(3 * shape.d_model * shape.neurons) * sizeof(float);
    EXPECT_EQ(used, layers + static_cast<std::uint64_t>(shape.layers * shape.chosen) * one_expert)
        << device;
  }
}

// Memory for one expert and a layer or two: everything goes up again and again.
TEST(CudaFamilies, KeepsFewExpertsWhereMoreDoNotFit) {
  for (const char* family : {"mixtral", "gpt_oss"}) {
    testing::Shape shape;
    shape.family = family;
    shape.layers = 4;
    for (const std::string& device : cuda_devices()) {
      const TraceResult want = trace_on(Model::random(shape.config(), 4, on(device)), 6);
      ASSERT_EQ(setenv("UNPACK_CUDA_MEMORY", "4000", 1), 0);
      const Model model = Model::random(shape.config(), 4, on(device));
      unsetenv("UNPACK_CUDA_MEMORY");
      EXPECT_EQ(trace_on(model, 6).node_credit, want.node_credit) << device << ' ' << family;
    }
  }
}

TEST(CudaFamilies, NamesAnExpertWhoseNumbersAreNone) {
  testing::Shape shape;
  shape.family = "mixtral";
  testing::Tensors tensors = testing::random_tensors_of(shape.config(), 1);
  for (auto& [name, values] : tensors.values) {
    if (name.find(".experts.") != std::string::npos)
      values[0] = std::numeric_limits<float>::quiet_NaN();
  }
  for (const std::string& device : cuda_devices()) {
    try {
      (void)trace_on(tensors.model(device), 3);
      ADD_FAILURE() << device << " took it";
    } catch (const InputError& e) {
      EXPECT_NE(std::string(e.what()).find("expert "), std::string::npos) << e.what();
    }
  }
}

// Blocks of four bits go up as they are stored.
TEST(CudaFamilies, ReadsMxfp4AsTheCpuDoes) {
  constexpr int kWidth = 32, kExperts = 4;
  testing::Shape shape;
  shape.family = "gpt_oss";
  shape.d_model = kWidth;
  shape.neurons = kWidth;
  shape.experts = kExperts;
  const testing::Tensors plain = testing::random_tensors_of(shape.config(), 2);
  nlohmann::json header;
  std::string data;
  std::uint32_t state = 1;
  const auto add = [&](const std::string& name, const char* dtype,
                       const std::vector<std::int64_t>& s, const std::string& bytes) {
    header[name] = {{"dtype", dtype},
                    {"shape", s},
                    {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  };
  const auto noise = [&](std::int64_t size, unsigned low, unsigned count) {
    std::string bytes;
    for (std::int64_t i = 0; i < size; ++i) {
      state = state * 1664525U + 1013904223U;
      bytes.push_back(static_cast<char>(low + (state >> 16) % count));
    }
    return bytes;
  };
  for (const auto& [name, values] : plain.values) {
    if (name.ends_with("gate_up_proj") || name.ends_with("down_proj")) {
      const std::int64_t rows = name.ends_with("down_proj") ? kWidth : 2 * kWidth;
      add(name + "_blocks", "U8", {kExperts, rows, 1, 16}, noise(kExperts * rows * 16, 0, 256));
      add(name + "_scales", "U8", {kExperts, rows, 1}, noise(kExperts * rows, 121, 5));
    } else {
      add(name, "F32", plain.shapes.at(name),
          {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    }
  }
  const test::TempFolder folder;
  folder.write("config.json", shape.config());
  folder.write("model.safetensors", test::safetensors_bytes(header.dump(), data));
  const TraceResult want = trace_on(Model::load(folder.path().string(), on("cpu")), 6);
  for (const std::string& device : cuda_devices())
    expect_agreement(trace_on(Model::load(folder.path().string(), on(device)), 6), want, device);
}

}  // namespace
}  // namespace unpack
