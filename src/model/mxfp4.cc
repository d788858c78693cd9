#include "model/mxfp4.h"

#include <algorithm>
#include <cmath>

namespace unpack {

namespace {

constexpr float kValues[16] = {0.0F,  0.5F,  1.0F,  1.5F,  2.0F,  3.0F,  4.0F,  6.0F,
                               -0.0F, -0.5F, -1.0F, -1.5F, -2.0F, -3.0F, -4.0F, -6.0F};

class Mxfp4 final : public Encoded {
 public:
  Mxfp4(const std::byte* blocks, const std::byte* scales) : blocks_(blocks), scales_(scales) {}

  void decode(std::int64_t first, std::int64_t n, float* out) const override {
    for (std::int64_t i = first; i < first + n;) {
      const std::int64_t block = i / kMxfp4Block;
      const std::int64_t end = std::min(first + n, (block + 1) * kMxfp4Block);
      const float scale = std::ldexp(1.0F, static_cast<int>(scales_[block]) - 127);
      for (; i < end; ++i) {
        const auto byte = static_cast<unsigned>(blocks_[i / 2]);
        *out++ = kValues[i % 2 == 0 ? byte & 15U : byte >> 4] * scale;
      }
    }
  }

 private:
  const std::byte* blocks_;
  const std::byte* scales_;
};

}  // namespace

std::shared_ptr<const Encoded> make_mxfp4(const std::byte* blocks, const std::byte* scales) {
  return std::make_shared<Mxfp4>(blocks, scales);
}

}  // namespace unpack
