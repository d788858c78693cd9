// Few rows times halves as they are stored: against the same in double on every instruction set
// that this processor has, and values that are no numbers, which must never get lost in a product.
#include "backend/host/half_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "base/thread_pool.h"
#include "engine/state.h"
#include "forward/forward.h"
#include "model/load.h"
#include "model/save.h"
#include "model/value_checks.h"
#include "tensor/convert.h"
#include "unit/random_model.h"
#include "unit/weights_files.h"
#include "unpack/batch.h"

namespace unpack {
namespace {

using backend::HalfKernels;
using backend::HalfProduct;
using backend::HalfRows;

struct Case {
  DType dtype;
  bool along;
  std::int64_t m, n, k;
};

// Stored halves, exactly as many as there must be: a read behind the end is seen by the sanitizer.
std::vector<std::uint16_t> halves_of(const std::vector<float>& values, DType dtype) {
  std::vector<std::uint16_t> out(values.size());
  tensor::store_run(values.data(), static_cast<std::int64_t>(values.size()), dtype,
                    reinterpret_cast<std::byte*>(out.data()));
  return out;
}

// C[m, ldc] of a product, with `gap` between its rows.
std::vector<float> product_of(const HalfKernels& kernels, const Case& c,
                              const std::vector<std::uint16_t>& w, const std::vector<float>& a,
                              std::int64_t lda, const float* scale, float gap, std::int64_t ldc) {
  std::vector<float> packed(static_cast<std::size_t>(kernels.packed_size(c.m, c.k)));
  std::vector<float> out(static_cast<std::size_t>((c.m - 1) * ldc + c.n), gap);
  const HalfRows rows{c.m, c.k, a.data(), lda, scale};
  const HalfProduct product{c.dtype, c.m, c.n, c.k, packed.data(), out.data(), ldc};
  const auto* stored = reinterpret_cast<const std::byte*>(w.data());
  if (c.along) {
    std::vector<const std::byte*> columns;
    for (std::int64_t j = 0; j < c.n; ++j) columns.push_back(stored + 2 * j * c.k);
    kernels.pack_along(c.dtype, rows, packed.data());
    kernels.along(product, columns.data());
  } else {
    kernels.pack_across(rows, packed.data());
    kernels.across(product, stored, 2 * c.n);
  }
  return out;
}

TEST(HalfProducts, AreThoseOfDoublePrecisionOnEveryInstructionSet) {
  constexpr float kGap = 7.5F;
  struct Shape {
    std::int64_t m, n, k;
  };
  // Below, at and behind the ends of tiles, steps and blocks.
  const Shape shapes[] = {{1, 1, 1},   {1, 5, 7},     {2, 8, 32},    {3, 33, 64},  {4, 70, 2049},
                          {5, 3, 300}, {7, 300, 130}, {16, 64, 100}, {17, 37, 31}, {33, 260, 129}};
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  const auto fill = [&](std::int64_t n) {
    std::vector<float> out(static_cast<std::size_t>(n));
    for (float& x : out) x = normal(random);
    return out;
  };
  for (const auto& [name, kernels] : backend::half_kernels()) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const Shape& s : shapes) {
        for (const bool along : {true, false}) {
          const Case c{dtype, along, s.m, s.n, s.k};
          const std::int64_t lda = s.k + 3, ldc = s.n + 2;
          const auto w = halves_of(fill(s.n * s.k), dtype);
          const auto a = fill((s.m - 1) * lda + s.k), scale = fill(s.k);
          const auto got = product_of(*kernels, c, w, a, lda, scale.data(), kGap, ldc);
          const auto* stored = reinterpret_cast<const std::byte*>(w.data());
          for (std::int64_t i = 0; i < s.m; ++i) {
            for (std::int64_t j = 0; j < ldc; ++j) {
              const std::int64_t at = i * ldc + j;
              if (at >= static_cast<std::int64_t>(got.size())) continue;
              if (j >= s.n) {
                ASSERT_EQ(got[at], kGap) << "a value between two rows was written";
                continue;
              }
              double want = 0, size = 1;
              for (std::int64_t p = 0; p < s.k; ++p) {
                const double weight =
                    tensor::load_element(stored, dtype, along ? j * s.k + p : p * s.n + j);
                const double one =
                    static_cast<double>(a[i * lda + p]) * static_cast<double>(scale[p]) * weight;
                want += one;
                size += std::fabs(one);
              }
              ASSERT_NEAR(got[at], want, 1e-6 * size)
                  << name << ", " << to_string(dtype) << (along ? ", along " : ", across ") << s.m
                  << " x " << s.n << " x " << s.k << " at " << i << ", " << j;
            }
          }
        }
      }
    }
  }
}

// All 65,536 of them: finite ones as they are, others as something that is none.
TEST(HalfProducts, WidenEveryHalf) {
  constexpr std::int64_t kCount = 65536;
  std::vector<std::uint16_t> w(kCount);
  for (std::int64_t i = 0; i < kCount; ++i) w[i] = static_cast<std::uint16_t>(i);
  for (const auto& [name, kernels] : backend::half_kernels()) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const bool along : {true, false}) {
        const auto got =
            product_of(*kernels, {dtype, along, 1, kCount, 1}, w, {1.0F}, 1, nullptr, 0, kCount);
        for (std::int64_t i = 0; i < kCount; ++i) {
          const auto want = static_cast<float>(
              tensor::load_element(reinterpret_cast<const std::byte*>(w.data()), dtype, i));
          if (std::isfinite(want)) {
            ASSERT_EQ(got[i], want) << name << ", " << to_string(dtype) << " " << i;
          } else {
            ASSERT_FALSE(std::isfinite(got[i])) << name << ", " << to_string(dtype) << " " << i;
          }
        }
      }
    }
  }
}

// Whatever it is multiplied with, even nothing: that a product is finite says that W is.
TEST(HalfProducts, ShowEveryValueThatIsNoNumber) {
  constexpr std::int64_t kM = 5, kN = 37, kK = 70;
  const std::vector<float> a(kM * kK, 0.0F);
  for (const auto& [name, kernels] : backend::half_kernels()) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      for (const bool along : {true, false}) {
        for (const float bad :
             {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
              std::numeric_limits<float>::quiet_NaN()}) {
          for (std::int64_t at = 0; at < kN * kK; at += 13) {
            std::vector<float> values(kN * kK, 0.25F);
            values[at] = bad;
            const auto got = product_of(*kernels, {dtype, along, kM, kN, kK},
                                        halves_of(values, dtype), a, kK, nullptr, 0, kN);
            const std::int64_t column = along ? at / kK : at % kN;
            for (std::int64_t i = 0; i < kM * kN; ++i)
              ASSERT_EQ(std::isfinite(got[i]), i % kN != column) << name << " at " << at;
          }
        }
      }
    }
  }
}

// A model on disk whose token embeddings are large enough to be looked at when they are used.
class UnseenValues : public ::testing::Test {
 protected:
  static constexpr int kVocabulary = 131'072, kWidth = 32;

  // With one value of a tensor replaced; empty: none.
  void write(const std::string& tensor, std::size_t at, float value, bool tied = false) {
    testing::Shape shape;
    shape.family = "llama";
    shape.heads = 4;
    shape.kv_heads = 2;
    shape.d_head = 8;
    shape.d_model = kWidth;
    shape.neurons = 40;
    shape.vocabulary = kVocabulary;
    shape.tied = tied;
    const testing::Tensors made = testing::random_tensors_of(shape.config(), 5);
    std::map<std::string, std::vector<std::byte>> kept;
    std::map<std::string, model::StoredTensor> stored;
    for (auto [name, values] : made.values) {
      if (name == tensor) values.at(at) = value;
      std::vector<std::byte>& bytes = kept[name];
      bytes.resize(2 * values.size());
      tensor::store_run(values.data(), static_cast<std::int64_t>(values.size()), DType::bf16,
                        bytes.data());
      stored[name] = {name, DType::bf16, made.shapes.at(name), bytes.data(), bytes.size()};
    }
    model::save_folder(made.config, stored, folder_.path());
  }

  std::shared_ptr<const model::ModelWeights> load() {
    return std::make_shared<const model::ModelWeights>(
        model::load_folder(folder_.path(), true, model::LookAt::used));
  }
  std::shared_ptr<backend::Backend> device(std::shared_ptr<const model::ModelWeights> weights) {
    backend::BackendOptions options;
    options.threads = 2;
    return backend::make_cpu_backend(std::move(weights), options, 0);
  }

  test::TempFolder folder_;
};

TEST_F(UnseenValues, AreNamedBeforeAnAnswerIsThere) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string embed = "model.embed_tokens.weight", head = "lm_head.weight";
  const std::vector<std::vector<TokenId>> prompt = {{1, 2, 3}};
  for (const std::string& name : {embed, head}) {
    const std::size_t at = std::size_t{100'000} * kWidth + 3;  // of a token that nobody asks for
    write(name, at, nan);
    const auto weights = load();  // does not look
    const auto where = {name, std::to_string(at), std::string("nan"), std::string("model.safe")};
    const auto one = device(weights);
    EXPECT_TRUE(one->looks_at_values());
    test::expect_mentions(test::input_error([&] { forward::forward(*one, prompt); }), where);
    // Nor does it help to ask again, or another way.
    test::expect_mentions(test::input_error([&] { forward::forward(*one, prompt); }), where);
    test::expect_mentions(test::input_error([&] { model::load_folder(folder_.path()); }), where);
    LoadOptions options;
    options.device = "cpu";
    test::expect_mentions(
        test::input_error([&] { (void)Model::load(folder_.path().string(), options); }), where);
  }
}

TEST_F(UnseenValues, AreSeenByTheProductsThatUseThem) {
  write("", 0, 0, true);
  const auto weights = load();
  ASSERT_NE(weights->unseen, nullptr);
  const auto& table = (*weights)[model::Role::unembed];
  EXPECT_TRUE(weights->unseen->wanted(table.data));
  const auto one = device(weights);
  forward::ForwardOptions later;
  later.check_values = false;
  const forward::ForwardPass pass = forward::forward(*one, {{1, 2, 3}}, later);
  EXPECT_TRUE(weights->unseen->wanted(table.data));  // a row of it was read, no more
  std::vector<double> logits;
  one->logits(pass.x_final, std::vector<std::int64_t>{2}, logits);
  EXPECT_FALSE(weights->unseen->wanted(table.data));
  EXPECT_NO_THROW(one->check_values());
}

TEST_F(UnseenValues, AreNamedByAProductThatMeetsThem) {
  write("model.embed_tokens.weight", std::size_t{77'777} * kWidth,
        std::numeric_limits<float>::infinity(), true);
  const auto weights = load();
  const auto one = device(weights);
  forward::ForwardOptions later;
  later.check_values = false;
  const forward::ForwardPass pass = forward::forward(*one, {{1, 2, 3}}, later);
  std::vector<double> logits;
  test::expect_mentions(
      test::input_error([&] { one->logits(pass.x_final, std::vector<std::int64_t>{2}, logits); }),
      {"model.embed_tokens.weight", std::to_string(77'777 * kWidth), "inf"});
}

// Lines that say so would stay when the file has been mended.
TEST_F(UnseenValues, DoNotMakePromptsOfABatchBadLines) {
  write("", 0, 0);
  LoadOptions options;
  options.device = "cpu";
  options.mapped = false;  // the file is about to be another
  const auto state = std::make_shared<engine::ModelState>(
      *engine::state_of(Model::load(folder_.path().string(), options)));
  const std::size_t at = std::size_t{100'000} * kWidth + 3;
  write("lm_head.weight", at, std::numeric_limits<float>::quiet_NaN());
  state->weights = load();
  state->backend = device(state->weights);
  const Model damaged = engine::Inside::model(state);
  const std::vector<PromptRecord> records = {{0, 1, R"({"ids":[1,2,3]})", ""}};
  test::expect_mentions(test::input_error([&] { trace_prompts(damaged, {}, records); }),
                        {"lm_head.weight", std::to_string(at), "nan"});
}

}  // namespace
}  // namespace unpack
