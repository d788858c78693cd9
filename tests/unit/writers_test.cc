#include "unpack/writers.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cctype>
#include <limits>

#include "unpack/error.h"
#include "unpack/options.h"

namespace unpack {
namespace {

ModelConfig shape(int layers, int heads, Positions positions = Positions::learned,
                  Block block = Block::sequential) {
  ModelConfig config;
  config.n_layers = layers;
  config.n_heads = heads;
  config.positions = positions;
  config.block = block;
  return config;
}

template <class E, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

TEST(Writers, StandInCanonicalOrder) {
  const Writers gpt2(shape(2, 2));
  std::vector<std::string> names;
  for (int w = 0; w < gpt2.count(); ++w) names.push_back(gpt2.name(w));
  EXPECT_EQ(names, (std::vector<std::string>{"emb", "pos", "A0.H0", "A0.H1", "MLP0", "A1.H0",
                                             "A1.H1", "MLP1"}));
  const Writers neox(shape(1, 1, Positions::rotary));
  EXPECT_EQ(neox.count(), 3);
  EXPECT_EQ(neox.name(1), "A0.H0");
  EXPECT_EQ(neox.terminals(), 1);
}

TEST(Writers, AnMlpSeesTheHeadsOfItsLayerOnlyInASequentialBlock) {
  const Writers sequential(shape(2, 3)), parallel(shape(2, 3, Positions::learned, Block::parallel));
  EXPECT_EQ(sequential.visible_to_attention(1), sequential.head(1, 0));
  EXPECT_EQ(sequential.visible_to_mlp(1), sequential.mlp(1));
  EXPECT_EQ(parallel.visible_to_mlp(1), parallel.head(1, 0));
}

TEST(Writers, EverySpellingNamesTheSameHead) {
  const Writers writers(shape(12, 12));
  for (const char* spelling : {"A8.H6", "attn_8_head_6", "L8H6", "8.6", "a8.h6"})
    EXPECT_EQ(writers.parse(spelling), writers.head(8, 6)) << spelling;
  for (const char* spelling : {"MLP3", "mlp_3", "mlp3"})
    EXPECT_EQ(writers.parse(spelling), writers.mlp(3)) << spelling;
  EXPECT_EQ(writers.parse("emb"), 0);
  EXPECT_EQ(writers.parse("pos"), 1);
}

TEST(Writers, EveryNameIsReadBack) {
  rc::check([] {
    const Writers writers(shape(*rc::gen::inRange(1, 40), *rc::gen::inRange(1, 40),
                                *rc::gen::element(Positions::learned, Positions::rotary)));
    const Node node{*rc::gen::inRange(0, writers.count()), *rc::gen::inRange(0, 50)};
    RC_ASSERT(parse_node(writers, to_string(writers, node), 50) == node);
  });
}

TEST(Writers, NamesThatDoNotExistAreRefusedInOneLine) {
  const Writers writers(shape(12, 12)), rotary(shape(12, 12, Positions::rotary));
  for (const char* text : {"A12.H0", "A0.H12", "MLP12", "A99999999999.H0", "", "A", "A1", "A1.H",
                           "MLP", "mlp_", "A1.H2x", "A-1.H0", "target", "emb ", "A1.H2.H3"}) {
    const std::string message = message_of<InputError>([&] { writers.parse(text); });
    EXPECT_FALSE(message.empty()) << text;
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
  EXPECT_NE(message_of<InputError>([&] { writers.parse("A12.H0"); }).find("A11.H11"),
            std::string::npos);
  EXPECT_NE(message_of<InputError>([&] { rotary.parse("pos"); }).find("rotary"), std::string::npos);
}

TEST(Nodes, NegativePositionsCountFromTheEnd) {
  const Writers writers(shape(12, 12));
  EXPECT_EQ(parse_node(writers, "MLP3@-1", 14), (Node{writers.mlp(3), 13}));
  EXPECT_EQ(parse_node(writers, "attn_8_head_6@13", 14), (Node{writers.head(8, 6), 13}));
  EXPECT_EQ(resolve_position(-14, 14), 0);
  EXPECT_EQ(to_string(writers, {writers.head(8, 6), 13}), "A8.H6@13");
}

TEST(Nodes, BadPositionsAreRefused) {
  const Writers writers(shape(12, 12));
  for (const char* text : {"MLP3", "MLP3@", "MLP3@x", "MLP3@1.5", "MLP3@14", "MLP3@-15",
                           "MLP3@99999999999", "@3", "MLP3@ 1"}) {
    EXPECT_THROW(parse_node(writers, text, 14), InputError) << text;
  }
  EXPECT_THROW(resolve_position(0, 0), InputError);
  EXPECT_THROW(resolve_position(std::numeric_limits<int>::min(), 5), InputError);
}

TEST(Options, HaveTheWordsOfTheInterface) {
  EXPECT_STREQ(to_string(MlpRule::per_neuron), "per-neuron");
  EXPECT_STREQ(to_string(Dispatch::gate), "gate");
  EXPECT_STREQ(to_string(Scores::centered), "centered");
  EXPECT_STREQ(to_string(Reroot::target), "target");
  EXPECT_STREQ(to_string(Branch::mlp), "MLP");
  EXPECT_STREQ(to_string(Branch::none), "");
  EXPECT_STREQ(to_string(TauRule::entry), "entry");
}

TEST(Options, OutOfRangeAreRefused) {
  Options options;
  EXPECT_NO_THROW(options.check());
  options.beta = 0;
  options.weights = {1, 0, 0};
  EXPECT_NO_THROW(options.check());
  for (const double bad :
       {-0.1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Options beta, weight, mlp;
    beta.beta = weight.weights[1] = mlp.mlp_weights[0] = bad;
    EXPECT_THROW(beta.check(), UsageError);
    EXPECT_THROW(weight.check(), UsageError);
    EXPECT_THROW(mlp.check(), UsageError);
  }
}

}  // namespace
}  // namespace unpack
