// Mixtures of experts and packed weights: files in every form give the same model, experts that no
// position uses are not read, and what must hold between a mixture and other models.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/emulated.h"
#include "backend/host/host_backend.h"
#include "engine/state.h"
#include "unit/devices.h"
#include "unit/family_files.h"
#include "unit/naive/compare.h"

namespace unpack {
namespace {

using nlohmann::json;
using test::expect_mentions;
using test::input_error;
using test::TempFolder;
using testing::File;
using testing::gpt_oss;
using testing::on;
using testing::Tensors;
using testing::tensors_of;
using testing::trace_of;

class Mixture : public testing::OnHost {};
UNPACK_ON_HOST(Mixture);

// The experts of `from` in `order`, in a model of so many.
Tensors picked(const Tensors& from, const testing::Shape& shape, const std::vector<int>& order) {
  Tensors to = from;
  to.config = shape.config();
  for (auto& [name, values] : to.values) {
    if (name.find(".mlp.") == std::string::npos) continue;
    const std::size_t each = values.size() / static_cast<std::size_t>(from.shapes.at(name)[0]);
    std::vector<float> kept;
    for (const int e : order) {
      const auto begin = from.values.at(name).begin() + static_cast<std::ptrdiff_t>(each) * e;
      kept.insert(kept.end(), begin, begin + static_cast<std::ptrdiff_t>(each));
    }
    values = kept;
    to.shapes.at(name)[0] = static_cast<std::int64_t>(order.size());
  }
  return to;
}

// 64 experts, of which layer by layer 5 and 40 are always chosen and hardly agree on the order.
Tensors two_of_64(testing::Shape shape) {
  Tensors tensors = tensors_of(shape, 4);
  for (const char* layer : {"model.layers.0", "model.layers.1"}) {
    for (const int e : {5, 40}) tensors.values.at(std::string(layer) + ".mlp.router.bias")[e] += 90;
  }
  return tensors;
}

TEST_P(Mixture, OfManyExpertsIsTheOneOfThoseInUse) {
  const testing::Shape many = gpt_oss(64, 2), two = gpt_oss(2, 2);
  Tensors tensors = two_of_64(many);
  const Tensors same = picked(tensors, two, {5, 40});
  // The others hold nothing that may be read.
  for (auto& [name, values] : tensors.values) {
    if (name.find(".mlp.experts.") == std::string::npos) continue;
    const std::size_t each = values.size() / 64;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i / each != 5 && i / each != 40) values[i] = NAN;
    }
  }
  const Model a = tensors.model(GetParam(), 2), b = same.model(GetParam(), 2);
  for (const MlpRule rule : {MlpRule::per_neuron, MlpRule::linearized, MlpRule::l2}) {
    Options options;
    options.mlp = rule;
    const TraceResult x = trace_of(a, options, "MLP1@-1"), y = trace_of(b, options, "MLP1@-1");
    EXPECT_LT(naive::difference(x.node_credit, y.node_credit), limit(1e-12, 1e-5));
    ASSERT_EQ(x.expert_entries.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(x.expert_entries[i].expert, y.expert_entries[i].expert == 0 ? 5 : 40);
      EXPECT_NEAR(x.expert_entries[i].weight, y.expert_entries[i].weight, 1e-5);
    }
  }
  // Used, such an expert is an error that names it.
  tensors.values.at("model.layers.1.mlp.router.bias")[7] += 300;
  expect_mentions(input_error([&] { trace_of(tensors.model(GetParam(), 2)); }),
                  {"expert 7", "layer 1"});
}

TEST(MixtureFiles, AreReadOnlyWhereExpertsAreUsed) {
  testing::Shape shape = gpt_oss(64, 2);
  shape.d_model = 32;
  shape.neurons = 64;
  const Tensors tensors = two_of_64(shape);
  File file;
  for (const auto& [name, values] : tensors.values) file.add(tensors, name);
  const TempFolder folder;
  file.write(folder, tensors.config);
  const auto size = std::filesystem::file_size(folder.path() / "model.safetensors");
  // What goes through read(2); the rest is mapped and comes in page by page.
  const auto bytes_read = [] {
    std::ifstream io("/proc/self/io");
    std::string key;
    std::uint64_t value = 0;
    io >> key >> value;
    return value;
  };
  if (bytes_read() == 0) GTEST_SKIP() << "no /proc/self/io here";
  const std::uint64_t before = bytes_read();
  const Model model = Model::load(folder.path().string(), on("cpu"));
  EXPECT_LT(bytes_read() - before, size / 8) << "of " << size;
  EXPECT_EQ(trace_of(model).node_credit, trace_of(tensors.model("cpu", 2)).node_credit);
}

// Operations of matrix products and, on the emulated GPU, units of kernels.
std::atomic<std::int64_t> operations = 0;

// The backend of the host with plain products that are counted.
class CountingHost final : public backend::HostWays<float> {
 public:
  using HostWays::HostWays;
  std::string name() const override { return "counting"; }
  std::string details() const override { return "counts its products"; }

 protected:
  void gemm(bool b_transposed, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
            std::int64_t lda, const float* b, std::int64_t ldb, bool accumulate, float* c,
            std::int64_t ldc) override {
    operations += m * n * k;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        float sum = accumulate ? c[i * ldc + j] : 0.0F;
        for (std::int64_t p = 0; p < k; ++p)
          sum += a[i * lda + p] * (b_transposed ? b[j * ldb + p] : b[p * ldb + j]);
        c[i * ldc + j] = sum;
      }
    }
  }
};

std::shared_ptr<backend::Backend> counting_gpu(
    const std::shared_ptr<const model::ModelWeights>& weights) {
  static const UnpackDeviceTable table = [] {
    UnpackDeviceTable t = *backend::cuda::emulated_table();
    t.gemm = [](void* device, UnpackFactors factors, const UnpackGemm* call) {
      operations += call->m * call->n * call->k * call->batch;
      return backend::cuda::emulated_table()->gemm(device, factors, call);
    };
    t.scaled_gemm = [](void* device, UnpackFactors factors, const UnpackGemm* call,
                       const float* times) {
      operations += call->m * call->n * call->k * call->batch;
      return backend::cuda::emulated_table()->scaled_gemm(device, factors, call, times);
    };
    t.launch = [](void* device, int id, const void* parameters, std::size_t bytes,
                  std::int64_t count) {
      operations += count;
      return backend::cuda::emulated_table()->launch(device, id, parameters, bytes, count);
    };
    return t;
  }();
  backend::BackendOptions one_thread;
  one_thread.threads = 1;
  return std::make_shared<backend::cuda::CudaBackend>(
      backend::cuda::Device::open(&table, nullptr, false), weights, one_thread, "cuda");
}

// What a trace with paths computes, on both kinds of device.
std::vector<std::int64_t> operations_of(const Tensors& tensors, Options options) {
  std::vector<std::int64_t> out;
  for (const bool gpu : {false, true}) {
    const Model model = tensors.model("reference", 1);
    backend::BackendOptions one_thread;
    one_thread.threads = 1;
    auto& state = const_cast<engine::ModelState&>(
        *engine::state_of(model));  // its device is changed for one that counts
    if (gpu) {
      state.backend = counting_gpu(state.weights);
    } else {
      state.backend = std::make_shared<CountingHost>(state.weights, one_thread);
    }
    Question question;
    question.target.ids = {1};
    question.options = options;
    question.paths.top = 5;
    operations = 0;
    (void)model.prepare(testing::kIds).trace(question);
    out.push_back(operations);
  }
  return out;
}

TEST(MixtureCosts, AreThoseOfTheExpertsInUse) {
  for (const MlpRule rule : {MlpRule::per_neuron, MlpRule::linearized, MlpRule::l2}) {
    Options options;
    options.mlp = rule;
    std::vector<std::int64_t> router[2];  // what 62 experts that are not used cost
    for (const int neurons : {16, 64}) {
      testing::Shape many = gpt_oss(64, 2), two = gpt_oss(2, 2), four = gpt_oss(4, 4);
      many.neurons = two.neurons = four.neurons = neurons;
      const Tensors tensors = two_of_64(many);
      const auto all = operations_of(tensors, options),
                 same = operations_of(picked(tensors, two, {5, 40}), options),
                 twice = operations_of(picked(tensors, four, {5, 6, 7, 40}), options);
      for (const std::size_t device : {0, 1}) {
        router[device].push_back(all[device] - same[device]);
        EXPECT_GT(twice[device], same[device] * 3 / 2) << "of device " << device;
        EXPECT_LT(all[device], twice[device]) << "of device " << device;
      }
    }
    for (const auto& costs : router)
      EXPECT_EQ(costs[0], costs[1]) << "the router knows nothing of neurons";
  }
}

// Blocks of 32 four-bit numbers, written down and read here by the definition alone.
struct Packed {
  std::vector<std::uint8_t> blocks, scales;
  std::vector<float> values;  // in the order of the blocks

  explicit Packed(std::size_t n, std::uint32_t seed) {
    std::mt19937 random(seed);
    const float grid[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
    for (std::size_t i = 0; i < n; i += 2) {
      if (i % 32 == 0) scales.push_back(static_cast<std::uint8_t>(122 + random() % 5));
      const unsigned byte = random() % 256;
      blocks.push_back(static_cast<std::uint8_t>(byte));
      for (const unsigned half : {byte % 16, byte / 16}) {
        values.push_back((half >= 8 ? -1.0F : 1.0F) * grid[half % 8] *
                         std::pow(2.0F, static_cast<float>(scales.back()) - 127));
      }
    }
  }
};

// The same gpt-oss as plain tensors and as MXFP4.
struct TwoForms {
  testing::Shape shape = gpt_oss(3, 2);
  Tensors plain;
  File packed;

  TwoForms() {
    shape.d_model = 64;
    shape.neurons = 32;
    plain = tensors_of(shape, 4);
    for (auto& [name, values] : plain.values) {
      const bool in = name.ends_with("gate_up_proj"), out = name.ends_with("down_proj");
      if (!in && !out) {
        packed.add(plain, name);
        continue;
      }
      const std::int64_t experts = plain.shapes.at(name)[0], columns = plain.shapes.at(name)[1],
                         rows = plain.shapes.at(name)[2];
      const Packed p(values.size(), in ? 1 : 2);
      for (std::int64_t e = 0; e < experts; ++e) {
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t i = 0; i < columns; ++i) {
            values[(e * columns + i) * rows + r] = p.values[(e * rows + r) * columns + i];
          }
        }
      }
      packed.add(name + "_blocks", "U8", {experts, rows, columns / 32, 16}, p.blocks.data(),
                 p.blocks.size());
      packed.add(name + "_scales", "U8", {experts, rows, columns / 32}, p.scales.data(),
                 p.scales.size());
    }
  }
  std::string config() const {
    json c = json::parse(shape.config());
    c["quantization_config"] = {{"quant_method", "mxfp4"}};
    return c.dump();
  }
};

TEST_P(Mixture, FromMxfp4IsThatOfPlainTensors) {
  const TwoForms forms;
  const TempFolder folder;
  forms.packed.write(folder, forms.config());
  const Model packed = Model::load(folder.path().string(), on(GetParam())),
              plain = forms.plain.model(GetParam(), 2);
  const model::ModelWeights &a = testing::weights_of(packed), &b = testing::weights_of(plain);
  for (std::size_t e = 0; e < 3; ++e) {
    for (const model::Role role : {model::Role::w_in, model::Role::w_up, model::Role::w_out}) {
      const model::WeightView &x = a.layers[1].experts[e][role], &y = b.layers[1].experts[e][role];
      ASSERT_EQ(x.in, y.in);
      ASSERT_EQ(x.out, y.out);
      std::vector<double> got(static_cast<std::size_t>(x.in * x.out)), want(got);
      model::read_rows(x, 0, x.in, got.data());
      model::read_rows(y, 0, y.in, want.data());
      EXPECT_EQ(got, want);
      EXPECT_EQ(x.at(5, 7), y.at(5, 7));
    }
  }
  EXPECT_EQ(trace_of(packed).node_credit, trace_of(plain).node_credit);
}

TEST(MixtureFiles, OfMxfp4ThatAreWrongAreNamed) {
  const TwoForms forms;
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  const Packed p(3 * 64 * 32, 5);
  const auto error = [&](const std::string& type, const std::vector<std::int64_t>& shape) {
    File file = forms.packed;
    file.add(name + "_blocks", type, shape, p.blocks.data(), p.blocks.size());
    const TempFolder folder;
    file.write(folder, forms.config());
    return input_error([&] { model::load_folder(folder.path()); });
  };
  expect_mentions(error("U8", {3, 64, 16, 1}), {name + "_blocks", "[3, 64, 1, 16]"});
  expect_mentions(error("I8", {3, 64, 1, 16}), {name + "_blocks", "U8"});

  // Without its scales, or in rows that no block divides.
  File bare;
  for (const auto& [tensor, values] : forms.plain.values) {
    if (tensor != name) bare.add(forms.plain, tensor);
  }
  bare.add(name + "_blocks", "U8", {3, 64, 1, 16}, p.blocks.data(), p.blocks.size());
  const TempFolder folder;
  bare.write(folder, forms.config());
  expect_mentions(input_error([&] { model::load_folder(folder.path()); }),
                  {name + "_scales", "missing"});

  testing::Shape odd = forms.shape;
  odd.neurons = 40;  // 32 and a rest
  const Tensors plain = tensors_of(odd, 4);
  File file;
  for (const auto& [tensor, values] : plain.values) {
    if (tensor != name) file.add(plain, tensor);
  }
  file.add(name + "_blocks", "U8", {3, 64, 1, 16}, p.blocks.data(), p.blocks.size());
  file.add(name + "_scales", "U8", {3, 64, 1}, p.scales.data(), p.scales.size());
  file.write(folder, odd.config());
  expect_mentions(input_error([&] { model::load_folder(folder.path()); }), {name, "32"});
}

// Mixtures beside other models

TEST_P(Mixture, OfOneExpertIsADenseModel) {
  testing::Shape shape;
  shape.family = "mixtral";
  shape.experts = shape.chosen = 1;
  const Tensors mixture = tensors_of(shape, 9);
  testing::Shape dense_shape = shape;
  dense_shape.family = "mistral";
  Tensors dense;
  json config = json::parse(dense_shape.config());
  config["rope_theta"] = 1e6;
  config["rms_norm_eps"] = 1e-5;
  dense.config = config.dump();
  const auto replaced = [](std::string name, const std::string& from, const std::string& to) {
    const std::size_t at = name.find(from);
    return at == std::string::npos ? name : name.replace(at, from.size(), to);
  };
  for (const auto& [name, values] : mixture.values) {
    if (name.find("block_sparse_moe.gate.") != std::string::npos) continue;
    std::string as = replaced(name, "block_sparse_moe.experts.0.w1", "mlp.gate_proj");
    as = replaced(as, "block_sparse_moe.experts.0.w3", "mlp.up_proj");
    as = replaced(as, "block_sparse_moe.experts.0.w2", "mlp.down_proj");
    dense.values[as] = values;
    dense.shapes[as] = mixture.shapes.at(name);
  }
  const Model a = mixture.model(GetParam(), 2), b = dense.model(GetParam(), 2);
  for (const MlpRule rule : {MlpRule::per_neuron, MlpRule::linearized, MlpRule::l2}) {
    Options options;
    options.mlp = rule;
    options.expert_weights = {0, 0.3, 0.7};
    options.mlp_weights = {0.3, 0.7};
    EXPECT_LT(naive::difference(trace_of(a, options).node_credit, trace_of(b, options).node_credit),
              limit(1e-12, 1e-5));
  }
  // The router has no choice: with centred scores it says nothing.
  Options router;
  router.expert_weights = {1, 0, 0};
  router.scores = Scores::centered;
  const TraceResult nothing = trace_of(a, router, "MLP1@-1");
  for (const auto& writer : nothing.incoming.at(Branch::R)) {
    for (const double x : writer) EXPECT_NEAR(x, 0, limit(1e-9, 2));
  }
  EXPECT_FALSE(trace_of(b, router, "MLP1@-1").incoming.contains(Branch::R));
}

TEST_P(Mixture, DoesNotDependOnTheOrderOfExperts) {
  const testing::Shape shape = gpt_oss(4, 2);
  const Tensors tensors = tensors_of(shape, 6);
  const std::vector<int> order = {2, 0, 3, 1};
  const Model a = tensors.model(GetParam(), 2),
              b = picked(tensors, shape, order).model(GetParam(), 2);
  for (const Scores scores : {Scores::raw, Scores::centered}) {
    Options options;
    options.scores = scores;
    const TraceResult x = trace_of(a, options, "MLP1@-1"), y = trace_of(b, options, "MLP1@-1");
    EXPECT_LT(naive::difference(y.node_credit, x.node_credit), limit(1e-12, 1e-4));
    ASSERT_EQ(x.expert_entries.size(), y.expert_entries.size());
    for (std::size_t i = 0; i < x.expert_entries.size(); ++i)
      EXPECT_EQ(order[y.expert_entries[i].expert], x.expert_entries[i].expert);
  }
}

}  // namespace
}  // namespace unpack
