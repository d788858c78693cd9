// The model's tokens as the file spells them, by id and by spelling.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "unpack/config.h"

namespace unpack::tokenizer {

// Far above any real vocabulary; a file cannot make the tables by id larger than this.
constexpr std::int64_t kMaxTokenId = (1 << 20) - 1;

class Vocabulary {
 public:
  Vocabulary(std::vector<std::pair<std::string, std::int64_t>> entries, const std::string& origin);

  // Throws InputError where the token or its id is there already or the id is out of range. `field`
  // opens the message.
  void add(std::string token, std::int64_t id, const std::string& field);

  std::optional<TokenId> find(std::string_view token) const;
  const std::string* spelling(TokenId id) const;      // null where no token has the id
  std::size_t size() const { return by_id_.size(); }  // one past the largest id

 private:
  struct Slot {
    std::uint32_t hash = 0;
    TokenId id = kFree;
  };
  static constexpr TokenId kFree = -1;

  // The token's slot, or the free one where it belongs.
  std::size_t slot_of(std::string_view token, std::uint32_t hash) const;
  void reserve(std::size_t count);

  std::deque<std::string> tokens_;
  std::vector<const std::string*> by_id_;
  // Open addressing, at most half full. Loading a large file is mostly look-ups of the merges'
  // tokens, and a node-based map makes them twice as slow.
  std::vector<Slot> slots_;
};

}  // namespace unpack::tokenizer
