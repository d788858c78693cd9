#include <fmt/format.h>

#include <algorithm>

#include "chat/parser_base.h"
#include "tokenizer/utf8.h"

namespace unpack::chat {
namespace {

constexpr int kDeepestBlock = 100;  // blocks inside each other

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body whole() {
    Body body = body_until({});
    if (now().kind != TokenKind::end) fail(fmt::format("unexpected {}", shown(now())));
    return body;
  }

 private:
  using Node_ = std::unique_ptr<Node>;

  Node_ make(Statement kind, int line) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->line = line;
    return node;
  }

  // Stops at a block tag whose first word is one of `ends`, inside the tag, before the word.
  Body body_until(const std::vector<std::string_view>& ends) {
    if (++depth_ > kDeepestBlock) fail("blocks are nested too deeply");
    Body body;
    const int begin = now().line;
    for (;;) {
      switch (now().kind) {
        case TokenKind::end:
          if (!ends.empty())
            fail_at(begin, fmt::format("{{% {} %}} is missing at the end", ends.back()));
          --depth_;
          return body;
        case TokenKind::text: {
          Node_ node = make(Statement::text, now().line);
          node->text = take().value;
          body.push_back(std::move(node));
          break;
        }
        case TokenKind::variable_begin: {
          Node_ node = make(Statement::output, take().line);
          node->exprs.push_back(tuple());
          if (now().kind != TokenKind::variable_end)
            fail(fmt::format("expected }}}}, found {}", shown(now())));
          take();
          body.push_back(std::move(node));
          break;
        }
        case TokenKind::block_begin: {
          take();
          if (now().kind != TokenKind::name)
            fail(fmt::format("expected the name of a statement, found {}", shown(now())));
          if (std::find(ends.begin(), ends.end(), now().value) != ends.end()) {
            --depth_;
            return body;
          }
          body.push_back(statement());
          break;
        }
        default:
          fail(fmt::format("unexpected {}", shown(now())));
      }
    }
  }

  void end_tag() {
    if (now().kind != TokenKind::block_end)
      fail(fmt::format("expected %}}, found {}", shown(now())));
    take();
  }

  // The body of a block and its closing tag.
  Body block(std::string_view end) {
    end_tag();
    Body body = body_until({end});
    take();
    end_tag();
    return body;
  }

  Node_ statement() {
    const Token word = take();
    const std::string& name = word.value;
    if (name == "if") return if_statement(word.line);
    if (name == "for") return for_statement(word.line);
    if (name == "set") return set_statement(word.line);
    if (name == "macro") return macro(word.line);
    if (name == "call") return call(word.line);
    if (name == "filter") {
      Node_ node = make(Statement::filter, word.line);
      node->exprs.push_back(filters(placeholder(word.line), true));
      node->bodies.push_back(block("endfilter"));
      return node;
    }
    if (name == "with") return with(word.line);
    if (name == "generation") {
      Node_ node = make(Statement::group, word.line);
      node->bodies.push_back(block("endgeneration"));
      return node;
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_at(word.line, fmt::format("{{% {} %}} outside a loop", name));
      Node_ node = make(name == "break" ? Statement::leave : Statement::next, word.line);
      end_tag();
      return node;
    }
    if (name == "else" || name == "elif" || name.starts_with("end"))
      fail_at(word.line, fmt::format("{{% {} %}} without a beginning", name));
    fail_at(word.line,
            fmt::format("the statement {} is not supported", tokenizer::in_quotes(name)));
  }

  static ExprPtr placeholder(int line) {
    auto expr = std::make_unique<Expr>();
    expr->op = Op::name;
    expr->line = line;
    return expr;
  }

  Node_ if_statement(int line) {
    Node_ node = make(Statement::branch, line);
    for (;;) {
      node->exprs.push_back(tuple(false));
      end_tag();
      node->bodies.push_back(body_until({"elif", "else", "endif"}));
      const std::string word = take().value;
      if (word == "elif") continue;
      if (word == "else") node->bodies.push_back(block("endif"));
      if (word == "endif") end_tag();
      return node;
    }
  }

  Node_ for_statement(int line) {
    Node_ node = make(Statement::loop, line);
    node->targets.push_back(target());
    if (node->targets[0]->op == Op::attribute) fail_at(line, "a for sets names, not attributes");
    if (!skip_name("in")) fail(fmt::format("expected 'in', found {}", shown(now())));
    constexpr std::string_view kEnds[] = {"recursive"};
    node->exprs.push_back(tuple(false, kEnds));
    node->exprs.push_back(skip_name("if") ? expression() : nullptr);
    node->recursive = skip_name("recursive");
    end_tag();
    ++loops_;
    node->bodies.push_back(body_until({"else", "endfor"}));
    --loops_;
    if (take().value == "else") {
      node->bodies.push_back(block("endfor"));
    } else {
      end_tag();
    }
    return node;
  }

  Node_ set_statement(int line) {
    ExprPtr name = target();
    if (skip_op("=")) {
      Node_ node = make(Statement::set, line);
      node->targets.push_back(std::move(name));
      node->exprs.push_back(tuple());
      end_tag();
      return node;
    }
    Node_ node = make(Statement::capture, line);
    if (name->op == Op::tuple) fail_at(line, "a set block sets one name");
    node->targets.push_back(std::move(name));
    node->exprs.push_back(filters(placeholder(line), false));
    node->bodies.push_back(block("endset"));
    return node;
  }

  void parameters(Node& node) {
    expect_op("(");
    while (!is_op(")")) {
      if (!node.parameters.empty()) expect_op(",");
      if (is_op(")")) break;
      Parameter parameter;
      parameter.name = expect_name("the name of a parameter");
      if (skip_op("=")) {
        parameter.fallback = expression();
      } else if (!node.parameters.empty() && node.parameters.back().fallback) {
        fail("a parameter without a default after one with a default");
      }
      node.parameters.push_back(std::move(parameter));
    }
    expect_op(")");
  }

  Node_ macro(int line) {
    Node_ node = make(Statement::macro, line);
    node->text = expect_name("the name of a macro");
    parameters(*node);
    node->bodies.push_back(outside_loops("endmacro"));
    return node;
  }

  Node_ call(int line) {
    Node_ node = make(Statement::call, line);
    if (is_op("(")) parameters(*node);
    node->exprs.push_back(expression());
    if (node->exprs[0]->op != Op::call) fail_at(line, "{% call %} wants the call of a macro");
    node->bodies.push_back(outside_loops("endcall"));
    return node;
  }

  Body outside_loops(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = block(end);
    loops_ = loops;
    return body;
  }

  Node_ with(int line) {
    Node_ node = make(Statement::with, line);
    while (now().kind != TokenKind::block_end) {
      if (!node->targets.empty()) expect_op(",");
      ExprPtr name = std::make_unique<Expr>();
      name->op = Op::name;
      name->line = now().line;
      name->name = expect_name("a name");
      node->targets.push_back(std::move(name));
      expect_op("=");
      node->exprs.push_back(expression());
    }
    node->bodies.push_back(block("endwith"));
    return node;
  }

  int depth_ = 0;
  int loops_ = 0;
};

}  // namespace

Body parse_template(std::string_view source) { return Parser(tokenize_template(source)).whole(); }

}  // namespace unpack::chat
