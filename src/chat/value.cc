#include "chat/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/text.h"
#include "unpack/json.h"

namespace unpack::chat {
namespace {

constexpr int kDeepestValue = 200;  // of what is printed or compared

std::string real_text(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", x);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string repr_of(const Value& value, int depth) {
  if (depth > kDeepestValue) throw InputError("values are nested too deeply");
  if (const std::string* s = value.string()) return python_quoted(*s);
  if (const ListData* list = value.items()) {
    std::string out = list->tuple ? "(" : "[";
    for (std::size_t i = 0; i < list->items.size(); ++i)
      out += (i > 0 ? ", " : "") + repr_of(list->items[i], depth + 1);
    if (list->tuple) return out + (list->items.size() == 1 ? ",)" : ")");
    return out + "]";
  }
  if (const MapData* map = value.map()) {
    std::string out = "{";
    for (const auto& [key, item] : map->items)
      out +=
          (out.size() > 1 ? ", " : "") + repr_of(key, depth + 1) + ": " + repr_of(item, depth + 1);
    return out + "}";
  }
  if (value.is_undefined()) return "Undefined";
  return value.text();
}

bool equal_at(const Value& a, const Value& b, int depth) {
  if (depth > kDeepestValue) throw InputError("values are nested too deeply");
  if (a.is_number() && b.is_number()) {
    if (!a.is_real() && !b.is_real()) return a.integer() == b.integer();
    return a.real() == b.real();
  }
  if (a.is_string() && b.is_string()) return *a.string() == *b.string();
  if (a.is_list() && b.is_list()) {
    const ListData &x = *a.items(), &y = *b.items();
    if (x.tuple != y.tuple || x.items.size() != y.items.size()) return false;
    for (std::size_t i = 0; i < x.items.size(); ++i) {
      if (!equal_at(x.items[i], y.items[i], depth + 1)) return false;
    }
    return true;
  }
  if (a.is_map() && b.is_map()) {
    const MapData &x = *a.map(), &y = *b.map();
    if (x.items.size() != y.items.size()) return false;
    for (const auto& [key, item] : x.items) {
      const Value* other = find(y, key);
      if (!other || !equal_at(item, *other, depth + 1)) return false;
    }
    return true;
  }
  if (a.object() || b.object()) return a.object() == b.object();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

std::string json_string(const std::string& text, bool ascii) {
  return JsonValue(text).dump(-1, ' ', ascii, JsonValue::error_handler_t::replace);
}

void write_json(const Value& value, const JsonStyle& style, int depth, std::string& out) {
  if (depth > kDeepestValue) throw InputError("values are nested too deeply");
  const auto line = [&](int level) {
    if (style.indent < 0) return;
    out += '\n';
    out.append(style.indent * level, ' ');
  };
  // json.dumps leaves the blank after a comma out where it breaks the line.
  const std::string comma =
      style.indent >= 0 && style.item_separator == ", " ? "," : style.item_separator;
  if (const std::string* s = value.string()) {
    out += json_string(*s, style.ascii);
  } else if (const ListData* list = value.items()) {
    out += '[';
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out += comma;
      line(depth + 1);
      write_json(list->items[i], style, depth + 1, out);
    }
    if (!list->items.empty()) line(depth);
    out += ']';
  } else if (const MapData* map = value.map()) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : map->items) items.push_back(&item);
    if (style.sort_keys)
      std::stable_sort(items.begin(), items.end(),
                       [](const auto* a, const auto* b) { return less(a->first, b->first); });
    out += '{';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += comma;
      line(depth + 1);
      const Value& key = items[i]->first;
      if (key.is_string()) {
        out += json_string(*key.string(), style.ascii);
      } else {
        std::string name;
        write_json(key, style, depth + 1, name);
        out += '"' + name + '"';
      }
      out += style.key_separator;
      write_json(items[i]->second, style, depth + 1, out);
    }
    if (!items.empty()) line(depth);
    out += '}';
  } else if (value.is_none()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.truth() ? "true" : "false";
  } else if (value.is_integer()) {
    out += std::to_string(value.integer());
  } else if (value.is_real()) {
    const double x = value.real();
    out += std::isnan(x)   ? "NaN"
           : std::isinf(x) ? (x > 0 ? "Infinity" : "-Infinity")
                           : real_text(x);
  } else {
    throw InputError(fmt::format("tojson cannot write {}", value.type_name()));
  }
}

}  // namespace

Value Arguments::get(std::size_t index, std::string_view name) const {
  if (index < positional.size()) return positional[index];
  for (const auto& [key, value] : named) {
    if (key == name) return value;
  }
  return {};
}

std::size_t Arguments::count() const { return positional.size() + named.size(); }

Value Value::function(std::string name, Native call) {
  auto object = std::make_shared<ObjectData>();
  object->type = std::move(name);
  object->call = std::move(call);
  return object;
}

bool Value::truth() const {
  if (is_bool()) return std::get<bool>(data_);
  if (is_integer()) return std::get<std::int64_t>(data_) != 0;
  if (is_real()) return std::get<double>(data_) != 0;
  if (const std::string* s = string()) return !s->empty();
  if (const ListData* l = items()) return !l->items.empty();
  if (const MapData* m = map()) return !m->items.empty();
  return object() != nullptr;
}

std::int64_t Value::integer() const {
  if (is_bool()) return std::get<bool>(data_) ? 1 : 0;
  if (is_integer()) return std::get<std::int64_t>(data_);
  throw InputError(fmt::format("a whole number is wanted, not {}", type_name()));
}

double Value::real() const {
  if (is_real()) return std::get<double>(data_);
  return integer();
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (is_bool()) return "bool";
  if (is_integer()) return "int";
  if (is_real()) return "float";
  if (is_string()) return "str";
  if (const ListData* l = items()) return l->tuple ? "tuple" : "list";
  if (is_map()) return "dict";
  return object()->type;
}

std::string Value::text() const {
  if (is_undefined()) return "";
  if (is_none()) return "None";
  if (is_bool()) return truth() ? "True" : "False";
  if (is_integer()) return std::to_string(integer());
  if (is_real()) return real_text(real());
  if (const std::string* s = string()) return *s;
  if (const ObjectData* o = object()) return "<" + o->type + ">";
  return repr_of(*this, 0);
}

std::string Value::repr() const { return repr_of(*this, 0); }

bool equal(const Value& a, const Value& b) { return equal_at(a, b, 0); }

bool less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (!a.is_real() && !b.is_real()) return a.integer() < b.integer();
    return a.real() < b.real();
  }
  // The order of UTF-8 bytes is that of code points.
  if (a.is_string() && b.is_string()) return *a.string() < *b.string();
  if (a.is_list() && b.is_list()) {
    return std::lexicographical_compare(a.items()->items.begin(), a.items()->items.end(),
                                        b.items()->items.begin(), b.items()->items.end(), less);
  }
  throw InputError(fmt::format("{} and {} have no order", a.type_name(), b.type_name()));
}

const Value* find(const MapData& map, const Value& key) {
  for (const auto& [name, value] : map.items) {
    if (equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* find_name(const MapData& map, std::string_view key) {
  for (const auto& [name, value] : map.items) {
    if (name.is_string() && *name.string() == key) return &value;
  }
  return nullptr;
}

void insert(MapData& map, Value key, Value value) {
  if (key.is_list() ? !key.items()->tuple : key.is_map())
    throw InputError(fmt::format("{} cannot be the key of a dict", key.type_name()));
  for (auto& [name, old] : map.items) {
    if (equal(name, key)) {
      old = std::move(value);
      return;
    }
  }
  map.items.emplace_back(std::move(key), std::move(value));
}

bool contains(const Value& container, const Value& item) {
  if (const std::string* text = container.string()) {
    if (!item.is_string())
      throw InputError(fmt::format("'in' of a str takes a str, not {}", item.type_name()));
    return text->find(*item.string()) != std::string::npos;
  }
  if (const MapData* map = container.map()) return find(*map, item) != nullptr;
  if (const ListData* list = container.items()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& x) { return equal(x, item); });
  }
  if (container.is_undefined()) return false;
  throw InputError(fmt::format("nothing can be 'in' {}", container.type_name()));
}

Value from_json(const OrderedJson& json) {
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return json.get<bool>();
    case OrderedJson::value_t::number_integer:
      return json.get<std::int64_t>();
    case OrderedJson::value_t::number_unsigned:
      if (json.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX))
        throw InputError(fmt::format("the number {} is too large", json.dump()));
      return json.get<std::int64_t>();
    case OrderedJson::value_t::number_float:
      return json.get<double>();
    case OrderedJson::value_t::string:
      return json.get<std::string>();
    case OrderedJson::value_t::array: {
      ListData list;
      for (const OrderedJson& item : json) list.items.push_back(from_json(item));
      return list;
    }
    case OrderedJson::value_t::object: {
      MapData map;
      for (const auto& [key, item] : json.items())
        map.items.emplace_back(Value(key), from_json(item));
      return map;
    }
    default:
      return None{};
  }
}

std::string to_json_text(const Value& value, const JsonStyle& style) {
  std::string out;
  write_json(value, style, 0, out);
  return out;
}

}  // namespace unpack::chat
