#include "model/mxfp4.h"

#include <algorithm>
#include <cstring>

#include "base/index.h"

namespace unpack::model {

namespace {

class Mxfp4 final : public Encoded {
 public:
  Mxfp4(const std::byte* blocks, const std::byte* scales) : blocks_(blocks), scales_(scales) {}

  void decode(Index first, Index n, float* out) const override {
    for (Index i = first; i < first + n;) {
      const Index block = i / base::kMxfp4Block;
      const Index end = std::min(first + n, (block + 1) * base::kMxfp4Block);
      const float scale = base::mxfp4_scale(static_cast<std::uint32_t>(scales_[block]));
      for (; i < end; ++i) {
        const auto byte = static_cast<std::uint32_t>(blocks_[i / 2]);
        *out++ = base::mxfp4_value(i % 2 == 0 ? byte & 15U : byte >> 4) * scale;
      }
    }
  }

  bool mxfp4() const override { return true; }
  void copy_blocks(Index first, Index n, std::byte* out) const override {
    for (Index block = first / base::kMxfp4Block; n > 0; ++block, --n) {
      std::memcpy(out, blocks_ + block * base::kMxfp4Block / 2, base::kMxfp4Block / 2);
      out[base::kMxfp4Block / 2] = scales_[block];
      out += base::kMxfp4Bytes;
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

}  // namespace unpack::model
