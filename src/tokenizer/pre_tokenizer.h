// Cuts normalised text into the pieces that BPE works on, one at a time.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_fields.h"
#include "tokenizer/regex.h"

namespace unpack::tokenizer {

struct Piece {
  std::string_view text;
  bool opens_text;  // nothing of the whole text stands before it
};

class PreTokenizer {
 public:
  explicit PreTokenizer(
      const Fields& file);  // reads "pre_tokenizer"; throws InputError for what is not supported
  static PreTokenizer gpt2();

  bool empty() const { return steps_.empty(); }
  bool byte_level() const { return byte_level_; }  // pieces are merged from bytes
  bool metaspace() const { return metaspace_; }

  // The pieces view `text`, or `storage` where a step rewrote them.
  std::vector<Piece> apply(std::string_view text, bool opens_text,
                           std::deque<std::string>& storage) const;

 private:
  enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };
  enum class PrependScheme { always, first, never };
  struct Split {
    Regex pattern;
    Behavior behavior;
    bool invert;
  };
  struct PrefixSpace {};  // a space in front of every piece that has none
  struct Metaspace {
    std::string replacement;
    PrependScheme prepend;
    bool split;
  };

  PreTokenizer() = default;
  void add_byte_level(bool prefix_space, bool use_regex, const std::string& field);
  static Split read_split(const Fields& step);
  static Metaspace read_metaspace(const Fields& step);
  static Behavior read_behavior(const Fields& step);
  static void split_piece(const Split& split, Regex::Scan& scan, const Piece& piece,
                          std::vector<Piece>& out);
  static void metaspace_piece(const Metaspace& step, const Piece& piece,
                              std::deque<std::string>& storage, std::vector<Piece>& out);

  std::vector<std::variant<Split, PrefixSpace, Metaspace>> steps_;
  bool byte_level_ = false;
  bool metaspace_ = false;
};

}  // namespace unpack::tokenizer
