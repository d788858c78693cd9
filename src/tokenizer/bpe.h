// Byte-pair encoding of one piece of text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/parse.h"
#include "tokenizer/vocabulary.h"
#include "unpack/config.h"

namespace unpack::tokenizer {

struct BpeOptions {
  bool byte_units =
      false;  // pieces are merged from bytes (spelled as in byte_level.h), not from characters
  bool ignore_merges = false;  // a piece that is itself a token stays whole
  bool byte_fallback = false;  // a character without a token becomes its bytes, <0x00> to <0xFF>
  bool fuse_unk = false;
  std::optional<TokenId> unk;
};

// Which pair of neighbours becomes which token, and how early.
class MergeTable {
 public:
  struct Merge {
    std::uint32_t rank;
    TokenId token;
  };

  explicit MergeTable(std::size_t count);
  void insert(TokenId left, TokenId right, Merge merge);  // the last of two equal pairs holds
  const Merge* find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    std::uint64_t key;
    Merge merge;
  };
  std::size_t home(std::uint64_t key) const { return (key * 0x9E3779B97F4A7C15u) >> shift_; }

  int shift_;
  std::vector<Slot> slots_;  // open addressing, at most half full
};

class Bpe {
 public:
  // Throws InputError for a merge that names an unknown token.
  Bpe(const Vocabulary& vocabulary, const Merges& merges, const BpeOptions& options,
      const std::string& origin);

  // Appends the piece's ids. Takes O(n log n) for any piece.
  void encode(std::string_view piece, std::vector<TokenId>& ids) const;

  // True where a text may be cut before every "▁" that follows another character without changing
  // any id. It makes texts without a pre-tokenizer as fast as those with one.
  bool may_cut_before_metaspace() const { return may_cut_; }

 private:
  void first_symbols(std::string_view piece, std::vector<TokenId>& symbols) const;
  void merge_short(std::vector<TokenId>& symbols) const;
  void merge_long(std::vector<TokenId>& symbols) const;
  bool find_may_cut(const Vocabulary& vocabulary, const Merges& merges) const;

  BpeOptions options_;
  MergeTable merges_;
  std::array<TokenId, 256>
      of_byte_;  // token of a byte (byte units) or of an ASCII character; -1 where there is none
  std::array<TokenId, 256> fallback_;  // token of <0xNN>; -1 where there is none
  std::unordered_map<char32_t, TokenId>
      of_char_;  // tokens of the other characters; empty with byte units
  std::unordered_map<std::string, TokenId>
      whole_;  // tokens by the text they stand for; only for ignore_merges
  bool may_cut_ = false;
};

}  // namespace unpack::tokenizer
