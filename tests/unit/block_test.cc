// The steps of a block, which every walk through a model takes from one list.
#include "forward/block.h"

#include <gtest/gtest.h>

#include "model/load.h"
#include "unit/random_model.h"

namespace unpack {
namespace {

using backend::Sublayer;
using forward::Step;

TEST(BlockSteps, HoldEveryStepOfBothSublayersOnceAndInOrder) {
  const std::vector<Step> order = {Step::norm,  Step::read,        Step::mix,
                                   Step::write, Step::norm_behind, Step::add};
  for (const Block block : {Block::sequential, Block::parallel}) {
    for (const Sublayer sublayer : {Sublayer::attention, Sublayer::mlp}) {
      std::vector<Step> own;
      for (const forward::BlockStep& at : forward::block_steps(block))
        if (at.sublayer == sublayer) own.push_back(at.step);
      EXPECT_EQ(own, order);
    }
  }
}

// What an MLP can see is said of writers, who stand below the block.
TEST(BlockSteps, AgreeWithWhatAnMlpSeesOfItsOwnLayersHeads) {
  for (const char* family : {"gpt2", "gpt_neox"}) {
    testing::Shape shape;
    shape.family = family;
    const ModelConfig config = model::parse_config(shape.config(), "a test");
    const Writers writers(config);
    EXPECT_EQ(writers.visible_to_mlp(0) > writers.head(0, 0),
              !forward::added_together(config.block))
        << family;
  }
}

}  // namespace
}  // namespace unpack
