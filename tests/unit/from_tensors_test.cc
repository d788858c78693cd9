// Tensors that a program hands over: their shapes are looked at before anything is read.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "unpack/error.h"
#include "unpack/model.h"

namespace unpack {
namespace {

TEST(ModelFromTensors, RefusesShapesThatNoMemoryHolds) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  // Products of these are 0, 4 and other small numbers in 64 bits.
  const std::vector<std::vector<std::int64_t>> shapes = {
      {kMost, kMost},
      {std::int64_t{1} << 32, std::int64_t{1} << 32},
      {kMost / 2 + 1, 8},
      {kMost},
      {-1},
      {-2, -2}};
  const float value = 1;
  for (const auto& shape : shapes) {
    const std::map<std::string, TensorRef> tensors = {{"wte.weight", {DType::f32, shape, &value}}};
    try {
      (void)Model::from_tensors(R"({"model_type": "gpt2"})", tensors, nullptr, {});
      ADD_FAILURE() << "a tensor of " << shape.front() << " rows was taken";
    } catch (const InputError& error) {
      EXPECT_EQ(std::string(error.what()), "tensor wte.weight has a shape that no memory holds");
    }
  }
}

}  // namespace
}  // namespace unpack
