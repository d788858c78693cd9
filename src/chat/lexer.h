// A chat template cut into tokens: text outside the tags, and what stands inside them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "unpack/error.h"

namespace unpack::chat {

enum class TokenKind {
  text,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  string,
  integer,
  real,
  op,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string value;
  int line = 1;
};

// White space is treated as transformers does for chat templates: the line end after a block tag
// goes (trim_blocks), blanks before a block tag at the start of a line go (lstrip_blocks), one line
// end at the end of the template goes. Throws InputError that names the line.
std::vector<Token> tokenize_template(std::string_view source);

// An error that says already where in the template it is.
class TemplateError : public InputError {
 public:
  using InputError::InputError;
};
[[noreturn]] void fail_at(int line, const std::string& what);

}  // namespace unpack::chat
