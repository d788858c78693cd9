// Tensors whose elements are packed in blocks, as GGUF files hold them, widened block by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "base/index.h"
#include "model/weights.h"

namespace unpack::model {

// The numbers are those of the file format.
enum class BlockType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  f64 = 28,
  bf16 = 30,
  mxfp4 = 39
};

struct BlockInfo {
  BlockType type;
  std::string_view name;       // "Q4_K"
  Index elements;              // of a block
  Index bytes;                 // of a block
  std::optional<DType> dtype;  // of plain types
};
const BlockInfo* find_block(std::uint32_t type);  // nullptr: not read
std::string_view block_name(std::uint32_t type);  // also of those that are not read
// One block; the arithmetic is in single precision, in the order of the published definition.
void decode_block(BlockType type, const std::byte* block, float* out);

// Encoded, but perhaps only in another order.
class Reordered : public Encoded {
 public:
  virtual bool plain() const = 0;
};
bool is_plain(const Encoded& encoded);

// A whole tensor of blocks. `data` outlives it.
std::shared_ptr<const Encoded> make_blocks(const BlockInfo& info, const std::byte* data);

// Another order of the rows of a tensor: row r is row `row_of(r)` of `inner`. A row has `columns`
// elements.
using RowOf = Index (*)(Index row, Index a, Index b);
std::shared_ptr<const Encoded> with_rows(std::shared_ptr<const Encoded> inner, Index columns,
                                         RowOf row_of, Index a, Index b);
// From element `start` on.
std::shared_ptr<const Encoded> from_element(std::shared_ptr<const Encoded> inner, Index start);
// Rows of two tensors by turns: even ones from `a`, odd ones from `b`.
std::shared_ptr<const Encoded> by_turns(std::shared_ptr<const Encoded> a,
                                        std::shared_ptr<const Encoded> b, Index columns);

}  // namespace unpack::model
