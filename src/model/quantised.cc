#include "model/quantised.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>

#include "base/index.h"
#include "base/json_reader.h"
#include "base/message.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

using QuantisedPart = Checkpoint::Entry;
constexpr Index kPerWord = 8;  // values of four bits in a word of 32

std::uint32_t word_at(const std::byte* data, Index i) {
  std::uint32_t word = 0;
  std::memcpy(&word, data + i * 4, sizeof(word));
  return word;
}

// Calls run(block, begin, end) for the blocks of `size` elements that [from, end) goes through.
template <typename Run>
void each_block(Index from, Index end, Index size, const Run& run) {
  while (from < end) {
    const Index block = from / size, next = std::min(end, (block + 1) * size);
    run(block, from, next);
    from = next;
  }
}

// A matrix [out, in], read row by row.
class QuantisedRows : public Encoded {
 public:
  explicit QuantisedRows(Index in) : in_(in) {}
  void decode(Index first, Index n, float* values) const final {
    while (n > 0) {
      const Index from = first % in_, count = std::min(n, in_ - from);
      read_row(first / in_, from, count, values);
      first += count;
      values += count;
      n -= count;
    }
  }

 protected:
  virtual void read_row(Index row, Index from, Index n, float* values) const = 0;
  const Index in_;
};

// s eeee mmm with bias 7; no infinities, and one NaN of each sign.
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> out{};
    for (int i = 0; i < 256; ++i) {
      const int exponent = i >> 3 & 15, mantissa = i & 7;
      const float size = exponent == 15 && mantissa == 7 ? std::nanf("")
                         : exponent == 0
                             ? std::ldexp(static_cast<float>(mantissa), -9)
                             : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      out[i] = i < 128 ? size : -size;
    }
    return out;
  }();
  return values;
}

// value * scale of its block; blocks of the last row and column may be cut off.
class Fp8 final : public QuantisedRows {
 public:
  Fp8(const std::byte* data, Index in, Index block_out, Index block_in, Index blocks,
      std::vector<float> scales)
      : QuantisedRows(in),
        data_(data),
        block_out_(block_out),
        block_in_(block_in),
        blocks_(blocks),
        scales_(std::move(scales)) {}

 private:
  void read_row(Index row, Index from, Index n, float* out) const override {
    const std::array<float, 256>& value = e4m3_values();
    const std::byte* data = data_ + row * in_;
    const float* scales = scales_.data() + row / block_out_ * blocks_;
    each_block(from, from + n, block_in_, [&](Index b, Index i, Index end) {
      const float scale = scales[b];
      for (; i < end; ++i) *out++ = value[static_cast<std::size_t>(data[i])] * scale;
    });
  }
  const std::byte* data_;
  Index block_out_, block_in_, blocks_;  // blocks of a row
  std::vector<float> scales_;
};

// Two values a byte, the first in the upper half; blocks run through the rows.
class FourBitMap final : public Encoded {
 public:
  FourBitMap(const std::byte* data, Index block, std::vector<float> scales,
             std::array<float, 16> map)
      : data_(data), block_(block), scales_(std::move(scales)), map_(map) {}

  void decode(Index first, Index n, float* out) const override {
    each_block(first, first + n, block_, [&](Index b, Index i, Index end) {
      const float scale = scales_[b];
      for (; i < end; ++i) {
        const auto byte = static_cast<unsigned>(data_[i / 2]);
        *out++ = map_[i % 2 == 0 ? byte >> 4 : byte & 15U] * scale;
      }
    });
  }

 private:
  const std::byte* data_;
  Index block_;
  std::vector<float> scales_;
  std::array<float, 16> map_;
};

// Scale and zero point of every group and output.
struct Groups {
  Index out = 0;
  std::vector<float> scales, zeros;  // [groups, out]
  float value(Index group, Index o, unsigned q) const {
    const std::size_t at = group * out + o;
    return scales[at] * (q - zeros[at]);
  }
};

// Words [in, out / 8]; the eight outputs of a word stand in the order 0 2 4 6 1 3 5 7.
constexpr unsigned awq_shift(Index o) {
  const unsigned at = o % kPerWord;
  return 4 * (at / 2 + (at % 2) * 4);
}

class Awq final : public QuantisedRows {
 public:
  Awq(const std::byte* words, Index in, Index group, Groups groups)
      : QuantisedRows(in), words_(words), group_(group), groups_(std::move(groups)) {}

 private:
  void read_row(Index o, Index from, Index n, float* out) const override {
    const Index columns = groups_.out / kPerWord;
    const std::byte* words = words_ + o / kPerWord * 4;
    const unsigned shift = awq_shift(o);
    each_block(from, from + n, group_, [&](Index g, Index i, Index end) {
      for (; i < end; ++i) *out++ = groups_.value(g, o, word_at(words, i * columns) >> shift & 15U);
    });
  }
  const std::byte* words_;
  Index group_;
  Groups groups_;
};

// Words [in / 8, out], eight inputs a word; every input names its group.
class Gptq final : public QuantisedRows {
 public:
  Gptq(const std::byte* words, Index in, std::vector<std::int32_t> group_of, Groups groups)
      : QuantisedRows(in),
        words_(words),
        group_of_(std::move(group_of)),
        groups_(std::move(groups)) {}

 private:
  void read_row(Index o, Index from, Index n, float* out) const override {
    each_block(from, from + n, kPerWord, [&](Index w, Index i, Index end) {
      std::uint32_t word = word_at(words_, w * groups_.out + o) >> 4 * (i % kPerWord);
      for (; i < end; ++i, word >>= 4) *out++ = groups_.value(group_of_[i], o, word & 15U);
    });
  }
  const std::byte* words_;
  std::vector<std::int32_t> group_of_;
  Groups groups_;
};

class Unfolding {
 public:
  Unfolding(Checkpoint& checkpoint, const Quantisation& quantisation)
      : checkpoint_(checkpoint), quantisation_(quantisation) {}

  void run() {
    std::vector<std::string> names;
    checkpoint_.each(
        [&](const QuantisedPart& entry) { names.push_back(entry.tensor.stored.name); });
    for (const std::string& name : names) {
      switch (quantisation_.method) {
        case QuantMethod::fp8:
          if (name.ends_with(".weight") && checkpoint_.find(name)->tensor.dtype_name == "F8_E4M3")
            fp8(name);
          break;
        case QuantMethod::bitsandbytes:
          if (name.ends_with(".weight") && checkpoint_.find(name + ".absmax")) four_bit_map(name);
          break;
        case QuantMethod::awq:
        case QuantMethod::gptq:
          if (name.ends_with(".qweight")) grouped(name.substr(0, name.size() - 8));
          break;
        case QuantMethod::none:
          break;
      }
    }
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw InputError(fmt::format("{}: tensor {} {}, which does not fit {}", checkpoint_.origin(),
                                 base::shown(name), what, quantisation_.name()));
  }

  const QuantisedPart& part(const std::string& name) const {
    const QuantisedPart* entry = checkpoint_.find(name);
    if (entry == nullptr) fail(name, "is missing");
    return *entry;
  }
  const QuantisedPart& part(const std::string& name, std::string_view type,
                            const std::vector<Index>& shape) const {
    const QuantisedPart& entry = part(name);
    if (entry.tensor.dtype_name != type)
      fail(name, fmt::format("has type {}, not {}", base::shown(entry.tensor.dtype_name), type));
    if (entry.tensor.stored.shape != shape)
      fail(name, fmt::format("has shape [{}], not [{}]", base::joined(entry.tensor.stored.shape),
                             base::joined(shape)));
    return entry;
  }
  // Of any float type.
  std::vector<float> numbers(const std::string& name, Index n) const {
    const QuantisedPart& entry = part(name);
    const StoredTensor& stored = entry.tensor.stored;
    if (!entry.tensor.readable)
      fail(name,
           fmt::format("has type {}, no plain numbers", base::shown(entry.tensor.dtype_name)));
    if (stored.bytes != n * tensor::dtype_size(stored.dtype))
      fail(name, fmt::format("has shape [{}], not {} numbers", base::joined(stored.shape), n));
    std::vector<float> out(n);
    tensor::convert_run(stored.data, stored.dtype, n, out.data());
    return out;
  }
  const std::vector<Index>& matrix(const std::string& name, std::string_view type) const {
    const QuantisedPart& entry = part(name);
    const std::vector<Index>& shape = entry.tensor.stored.shape;
    if (entry.tensor.dtype_name != type || shape.size() != 2 || shape[0] < 1 || shape[1] < 1)
      fail(name, fmt::format("has type {} and shape [{}]", base::shown(entry.tensor.dtype_name),
                             base::joined(shape)));
    return shape;
  }
  // `from` holds the bytes; the other parts stay where they are, nobody asks for them.
  void replace(const std::string& name, const std::string& from, Index out, Index in,
               std::shared_ptr<const Encoded> encoded) {
    QuantisedPart entry = part(from);
    entry.tensor.stored.name = name;
    entry.tensor.stored.shape = {out, in};
    entry.encoded = std::move(encoded);
    checkpoint_.put(name, std::move(entry));
  }

  void fp8(const std::string& name) {
    const std::vector<Index> shape = matrix(name, "F8_E4M3");
    const Index out = shape[0], in = shape[1];
    Index block_out = out, block_in = in;
    const std::string blocks = name + "_scale_inv", plain = name + "_scale";
    std::vector<float> scales;
    if (checkpoint_.find(blocks)) {
      if (quantisation_.block[0] > 0) {
        block_out = quantisation_.block[0];
        block_in = quantisation_.block[1];
      }
      const Index rows = (out + block_out - 1) / block_out;
      const Index columns = (in + block_in - 1) / block_in;
      if (rows * columns > 1) part_shape(blocks, {rows, columns});
      scales = numbers(blocks, rows * columns);
    } else {
      const StoredTensor& stored = part(plain).tensor.stored;
      const bool rows = out > 1 && (stored.shape == std::vector<Index>{out} ||
                                    stored.shape == std::vector<Index>{out, 1});
      if (rows) block_out = 1;
      scales = numbers(plain, rows ? out : 1);
    }
    auto encoded =
        std::make_shared<Fp8>(checkpoint_.find(name)->tensor.stored.data, in, block_out, block_in,
                              (in + block_in - 1) / block_in, std::move(scales));
    replace(name, name, out, in, std::move(encoded));
  }
  void part_shape(const std::string& name, const std::vector<Index>& shape) const {
    const StoredTensor& stored = part(name).tensor.stored;
    if (stored.shape != shape)
      fail(name, fmt::format("has shape [{}], not [{}]", base::joined(stored.shape),
                             base::joined(shape)));
  }

  void four_bit_map(const std::string& name) {
    std::string kind = "nf4";
    if (!checkpoint_.find(name + ".quant_state.bitsandbytes__nf4")) kind = "fp4";
    const std::string state_name = name + ".quant_state.bitsandbytes__" + kind;
    const QuantisedPart& state = part(state_name);
    const StoredTensor& text = state.tensor.stored;
    constexpr std::size_t kLongest = 1 << 16;
    if (state.tensor.dtype_name != "U8" || text.bytes > kLongest)
      fail(state_name, "is no text in bytes");
    const JsonValue json = base::read_json({reinterpret_cast<const char*>(text.data), text.bytes},
                                           base::shown(state_name));
    if (!json.is_object()) fail(state_name, "is no JSON object");
    const ConfigReader reader(json, base::shown(state_name));
    const std::vector<Index> shape = reader.integers("shape");
    const Index block = reader.size("blocksize", 64);
    if (shape.size() != 2 || shape[0] < 1 || shape[1] < 1 || shape[0] > ConfigReader::kMaxSize ||
        shape[1] > ConfigReader::kMaxSize)
      fail(state_name, "names no shape of two sizes");
    const Index n = shape[0] * shape[1];
    const QuantisedPart& packed = part(name);
    if (packed.tensor.dtype_name != "U8" ||
        packed.tensor.stored.bytes != static_cast<std::size_t>((n + 1) / 2))
      fail(name, fmt::format("has {} bytes of type {} for {} values of four bits",
                             packed.tensor.stored.bytes, base::shown(packed.tensor.dtype_name), n));
    const Index blocks = (n + block - 1) / block;
    std::vector<float> scales = part(name + ".absmax").tensor.dtype_name == "U8"
                                    ? nested_scales(name, reader, blocks)
                                    : numbers(name + ".absmax", blocks);
    std::array<float, 16> map{};
    const std::vector<float> stored_map = numbers(name + ".quant_map", 16);
    std::copy(stored_map.begin(), stored_map.end(), map.begin());
    auto encoded =
        std::make_shared<FourBitMap>(packed.tensor.stored.data, block, std::move(scales), map);
    replace(name, name, shape[0], shape[1], std::move(encoded));
  }

  // Scales that are quantised themselves: a table of 256 numbers, a scale a block, an offset.
  std::vector<float> nested_scales(const std::string& name, const ConfigReader& reader,
                                   Index blocks) const {
    const QuantisedPart& codes = part(name + ".absmax", "U8", {blocks});
    const Index block = reader.size("nested_blocksize", 256);
    const float offset = reader.number("nested_offset", 0);
    const std::vector<float> table = numbers(name + ".nested_quant_map", 256);
    const std::vector<float> outer = numbers(name + ".nested_absmax", (blocks + block - 1) / block);
    std::vector<float> out;
    for (Index i = 0; i < blocks; ++i)
      out.push_back(
          table[static_cast<std::size_t>(codes.tensor.stored.data[i])] * outer[i / block] + offset);
    return out;
  }

  void grouped(const std::string& prefix) {
    const bool awq = quantisation_.method == QuantMethod::awq;
    const std::string words_name = prefix + ".qweight";
    const std::vector<Index> shape = matrix(words_name, "I32");
    if (shape[0] > ConfigReader::kMaxSize || shape[1] > ConfigReader::kMaxSize)
      fail(words_name, "is too large");
    const Index in = awq ? shape[0] : shape[0] * kPerWord;
    const Index out = awq ? shape[1] * kPerWord : shape[1];
    const Index group = quantisation_.group == 0 ? in : quantisation_.group;
    const Index count = (in + group - 1) / group;
    if (out % kPerWord != 0) fail(words_name, fmt::format("has {} outputs", out));
    Groups groups{out, numbers(prefix + ".scales", count * out), {}};
    part_shape(prefix + ".scales", {count, out});
    const QuantisedPart& zeros = part(prefix + ".qzeros", "I32", {count, out / kPerWord});
    for (Index i = 0; i < count * out; ++i) {
      const std::uint32_t word = word_at(zeros.tensor.stored.data, i / kPerWord);
      const unsigned shift = awq ? awq_shift(i) : static_cast<unsigned>(4 * (i % kPerWord));
      unsigned zero = word >> shift & 15U;
      if (quantisation_.stored_less_one) zero = (zero + 1) & 15U;
      groups.zeros.push_back(zero);
    }
    const std::byte* words = checkpoint_.find(words_name)->tensor.stored.data;
    std::shared_ptr<const Encoded> encoded;
    if (awq) {
      encoded = std::make_shared<Awq>(words, in, group, std::move(groups));
    } else {
      encoded = std::make_shared<Gptq>(words, in, input_groups(prefix, in, group, count),
                                       std::move(groups));
    }
    replace(prefix + ".weight", words_name, out, in, std::move(encoded));
  }

  std::vector<std::int32_t> input_groups(const std::string& prefix, Index in, Index group,
                                         Index count) const {
    std::vector<std::int32_t> out;
    const std::string name = prefix + ".g_idx";
    if (!checkpoint_.find(name)) {
      for (Index i = 0; i < in; ++i) out.push_back(i / group);
      return out;
    }
    const QuantisedPart& entry = part(name, "I32", {in});
    for (Index i = 0; i < in; ++i) {
      const std::int32_t each = word_at(entry.tensor.stored.data, i);
      if (each < 0 || each >= count) fail(name, fmt::format("names group {} of {}", each, count));
      out.push_back(each);
    }
    return out;
  }

  Checkpoint& checkpoint_;
  const Quantisation& quantisation_;
};

}  // namespace

void unfold_quantised(Checkpoint& checkpoint, const Quantisation& quantisation) {
  if (quantisation.method != QuantMethod::none) Unfolding(checkpoint, quantisation).run();
}

}  // namespace unpack::model
