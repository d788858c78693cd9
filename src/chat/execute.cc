// Statements of a chat template.
#include <fmt/format.h>

#include <algorithm>

#include "chat/lexer.h"
#include "chat/runtime.h"

namespace unpack::chat {

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
  const std::int64_t n = items.size();
  const auto changed = std::make_shared<Value>();
  for (std::int64_t i = 0; i < n; ++i) {
    spend(1);
    const auto inner = std::make_shared<Scope>();
    inner->outer = scope;
    auto loop = std::make_shared<ObjectData>();
    loop->type = "loop";
    const auto at = [&](std::int64_t k) {
      return k >= 0 && k < n ? items[k] : Value(Undefined{"there is no such item of the loop"});
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
                                    const std::size_t k = i;
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
    assign(*node.targets[0], items[i], *inner);
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
