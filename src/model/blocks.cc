#include "model/blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/index.h"

namespace unpack::model {
namespace {

constexpr BlockInfo kBlocks[] = {
    {BlockType::f32, "F32", 1, 4, DType::f32}, {BlockType::f16, "F16", 1, 2, DType::f16},
    {BlockType::f64, "F64", 1, 8, DType::f64}, {BlockType::bf16, "BF16", 1, 2, DType::bf16},
    {BlockType::q4_0, "Q4_0", 32, 18, {}},     {BlockType::q4_1, "Q4_1", 32, 20, {}},
    {BlockType::q5_0, "Q5_0", 32, 22, {}},     {BlockType::q5_1, "Q5_1", 32, 24, {}},
    {BlockType::q8_0, "Q8_0", 32, 34, {}},     {BlockType::q2_k, "Q2_K", 256, 84, {}},
    {BlockType::q3_k, "Q3_K", 256, 110, {}},   {BlockType::q4_k, "Q4_K", 256, 144, {}},
    {BlockType::q5_k, "Q5_K", 256, 176, {}},   {BlockType::q6_k, "Q6_K", 256, 210, {}},
    {BlockType::mxfp4, "MXFP4", 32, 17, {}},
};
constexpr Index kLargest = 256;  // elements of a block

constexpr std::pair<std::uint32_t, std::string_view> kOthers[] = {
    {9, "Q8_1"},    {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},      {25, "I16"},
    {26, "I32"},    {27, "I64"},   {29, "IQ1_M"},   {34, "TQ1_0"},  {35, "TQ2_0"},
};

using Byte = std::uint8_t;

float half_at(const Byte* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return tensor::f16_to_f32(bits);
}

// Q4_0, Q4_1, Q5_0, Q5_1: element j in the low half of byte j, element j + 16 in the high half, a
// fifth bit in a word of its own.
void decode_small(const Byte* p, bool has_min, bool five, float* out) {
  const float d = half_at(p);
  const float m = has_min ? half_at(p + 2) : 0.0f;
  p += has_min ? 4 : 2;
  std::uint32_t high = 0;
  if (five) {
    std::memcpy(&high, p, sizeof(high));
    p += 4;
  }
  const int middle = has_min ? 0 : five ? 16 : 8;
  if (!five) {
    for (int j = 0; j < 16; ++j) {
      out[j] = ((p[j] & 0xF) - middle) * d + m;
      out[j + 16] = ((p[j] >> 4) - middle) * d + m;
    }
    return;
  }
  // A bit is looked for where it stands: lanes of a vector are not shifted by different counts.
  static constexpr std::array<int, 16> kBit = [] {
    std::array<int, 16> bits{};
    for (std::size_t j = 0; j < bits.size(); ++j) bits[j] = 1 << j;
    return bits;
  }();
  const int first = high & 0xFFFFU, second = high >> 16;
  for (std::size_t j = 0; j < 16; ++j) {
    const int low = (p[j] & 0xF) + ((first & kBit[j]) != 0 ? 16 : 0);
    const int top = (p[j] >> 4) + ((second & kBit[j]) != 0 ? 16 : 0);
    out[j] = (low - middle) * d + m;
    out[j + 16] = (top - middle) * d + m;
  }
}

void decode_q8_0(const Byte* p, float* out) {
  const float d = half_at(p);
  for (int j = 0; j < 32; ++j) out[j] = static_cast<std::int8_t>(p[2 + j]) * d;
}

// Scale and minimum of sub-block j, six bits each in twelve bytes.
void scale_and_min(const Byte* s, int j, float& scale, float& min) {
  int a, b;
  if (j < 4) {
    a = s[j] & 63;
    b = s[j + 4] & 63;
  } else {
    a = (s[j + 4] & 0xF) | ((s[j - 4] >> 6) << 4);
    b = (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
  }
  scale = a;
  min = b;
}

// Q4_K and Q5_K: eight sub-blocks of 32.
void decode_k45(const Byte* p, bool five, float* out) {
  const float d = half_at(p), dmin = half_at(p + 2);
  const Byte* scales = p + 4;
  const Byte* high = p + 16;
  const Byte* low = five ? p + 48 : p + 16;
  for (int j = 0; j < 8; ++j) {
    float scale, min;
    scale_and_min(scales, j, scale, min);
    const float step = d * scale, base = dmin * min;
    const Byte* q = low + (j / 2) * 32;
    for (int l = 0; l < 32; ++l) {
      int value = j % 2 == 0 ? q[l] & 0xF : q[l] >> 4;
      if (five && ((high[l] >> j) & 1) != 0) value += 16;
      out[j * 32 + l] = step * value - base;
    }
  }
}

void decode_q6_k(const Byte* p, float* out) {
  const Byte *low = p, *high = p + 128, *scales = p + 192;
  const float d = half_at(p + 208);
  for (int half = 0; half < 2; ++half, low += 64, high += 32, scales += 8, out += 128) {
    for (int j = 0; j < 8; ++j) {  // sixteen at a time, which have a scale
      const int quarter = j / 2, begin = j % 2 * 16;
      const float step = d * static_cast<std::int8_t>(scales[j]);
      const Byte* nibbles = low + quarter % 2 * 32 + begin;
      const int shift = quarter / 2 * 4;
      for (int l = 0; l < 16; ++l) {
        const int value = (nibbles[l] >> shift & 0xF) | (high[begin + l] >> 2 * quarter & 3) << 4;
        out[j * 16 + l] = step * (value - 32);
      }
    }
  }
}

void decode_q2_k(const Byte* p, float* out) {
  const Byte *scales = p, *q = p + 16;
  const float d = half_at(p + 80), dmin = half_at(p + 82);
  for (int j = 0; j < 16; ++j) {
    const float step = d * (scales[j] & 0xF);
    const float base = dmin * (scales[j] >> 4);
    const Byte* from = q + (j / 8) * 32 + (j % 2) * 16;
    const int shift = 2 * ((j % 8) / 2);
    for (int l = 0; l < 16; ++l) out[j * 16 + l] = step * ((from[l] >> shift) & 3) - base;
  }
}

void decode_q3_k(const Byte* p, float* out) {
  const Byte *mask = p, *q = p + 32, *packed = p + 96;
  const float d = half_at(p + 108);
  for (int j = 0; j < 16; ++j) {
    // Four low bits in bytes 0..7, two high ones in bytes 8..11.
    const int low = j < 8 ? packed[j] & 0xF : packed[j - 8] >> 4;
    const int scale = low | (((packed[8 + j % 4] >> (2 * (j / 4))) & 3) << 4);
    const float step = d * (scale - 32);
    const Byte* from = q + (j / 8) * 32 + (j % 2) * 16;
    const Byte* third = mask + (j % 2) * 16;
    const int shift = 2 * ((j % 8) / 2), bit = j / 2;
    for (int l = 0; l < 16; ++l) {
      const int value = ((from[l] >> shift) & 3) - (((third[l] >> bit) & 1) != 0 ? 0 : 4);
      out[j * 16 + l] = step * value;
    }
  }
}

void decode_mxfp4(const Byte* p, float* out) {
  constexpr float kValues[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  const float scale = std::ldexp(1.0f, p[0] - 127);
  for (int j = 0; j < 16; ++j) {
    out[j] = kValues[p[1 + j] & 0xF] * scale;
    out[j + 16] = kValues[p[1 + j] >> 4] * scale;
  }
}

class Blocks final : public Reordered {
 public:
  Blocks(const BlockInfo& info, const std::byte* data) : info_(info), data_(data) {}

  void decode(Index first, Index n, float* out) const override {
    if (info_.dtype) {
      tensor::convert_run(data_ + first * info_.bytes, *info_.dtype, n, out);
      return;
    }
    std::array<float, kLargest> block;
    while (n > 0) {
      const Index at = first % info_.elements;
      const Index count = std::min(n, info_.elements - at);
      const std::byte* from = data_ + first / info_.elements * info_.bytes;
      if (count == info_.elements) {
        decode_block(info_.type, from, out);
      } else {
        decode_block(info_.type, from, block.data());
        std::copy_n(block.data() + at, count, out);
      }
      first += count;
      out += count;
      n -= count;
    }
  }

  bool plain() const override { return info_.dtype.has_value(); }

  const std::byte* place(Index first, Index) const override {
    return info_.dtype ? data_ + first * info_.bytes : nullptr;
  }

 private:
  const BlockInfo& info_;
  const std::byte* data_;
};

class Rows final : public Reordered {
 public:
  Rows(std::shared_ptr<const Encoded> inner, Index columns, RowOf row_of, Index a, Index b)
      : inner_(std::move(inner)), columns_(columns), row_of_(row_of), a_(a), b_(b) {}

  void decode(Index first, Index n, float* out) const override {
    while (n > 0) {
      const Index at = first % columns_, count = std::min(n, columns_ - at);
      inner_->decode(row_of_(first / columns_, a_, b_) * columns_ + at, count, out);
      first += count;
      out += count;
      n -= count;
    }
  }

  bool plain() const override { return is_plain(*inner_); }

  const std::byte* place(Index first, Index n) const override {
    const Index at = first % columns_;
    if (at + n > columns_) return nullptr;
    return inner_->place(row_of_(first / columns_, a_, b_) * columns_ + at, n);
  }

 private:
  std::shared_ptr<const Encoded> inner_;
  Index columns_;
  RowOf row_of_;
  Index a_, b_;
};

class Part final : public Reordered {
 public:
  Part(std::shared_ptr<const Encoded> inner, Index start)
      : inner_(std::move(inner)), start_(start) {}
  void decode(Index first, Index n, float* out) const override {
    inner_->decode(start_ + first, n, out);
  }

  bool plain() const override { return is_plain(*inner_); }

  const std::byte* place(Index first, Index n) const override {
    return inner_->place(start_ + first, n);
  }

 private:
  std::shared_ptr<const Encoded> inner_;
  Index start_;
};

class Turns final : public Reordered {
 public:
  Turns(std::shared_ptr<const Encoded> a, std::shared_ptr<const Encoded> b, Index columns)
      : parts_{std::move(a), std::move(b)}, columns_(columns) {}

  void decode(Index first, Index n, float* out) const override {
    while (n > 0) {
      const Index row = first / columns_, at = first % columns_;
      const Index count = std::min(n, columns_ - at);
      parts_[row % 2]->decode(row / 2 * columns_ + at, count, out);
      first += count;
      out += count;
      n -= count;
    }
  }

  bool plain() const override { return is_plain(*parts_[0]) && is_plain(*parts_[1]); }

 private:
  std::shared_ptr<const Encoded> parts_[2];
  Index columns_;
};

}  // namespace

bool is_plain(const Encoded& encoded) {
  const auto* reordered = dynamic_cast<const Reordered*>(&encoded);
  return reordered != nullptr && reordered->plain();
}

const BlockInfo* find_block(std::uint32_t type) {
  const auto it = std::find_if(std::begin(kBlocks), std::end(kBlocks), [&](const BlockInfo& b) {
    return static_cast<std::uint32_t>(b.type) == type;
  });
  return it == std::end(kBlocks) ? nullptr : it;
}

std::string_view block_name(std::uint32_t type) {
  if (const BlockInfo* info = find_block(type)) return info->name;
  for (const auto& [number, name] : kOthers) {
    if (number == type) return name;
  }
  return "unknown";
}

void decode_block(BlockType type, const std::byte* block, float* out) {
  const auto* p = reinterpret_cast<const Byte*>(block);
  switch (type) {
    case BlockType::q4_0:
      return decode_small(p, false, false, out);
    case BlockType::q4_1:
      return decode_small(p, true, false, out);
    case BlockType::q5_0:
      return decode_small(p, false, true, out);
    case BlockType::q5_1:
      return decode_small(p, true, true, out);
    case BlockType::q8_0:
      return decode_q8_0(p, out);
    case BlockType::q2_k:
      return decode_q2_k(p, out);
    case BlockType::q3_k:
      return decode_q3_k(p, out);
    case BlockType::q4_k:
      return decode_k45(p, false, out);
    case BlockType::q5_k:
      return decode_k45(p, true, out);
    case BlockType::q6_k:
      return decode_q6_k(p, out);
    case BlockType::mxfp4:
      return decode_mxfp4(p, out);
    default:
      tensor::convert_run(block, *find_block(static_cast<std::uint32_t>(type))->dtype, 1, out);
  }
}

std::shared_ptr<const Encoded> make_blocks(const BlockInfo& info, const std::byte* data) {
  return std::make_shared<const Blocks>(info, data);
}

std::shared_ptr<const Encoded> with_rows(std::shared_ptr<const Encoded> inner, Index columns,
                                         RowOf row_of, Index a, Index b) {
  return std::make_shared<const Rows>(std::move(inner), columns, row_of, a, b);
}

std::shared_ptr<const Encoded> from_element(std::shared_ptr<const Encoded> inner, Index start) {
  return std::make_shared<const Part>(std::move(inner), start);
}

std::shared_ptr<const Encoded> by_turns(std::shared_ptr<const Encoded> a,
                                        std::shared_ptr<const Encoded> b, Index columns) {
  return std::make_shared<const Turns>(std::move(a), std::move(b), columns);
}

}  // namespace unpack::model
