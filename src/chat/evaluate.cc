// Expressions of a chat template.
#include <fmt/format.h>

#include <algorithm>

#include "chat/runtime.h"
#include "chat/text.h"

namespace unpack::chat {
namespace {

Value undefined_name(const std::string& name) {
  return Undefined{fmt::format("'{}' is undefined", name)};
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
      spend(std::ssize(map.items) / 16);
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
    for (std::int64_t i = r.start; r.step > 0 ? i < r.stop : i > r.stop; i += r.step) visit(i);
  };
  if (const ListData* list = value.items()) {
    std::vector<Value> out;
    walk(std::ssize(list->items), [&](std::size_t i) { out.push_back(list->items[i]); });
    return made(std::move(out), list->tuple);
  }
  if (const std::string* text = value.string()) {
    const std::vector<std::string_view> all = characters(*text);
    std::string out;
    walk(std::ssize(all), [&](std::size_t i) { out += all[i]; });
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
      if (const ListData* list = right.items()) spend(std::ssize(list->items));
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

}  // namespace unpack::chat
