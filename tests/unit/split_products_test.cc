// Products in parts for tensor cores: how many digits they keep, and that traces made of them agree
// with single precision.
#include "backend/cuda/split_products.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "backend/cuda/emulated.h"
#include "backend/device_memory.h"
#include "engine/plan.h"
#include "unit/devices.h"
#include "unit/naive/compare.h"
#include "unit/random_model.h"
#include "unpack/bench.h"
#include "unpack/unpack.h"

namespace unpack {
namespace {

std::vector<float> normal_numbers(std::size_t count, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& x : out) x = normal(generator);
  return out;
}

TEST(SplitProducts, PartsHoldTwentyTwoBits) {
  using backend::cuda::f16_bits;
  for (const float x : normal_numbers(1000, 1)) {
    const float in_unit = x * backend::cuda::unit_of(4.0F);
    const float half = base::f16_value(f16_bits(in_unit)), rest = in_unit - half;
    EXPECT_LE(std::fabs(rest), std::ldexp(std::fabs(in_unit), -11)) << x;
    EXPECT_LE(std::fabs(rest - base::f16_value(f16_bits(rest))),
              std::ldexp(std::fabs(in_unit), -22) + std::ldexp(1.0F, -25));
    const float tf32 = backend::cuda::tf32_rounded(x);
    EXPECT_EQ(base::bits_of_float(tf32) & backend::cuda::kBelowTf32, 0U) << x;
    EXPECT_LE(std::fabs(x - tf32), std::ldexp(std::fabs(x), -11)) << x;
    EXPECT_LE(std::fabs(x - tf32 - backend::cuda::tf32_rounded(x - tf32)),
              std::ldexp(std::fabs(x), -22));
  }
  // Ties go to the even neighbour, and an exact number stays what it is.
  EXPECT_EQ(base::bf16_value(backend::cuda::bf16_bits(1 + std::ldexp(1.0F, -8))), 1.0F);
  EXPECT_EQ(base::bf16_value(backend::cuda::bf16_bits(1 + 3 * std::ldexp(1.0F, -8))),
            1 + std::ldexp(1.0F, -6));
  for (std::uint32_t h = 0; h < 0x7C00U; ++h) {
    EXPECT_EQ(f16_bits(base::f16_value(h)), h);
    EXPECT_EQ(f16_bits(-base::f16_value(h)), h | 0x8000U);
    // Between two neighbours lies the even one's.
    if (h + 1 < 0x7C00U) {
      EXPECT_EQ(f16_bits((base::f16_value(h) + base::f16_value(h + 1)) / 2), h + h % 2);
    }
  }
  // A unit is a power of two that brings the largest close to the end of the halves' range.
  for (const float largest : {1e-30F, 1e-6F, 0.7F, 1.0F, 3.0F, 65504.0F, 1e30F}) {
    const float unit = backend::cuda::unit_of(largest);
    EXPECT_EQ(std::exp2(std::round(std::log2(unit))), unit);
    EXPECT_LT(largest * unit, 32768.0F) << largest;
    if (largest > 1e-29F) {
      EXPECT_GE(largest * unit, 16384.0F) << largest;
    }
  }
  EXPECT_EQ(backend::cuda::unit_of(0.0F), 1.0F);
  EXPECT_EQ(backend::cuda::tf32_rounded(1 + std::ldexp(1.0F, -11)), 1.0F);
  EXPECT_EQ(backend::cuda::tf32_rounded(-2.5F), -2.5F);
}

// A product with weights as stored, against loops in double.
class StoredWeights : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(StoredWeights, KeepTheirDigits) {
  const auto [type, turned] = GetParam();
  constexpr std::int64_t kIn = 96, kOut = 40, kRun = 2 * kIn, kRuns = 5, kStride = 3 * kIn;
  const auto device = backend::cuda::Device::open(backend::cuda::emulated_table(), nullptr, false);
  const std::vector<float> exact = normal_numbers(kIn * kOut, 2);
  backend::cuda::DeviceMatrix w;
  w.type = type;
  w.turned = turned;
  w.in = kIn;
  w.out = kOut;
  std::vector<double> stored;  // in the order of memory
  if (type == backend::cuda::kF32) {
    w.data = device->bytes(exact.size() * 4);
    device->to_device(w.data.get(), exact.data(), exact.size() * 4);
    stored.assign(exact.begin(), exact.end());
  } else {
    std::vector<std::uint16_t> halves;
    for (const float x : exact) {
      // Numbers of eight bits are both; those of f16 stay within its range.
      const std::uint16_t b = backend::cuda::bf16_bits(x);
      const float rounded = base::bf16_value(b);
      std::uint16_t half = b;
      if (type == backend::cuda::kF16) {
        half = 0;
        for (std::uint32_t h = 0; h < 0x10000U; ++h) {
          if (base::f16_value(h) == rounded) half = static_cast<std::uint16_t>(h);
        }
      }
      halves.push_back(half);
      stored.push_back(
          static_cast<double>(type == backend::cuda::kF16 ? base::f16_value(half) : rounded));
    }
    w.data = device->bytes(halves.size() * 2);
    device->to_device(w.data.get(), halves.data(), halves.size() * 2);
    const std::vector<float> scale = normal_numbers(kIn, 3);
    w.scale = device->floats(kIn);
    device->to_device(w.scale.raw(), scale.data(), scale.size() * 4);
    w.factor = 0.5F;
  }
  const std::vector<float> rows = normal_numbers(kStride * kRuns, 4);
  backend::Array from = device->floats(kStride * kRuns);
  device->to_device(from.raw(), rows.data(), rows.size() * 4);
  const std::vector<int> order = {3, 0, 4, 4};
  const auto picked = device->upload(std::span<const int>(order));
  backend::cuda::SplitProducts split(device, backend::cuda::SplitProducts::Mode::parts);
  ASSERT_TRUE(split.pays(w, 1));
  EXPECT_FALSE(backend::cuda::SplitProducts(device, backend::cuda::SplitProducts::Mode::single)
                   .pays(w, 1 << 20));
  const auto weights = split.weights(w);
  const bool bf16 = type == backend::cuda::kBf16;
  for (const auto& [listed, whole] :
       {std::pair{false, false}, std::pair{true, false}, std::pair{true, true}}) {
    const std::int64_t count = listed ? 4 : kRuns;
    backend::Array out = device->floats(count * 2 * kOut);
    split.multiply(
        {backend::cuda::ptr(from), kStride, listed ? picked.get() : nullptr, kRun, count, whole},
        weights, backend::cuda::ptr(out));
    const std::vector<float> got = device->download(out);
    double worst = 0;
    for (std::int64_t r = 0; r < count * 2; ++r) {
      const std::int64_t run = listed ? order[r / 2] : r / 2;
      for (std::int64_t o = 0; o < kOut; ++o) {
        double want = 0, size = 0;
        for (std::int64_t i = 0; i < kIn; ++i) {
          double x = static_cast<double>(rows[run * kStride + r % 2 * kIn + i]);
          if (type != backend::cuda::kF32)
            x *= 0.5 * static_cast<double>(normal_numbers(kIn, 3)[i]);
          const double y = x * stored[turned ? o * kIn + i : i * kOut + o];
          want += y;
          size += std::fabs(y);
        }
        const double apart = std::fabs(static_cast<double>(got[r * kOut + o]) - want);
        worst = std::max(worst, apart / size);
      }
    }
    EXPECT_LT(worst, std::ldexp(1.0, bf16 && whole ? -22
                                     : bf16        ? -17
                                                   : -20))
        << listed << ' ' << whole;
  }
  // The same two rows of every run but the last, as writers are taken that stand apart.
  const std::vector<int> rows_of_run = {1, 0};
  const auto both = device->upload(std::span<const int>(rows_of_run));
  backend::Array apart = device->floats(4 * 2 * kOut), together = device->floats(4 * 2 * kOut);
  split.multiply({backend::cuda::ptr(from), kIn, both.get(), kIn, 8, false, 2, kStride}, weights,
                 backend::cuda::ptr(apart));
  split.multiply({backend::cuda::ptr(from), kStride, nullptr, kRun, 4}, weights,
                 backend::cuda::ptr(together));
  const std::vector<float> got = device->download(apart), want = device->download(together);
  for (std::size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i], want[(i / kOut ^ 1U) * kOut + i % kOut]) << i;
}

// Weights times weights, either turned or not.
TEST_P(StoredWeights, AreRowsThemselves) {
  const auto [type, turned] = GetParam();
  constexpr std::int64_t kRows = 12, kIn = 20, kOut = 8;
  const auto device = backend::cuda::Device::open(backend::cuda::emulated_table(), nullptr, false);
  const auto stored = [&](const std::vector<float>& values, std::int64_t in, std::int64_t out) {
    backend::cuda::DeviceMatrix m;
    m.type = type;
    m.turned = turned;
    m.in = in;
    m.out = out;
    std::vector<std::uint16_t> halves;
    for (const float x : values)
      halves.push_back(type == backend::cuda::kF16 ? backend::cuda::f16_bits(x)
                                                   : backend::cuda::bf16_bits(x));
    const std::size_t each = type == backend::cuda::kF32 ? 4 : 2;
    m.data = device->bytes(values.size() * each);
    device->to_device(m.data.get(),
                      each == 4 ? static_cast<const void*>(values.data()) : halves.data(),
                      values.size() * each);
    return m;
  };
  const auto a = stored(normal_numbers(kRows * kIn, 7), kRows, kIn),
             b = stored(normal_numbers(kIn * kOut, 8), kIn, kOut);
  const auto at = [turned = turned](const backend::cuda::DeviceMatrix& m, std::int64_t i,
                                    std::int64_t j) {
    return static_cast<double>(
        backend::cuda::stored_value(m.data.get(), m.type, turned ? j * m.in + i : i * m.out + j));
  };
  backend::cuda::SplitProducts split(device, backend::cuda::SplitProducts::Mode::parts);
  backend::Array c = device->floats(kRows * kOut);
  split.multiply_stored(a, split.weights(b), backend::cuda::ptr(c));
  const std::vector<float> got = device->download(c);
  for (std::int64_t i = 0; i < kRows * kOut; ++i) {
    double want = 0, size = 0;
    for (std::int64_t k = 0; k < kIn; ++k) {
      const double x = at(a, i / kOut, k) * at(b, k, i % kOut);
      want += x;
      size += std::fabs(x);
    }
    EXPECT_NEAR(static_cast<double>(got[i]), want,
                std::ldexp(size, type == backend::cuda::kBf16 ? -17 : -20));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, StoredWeights,
                         ::testing::Combine(::testing::Values(backend::cuda::kF32,
                                                              backend::cuda::kF16,
                                                              backend::cuda::kBf16),
                                            ::testing::Bool()));

// Numbers of a head that are whole eights, more than one kernel's row of them too, and others.
class HeadProducts : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(HeadProducts, AreOneProductOfThreeTimesTheDepth) {
  constexpr std::int64_t kHeads = 4, kWidth = 20, kRows = 5, kGap = 2;
  const std::int64_t kOut = GetParam();
  const auto device = backend::cuda::Device::open(backend::cuda::emulated_table(), nullptr, false);
  backend::cuda::SplitProducts split(device, backend::cuda::SplitProducts::Mode::parts);
  const std::vector<float> rows = normal_numbers(kRows * kHeads * kWidth, 5),
                           weights = normal_numbers(kHeads * kWidth * kOut, 6);
  const auto put = [&](const std::vector<float>& values) {
    backend::Array out = device->floats(static_cast<std::int64_t>(values.size()));
    device->to_device(out.raw(), values.data(), values.size() * 4);
    return out;
  };
  const backend::Array a = put(rows);
  backend::Array c = device->zeros(kRows * (kHeads + kGap) * kOut);
  const auto at = [](const std::vector<float>& v, std::int64_t i) {
    return static_cast<double>(v[i]);
  };
  using Kind = backend::cuda::SplitProducts::Kind;
  for (const Kind kind : {Kind::tf32, Kind::bf16, Kind::halves}) {
    split.multiply_heads(backend::cuda::ptr(a), kRows,
                         split.head_weights(put(weights), kHeads, kWidth, kOut, kind),
                         backend::cuda::ptr(c), (kHeads + kGap) * kOut);
    const std::vector<float> got = device->download(c);
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t h = 0; h < kHeads + kGap; ++h) {
        for (std::int64_t o = 0; o < kOut; ++o) {
          double want = 0, size = 0;
          for (std::int64_t x = 0; x < kWidth && h < kHeads; ++x) {
            const double y =
                at(rows, (r * kHeads + h) * kWidth + x) * at(weights, (h * kWidth + x) * kOut + o);
            want += y;
            size += std::fabs(y);
          }
          EXPECT_NEAR(at(got, (r * (kHeads + kGap) + h) * kOut + o), want,
                      std::ldexp(size, kind == Kind::bf16 ? -15 : -20));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Columns, HeadProducts, ::testing::Values(17, 18, 500));

TEST(SplitProducts, HeadsOfRowsAreStacked) {
  constexpr std::int64_t kHeads = 4, kWidth = 20, kRows = 5;
  const auto device = backend::cuda::Device::open(backend::cuda::emulated_table(), nullptr, false);
  backend::cuda::SplitProducts split(device, backend::cuda::SplitProducts::Mode::parts);
  const std::vector<float> rows = normal_numbers(kRows * kHeads * kWidth, 5);
  backend::Array a = device->floats(static_cast<std::int64_t>(rows.size()));
  device->to_device(a.raw(), rows.data(), rows.size() * 4);
  const auto at = [](const std::vector<float>& v, std::int64_t i) {
    return static_cast<double>(v[i]);
  };
  // Some heads of rows that have more.
  const backend::Array some = split.stack({backend::cuda::ptr(a), kWidth, kHeads, 1, 2, kRows * 2},
                                          backend::cuda::SplitProducts::Stacked::rows);
  const std::vector<float> parts = device->download(some);
  ASSERT_EQ(some.size(), kRows * 2 * 3 * kWidth);
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t x = 0; x < kWidth; ++x) {
        const std::int64_t first = (r * 2 + h) * 3 * kWidth + x;
        const double whole = at(rows, (r * kHeads + 1 + h) * kWidth + x);
        EXPECT_NEAR(at(parts, first) + at(parts, first + kWidth), whole, std::ldexp(1.0, -20));
        EXPECT_EQ(at(parts, first + kWidth), at(parts, first + 2 * kWidth));
      }
    }
  }
  // Heads of a group side by side.
  static_assert(kHeads % 2 == 0);
  const std::vector<float> by_row = device->download(
      split.stack({backend::cuda::ptr(a), kWidth, kHeads, 0, kHeads, kRows * kHeads},
                  backend::cuda::SplitProducts::Stacked::others));
  const std::vector<float> by_group = device->download(
      split.stack({backend::cuda::ptr(a), kWidth, kHeads, 0, kHeads, kRows * kHeads, 2},
                  backend::cuda::SplitProducts::Stacked::others));
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      const std::int64_t each = kHeads / 2;
      for (std::int64_t x = 0; x < 3 * kWidth; ++x)
        EXPECT_EQ(at(by_group, ((h / each * kRows + r) * each + h % each) * 3 * kWidth + x),
                  at(by_row, (r * kHeads + h) * 3 * kWidth + x));
    }
  }
}

// Three tokens: every writer's product; nineteen: heads through products of weights, where no norm
// stands behind them.
TEST(SplitProducts, TracesAgreeWithThoseOfSinglePrecision) {
  const std::vector<TokenId> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8};
  for (const char* family : {"gpt2", "llama", "gemma2", "mixtral"}) {
    testing::Shape shape;
    shape.family = family;
    shape.heads = 8;
    shape.kv_heads = 2;
    shape.d_head = 4;
    shape.d_model = 32;
    shape.neurons = 48;
    shape.context = 32;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      LoadOptions load;
      load.device = "cuda-emulated";
      const Model split = Model::random(shape.config(), 5, load, dtype);
      load.exact_fp32 = true;
      const Model single = Model::random(shape.config(), 5, load, dtype);
      for (const std::size_t tokens : {3, 19}) {
        for (const Scores scores : {Scores::raw, Scores::centered}) {
          Question question;
          question.target.ids = {1};
          question.options.scores = scores;
          const auto credit = [&](const Model& model) {
            return model.prepare(std::span(ids).first(tokens)).trace(question).node_credit;
          };
          const auto got = credit(split), want = credit(single);
          EXPECT_NE(got, want) << "no product was split";
          EXPECT_LT(naive::difference(got, want), 2e-5)
              << family << ' ' << to_string(dtype) << ' ' << tokens << " tokens, scores "
              << static_cast<int>(scores);
        }
      }
    }
  }
}

TEST(SplitProducts, AreInThePlanOfALength) {
  const auto way = [](const char* dtype, bool exact, int tokens, const std::string& what) {
    BenchOptions options;
    testing::Shape shape;
    shape.heads = 8;
    shape.d_head = 4;
    shape.neurons = 48;
    shape.context = 32;
    options.shape = shape.config();
    options.dtype = dtype;
    options.tokens = {tokens};
    options.repeat = 1;
    options.prompts = 0;
    options.memory_only = true;
    options.load.device = "cuda-emulated";
    options.load.exact_fp32 = exact;
    const BenchResult result = run_bench(options);
    for (const BenchPlan& part : result.lengths.at(0).plan) {
      EXPECT_GT(part.gflop, 0) << part.what;
      EXPECT_GT(part.gbyte, 0) << part.what;
      if (part.what == what) return part.way;
    }
    return std::string();
  };
  EXPECT_EQ(way("bf16", false, 3, "neurons"), "two bf16 products");
  EXPECT_EQ(way("f16", false, 3, "neurons"), "two products of halves");
  EXPECT_EQ(way("f32", false, 3, "neurons"), "three products of halves");
  EXPECT_EQ(way("f32", true, 19, "neurons"), "single precision");
  EXPECT_EQ(way("f32", false, 19, "neurons"),
            "heads through products of weights, three products of halves");
  EXPECT_EQ(way("f32", false, 19, "keys"),
            "projected, heads through products of weights, three products of halves, summed on the "
            "chip");
  EXPECT_EQ(way("f32", false, 19, "queries"),
            "projected, heads through products of weights, three products of halves, summed on the "
            "chip");
  EXPECT_EQ(way("f32", true, 2, "keys"), "folded, single precision");
}

TEST(SplitProducts, AreNotAskedForTwice) {
  testing::Shape shape;
  LoadOptions load;
  load.device = "cuda-emulated";
  load.tf32 = load.exact_fp32 = true;
  EXPECT_THROW(Model::random(shape.config(), 1, load), UsageError);
}

// Forward pass, sums, and the question's own edges.
TEST(Streaming, TakesEveryLayerUpThreeTimes) {
  for (const char* family : {"gpt2", "gpt_neox", "llama", "gemma2"}) {
    testing::Shape shape;
    shape.family = family;
    shape.layers = 6;
    LoadOptions load;
    load.device = "cuda-emulated";
    const Model model = Model::random(shape.config(), 4, load);
    backend::DeviceMemory* memory = engine::state_of(model)->backend->device_memory();
    ASSERT_NE(memory, nullptr);
    for (const std::string& preset : preset_names()) {
      const auto trace = [&] {
        Question question;
        question.target.ids = {1};
        question.options = preset_options(preset);
        return model.prepare(std::vector<TokenId>{3, 1, 4, 1, 5}).trace(question).node_credit;
      };
      memory->keep_layers(shape.layers);
      const auto want = trace();
      memory->keep_layers(2);
      EXPECT_EQ(trace(), want) << family << ' ' << preset;
      const std::uint64_t once = memory->upload_once();
      const std::uint64_t before = memory->uploaded_bytes();
      EXPECT_EQ(trace(), want) << family << ' ' << preset;
      EXPECT_LE(memory->uploaded_bytes() - before, 3 * once + once / 6) << family << ' ' << preset;
      EXPECT_GE(memory->uploaded_bytes() - before, 2 * once) << family << ' ' << preset;
    }
  }
}

// The emulated device says that it has 8 GiB.
TEST(DeviceRoom, IsAskedForBeforeAnythingIsComputed) {
  testing::Shape shape;
  shape.context = 20000;
  LoadOptions load;
  load.device = "cuda-emulated";
  const Model model = Model::random(shape.config(), 1, load);
  const std::vector<TokenId> ids(20000, 1);
  try {
    (void)model.prepare(ids);
    FAIL() << "14 bytes a pair, head and layer are more than 20 GB";
  } catch (const InputError& e) {
    const std::string said = e.what();
    const double room = static_cast<double>(std::int64_t{8} << 30);
    const std::size_t budget = RunContext().memory_budget;
    const auto bytes = [&](int tokens) {
      return engine::by_layer_memory_cost(model.config(), model.writers(), tokens, true);
    };
    const int fits = engine::longest_prompt(model.config(), room, bytes);
    EXPECT_NE(said.find("a prompt of 20000 tokens takes"), std::string::npos) << said;
    EXPECT_NE(said.find("of the device, layer by layer, which has 8.0 GiB for it"),
              std::string::npos)
        << said;
    EXPECT_NE(said.find(fmt::format("{} tokens would fit", fits)), std::string::npos) << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
    EXPECT_LE(bytes(fits), room);
    EXPECT_GT(bytes(fits + 1), room);
    EXPECT_GT(engine::device_memory_cost(model.config(), model.writers(), fits, budget, true),
              room);
  }
}

}  // namespace
}  // namespace unpack
