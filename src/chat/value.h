// Values of a chat template, with the meaning that Python gives them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "unpack/error.h"
#include "unpack/json.h"

namespace unpack::chat {

class Value;
class Runtime;

// What a call gets: `f(1, x=2)`.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at `index` or under `name`; undefined where neither is given.
  Value get(std::size_t index, std::string_view name) const;
  std::size_t count() const;
};

using Native = std::function<Value(Runtime&, const Arguments&)>;

struct Undefined {
  std::string what;  // "'x' is undefined"
};
struct None {};
struct ListData {
  std::vector<Value> items;
  bool tuple = false;
};
struct MapData {
  std::vector<std::pair<Value, Value>> items;  // in the order of insertion, keys differ
};
// What has an identity: a namespace, the `loop` of a for, a macro, a function.
struct ObjectData {
  std::string type;
  std::vector<std::pair<std::string, Value>> attributes;
  Native call;  // empty: cannot be called
  bool writable = false;
};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None x) : data_(x) {}
  Value(Undefined x) : data_(std::move(x)) {}
  Value(bool x) : data_(x) {}
  Value(std::int64_t x) : data_(x) {}
  Value(double x) : data_(x) {}
  Value(std::string x) : data_(std::make_shared<const std::string>(std::move(x))) {}
  Value(const char* x) : Value(std::string(x)) {}
  Value(ListData x) : data_(std::make_shared<const ListData>(std::move(x))) {}
  Value(MapData x) : data_(std::make_shared<const MapData>(std::move(x))) {}
  Value(std::shared_ptr<ObjectData> x) : data_(std::move(x)) {}

  static Value list(std::vector<Value> items) { return ListData{std::move(items), false}; }
  static Value function(std::string name, Native call);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<std::int64_t>(data_); }
  bool is_real() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_integer() || is_real(); }
  bool is_string() const { return string() != nullptr; }
  bool is_list() const { return items() != nullptr; }
  bool is_map() const { return map() != nullptr; }

  const std::string* string() const { return shared<const std::string>(); }
  const ListData* items() const { return shared<const ListData>(); }
  const MapData* map() const { return shared<const MapData>(); }
  ObjectData* object() const { return shared<ObjectData>(); }
  const Undefined& undefined() const { return std::get<Undefined>(data_); }

  bool truth() const;
  std::int64_t integer() const;  // of a bool or an integer
  double real() const;           // of a number

  std::string type_name() const;  // as Python calls it
  std::string text() const;       // str(x)
  std::string repr() const;       // repr(x)

 private:
  template <class T>
  T* shared() const {
    const auto* p = std::get_if<std::shared_ptr<T>>(&data_);
    return p ? p->get() : nullptr;
  }
  std::variant<Undefined, None, bool, std::int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const ListData>, std::shared_ptr<const MapData>,
               std::shared_ptr<ObjectData>>
      data_;
};

bool equal(const Value& a, const Value& b);
// a < b; throws InputError for kinds that Python does not order.
bool less(const Value& a, const Value& b);
// The value under a key, or nullptr.
const Value* find(const MapData& map, const Value& key);
const Value* find_name(const MapData& map, std::string_view key);
void insert(MapData& map, Value key, Value value);
bool contains(const Value& container, const Value& item);  // `item in container`

Value from_json(const OrderedJson& json);
// As json.dumps writes it: indent < 0 puts everything on one line.
struct JsonStyle {
  int indent = -1;
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false, ascii = false;
};
std::string to_json_text(const Value& value, const JsonStyle& style);

}  // namespace unpack::chat
