// Tokens that are found in the text itself before anything splits it: special ones, and words added
// to a vocabulary.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/json_fields.h"
#include "tokenizer/normalizer.h"
#include "unpack/config.h"

namespace unpack::tokenizer {

struct AddedToken {
  std::string content;
  std::int64_t id = 0;
  bool single_word = false;  // not where a word goes on before or after it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;
  bool normalized = false;  // looked for in the normalised text, in its own normalised form
  bool special = false;     // only looked for when asked
};

std::vector<AddedToken> read_added_tokens(const Fields& file);

// A stretch of text, or an added token that stands in it.
struct Section {
  static constexpr TokenId kText = -1;
  TokenId id = kText;
  std::string_view text;
};

class AddedTokens {
 public:
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer,
              const std::string& origin);

  // Tokens to find before and after normalisation. Empty stretches of text are left out.
  std::vector<Section> split_raw(std::string_view text, bool recognise_special) const {
    return split(raw_, text, recognise_special);
  }
  std::vector<Section> split_normalized(std::string_view text, bool recognise_special) const {
    return split(normalized_, text, recognise_special);
  }

 private:
  class Trie {
   public:
    void insert(std::string_view text, std::size_t token);
    // The token whose text is the longest that stands at `at`; `length` becomes its length. -1
    // where there is none.
    std::int64_t longest(std::string_view text, std::size_t at, std::size_t& length) const;
    bool empty() const { return tokens_.size() == 1; }

   private:
    static std::uint64_t step(std::size_t node, char byte) {
      return static_cast<std::uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
    }
    std::bitset<256> first_;
    std::unordered_map<std::uint64_t, std::uint32_t> next_;
    std::vector<std::int64_t> tokens_ = {-1};  // by node
  };

  std::vector<Section> split(const Trie& trie, std::string_view text, bool recognise_special) const;

  std::vector<AddedToken> tokens_;
  Trie raw_;
  Trie normalized_;
};

}  // namespace unpack::tokenizer
