// How much a trace asks of a device: a short prompt waits for the host, which queues every launch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/cuda/emulated.h"
#include "unit/random_model.h"
#include "unpack/unpack.h"

namespace unpack {
namespace {

class AsOnAGpu {
 public:
  // Tiles as large, and products in parts from the same size on.
  AsOnAGpu() { backend::cuda::set_emulated(std::int64_t{768} << 20, std::int64_t{1} << 28); }
  ~AsOnAGpu() { backend::cuda::set_emulated(backend::cuda::kEmulatedTile, 0); }
  AsOnAGpu(const AsOnAGpu&) = delete;
  AsOnAGpu& operator=(const AsOnAGpu&) = delete;
};

TEST(DeviceWork, OfAShortPromptStaysBelowABound) {
  const AsOnAGpu as_there;
  testing::Shape shape;
  shape.layers = 12;
  shape.heads = 12;
  shape.d_head = 64;
  shape.neurons = 384;
  shape.vocabulary = 50;
  shape.context = 32;
  LoadOptions load;
  load.device = "cuda-emulated";
  const Model model = Model::random(shape.config(), 3, load);
  std::vector<TokenId> ids;
  for (int i = 0; i < 16; ++i) ids.push_back(3 * i % 50);
  Question question;
  question.paths.top = 20;
  const auto trace = [&] { (void)model.prepare(ids).trace(question); };
  trace();  // weights go up
  const backend::cuda::EmulatedWork before = backend::cuda::emulated_work();
  trace();
  const backend::cuda::EmulatedWork after = backend::cuda::emulated_work();
  EXPECT_LE(after.launches - before.launches, 680);
  EXPECT_LE(after.products - before.products, 355);
  EXPECT_LE(after.requests - before.requests, 835);
  EXPECT_LE(after.fills - before.fills, 10);
}

}  // namespace
}  // namespace unpack
