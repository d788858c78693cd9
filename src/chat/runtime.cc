#include "chat/runtime.h"

#include <fmt/format.h>

#include <algorithm>

#include "chat/lexer.h"
#include "chat/text.h"

namespace unpack::chat {
namespace {

constexpr std::int64_t kBytesPerStep = 32;

Value undefined_name(const std::string& name) {
  return Undefined{fmt::format("'{}' is undefined", name)};
}

void refuse_undefined(const Value& value) {
  if (!value.is_undefined()) return;
  const std::string& what = value.undefined().what;
  throw InputError(what.empty() ? "a value is undefined" : what);
}

// start, stop and step of a slice over n items, as Python resolves them.
struct Range {
  std::int64_t start, stop, step;
};
Range slice_range(const Value& a, const Value& b, const Value& c, std::int64_t n) {
  const auto given = [](const Value& x) { return !x.is_none() && !x.is_undefined(); };
  Range r{0, n, given(c) ? c.integer() : 1};
  if (r.step == 0) throw InputError("the step of a slice is 0");
  const std::int64_t low = r.step < 0 ? -1 : 0, high = r.step < 0 ? n - 1 : n;
  const auto bound = [&](const Value& x, std::int64_t fallback) {
    if (!given(x)) return fallback;
    const std::int64_t i = x.integer();
    return std::clamp(i < 0 ? std::max(i, -n - 1) + n : i, low, high);
  };
  r.start = bound(a, r.step < 0 ? high : low);
  r.stop = bound(b, r.step < 0 ? low : high);
  return r;
}

}  // namespace

class Runtime::Deeper {
 public:
  explicit Deeper(Runtime& runtime) : runtime_(runtime) {
    if (++runtime_.depth_ > runtime_.limits_.depth)
      throw InputError("calls and blocks are nested too deeply (a macro that calls itself?)");
  }
  ~Deeper() { --runtime_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Runtime& runtime_;
};

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope; scope = scope->outer.get()) {
    const auto it = scope->names.find(name);
    if (it != scope->names.end()) return &it->second;
  }
  return nullptr;
}

Runtime::Runtime(const Limits& limits, std::tm now)
    : limits_(limits), left_(limits.steps), now_(now) {}

std::string Runtime::render(const Body& body, const MapData& variables) {
  const auto globals = std::make_shared<Scope>();
  globals->names = global_functions();
  const auto scope = std::make_shared<Scope>();
  scope->outer = globals;
  for (const auto& [name, value] : variables.items) globals->names[*name.string()] = value;
  std::string out;
  run(body, scope, out);
  // Macros hold the scope that holds them.
  scope->names.clear();
  globals->names.clear();
  return out;
}

void Runtime::spend(std::int64_t steps) {
  left_ -= steps;
  if (left_ < 0)
    throw InputError(fmt::format("the template was stopped after {} steps: it loops for too long",
                                 limits_.steps));
}

Value Runtime::made(std::string text) {
  if (text.size() > limits_.text)
    throw InputError(fmt::format("a text grows beyond {} MiB", limits_.text >> 20));
  spend(static_cast<std::int64_t>(text.size()) / kBytesPerStep);
  return text;
}

Value Runtime::made(std::vector<Value> items, bool tuple) {
  spend(static_cast<std::int64_t>(items.size()));
  return ListData{std::move(items), tuple};
}

void Runtime::write(std::string_view text, std::string& out) {
  if (out.size() + text.size() > limits_.text)
    throw InputError(fmt::format("the output grows beyond {} MiB", limits_.text >> 20));
  spend(static_cast<std::int64_t>(text.size()) / kBytesPerStep);
  out += text;
}

Value Runtime::call(const Value& function, const Arguments& args) {
  refuse_undefined(function);
  const ObjectData* object = function.object();
  if (!object || !object->call)
    throw InputError(fmt::format("{} cannot be called", function.type_name()));
  const Deeper deeper(*this);
  return object->call(*this, args);
}

Value Runtime::filter(const std::string& name, const Arguments& args) {
  const Native* filter = find_filter(name);
  if (!filter) throw InputError(fmt::format("the filter '{}' is not supported", name));
  return (*filter)(*this, args);
}

bool Runtime::test(const std::string& name, const Arguments& args) {
  const Native* test = find_test(name);
  if (!test) throw InputError(fmt::format("the test '{}' is not supported", name));
  return (*test)(*this, args).truth();
}

std::vector<Value> Runtime::iterate(const Value& value) {
  std::vector<Value> out;
  if (const ListData* list = value.items()) {
    out = list->items;
  } else if (const MapData* map = value.map()) {
    for (const auto& item : map->items) out.push_back(item.first);
  } else if (const std::string* text = value.string()) {
    for (const std::string_view c : characters(*text)) out.emplace_back(std::string(c));
  } else if (!value.is_undefined()) {
    throw InputError(fmt::format("{} cannot be iterated over", value.type_name()));
  }
  spend(static_cast<std::int64_t>(out.size()));
  return out;
}

Value Runtime::attribute(const Value& value, const std::string& name) {
  refuse_undefined(value);
  if (const ObjectData* object = value.object()) {
    for (const auto& [key, item] : object->attributes) {
      if (key == name) return item;
    }
  } else {
    Value method = find_method(value, name);
    if (!method.is_undefined()) return method;
    if (const MapData* map = value.map()) {
      if (const Value* found = find_name(*map, name)) return *found;
    }
  }
  return Undefined{fmt::format("'{} object' has no attribute '{}'", value.type_name(), name)};
}

Value Runtime::item(const Value& value, const Value& key) {
  refuse_undefined(value);
  spend(1);
  if (const MapData* map = value.map()) {
    spend(static_cast<std::int64_t>(map->items.size()) / 16);
    if (const Value* found = find(*map, key)) return *found;
  } else if (key.is_integer() || key.is_bool()) {
    std::int64_t i = key.integer();
    if (const ListData* list = value.items()) {
      const auto n = static_cast<std::int64_t>(list->items.size());
      if (i < 0) i += n;
      if (i >= 0 && i < n) return list->items[static_cast<std::size_t>(i)];
    } else if (const std::string* text = value.string()) {
      const std::vector<std::string_view> all = characters(*text);
      spend(static_cast<std::int64_t>(all.size()) / kBytesPerStep);
      const auto n = static_cast<std::int64_t>(all.size());
      if (i < 0) i += n;
      if (i >= 0 && i < n) return std::string(all[static_cast<std::size_t>(i)]);
    }
  }
  if (const std::string* name = key.string()) return attribute(value, *name);
  return Undefined{fmt::format("{} has no element {}", value.type_name(), key.repr())};
}

Value Runtime::eval(const Expr& expr, const ScopePtr& scope) {
  const Deeper deeper(*this);
  spend(1);
  switch (expr.op) {
    case Op::literal:
      return expr.value;
    case Op::name:
      return eval_name(expr, *scope);
    case Op::list:
    case Op::tuple:
    case Op::dict:
      return eval_collection(expr, scope);
    case Op::attribute:
      return attribute(eval(*expr.args[0], scope), expr.name);
    case Op::item:
      return item(eval(*expr.args[0], scope), eval(*expr.args[1], scope));
    case Op::slice:
      return eval_slice(expr, scope);
    case Op::call:
    case Op::filter:
    case Op::test:
      return eval_call(expr, scope);
    case Op::invert:
      return !eval(*expr.args[0], scope).truth();
    case Op::concat:
      return eval_concat(expr, scope);
    case Op::compare:
      return eval_compare(expr, scope);
    case Op::both: {
      Value left = eval(*expr.args[0], scope);
      return left.truth() ? eval(*expr.args[1], scope) : left;
    }
    case Op::either: {
      Value left = eval(*expr.args[0], scope);
      return left.truth() ? left : eval(*expr.args[1], scope);
    }
    case Op::conditional:
      if (eval(*expr.args[1], scope).truth()) return eval(*expr.args[0], scope);
      if (expr.args[2]) return eval(*expr.args[2], scope);
      return Undefined{"an if without an else gave no value"};
    default:
      return eval_number(expr, scope);
  }
}

Value Runtime::eval_name(const Expr& expr, const Scope& scope) const {
  const Value* value = scope.find(expr.name);
  return value ? *value : undefined_name(expr.name);
}

Value Runtime::eval_collection(const Expr& expr, const ScopePtr& scope) {
  if (expr.op == Op::dict) {
    MapData map;
    for (std::size_t i = 0; i + 1 < expr.args.size(); i += 2) {
      Value key = eval(*expr.args[i], scope);
      spend(static_cast<std::int64_t>(map.items.size()) / 16);
      insert(map, std::move(key), eval(*expr.args[i + 1], scope));
    }
    return map;
  }
  std::vector<Value> items;
  for (const ExprPtr& arg : expr.args) items.push_back(eval(*arg, scope));
  return made(std::move(items), expr.op == Op::tuple);
}

Value Runtime::eval_slice(const Expr& expr, const ScopePtr& scope) {
  const Value value = eval(*expr.args[0], scope);
  refuse_undefined(value);
  const auto part = [&](std::size_t i) {
    return expr.args[i] ? eval(*expr.args[i], scope) : Value(None{});
  };
  const Value a = part(1), b = part(2), c = part(3);
  const auto walk = [&](std::int64_t n, auto&& visit) {
    const Range r = slice_range(a, b, c, n);
    for (std::int64_t i = r.start; r.step > 0 ? i < r.stop : i > r.stop; i += r.step)
      visit(static_cast<std::size_t>(i));
  };
  if (const ListData* list = value.items()) {
    std::vector<Value> out;
    walk(static_cast<std::int64_t>(list->items.size()),
         [&](std::size_t i) { out.push_back(list->items[i]); });
    return made(std::move(out), list->tuple);
  }
  if (const std::string* text = value.string()) {
    const std::vector<std::string_view> all = characters(*text);
    std::string out;
    walk(static_cast<std::int64_t>(all.size()), [&](std::size_t i) { out += all[i]; });
    return made(std::move(out));
  }
  throw InputError(fmt::format("{} cannot be sliced", value.type_name()));
}

Arguments Runtime::arguments(const Expr& expr, std::size_t first, const ScopePtr& scope) {
  Arguments args;
  for (std::size_t i = first; i < expr.args.size(); ++i)
    args.positional.push_back(eval(*expr.args[i], scope));
  for (const auto& [name, value] : expr.named) args.named.emplace_back(name, eval(*value, scope));
  return args;
}

Value Runtime::eval_call(const Expr& expr, const ScopePtr& scope) {
  if (expr.op == Op::call) {
    const Value function = eval(*expr.args[0], scope);
    return call(function, arguments(expr, 1, scope));
  }
  // A name that nobody knows is an error even where it would not be reached, as in Jinja.
  const Arguments args = arguments(expr, 0, scope);
  if (expr.op == Op::filter) return filter(expr.name, args);
  return test(expr.name, args);
}

Value Runtime::eval_number(const Expr& expr, const ScopePtr& scope) {
  const Value a = eval(*expr.args[0], scope);
  refuse_undefined(a);
  if (expr.op == Op::negate && a.is_real()) return -a.real();
  if (expr.op == Op::negate) return arithmetic(*this, Op::subtract, Value(std::int64_t{0}), a);
  if (expr.op == Op::keep) return arithmetic(*this, Op::add, Value(std::int64_t{0}), a);
  const Value b = eval(*expr.args[1], scope);
  refuse_undefined(b);
  return arithmetic(*this, expr.op, a, b);
}

Value Runtime::eval_concat(const Expr& expr, const ScopePtr& scope) {
  std::string out;
  for (const ExprPtr& arg : expr.args) write(eval(*arg, scope).text(), out);
  return out;
}

Value Runtime::eval_compare(const Expr& expr, const ScopePtr& scope) {
  Value left = eval(*expr.args[0], scope);
  for (std::size_t i = 0; i < expr.words.size(); ++i) {
    Value right = eval(*expr.args[i + 1], scope);
    const std::string& word = expr.words[i];
    bool holds = false;
    if (word == "==" || word == "!=") {
      holds = equal(left, right) == (word == "==");
    } else if (word == "in" || word == "not in") {
      if (const ListData* list = right.items())
        spend(static_cast<std::int64_t>(list->items.size()));
      if (const std::string* text = right.string())
        spend(static_cast<std::int64_t>(text->size()) / kBytesPerStep);
      holds = contains(right, left) == (word == "in");
    } else {
      refuse_undefined(left);
      refuse_undefined(right);
      if (word == "<") holds = less(left, right);
      if (word == ">") holds = less(right, left);
      if (word == "<=") holds = less(left, right) || equal(left, right);
      if (word == ">=") holds = less(right, left) || equal(left, right);
    }
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Runtime::Flow Runtime::run(const Body& body, const ScopePtr& scope, std::string& out) {
  for (const auto& node : body) {
    try {
      const Flow flow = run(*node, scope, out);
      if (flow != Flow::on) return flow;
    } catch (const TemplateError&) {
      throw;
    } catch (const InputError& e) {
      fail_at(node->line, e.what());
    }
  }
  return Flow::on;
}

std::string Runtime::captured(const Body& body, const ScopePtr& scope) {
  std::string out;
  run(body, scope, out);
  return out;
}

Value Runtime::through_filters(const Expr& filters, const ScopePtr& scope, Value inner) {
  const auto local = std::make_shared<Scope>();
  local->outer = scope;
  local->names[""] = std::move(inner);
  return eval(filters, local);
}

void Runtime::assign(const Expr& target, Value value, Scope& scope) {
  if (target.op == Op::name) {
    scope.names[target.name] = std::move(value);
  } else if (target.op == Op::attribute) {
    const Value* holder = scope.find(target.args[0]->name);
    ObjectData* object = holder ? holder->object() : nullptr;
    if (!object || !object->writable)
      throw InputError(
          fmt::format("'{}' is no namespace: its attributes cannot be set", target.args[0]->name));
    for (auto& [name, old] : object->attributes) {
      if (name == target.name) {
        old = std::move(value);
        return;
      }
    }
    object->attributes.emplace_back(target.name, std::move(value));
  } else {
    const std::vector<Value> values = iterate(value);
    if (values.size() != target.args.size())
      throw InputError(fmt::format("{} values for {} names", values.size(), target.args.size()));
    for (std::size_t i = 0; i < values.size(); ++i) assign(*target.args[i], values[i], scope);
  }
}

Runtime::Flow Runtime::run(const Node& node, const ScopePtr& scope, std::string& out) {
  const Deeper deeper(*this);
  spend(1);
  switch (node.kind) {
    case Statement::text:
      write(node.text, out);
      return Flow::on;
    case Statement::output:
      write(eval(*node.exprs[0], scope).text(), out);
      return Flow::on;
    case Statement::branch:
      for (std::size_t i = 0; i < node.exprs.size(); ++i) {
        if (eval(*node.exprs[i], scope).truth()) return run(node.bodies[i], scope, out);
      }
      if (node.bodies.size() > node.exprs.size()) return run(node.bodies.back(), scope, out);
      return Flow::on;
    case Statement::loop:
      loop_over(node, scope, eval(*node.exprs[0], scope), 1, out);
      return Flow::on;
    case Statement::set:
      assign(*node.targets[0], eval(*node.exprs[0], scope), *scope);
      return Flow::on;
    case Statement::capture: {
      const auto inner = std::make_shared<Scope>();
      inner->outer = scope;
      Value text = captured(node.bodies[0], inner);
      assign(*node.targets[0], through_filters(*node.exprs[0], scope, std::move(text)), *scope);
      return Flow::on;
    }
    case Statement::macro:
      scope->names[node.text] = macro(node, scope, false);
      return Flow::on;
    case Statement::call: {
      const Expr& target = *node.exprs[0];
      const Value function = eval(*target.args[0], scope);
      Arguments args = arguments(target, 1, scope);
      args.named.emplace_back("caller", macro(node, scope, true));
      write(call(function, args).text(), out);
      return Flow::on;
    }
    case Statement::filter: {
      const auto inner = std::make_shared<Scope>();
      inner->outer = scope;
      Value text = captured(node.bodies[0], inner);
      write(through_filters(*node.exprs[0], scope, std::move(text)).text(), out);
      return Flow::on;
    }
    case Statement::with: {
      const auto inner = std::make_shared<Scope>();
      inner->outer = scope;
      for (std::size_t i = 0; i < node.targets.size(); ++i)
        assign(*node.targets[i], eval(*node.exprs[i], scope), *inner);
      return run(node.bodies[0], inner, out);
    }
    case Statement::group:
      return run(node.bodies[0], scope, out);
    case Statement::leave:
      return Flow::leave;
    case Statement::next:
      return Flow::next;
  }
  return Flow::on;
}

void Runtime::loop_over(const Node& node, const ScopePtr& scope, const Value& over, int depth,
                        std::string& out) {
  const Deeper deeper(*this);
  std::vector<Value> items = iterate(over);
  if (node.exprs[1]) {
    std::vector<Value> kept;
    for (Value& item : items) {
      const auto inner = std::make_shared<Scope>();
      inner->outer = scope;
      assign(*node.targets[0], item, *inner);
      if (eval(*node.exprs[1], inner).truth()) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  const auto n = static_cast<std::int64_t>(items.size());
  const auto changed = std::make_shared<Value>();
  for (std::int64_t i = 0; i < n; ++i) {
    spend(1);
    const auto inner = std::make_shared<Scope>();
    inner->outer = scope;
    auto loop = std::make_shared<ObjectData>();
    loop->type = "loop";
    const auto at = [&](std::int64_t k) {
      return k >= 0 && k < n ? items[static_cast<std::size_t>(k)]
                             : Value(Undefined{"there is no such item of the loop"});
    };
    loop->attributes = {
        {"index", i + 1},
        {"index0", i},
        {"first", i == 0},
        {"last", i == n - 1},
        {"length", n},
        {"revindex", n - i},
        {"revindex0", n - i - 1},
        {"depth", std::int64_t{depth}},
        {"depth0", std::int64_t{depth - 1}},
        {"previtem", at(i - 1)},
        {"nextitem", at(i + 1)},
        {"cycle", Value::function("cycle",
                                  [i](Runtime&, const Arguments& args) -> Value {
                                    if (args.positional.empty())
                                      throw InputError("loop.cycle wants something to cycle");
                                    const auto k = static_cast<std::size_t>(i);
                                    return args.positional[k % args.positional.size()];
                                  })},
        {"changed",
         Value::function("changed", [changed](Runtime& runtime, const Arguments& args) -> Value {
           Value now = runtime.made(args.positional, true);
           const bool differs = changed->is_undefined() || !equal(*changed, now);
           *changed = std::move(now);
           return differs;
         })}};
    if (node.recursive) {
      loop->call = [this, &node, scope, depth](Runtime&, const Arguments& args) -> Value {
        std::string text;
        loop_over(node, scope, args.get(0, "iterable"), depth + 1, text);
        return text;
      };
    }
    inner->names["loop"] = loop;
    assign(*node.targets[0], items[static_cast<std::size_t>(i)], *inner);
    const Flow flow = run(node.bodies[0], inner, out);
    inner->names.clear();  // a macro defined inside holds its scope
    if (flow == Flow::leave) break;
  }
  if (n == 0 && node.bodies.size() > 1) run(node.bodies[1], scope, out);
}

Value Runtime::macro(const Node& node, const ScopePtr& scope, bool is_caller) {
  auto object = std::make_shared<ObjectData>();
  object->type = "macro";
  object->attributes.emplace_back("name", is_caller ? "caller" : node.text);
  // A scope that holds the macro must not be held by it.
  const std::weak_ptr<Scope> home = scope;
  object->call = [&node, home](Runtime& runtime, const Arguments& args) -> Value {
    const ScopePtr outer = home.lock();
    if (!outer)
      throw InputError(fmt::format("the macro '{}' is used outside its block", node.text));
    const auto inner = std::make_shared<Scope>();
    inner->outer = outer;
    std::vector<Value> varargs;
    MapData kwargs;
    for (std::size_t i = 0; i < args.positional.size(); ++i) {
      if (i < node.parameters.size()) {
        inner->names[node.parameters[i].name] = args.positional[i];
      } else {
        varargs.push_back(args.positional[i]);
      }
    }
    for (const auto& [name, value] : args.named) {
      const bool known =
          std::any_of(node.parameters.begin(), node.parameters.end(),
                      [&wanted = name](const Parameter& p) { return p.name == wanted; });
      if (known && inner->names.contains(name))
        throw InputError(fmt::format("the macro '{}' got '{}' twice", node.text, name));
      if (known || name == "caller") {
        inner->names[name] = value;
      } else {
        insert(kwargs, name, value);
      }
    }
    for (const Parameter& parameter : node.parameters) {
      if (inner->names.contains(parameter.name)) continue;
      inner->names[parameter.name] =
          parameter.fallback
              ? runtime.eval(*parameter.fallback, inner)
              : Value(Undefined{fmt::format("parameter '{}' was not provided", parameter.name)});
    }
    inner->names["varargs"] = ListData{std::move(varargs), true};
    inner->names["kwargs"] = std::move(kwargs);
    std::string text;
    runtime.run(node.bodies[0], inner, text);
    return text;
  };
  return object;
}

}  // namespace unpack::chat
