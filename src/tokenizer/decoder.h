// From tokens back to text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_fields.h"
#include "tokenizer/regex.h"

namespace unpack::tokenizer {

class Decoder {
 public:
  // Reads "decoder"; throws InputError for what is not supported. Where the file has none,
  // spellings are undone as the pre-tokenizer (byte-level, or "▁" for a space) made them.
  Decoder(const Fields& file, bool byte_level, bool metaspace);
  static Decoder byte_level();

  // The bytes that a token of the vocabulary stands for, wherever in a text it stands.
  std::string token_bytes(std::string_view spelling) const;
  // What remains to be done to the joined bytes of a whole text; the result is valid UTF-8.
  std::string finish(std::string bytes) const;

 private:
  struct ByteLevel {};
  struct ByteFallback {};
  struct Replace {
    Regex pattern;
    std::string content;
  };
  struct Strip {
    std::string content;
    std::size_t start;
    std::size_t stop;
  };
  using Step = std::variant<ByteLevel, ByteFallback, Replace, Strip>;

  Decoder() = default;
  void read_step(const Fields& step);
  void add_metaspace(const std::string& replacement, bool strip_first, const std::string& field);
  static std::string run(const Step& step, std::string bytes, std::size_t limit);

  std::vector<Step> per_token_;
  std::vector<Step> whole_;  // after the tokens are fused
  bool fused_ = false;       // while reading
};

}  // namespace unpack::tokenizer
