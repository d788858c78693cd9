// What the bench counts before it measures: operations, bytes and memory from shapes alone.
#include "engine/plan.h"

#include <gtest/gtest.h>

#include "model/load.h"
#include "unpack/run_context.h"
#include "unpack/writers.h"

namespace unpack {
namespace {

ModelConfig config_of(const std::string& shape) {
  return model::parse_config(model::known_shape(shape), shape);
}

TEST(Plan, ForwardPassOfGpt2SmallIsTwoOperationsAWeightAndToken) {
  const ModelConfig c = config_of("gpt2-small");
  const double weights = 12.0 * (4.0 * 768 * 768 + 2.0 * 768 * 3072);
  const double attention = 12.0 * 4 * (16 * 17 / 2.0) * 768;
  EXPECT_DOUBLE_EQ(engine::forward_cost(c, 16).flop,
                   2 * 16 * weights + attention + 2.0 * 50257 * 768);
  EXPECT_DOUBLE_EQ(engine::forward_cost(c, 16).byte, 4 * (weights + 50257.0 * 768));
}

TEST(Plan, WeightProductsSaveOperationsAndCostBytes) {
  for (const char* shape : {"gpt2-small", "pythia-160m", "llama-3.2-1b"}) {
    const ModelConfig c = config_of(shape);
    const Writers writers(c);
    const engine::Cost plain = engine::prepare_cost(c, writers, 16),
                       products = engine::prepare_cost(c, writers, 16, backend::Products::kept);
    EXPECT_LT(products.flop, 0.5 * plain.flop) << shape;
    EXPECT_GT(products.byte, plain.byte) << shape;
  }
}

engine::Cost trace_cost(const ModelConfig& c, int tokens, backend::Products products) {
  engine::Cost cost = engine::prepare_cost(c, Writers(c), tokens, products);
  cost += engine::question_cost(c, Writers(c), tokens);
  return cost;
}

// The plan takes the cheapest way there is, so that it never takes more than any one of them.
TEST(Plan, OfALengthIsTheCheapestOfItsWays) {
  for (const char* shape :
       {"gpt2-small", "pythia-160m", "llama-3.2-1b", "gemma-3-4b", "qwen3-30b-a3b"}) {
    const ModelConfig c = config_of(shape);
    const Writers writers(c);
    for (const int tokens : {1, 16, 64, 70, 71, 128, 256, 1024}) {
      for (int l = 0; l < c.n_layers; ++l) {
        const backend::LayerPlan direct =
            backend::plan_layer(c, writers, l, tokens, backend::Products::none);
        const backend::LayerPlan made =
            backend::plan_layer(c, writers, l, tokens, backend::Products::as_needed);
        const backend::LayerPlan kept =
            backend::plan_layer(c, writers, l, tokens, backend::Products::kept);
        EXPECT_LE(made.keys.flop + made.queries.flop, direct.keys.flop + direct.queries.flop);
        EXPECT_LE(made.neurons[0].flop, direct.neurons[0].flop);
        EXPECT_LE(kept.neurons[0].flop, made.neurons[0].flop);
        EXPECT_EQ(direct.neurons[0].way, backend::Way::direct);
        const LayerConfig& layer = c.layer(l);
        if (layer.attn_post_norm) {
          EXPECT_FALSE(made.keys.low_rank() || made.neurons[0].low_rank()) << shape;
        }
        if (layer.mixture()) {
          EXPECT_FALSE(kept.neurons[0].low_rank()) << shape;
        }
      }
    }
  }
}

// Of GPT-2 small's heads: d_head rows of W_O times W_in cost as much as 64 positions, and every
// position saves 11 in 12 of its product, so that 70 positions are too few and 71 enough.
TEST(Plan, MakesProductsWhereEnoughPositionsUseThem) {
  const ModelConfig c = config_of("gpt2-small");
  const Writers writers(c);
  EXPECT_EQ(backend::plan_layer(c, writers, 3, 69, backend::Products::as_needed).neurons[0].way,
            backend::Way::direct);
  EXPECT_EQ(backend::plan_layer(c, writers, 3, 71, backend::Products::as_needed).neurons[0].way,
            backend::Way::made);
  EXPECT_EQ(backend::plan_layer(c, writers, 3, 16, backend::Products::kept).neurons[0].way,
            backend::Way::kept);
  EXPECT_EQ(backend::plan_layer(c, writers, 3, 16, backend::Products::as_needed).keys.way,
            backend::Way::folded);
  EXPECT_EQ(backend::plan_layer(c, writers, 3, 256, backend::Products::as_needed).keys.way,
            backend::Way::made);
  EXPECT_EQ(backend::plan_layer(c, writers, 0, 256, backend::Products::as_needed).keys.way,
            backend::Way::direct);
  // One layer by hand: 3 source layers, 41 writers, of which 5 are no heads.
  const double keys = 2.0 * 256 * (5 * 768 + 36 * 64) * 768 + 3 * 2.0 * 768 * 768 * 768 +
                      2.0 * (256 * 257 / 2) * 768 * 41;
  EXPECT_DOUBLE_EQ(backend::plan_layer(c, writers, 3, 256, backend::Products::as_needed).keys.flop,
                   keys);
}

TEST(Plan, LongPromptsTakeFarFewerOperationsThanEveryWriterTimesTheWeights) {
  const ModelConfig c = config_of("gpt2-small");
  EXPECT_NEAR(trace_cost(c, 256, backend::Products::none).flop / 1e9, 1961, 2);
  EXPECT_NEAR(trace_cost(c, 1024, backend::Products::none).flop / 1e9, 8957, 9);
  EXPECT_LT(trace_cost(c, 256, backend::Products::as_needed).flop,
            0.45 * trace_cost(c, 256, backend::Products::none).flop);
  EXPECT_LT(trace_cost(c, 1024, backend::Products::as_needed).flop / 1e9, 3400);
  // No products of weights at 16 tokens; what is left out is the last layer's neurons, of which
  // those at the last position are made.
  const double neurons = 2.0 * 16 * 157 * 768 * 3072, numerators = 2.0 * 16 * 768 * 3072;
  EXPECT_DOUBLE_EQ(trace_cost(c, 16, backend::Products::as_needed).flop,
                   trace_cost(c, 16, backend::Products::none).flop - neurons - numerators);
}

TEST(Plan, MemoryOfALongPromptStaysWithinFourGibibytes) {
  const ModelConfig c = config_of("gpt2-small");
  const Writers writers(c);
  constexpr double kGib = 1 << 30;
  const std::size_t budget = RunContext{}.memory_budget;
  EXPECT_LT(engine::memory_cost(c, writers, 1024, budget, 2), 4 * kGib);
  EXPECT_LT(engine::memory_cost(c, writers, 16, budget, 2), 0.5 * kGib);
  // Once the table of key scores has to go, twice the prompt takes at most four times the memory.
  EXPECT_LT(engine::memory_cost(c, writers, 1024, budget, 2),
            4 * engine::memory_cost(c, writers, 512, 0, 2));
}

// Counted by hand for one layer: every matrix once, those of queries three times (pulled through
// W_O from two sides and put back), four products over pairs.
TEST(Plan, ATargetsPassAlongReadingsCountsEveryMatrixAndPair) {
  const ModelConfig c = config_of("gpt2-small");
  const Writers writers(c);
  const double tokens = 64, pairs = 64 * 65 / 2.0;
  double flop = 0;
  for (int l = 0; l < 12; ++l) {
    const double visible = 2 + 13.0 * l;
    flop += 2 * tokens * (2.0 * 768 * 3072 + 5.0 * 768 * 768) + 8 * pairs * 768 +
            2 * pairs * 12 * visible + 4 * tokens * 768 * visible;
  }
  EXPECT_NEAR(engine::read_target_cost(c, writers, 64).flop, flop, 1e-6 * flop);
  // Scores that were not kept are made again.
  EXPECT_GT(engine::read_once_cost(c, writers, 64, 0).flop,
            1.5 * engine::read_once_cost(c, writers, 64, std::size_t{1} << 40).flop);
}

// Peaks of docs/gpu.md, measured on an H200 with the weights there and without parts, in MiB.
TEST(Plan, MemoryOfADeviceIsCountedAboveWhatWasMeasured) {
  const auto expect_above = [](const char* shape, double weights, int tokens, double measured) {
    const ModelConfig c = config_of(shape);
    const double mib =
        engine::device_memory_cost(c, Writers(c), tokens, RunContext{}.memory_budget, false) /
            (1 << 20) +
        weights;
    EXPECT_GT(mib, measured) << shape << ' ' << tokens;
    EXPECT_LT(mib, 1.15 * measured) << shape << ' ' << tokens;
  };
  expect_above("gpt2-small", 471, 16, 537);
  expect_above("gpt2-small", 471, 1024, 4967);
  expect_above("pythia-1.4b", 5001, 16, 5235);
  expect_above("pythia-1.4b", 5001, 1024, 23538);
  expect_above("pythia-6.9b", 12682, 16, 14120);
  expect_above("pythia-6.9b", 12682, 256, 24487);
  expect_above("llama-3.1-8b", 14314, 16, 15509);
  expect_above("llama-3.1-8b", 14314, 256, 27127);
}

// What a prompt takes layer by layer grows with the square of its length in one layer only: 8,192
// tokens of Llama-3.1-8B within 130 GiB, weights included.
TEST(Plan, LongPromptsLayerByLayerFitTheDevice) {
  constexpr double kMiB = 1 << 20;
  const ModelConfig c = config_of("llama-3.1-8b");
  const Writers writers(c);
  const double whole = engine::device_memory_cost(c, writers, 8192, 0, true, true) / kMiB,
               layers = engine::by_layer_memory_cost(c, writers, 8192, true) / kMiB;
  EXPECT_GT(whole, 1000 * 1024);
  EXPECT_LT(layers + 14314, 130 * 1024);
  EXPECT_GT(layers, 9 * 4.0 * 32 * 8192 * 8193 / 2 / kMiB);
  // Centred scores have the keys of all positions in memory.
  EXPECT_GT(engine::by_layer_memory_cost(c, writers, 8192, true, false) / kMiB, layers);
}

}  // namespace
}  // namespace unpack
