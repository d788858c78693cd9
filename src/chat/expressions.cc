#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "chat/parser_base.h"

namespace unpack::chat {
namespace {

constexpr int kDeepestExpression = 150;  // brackets and operators inside each other
constexpr int kLongestChain = 400;       // a + a + a ..., which the tree nests as well

ExprPtr grown(ExprPtr expr) {
  for (const ExprPtr& arg : expr->args) {
    if (arg) expr->depth = std::max(expr->depth, arg->depth + 1);
  }
  if (expr->depth > kLongestChain) fail_at(expr->line, "the expression is too long");
  return expr;
}

}  // namespace

class ExpressionParser::Deeper {
 public:
  explicit Deeper(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.depth_ > kDeepestExpression) parser_.fail("expressions are nested too deeply");
  }
  ~Deeper() { --parser_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  ExpressionParser& parser_;
};

ExprPtr ExpressionParser::make(Op op, int line) const {
  auto expr = std::make_unique<Expr>();
  expr->op = op;
  expr->line = line;
  return expr;
}

ExprPtr ExpressionParser::binary(Op op, ExprPtr left, ExprPtr right, int line) const {
  ExprPtr expr = make(op, line);
  expr->args.push_back(std::move(left));
  expr->args.push_back(std::move(right));
  return grown(std::move(expr));
}

ExprPtr ExpressionParser::expression(bool with_condition) {
  const Deeper deeper(*this);
  return with_condition ? conditional() : either();
}

ExprPtr ExpressionParser::conditional() {
  ExprPtr left = either();
  while (is_name("if")) {
    const int line = take().line;
    ExprPtr expr = make(Op::conditional, line);
    expr->args.push_back(std::move(left));
    expr->args.push_back(either());
    expr->args.push_back(skip_name("else") ? expression() : nullptr);
    left = grown(std::move(expr));
  }
  return left;
}

ExprPtr ExpressionParser::either() {
  ExprPtr left = both();
  while (is_name("or")) {
    const int line = take().line;
    left = binary(Op::either, std::move(left), both(), line);
  }
  return left;
}

ExprPtr ExpressionParser::both() {
  ExprPtr left = inverted();
  while (is_name("and")) {
    const int line = take().line;
    left = binary(Op::both, std::move(left), inverted(), line);
  }
  return left;
}

ExprPtr ExpressionParser::inverted() {
  if (!is_name("not")) return comparison();
  const Deeper deeper(*this);
  ExprPtr expr = make(Op::invert, take().line);
  expr->args.push_back(inverted());
  return expr;
}

ExprPtr ExpressionParser::comparison() {
  ExprPtr left = sum();
  ExprPtr chain;
  for (;;) {
    std::string word;
    const Token& token = now();
    if (token.kind == TokenKind::op &&
        (token.value == "==" || token.value == "!=" || token.value == "<" || token.value == "<=" ||
         token.value == ">" || token.value == ">=")) {
      word = token.value;
    } else if (is_name("in")) {
      word = "in";
    } else if (is_name("not") && ahead().kind == TokenKind::name && ahead().value == "in") {
      take();
      word = "not in";
    } else {
      break;
    }
    const int line = take().line;
    if (!chain) {
      chain = make(Op::compare, line);
      chain->args.push_back(std::move(left));
    }
    chain->words.push_back(word);
    chain->args.push_back(sum());
  }
  return chain ? std::move(chain) : std::move(left);
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concatenation();
  while (is_op("+") || is_op("-")) {
    const Token op = take();
    left =
        binary(op.value == "+" ? Op::add : Op::subtract, std::move(left), concatenation(), op.line);
  }
  return left;
}

ExprPtr ExpressionParser::concatenation() {
  ExprPtr left = product();
  if (!is_op("~")) return left;
  ExprPtr expr = make(Op::concat, now().line);
  expr->args.push_back(std::move(left));
  while (skip_op("~")) expr->args.push_back(product());
  return expr;
}

ExprPtr ExpressionParser::product() {
  ExprPtr left = power();
  while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
    const Token op = take();
    const Op kind = op.value == "*"    ? Op::multiply
                    : op.value == "/"  ? Op::divide
                    : op.value == "//" ? Op::floor_divide
                                       : Op::modulo;
    left = binary(kind, std::move(left), power(), op.line);
  }
  return left;
}

ExprPtr ExpressionParser::power() {
  ExprPtr left = unary(true);
  while (is_op("**")) {
    const int line = take().line;
    left = binary(Op::power, std::move(left), unary(true), line);
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const Deeper deeper(*this);
  ExprPtr expr;
  if (is_op("-") || is_op("+")) {
    const Token op = take();
    expr = make(op.value == "-" ? Op::negate : Op::keep, op.line);
    expr->args.push_back(unary(false));
  } else {
    expr = primary();
  }
  expr = postfix(std::move(expr));
  return with_filters ? filters_and_tests(std::move(expr)) : std::move(expr);
}

ExprPtr ExpressionParser::primary() {
  const Token token = now();
  switch (token.kind) {
    case TokenKind::name:
      return name_or_constant();
    case TokenKind::string:
    case TokenKind::integer:
    case TokenKind::real:
      return literal();
    default:
      break;
  }
  if (is_op("(")) {
    take();
    if (skip_op(")")) return make(Op::tuple, token.line);
    constexpr std::string_view kEnds[] = {")"};
    ExprPtr expr = tuple(true, kEnds);
    expect_op(")");
    return expr;
  }
  if (is_op("[") || is_op("{")) return list_or_dict();
  fail(fmt::format("unexpected {}", shown(token)));
}

ExprPtr ExpressionParser::name_or_constant() {
  const Token token = take();
  ExprPtr expr = make(Op::literal, token.line);
  const std::string& name = token.value;
  if (name == "true" || name == "True") {
    expr->value = true;
  } else if (name == "false" || name == "False") {
    expr->value = false;
  } else if (name == "none" || name == "None") {
    expr->value = None{};
  } else {
    expr->op = Op::name;
    expr->name = name;
  }
  return expr;
}

ExprPtr ExpressionParser::literal() {
  const Token token = now();
  ExprPtr expr = make(Op::literal, token.line);
  if (token.kind == TokenKind::string) {
    std::string text;
    while (now().kind == TokenKind::string) text += take().value;
    expr->value = std::move(text);
    return expr;
  }
  take();
  if (token.kind == TokenKind::real) {
    expr->value = std::strtod(token.value.c_str(), nullptr);
    return expr;
  }
  std::int64_t number = 0;
  const char* end = token.value.data() + token.value.size();
  if (std::from_chars(token.value.data(), end, number).ec != std::errc{})
    fail_at(token.line, fmt::format("the number {} is too large", token.value));
  expr->value = number;
  return expr;
}

ExprPtr ExpressionParser::list_or_dict() {
  const Token open = take();
  const bool dict = open.value == "{";
  const std::string_view close = dict ? "}" : "]";
  ExprPtr expr = make(dict ? Op::dict : Op::list, open.line);
  while (!is_op(close)) {
    if (!expr->args.empty()) expect_op(",");
    if (is_op(close)) break;
    expr->args.push_back(expression());
    if (!dict) continue;
    expect_op(":");
    expr->args.push_back(expression());
  }
  expect_op(close);
  return expr;
}

ExprPtr ExpressionParser::postfix(ExprPtr inner) {
  for (;;) {
    if (is_op(".") || is_op("[")) {
      inner = subscript(std::move(inner));
    } else if (is_op("(")) {
      inner = call(std::move(inner));
    } else {
      return inner;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr inner) {
  const Token open = take();
  if (open.value == ".") {
    if (now().kind == TokenKind::integer) {
      ExprPtr key = primary();
      return binary(Op::item, std::move(inner), std::move(key), open.line);
    }
    ExprPtr expr = make(Op::attribute, open.line);
    expr->args.push_back(std::move(inner));
    expr->name = expect_name("the name of an attribute");
    return grown(std::move(expr));
  }
  ExprPtr parts[3];
  int at = 0;
  bool sliced = false;
  while (!is_op("]")) {
    if (skip_op(":")) {
      sliced = true;
      if (++at > 2) fail("a slice has three parts at most");
    } else if (parts[at]) {
      fail(fmt::format("expected ']', found {}", shown(now())));
    } else {
      parts[at] = expression();
    }
  }
  expect_op("]");
  if (!sliced && !parts[0]) fail_at(open.line, "[] without anything inside");
  if (!sliced) return binary(Op::item, std::move(inner), std::move(parts[0]), open.line);
  ExprPtr expr = make(Op::slice, open.line);
  expr->args.push_back(std::move(inner));
  for (ExprPtr& part : parts) expr->args.push_back(std::move(part));
  return grown(std::move(expr));
}

ExprPtr ExpressionParser::call(ExprPtr function) {
  ExprPtr expr = make(Op::call, now().line);
  expr->args.push_back(std::move(function));
  call_arguments(*expr);
  return grown(std::move(expr));
}

void ExpressionParser::call_arguments(Expr& call) {
  expect_op("(");
  bool first = true;
  while (!is_op(")")) {
    if (!first) expect_op(",");
    first = false;
    if (is_op(")")) break;
    if (is_op("*") || is_op("**")) fail("* and ** in a call are not supported");
    if (now().kind == TokenKind::name && ahead().kind == TokenKind::op && ahead().value == "=") {
      std::string name = take().value;
      take();
      call.named.emplace_back(std::move(name), expression());
    } else {
      if (!call.named.empty()) fail("an argument without a name after one with a name");
      call.args.push_back(expression());
    }
  }
  expect_op(")");
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr inner) {
  for (;;) {
    if (skip_op("|")) {
      inner = filter(std::move(inner));
    } else if (skip_name("is")) {
      inner = test(std::move(inner));
    } else if (is_op("(")) {
      inner = call(std::move(inner));
    } else {
      return inner;
    }
  }
}

ExprPtr ExpressionParser::filters(ExprPtr inner, bool first_without_bar) {
  if (first_without_bar) inner = filter(std::move(inner));
  while (skip_op("|")) inner = filter(std::move(inner));
  return inner;
}

ExprPtr ExpressionParser::filter(ExprPtr inner) {
  ExprPtr expr = make(Op::filter, now().line);
  expr->name = expect_name("the name of a filter");
  expr->args.push_back(std::move(inner));
  if (is_op("(")) call_arguments(*expr);
  return grown(std::move(expr));
}

ExprPtr ExpressionParser::test(ExprPtr inner) {
  const bool inverse = skip_name("not");
  ExprPtr expr = make(Op::test, now().line);
  expr->name = expect_name("the name of a test");
  expr->args.push_back(std::move(inner));
  const Token& next = now();
  if (is_op("(")) {
    call_arguments(*expr);
  } else if (next.kind == TokenKind::string || next.kind == TokenKind::integer ||
             next.kind == TokenKind::real || is_op("[") || is_op("{") ||
             (next.kind == TokenKind::name && next.value != "else" && next.value != "or" &&
              next.value != "and" && next.value != "is" && next.value != "if" &&
              next.value != "in" && next.value != "not")) {
    expr->args.push_back(postfix(primary()));
  }
  expr = grown(std::move(expr));
  if (!inverse) return expr;
  ExprPtr result = make(Op::invert, expr->line);
  result->args.push_back(std::move(expr));
  return grown(std::move(result));
}

bool ExpressionParser::ends_tuple(std::span<const std::string_view> ends) const {
  if (now().kind == TokenKind::variable_end || now().kind == TokenKind::block_end) return true;
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) {
    return (now().kind == TokenKind::op || now().kind == TokenKind::name) && now().value == end;
  });
}

ExprPtr ExpressionParser::tuple(bool with_condition, std::span<const std::string_view> ends) {
  const int line = now().line;
  ExprPtr first = expression(with_condition);
  if (!is_op(",")) return first;
  ExprPtr expr = make(Op::tuple, line);
  expr->args.push_back(std::move(first));
  while (skip_op(",")) {
    if (ends_tuple(ends)) break;
    expr->args.push_back(expression(with_condition));
  }
  return expr;
}

ExprPtr ExpressionParser::target_part() {
  if (skip_op("(")) {
    ExprPtr inner = target();
    expect_op(")");
    return inner;
  }
  ExprPtr expr = make(Op::name, now().line);
  expr->name = expect_name("a name");
  if (expr->name == "true" || expr->name == "false" || expr->name == "none" ||
      expr->name == "True" || expr->name == "False" || expr->name == "None")
    fail(fmt::format("{} cannot be set", expr->name));
  return expr;
}

ExprPtr ExpressionParser::target() {
  const Deeper deeper(*this);
  ExprPtr first = target_part();
  if (skip_op(".")) {
    ExprPtr expr = make(Op::attribute, first->line);
    expr->name = expect_name("the name of an attribute");
    expr->args.push_back(std::move(first));
    return expr;
  }
  if (!is_op(",")) return first;
  ExprPtr expr = make(Op::tuple, first->line);
  expr->args.push_back(std::move(first));
  while (skip_op(",")) {
    if (is_name("in") || is_op("=")) break;
    expr->args.push_back(target_part());
  }
  return expr;
}

}  // namespace unpack::chat
