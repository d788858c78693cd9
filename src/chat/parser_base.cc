#include "chat/parser_base.h"

#include <fmt/format.h>

#include "tokenizer/utf8.h"

namespace unpack::chat {

bool ExpressionParser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  take();
  return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  take();
  return true;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail(fmt::format("expected '{}', found {}", op, shown(now())));
}

std::string ExpressionParser::expect_name(std::string_view what) {
  if (now().kind != TokenKind::name) fail(fmt::format("expected {}, found {}", what, shown(now())));
  return take().value;
}

std::string ExpressionParser::shown(const Token& token) {
  switch (token.kind) {
    case TokenKind::end:
      return "the end of the template";
    case TokenKind::text:
      return "text";
    case TokenKind::variable_begin:
      return "{{";
    case TokenKind::variable_end:
      return "}}";
    case TokenKind::block_begin:
      return "{%";
    case TokenKind::block_end:
      return "%}";
    default:
      return tokenizer::in_quotes(token.value);
  }
}

}  // namespace unpack::chat
