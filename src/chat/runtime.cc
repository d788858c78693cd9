#include "chat/runtime.h"

#include <fmt/format.h>

#include "chat/text.h"

namespace unpack::chat {

void refuse_undefined(const Value& value) {
  if (!value.is_undefined()) return;
  const std::string& what = value.undefined().what;
  throw InputError(what.empty() ? "a value is undefined" : what);
}

Runtime::Deeper::Deeper(Runtime& runtime) : runtime_(runtime) {
  if (++runtime_.depth_ > runtime_.limits_.depth)
    throw InputError("calls and blocks are nested too deeply (a macro that calls itself?)");
}

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
  spend(std::ssize(text) / kBytesPerStep);
  return text;
}

Value Runtime::made(std::vector<Value> items, bool tuple) {
  spend(std::ssize(items));
  return ListData{std::move(items), tuple};
}

void Runtime::write(std::string_view text, std::string& out) {
  if (out.size() + text.size() > limits_.text)
    throw InputError(fmt::format("the output grows beyond {} MiB", limits_.text >> 20));
  spend(std::ssize(text) / kBytesPerStep);
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
  spend(std::ssize(out));
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
    spend(std::ssize(map->items) / 16);
    if (const Value* found = find(*map, key)) return *found;
  } else if (key.is_integer() || key.is_bool()) {
    std::int64_t i = key.integer();
    if (const ListData* list = value.items()) {
      const std::int64_t n = list->items.size();
      if (i < 0) i += n;
      if (i >= 0 && i < n) return list->items[i];
    } else if (const std::string* text = value.string()) {
      const std::vector<std::string_view> all = characters(*text);
      spend(std::ssize(all) / kBytesPerStep);
      const std::int64_t n = all.size();
      if (i < 0) i += n;
      if (i >= 0 && i < n) return std::string(all[i]);
    }
  }
  if (const std::string* name = key.string()) return attribute(value, *name);
  return Undefined{fmt::format("{} has no element {}", value.type_name(), key.repr())};
}

}  // namespace unpack::chat
