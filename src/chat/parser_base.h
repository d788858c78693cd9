// Expressions of a chat template; the parser of statements stands on it.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat/lexer.h"
#include "chat/syntax.h"

namespace unpack::chat {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool is_op(std::string_view op) const { return now().kind == TokenKind::op && now().value == op; }
  bool is_name(std::string_view name) const {
    return now().kind == TokenKind::name && now().value == name;
  }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  std::string expect_name(std::string_view what);
  [[noreturn]] void fail(const std::string& what) const { fail_at(now().line, what); }
  static std::string shown(const Token& token);

  ExprPtr expression(bool with_condition = true);
  // One expression, or several between commas.
  ExprPtr tuple(bool with_condition = true, std::span<const std::string_view> ends = {});
  ExprPtr target();  // of a for or set
  ExprPtr filters(ExprPtr inner, bool first_without_bar);

 private:
  class Deeper;
  ExprPtr make(Op op, int line) const;
  ExprPtr binary(Op op, ExprPtr left, ExprPtr right, int line) const;
  ExprPtr conditional();
  ExprPtr either();
  ExprPtr both();
  ExprPtr inverted();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filters);
  ExprPtr primary();
  ExprPtr name_or_constant();
  ExprPtr literal();
  ExprPtr list_or_dict();
  ExprPtr call(ExprPtr function);
  ExprPtr postfix(ExprPtr inner);
  ExprPtr filters_and_tests(ExprPtr inner);
  ExprPtr filter(ExprPtr inner);
  ExprPtr test(ExprPtr inner);
  ExprPtr subscript(ExprPtr inner);
  void call_arguments(Expr& call);
  ExprPtr target_part();
  bool ends_tuple(std::span<const std::string_view> ends) const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace unpack::chat
