// The tests (`x is defined`) and global functions that chat templates use.
#include <fmt/format.h>

#include <algorithm>

#include "chat/lexer.h"
#include "chat/runtime.h"
#include "chat/text.h"

namespace unpack::chat {
namespace {

using Tests = std::map<std::string, Native, std::less<>>;

template <class Holds>
Native is(Holds holds) {
  return [holds](Runtime&, const Arguments& args) -> Value { return holds(args.get(0, "value")); };
}

template <class Holds>
Native compared(Holds holds) {
  return [holds](Runtime&, const Arguments& args) -> Value {
    return holds(args.get(0, "a"), args.get(1, "b"));
  };
}

std::int64_t remainder(const Value& value, std::int64_t by) {
  if (by == 0) throw InputError("division by zero");
  const std::int64_t r = by == -1 ? 0 : value.integer() % by;
  return r < 0 ? r + std::abs(by) : r;
}

const Tests& tests() {
  const auto ge = [](const Value& a, const Value& b) { return less(b, a) || equal(a, b); };
  const auto le = [](const Value& a, const Value& b) { return less(a, b) || equal(a, b); };
  const auto gt = [](const Value& a, const Value& b) { return less(b, a); };
  const auto ne = [](const Value& a, const Value& b) { return !equal(a, b); };
  static const Tests table = {
      {"defined", is([](const Value& x) { return !x.is_undefined(); })},
      {"undefined", is([](const Value& x) { return x.is_undefined(); })},
      {"none", is([](const Value& x) { return x.is_none(); })},
      {"string", is([](const Value& x) { return x.is_string(); })},
      {"number", is([](const Value& x) { return x.is_number(); })},
      {"integer", is([](const Value& x) { return x.is_integer(); })},
      {"float", is([](const Value& x) { return x.is_real(); })},
      {"boolean", is([](const Value& x) { return x.is_bool(); })},
      {"true", is([](const Value& x) { return x.is_bool() && x.truth(); })},
      {"false", is([](const Value& x) { return x.is_bool() && !x.truth(); })},
      {"mapping", is([](const Value& x) { return x.is_map(); })},
      {"sequence", is([](const Value& x) {
         return x.is_list() || x.is_map() || x.is_string() || x.is_undefined();
       })},
      {"iterable", is([](const Value& x) {
         return x.is_list() || x.is_map() || x.is_string() || x.is_undefined();
       })},
      {"callable", is([](const Value& x) { return x.object() && x.object()->call; })},
      {"odd", is([](const Value& x) { return remainder(x, 2) == 1; })},
      {"even", is([](const Value& x) { return remainder(x, 2) == 0; })},
      {"divisibleby",
       compared([](const Value& a, const Value& b) { return remainder(a, b.integer()) == 0; })},
      {"in", compared([](const Value& a, const Value& b) { return contains(b, a); })},
      {"eq", compared(equal)},
      {"equalto", compared(equal)},
      {"==", compared(equal)},
      {"ne", compared(ne)},
      {"!=", compared(ne)},
      {"lt", compared(less)},
      {"lessthan", compared(less)},
      {"<", compared(less)},
      {"gt", compared(gt)},
      {"greaterthan", compared(gt)},
      {">", compared(gt)},
      {"ge", compared(ge)},
      {">=", compared(ge)},
      {"le", compared(le)},
      {"<=", compared(le)},
      {"sameas", compared([](const Value& a, const Value& b) {
         return a.type_name() == b.type_name() && equal(a, b);
       })},
      {"lower", is([](const Value& x) { return all_of_class(x.text(), "lower"); })},
      {"upper", is([](const Value& x) { return all_of_class(x.text(), "upper"); })},
      {"filter", is([](const Value& x) { return find_filter(x.text()) != nullptr; })},
      {"test", is([](const Value& x) { return find_test(x.text()) != nullptr; })},
  };
  return table;
}

Value range_function(Runtime& runtime, const Arguments& args) {
  constexpr std::int64_t kMost = 100'000;  // as in Jinja's sandbox
  const std::size_t n = args.positional.size();
  if (n < 1 || n > 3) throw InputError("range() takes one to three numbers");
  const std::int64_t start = n > 1 ? args.positional[0].integer() : 0;
  const std::int64_t stop = args.positional[n > 1 ? 1 : 0].integer();
  const std::int64_t step = n > 2 ? args.positional[2].integer() : 1;
  if (step == 0) throw InputError("range() with a step of 0");
  std::vector<Value> out;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (std::ssize(out) >= kMost)
      throw InputError(fmt::format("range() gives {} numbers at most", kMost));
    out.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return runtime.made(std::move(out));
}

Value namespace_function(Runtime&, const Arguments& args) {
  auto object = std::make_shared<ObjectData>();
  object->type = "namespace";
  object->writable = true;
  for (const Value& value : args.positional) {
    if (!value.is_map()) throw InputError("namespace() takes names with values");
    for (const auto& [key, item] : value.map()->items)
      object->attributes.emplace_back(key.text(), item);
  }
  for (const auto& [name, value] : args.named) object->attributes.emplace_back(name, value);
  return object;
}

Value dict_function(Runtime&, const Arguments& args) {
  MapData map;
  for (const Value& value : args.positional) {
    if (!value.is_map()) throw InputError("dict() takes names with values, or a dict");
    for (const auto& [key, item] : value.map()->items) insert(map, key, item);
  }
  for (const auto& [name, value] : args.named) insert(map, name, value);
  return map;
}

Value raise_function(Runtime&, const Arguments& args) {
  throw TemplateError(
      fmt::format("the template refuses this conversation: {}", args.get(0, "message").text()));
}

Value strftime_function(Runtime& runtime, const Arguments& args) {
  const std::string format = args.get(0, "format").text();
  if (format.size() > 1000) throw InputError("strftime_now: the format is too long");
  if (format.empty()) return "";
  std::string out(format.size() * 64 + 64, '\0');
  out.resize(std::strftime(out.data(), out.size(), format.c_str(), &runtime.now()));
  return runtime.made(std::move(out));
}

}  // namespace

const Native* find_test(std::string_view name) {
  const auto it = tests().find(name);
  return it == tests().end() ? nullptr : &it->second;
}

const std::map<std::string, Value, std::less<>>& global_functions() {
  static const std::map<std::string, Value, std::less<>> table = {
      {"range", Value::function("range", range_function)},
      {"namespace", Value::function("namespace", namespace_function)},
      {"dict", Value::function("dict", dict_function)},
      {"raise_exception", Value::function("raise_exception", raise_function)},
      {"strftime_now", Value::function("strftime_now", strftime_function)},
  };
  return table;
}

}  // namespace unpack::chat
