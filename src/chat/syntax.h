// The tree of a chat template, and the parser that makes it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/value.h"

namespace unpack::chat {

enum class Op {
  literal,
  name,
  list,
  tuple,
  dict,       // args: key, value, key, value
  attribute,  // args[0].name
  item,       // args[0][args[1]]
  slice,      // args[0][args[1]:args[2]:args[3]], a part may be missing
  call,       // args[0](args[1...], named)
  filter,     // args[0] | name(args[1...], named)
  test,       // args[0] is name(args[1...], named)
  negate,
  keep,  // unary plus
  invert,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  modulo,
  power,
  concat,
  compare,  // args[0] words[0] args[1] words[1] args[2] ...
  both,
  either,
  conditional  // args[0] if args[1] else args[2] (may be missing)
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  Op op = Op::literal;
  int line = 0;
  std::string name;
  Value value;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> words;
  int depth = 1;  // of the tree below
};

enum class Statement {
  text,
  output,
  branch,   // if: tests[i] -> bodies[i]; one body more is the else
  loop,     // for target in exprs[0] if exprs[1]: bodies[0], else bodies[1]
  set,      // target = exprs[0]
  capture,  // {% set target %}bodies[0]{% endset %}, exprs[0]: filters around the name ""
  macro,
  call,    // {% call(parameters) exprs[0] %}bodies[0]{% endcall %}
  filter,  // exprs[0]: filters around the name ""
  with,    // targets = exprs: bodies[0]
  group,   // its body as it is
  leave,   // break
  next     // continue
};

struct Node;
using Body = std::vector<std::unique_ptr<Node>>;

struct Parameter {
  std::string name;
  ExprPtr fallback;  // may be missing
};

struct Node {
  Statement kind = Statement::text;
  int line = 0;
  std::string text;  // of text; the name of a macro
  std::vector<ExprPtr> exprs;
  std::vector<ExprPtr> targets;  // names, tuples of names, attributes of names
  std::vector<Body> bodies;
  std::vector<Parameter> parameters;
  bool recursive = false;
};

// Throws InputError "line N: ..." that names what is not supported.
Body parse_template(std::string_view source);

}  // namespace unpack::chat
