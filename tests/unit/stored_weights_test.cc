// Weights that are read as they are stored against weights that were packed first: panel by panel
// the same bits, and as halves in products of few rows the same numbers.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "model/blocks.h"
#include "model/weight_block.h"
#include "tensor/transpose.h"
#include "unit/random_model.h"

namespace unpack {
namespace {

using testing::Shape;
using testing::Tensors;

TEST(Transpose, TurnsEveryShapeOfTile) {
  for (const auto& [rows, columns] :
       {std::pair<std::int64_t, std::int64_t>{16, 128}, {8, 8}, {16, 20}, {5, 24}, {1, 3}}) {
    const std::int64_t pitch = columns + 3, ld = rows + 2;
    std::vector<float> from(static_cast<std::size_t>(rows * pitch));
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
    std::vector<float> to(static_cast<std::size_t>(columns * ld), -1.0F);
    tensor::transpose(from.data(), rows, columns, pitch, to.data(), ld);
    for (std::int64_t j = 0; j < columns; ++j) {
      for (std::int64_t i = 0; i < ld; ++i) {
        EXPECT_EQ(to[j * ld + i], i < rows ? static_cast<float>(i * pitch + j) : -1.0F)
            << rows << " x " << columns << ": " << j << ", " << i;
      }
    }
  }
}

TEST(WeightBlocks, AgreeWithSingleElements) {
  constexpr std::int64_t kIn = 300, kOut = 70;
  std::vector<float> values(static_cast<std::size_t>(kIn * kOut));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(static_cast<int>(i * 7919 % 2039) - 1000) / 64;
  std::vector<std::byte> stored(values.size() * 2);
  std::vector<float> scale(kIn);
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = 0.5F + static_cast<float>(i) / 128;
  for (const auto& [linear, dtype] : {std::pair{true, DType::bf16},
                                      {false, DType::bf16},
                                      {true, DType::f16},
                                      {false, DType::f16}}) {
    tensor::store_run(values.data(), kIn * kOut, dtype, stored.data());
    model::WeightView w;
    w.data = stored.data();
    w.dtype = dtype;
    w.in = kIn;
    w.out = kOut;
    w.block = linear ? kOut : kOut / 2;  // the other one in two blocks of columns
    w.in_stride = linear ? 1 : kOut;
    w.out_stride = linear ? kIn : 1;
    w.block_stride = linear ? kIn * kOut : kOut / 2;
    for (const model::WeightBlock& part : {model::WeightBlock{0, kIn, 0, kOut},
                                           {7, 281, 33, 34},
                                           {299, 1, 3, 16},
                                           {11, 264, 5, 40},  // whole squares
                                           {8, 288, 0, 64},
                                           {16, 256, 1, 69}}) {
      constexpr std::int64_t kLd = 80;
      std::vector<float> out(static_cast<std::size_t>(part.rows * kLd), -1.0F);
      model::read_block(w, part, scale.data(), out.data(), kLd);
      for (std::int64_t i = 0; i < part.rows; ++i) {
        for (std::int64_t o = 0; o < kLd; ++o) {
          const auto row = static_cast<std::size_t>(part.row + i);
          const float expected =
              o < part.columns
                  ? static_cast<float>(w.at(part.row + i, part.column + o)) * scale[row]
                  : -1.0F;
          ASSERT_EQ(out[i * kLd + o], expected) << i << ", " << o;
        }
      }
    }
  }
}

// A matrix [in, out] of Q8_0 blocks along the inputs, all of scale 1/64.
struct Q8Matrix {
  static constexpr std::int64_t kIn = 64, kOut = 300;
  std::vector<std::byte> bytes;
  std::shared_ptr<const model::Encoded> encoded;
  model::WeightView view;

  Q8Matrix() {
    for (std::int64_t i = 0; i < kIn * kOut; ++i) {
      if (i % 32 == 0) {
        bytes.push_back(std::byte{0x00});
        bytes.push_back(std::byte{0x24});
      }
      bytes.push_back(static_cast<std::byte>(i * 37 % 251));
    }
    encoded = model::make_blocks(*model::find_block(8), bytes.data());
    view.encoded = encoded.get();
    view.in = kIn;
    view.out = kOut;
    view.in_stride = 1;
    view.out_stride = kIn;
    view.block = kOut;
    view.block_stride = kIn * kOut;
  }
};

TEST(QuantisedWeights, StayAsTheyAreHoweverSmall) {
  const Q8Matrix matrix;
  model::LayerWeights layer;
  layer[model::Role::w_q] = layer[model::Role::w_in] = matrix.view;
  ModelConfig config;
  config.d_head = 20;
  config.n_heads = 15;
  const auto panels = backend::make_panels<float>(config, layer, layer, {});
  EXPECT_EQ(backend::packed_bytes<float>(matrix.view), 0U);
  for (const backend::Panels<float>* w :
       {&panels.matrix(model::Role::w_q), &panels.matrix(model::Role::w_in)}) {
    EXPECT_FALSE(w->packed());
    EXPECT_TRUE(w->data.empty());
    const backend::Panel<float> last = w->panel(w->count() - 1);
    for (std::int64_t i = 0; i < w->in; ++i) {
      for (std::int64_t o = w->begin(w->count() - 1); o < w->out; ++o)
        ASSERT_EQ(last[i * w->columns(w->count() - 1) + o - w->begin(w->count() - 1)],
                  static_cast<float>(matrix.view.at(i, o)));
    }
  }
}

TEST(QuantisedWeights, ArePlainNumbersInAnotherOrderOnlyWhereTheyAreNot) {
  const Q8Matrix matrix;
  EXPECT_TRUE(model::is_quantised(matrix.view));
  const std::vector<float> values(64);
  const auto plain =
      model::make_blocks(*model::find_block(0), reinterpret_cast<const std::byte*>(values.data()));
  const auto turned = model::with_rows(
      plain, 8, [](std::int64_t row, std::int64_t, std::int64_t) { return 7 - row; }, 0, 0);
  EXPECT_TRUE(model::is_plain(*turned));
  EXPECT_FALSE(model::is_plain(*model::by_turns(plain, matrix.encoded, 8)));
  EXPECT_FALSE(model::is_plain(*model::from_element(matrix.encoded, 32)));
}

// The same values in half precision.
Model halved(const Tensors& tensors, DType dtype) {
  const auto kept = std::make_shared<std::map<std::string, std::vector<std::byte>>>();
  std::map<std::string, TensorRef> refs;
  for (const auto& [name, values] : tensors.values) {
    std::vector<std::byte>& bytes = (*kept)[name];
    bytes.resize(values.size() * tensor::dtype_size(dtype));
    tensor::store_run(values.data(), static_cast<std::int64_t>(values.size()), dtype, bytes.data());
    refs[name] = {dtype, tensors.shapes.at(name), bytes.data()};
  }
  LoadOptions options;
  options.device = "cpu";
  options.threads = 2;
  return Model::from_tensors(tensors.config, refs, kept, options);
}

void expect_same_bits(const TraceResult& a, const TraceResult& b) {
  EXPECT_EQ(a.importance, b.importance);
  EXPECT_EQ(a.token_credit, b.token_credit);
  EXPECT_EQ(a.node_credit, b.node_credit);
  EXPECT_EQ(a.incoming, b.incoming);
  EXPECT_EQ(a.conservation_reached, b.conservation_reached);
  ASSERT_EQ(a.paths.size(), b.paths.size());
  for (std::size_t i = 0; i < a.paths.size(); ++i) {
    EXPECT_EQ(path_text(a, a.paths[i]), path_text(b, b.paths[i]));
    EXPECT_EQ(a.paths[i].credit, b.paths[i].credit);
  }
  ASSERT_EQ(a.predictions.size(), b.predictions.size());
  for (std::size_t i = 0; i < a.predictions.size(); ++i)
    EXPECT_EQ(a.predictions[i].probability, b.predictions[i].probability);
}

// Its weights are read as they are stored; up to `few` rows are multiplied with halves.
void read_stored(const Model& model, int threads, std::int64_t few) {
  backend::BackendOptions options;
  options.threads = threads;
  auto& state = const_cast<engine::ModelState&>(*engine::state_of(model));  // its device is changed
  state.backend = backend::make_cpu_backend(state.weights, options, 0, few);
}

class StoredModels : public ::testing::TestWithParam<std::string> {};

// With halves in every product of the forward pass and the logits.
TEST_P(StoredModels, PredictAsPackedOnesDo) {
  Shape shape;
  shape.family = GetParam();
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.d_head = 8;
  shape.d_model = 32;
  shape.neurons = 276;
  shape.context = 96;
  const Tensors tensors = testing::random_tensors_of(shape.config(), 3);
  const std::vector<TokenId> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Model packed = halved(tensors, dtype), one = halved(tensors, dtype),
                two = halved(tensors, dtype);
    read_stored(one, 1, backend::kFewHalves);
    read_stored(two, 2, backend::kFewHalves);
    PredictOptions options;
    options.top = shape.vocabulary;
    const PredictResult a = packed.predict(ids, options), b = one.predict(ids, options),
                        c = two.predict(ids, options);
    ASSERT_EQ(a.predictions.size(), b.predictions.size());
    std::map<TokenId, double> logits;
    for (const Prediction& p : a.predictions) logits[p.id] = p.logit;
    for (std::size_t i = 0; i < b.predictions.size(); ++i) {
      EXPECT_NEAR(b.predictions[i].logit, logits.at(b.predictions[i].id), 2e-5) << i;
      EXPECT_EQ(b.predictions[i].id, c.predictions[i].id);
      EXPECT_EQ(b.predictions[i].logit, c.predictions[i].logit) << "for another number of threads";
    }
    for (std::size_t i = 1; i < ids.size(); ++i) {
      EXPECT_NEAR(a.log_probability[i].value(), b.log_probability[i].value(), 2e-5) << i;
      EXPECT_EQ(b.log_probability[i], c.log_probability[i]);
    }
    SamplingOptions text;
    text.max_tokens = 12;
    EXPECT_EQ(packed.generate(ids, text), one.generate(ids, text));
  }
}

TEST_P(StoredModels, GiveTheSameBitsAsPackedOnes) {
  Shape shape;
  shape.family = GetParam();
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.d_head = 8;
  shape.d_model = 32;
  shape.neurons = 276;  // a panel, and some
  shape.context = 96;
  const Tensors tensors = testing::random_tensors_of(shape.config(), 3);
  // Short prompts are folded, long ones go through products of weights.
  std::vector<TokenId> ids(90);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i * i % 11);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Model packed = halved(tensors, dtype), stored = halved(tensors, dtype);
    read_stored(stored, 2, 0);
    for (const std::size_t length : {std::size_t{6}, ids.size()}) {
      const std::vector<TokenId> some(ids.begin(), ids.begin() + static_cast<int>(length));
      const Prepared a = packed.prepare(some), b = stored.prepare(some);
      for (const std::string preset : {"paper", "best"}) {
        Question question;
        question.target.ids = {1};
        question.options = preset_options(preset);
        question.paths.top = 5;
        expect_same_bits(a.trace(question), b.trace(question));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, StoredModels,
                         ::testing::Values("gpt2", "llama", "gpt_neox", "gemma2", "qwen3"));

}  // namespace
}  // namespace unpack
