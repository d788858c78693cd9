#include "model/weights.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/formulas.h"
#include "model/load.h"
#include "model/save.h"
#include "unit/weights_files.h"

namespace unpack {
namespace {

using test::expect_mentions;
using test::input_error;
using test::TempFolder;

TEST(HalfPrecision, EveryFloat16SurvivesTheWayToFloatAndBack) {
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const float x = tensor::f16_to_f32(static_cast<std::uint16_t>(h));
    const bool nan = (h & 0x7C00u) == 0x7C00u && (h & 0x3FFu) != 0;
    EXPECT_EQ(std::isnan(x), nan) << h;
    if (!nan) {
      ASSERT_EQ(tensor::f32_to_f16(x), h);
      const int exponent = static_cast<int>((h >> 10) & 31);
      const double magnitude = exponent == 31  ? HUGE_VAL
                               : exponent == 0 ? std::ldexp(h & 0x3FFu, -24)
                                               : std::ldexp(1024 + (h & 0x3FFu), exponent - 25);
      ASSERT_EQ(std::abs(static_cast<double>(x)), magnitude);
      ASSERT_EQ(std::signbit(x), (h & 0x8000u) != 0);
    }
  }
}

TEST(HalfPrecision, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(tensor::f32_to_f16(1.0f + 0x1p-11f), tensor::f32_to_f16(1.0f));  // a tie, down to even
  EXPECT_EQ(tensor::f32_to_f16(1.0f + 3 * 0x1p-11f),
            tensor::f32_to_f16(1.0f + 0x1p-9f));  // a tie, up to even
  EXPECT_EQ(tensor::f32_to_f16(1.0f + 0x1.1p-11f), tensor::f32_to_f16(1.0f + 0x1p-10f));
  EXPECT_EQ(tensor::f32_to_f16(65519.0f), 0x7BFF);
  EXPECT_EQ(tensor::f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(tensor::f32_to_f16(0x1p-25f), 0);  // half of the smallest, to even
  EXPECT_EQ(tensor::f32_to_f16(0x1.8p-25f), 1);
  EXPECT_EQ(tensor::f32_to_bf16(1.0f + 0x1p-8f), tensor::f32_to_bf16(1.0f));
  EXPECT_EQ(tensor::f32_to_bf16(1.0f + 3 * 0x1p-8f), tensor::f32_to_bf16(1.0f + 0x1p-6f));
  EXPECT_TRUE(std::isnan(tensor::bf16_to_f32(tensor::f32_to_bf16(NAN))));
  EXPECT_TRUE(std::isnan(tensor::f16_to_f32(tensor::f32_to_f16(NAN))));
}

TEST(HalfPrecision, VectorsAreWidenedByTheRuleOfSingleElements) {
  using Words [[gnu::vector_size(16)]] = std::uint32_t;
  using Floats [[gnu::vector_size(16)]] = float;
  for (std::uint32_t h = 0; h < 0x10000; h += 4) {
    const Words four = {h, h + 1, h + 2, h + 3};
    const Words bits = base::f16_widened<Floats>(four);
    for (std::uint32_t i = 0; i < 4; ++i)
      ASSERT_EQ(bits[i],
                base::bits_of_float(tensor::f16_to_f32(static_cast<std::uint16_t>(h + i))));
  }
}

TEST(HalfPrecision, RunsAgreeWithSingleElements) {
  std::vector<std::byte> data(2 * 0x10000 + 1);
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    const auto half = static_cast<std::uint16_t>(h);
    std::memcpy(data.data() + 1 + 2 * h, &half, 2);  // unaligned on purpose
  }
  std::vector<float> floats(0x10000);
  std::vector<double> doubles(0x10000);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    tensor::convert_run(data.data() + 1, dtype, 0x10000, floats.data());
    tensor::convert_run(data.data() + 1, dtype, 0x10000, doubles.data());
    for (std::int64_t i = 0; i < 0x10000; ++i) {
      const double expected = tensor::load_element(data.data() + 1, dtype, i);
      if (std::isnan(expected)) continue;
      ASSERT_EQ(floats[i], expected) << i;
      ASSERT_EQ(doubles[i], expected) << i;
    }
  }
}

TEST(FindNonFinite, TellsTheFirstPlace) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    std::vector<float> values(10000, 1.5f);
    values[3] = -0.0f;
    std::vector<std::byte> stored(values.size() * tensor::dtype_size(dtype));
    const auto n = static_cast<std::int64_t>(values.size());
    tensor::store_run(values.data(), n, dtype, stored.data());
    EXPECT_EQ(tensor::find_non_finite(stored.data(), dtype, n), -1);
    for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF}) {
      for (const std::size_t at : {9999u, 5000u, 0u}) {
        values[at] = bad;
        tensor::store_run(values.data(), n, dtype, stored.data());
        EXPECT_EQ(tensor::find_non_finite(stored.data(), dtype, n), static_cast<std::int64_t>(at));
      }
      std::fill(values.begin(), values.end(), 1.5f);
    }
  }
  const double large = 1e300;
  EXPECT_EQ(tensor::find_non_finite(reinterpret_cast<const std::byte*>(&large), DType::f64, 1), 0)
      << "float32 cannot hold it";
}

RC_GTEST_PROP(WeightViews, ReadRowsAgreesWithSingleElements, ()) {
  const auto dtype = *rc::gen::element(DType::f32, DType::f16, DType::bf16, DType::f64);
  const auto in = *rc::gen::inRange<std::int64_t>(1, 300),
             blocks = *rc::gen::inRange<std::int64_t>(1, 5),
             block = *rc::gen::inRange<std::int64_t>(1, 40);
  model::WeightView w;
  w.dtype = dtype;
  w.in = in;
  w.block = block;
  w.out = block * blocks;
  if (*rc::gen::arbitrary<bool>()) w.block = w.out;
  switch (*rc::gen::inRange(0, 4)) {
    case 0:  // [in, out]
      w.in_stride = w.out + 3;
      w.block_stride = w.block;
      w.out_stride = 1;
      break;
    case 1:  // [out, in]
      w.in_stride = 1;
      w.out_stride = in;
      w.block_stride = in * w.block;
      break;
    case 2:  // [head, (q, k, v), d_head] rows
      w.in_stride = 1;
      w.out_stride = in;
      w.block_stride = 3 * w.block * in;
      break;
    default:  // nothing contiguous
      w.in_stride = 2;
      w.out_stride = 2 * in;
      w.block_stride = 2 * w.block * in;
  }
  std::vector<float> values(static_cast<std::size_t>(w.offset(in - 1, w.out - 1) + 1));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>(i * 7919 % 2039) - 1000) / 64;
  std::vector<std::byte> stored(values.size() * tensor::dtype_size(dtype) + 1);
  tensor::store_run(values.data(), static_cast<std::int64_t>(values.size()), dtype,
                    stored.data() + 1);
  w.data = stored.data() + 1;

  const auto row = *rc::gen::inRange<std::int64_t>(0, in);
  const auto n = *rc::gen::inRange<std::int64_t>(1, in - row + 1);
  std::vector<float> floats(static_cast<std::size_t>(n * w.out));
  std::vector<double> doubles(floats.size());
  model::read_rows(w, row, n, floats.data());
  model::read_rows(w, row, n, doubles.data());
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t o = 0; o < w.out; ++o) {
      RC_ASSERT(doubles[i * w.out + o] == w.at(row + i, o));
      RC_ASSERT(floats[i * w.out + o] == static_cast<float>(w.at(row + i, o)));
    }
  }
}

const char* const kTiny =
    R"({"model_type":"gpt2","n_layer":2,"n_head":2,"n_embd":8,"n_positions":6,"vocab_size":11})";

TEST(RandomWeights, AreTheSameForASeedAndDifferForAnother) {
  const model::ModelWeights a = model::random_weights(kTiny, 7),
                            b = model::random_weights(kTiny, 7),
                            c = model::random_weights(kTiny, 8);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_NE(a.fingerprint, c.fingerprint);
  EXPECT_EQ(a.layers[1][model::Role::w_q].at(3, 4), b.layers[1][model::Role::w_q].at(3, 4));
  EXPECT_NE(a.layers[1][model::Role::w_q].at(3, 4), c.layers[1][model::Role::w_q].at(3, 4));
  EXPECT_NE(a.layers[0][model::Role::w_q].at(3, 4), a.layers[1][model::Role::w_q].at(3, 4));
  EXPECT_EQ(a.parameter_count(), 11u * 8 + 6 * 8 + 2 * 8 +
                                     2 * (4 * 8 + 8 * 24 + 24 + 64 + 8 + 8 * 32 + 32 + 32 * 8 + 8));
}

TEST(RandomWeights, AreNormalAndSmall) {
  const model::ModelWeights model = model::random_weights(
      R"({"model_type":"gpt2","n_layer":2,"n_head":4,"n_embd":256,"vocab_size":1000})", 1);
  std::vector<double> values(1000 * 256);
  model::read_rows(model[model::Role::embed], 0, 1000, values.data());
  double sum = 0, squares = 0, fourth = 0;
  for (const double x : values) {
    sum += x / 0.02;
    squares += std::pow(x / 0.02, 2);
    fourth += std::pow(x / 0.02, 4);
  }
  const double n = static_cast<double>(values.size());
  EXPECT_NEAR(sum / n, 0.0, 0.01);
  EXPECT_NEAR(squares / n, 1.0, 0.01);
  EXPECT_NEAR(fourth / n, 3.0, 0.05);
  EXPECT_NEAR(model[model::Role::final_norm_w].at(0, 5), 1.0, 0.3);
  EXPECT_NE(model[model::Role::final_norm_w].at(0, 5), 1.0);
}

TEST(RandomWeights, ThatNoMachineCouldHoldAreRefused) {
  expect_mentions(
      input_error([] {
        model::random_weights(
            R"({"model_type":"llama","hidden_size":10000000,"num_attention_heads":1000,)"
            R"("intermediate_size":50000000,"vocab_size":1000})",
            1);
      }),
      {"GiB"});
}

TEST(Fingerprint, DoesNotDependOnHowAFolderIsSharded) {
  const model::TensorSet set = model::random_tensors(kTiny, 3, DType::bf16);
  const TempFolder one, many;
  model::save_folder(kTiny, set.tensors, one.path());
  model::save_folder(kTiny, set.tensors, many.path(), 300);
  ASSERT_TRUE(std::filesystem::exists(many.path() / "model.safetensors.index.json"));
  const model::ModelWeights a = model::load_folder(one.path()), b = model::load_folder(many.path()),
                            c = model::from_memory(kTiny, set.tensors, set.owner);
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.fingerprint, c.fingerprint);
  EXPECT_EQ(a.fingerprint.size(), 16u);
  EXPECT_EQ(a.config.dtype, DType::bf16);
  EXPECT_NE(a.release, nullptr);
  EXPECT_EQ(c.release, nullptr) << "memory is the caller's";
  a.release(a.storage.get(), a.layers[1][model::Role::w_out].data, 32 * 8 * 2);
  EXPECT_EQ(a.layers[1][model::Role::w_out].at(5, 6), b.layers[1][model::Role::w_out].at(5, 6));
}

TEST(Fingerprint, ChangesWithTypeShapeAndValues) {
  const std::string base = model::random_weights(kTiny, 3).fingerprint;
  EXPECT_NE(base, model::random_weights(kTiny, 3, DType::f64).fingerprint);
  model::TensorSet set = model::random_tensors(kTiny, 3);
  std::vector<float> changed(8, 0.5f);
  set.tensors["transformer.h.1.ln_2.bias"].data =
      reinterpret_cast<const std::byte*>(changed.data());
  EXPECT_NE(base, model::from_memory(kTiny, set.tensors, set.owner).fingerprint);
}

TEST(WeightsFromMemory, MustFitTheirShapes) {
  model::TensorSet set = model::random_tensors(kTiny, 3);
  set.tensors["transformer.ln_f.bias"].bytes -= 4;
  expect_mentions(input_error([&] { model::from_memory(kTiny, set.tensors, set.owner); }),
                  {"transformer.ln_f.bias", "28 bytes"});
  set.tensors.erase("transformer.ln_f.bias");
  expect_mentions(input_error([&] { model::from_memory(kTiny, set.tensors, set.owner); }),
                  {"transformer.ln_f.bias", "missing", "[8]"});
}

TEST(SaveFolder, ThatCannotBeWrittenSaysSo) {
  const TempFolder folder;
  const model::TensorSet set = model::random_tensors(kTiny, 3);
  const std::filesystem::path file = folder.write("file", "");
  expect_mentions(input_error([&] { model::save_folder(kTiny, set.tensors, file / "inner"); }),
                  {"inner", "cannot make"});
}

}  // namespace
}  // namespace unpack
