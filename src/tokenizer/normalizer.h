// What a tokenizer file does to the text before it is split: Unicode normal forms, Prepend,
// Replace.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/json_fields.h"
#include "tokenizer/regex.h"

namespace unpack::tokenizer {

class Normalizer {
 public:
  Normalizer() = default;
  explicit Normalizer(
      const Fields& file);  // reads "normalizer"; throws InputError for what is not supported

  bool empty() const { return steps_.empty(); }
  std::string apply(std::string_view text) const;  // of valid UTF-8

 private:
  struct UnicodeForm {
    int options;  // of utf8proc
  };
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Regex pattern;
    std::string content;
  };
  std::vector<std::variant<UnicodeForm, Prepend, Replace>> steps_;
};

}  // namespace unpack::tokenizer
