// Methods of str, list and dict that read; those that change a value are refused, as in the sandbox
// that chat templates are made for.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "chat/runtime.h"
#include "chat/text.h"

namespace unpack::chat {
namespace {

using Method = std::function<Value(Runtime&, const Value& self, const Arguments&)>;
using Methods = std::map<std::string, Method, std::less<>>;

bool said(const Value& x) { return !x.is_undefined() && !x.is_none(); }

const std::string& text_argument(const Value& value, const char* method) {
  if (!value.is_string())
    throw InputError(fmt::format("{}() takes a str, not {}", method, value.type_name()));
  return *value.string();
}

std::int64_t count_or(const Value& value, std::int64_t fallback) {
  return said(value) ? value.integer() : fallback;
}

Value texts(Runtime& runtime, const std::vector<std::string>& parts) {
  std::vector<Value> out;
  for (const std::string& part : parts) out.push_back(runtime.made(part));
  return runtime.made(std::move(out));
}

Method strip_method(Side side) {
  return [side](Runtime& runtime, const Value& self, const Arguments& args) {
    const Value chars = args.get(0, "chars");
    return runtime.made(std::string(said(chars)
                                        ? strip(*self.string(), side, text_argument(chars, "strip"))
                                        : strip(*self.string(), side)));
  };
}

Method split_method(bool from_right) {
  return [from_right](Runtime& runtime, const Value& self, const Arguments& args) {
    const Value separator = args.get(0, "sep");
    const std::int64_t most = count_or(args.get(1, "maxsplit"), -1);
    runtime.spend(self.string()->size() / 32);
    if (!said(separator)) {
      if (from_right && most >= 0)
        throw InputError("rsplit() at white space with a limit is not supported");
      return texts(runtime, split_blanks(*self.string(), most));
    }
    const std::string& at = text_argument(separator, "split");
    if (at.empty()) throw InputError("split() with an empty separator");
    return texts(runtime, from_right ? split_from_right(*self.string(), at, most)
                                     : split(*self.string(), at, most));
  };
}

Method ends_method(bool start) {
  return [start](Runtime&, const Value& self, const Arguments& args) -> Value {
    const Value wanted = args.get(0, "prefix");
    const auto matches = [&](const Value& x) {
      const std::string& part = text_argument(x, start ? "startswith" : "endswith");
      return start ? self.string()->starts_with(part) : self.string()->ends_with(part);
    };
    if (args.positional.size() > 1)
      throw InputError("startswith() with positions is not supported");
    if (const ListData* list = wanted.items(); list && list->tuple)
      return std::any_of(list->items.begin(), list->items.end(), matches);
    return matches(wanted);
  };
}

Method find_method_of(bool from_right, bool must) {
  return [from_right, must](Runtime&, const Value& self, const Arguments& args) -> Value {
    if (args.positional.size() > 1) throw InputError("find() with positions is not supported");
    const std::string& part = text_argument(args.get(0, "sub"), "find");
    const std::string& text = *self.string();
    const std::size_t at = from_right ? text.rfind(part) : text.find(part);
    if (at == std::string::npos && must) throw InputError("index(): the text is not there");
    return at == std::string::npos ? std::int64_t{-1} : length(text.substr(0, at));
  };
}

Method partition_method(bool from_right) {
  return [from_right](Runtime& runtime, const Value& self, const Arguments& args) {
    const std::string& part = text_argument(args.get(0, "sep"), "partition");
    const std::string& text = *self.string();
    const std::size_t at = from_right ? text.rfind(part) : text.find(part);
    std::vector<Value> out;
    if (part.empty()) throw InputError("partition() with an empty separator");
    if (at == std::string::npos) {
      out = {from_right ? Value("") : self, Value(""), from_right ? self : Value("")};
    } else {
      out = {Value(text.substr(0, at)), Value(part), Value(text.substr(at + part.size()))};
    }
    return runtime.made(std::move(out), true);
  };
}

Method class_method(std::string what) {
  return [what = std::move(what)](Runtime&, const Value& self, const Arguments&) -> Value {
    return all_of_class(*self.string(), what);
  };
}

Method pad_method(int left, int right) {
  return [left, right](Runtime& runtime, const Value& self, const Arguments& args) {
    const std::int64_t width = args.get(0, "width").integer();
    const Value fill = args.get(1, "fillchar");
    if (width > (std::int64_t{1} << 20)) throw InputError("a text grows too long");
    const std::int64_t room = std::max<std::int64_t>(0, width - length(*self.string()));
    const Value before = room * left / (left + right);
    const std::int64_t extra = left && right ? (room & width & 1) : 0;
    const std::int64_t n = before.integer() + extra;
    std::string out;
    for (std::int64_t i = 0; i < n; ++i) out += said(fill) ? *fill.string() : " ";
    out += *self.string();
    for (std::int64_t i = n; i < room; ++i) out += said(fill) ? *fill.string() : " ";
    return runtime.made(std::move(out));
  };
}

// "{}", "{0}" and "{name}", without a format behind a colon.
Value format_text(Runtime& runtime, const Value& self, const Arguments& args) {
  const std::string& format = *self.string();
  std::string out;
  std::size_t next = 0;
  for (std::size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if ((c == '{' || c == '}') && i + 1 < format.size() && format[i + 1] == c) {
      out += c;
      ++i;
    } else if (c == '}') {
      throw InputError("format(): a single }");
    } else if (c == '{') {
      const std::size_t end = format.find('}', i);
      if (end == std::string::npos) throw InputError("format(): a { is not closed");
      const std::string field = format.substr(i + 1, end - i - 1);
      if (field.find_first_of(":!.[") != std::string::npos)
        throw InputError(fmt::format("format(): the field {{{}}} is not supported", field));
      Value value;
      if (field.empty()) {
        value = args.get(next++, "");
      } else if (std::all_of(field.begin(), field.end(),
                             [](char d) { return d >= '0' && d <= '9'; })) {
        value = field.size() < 5 ? args.get(std::stoul(field), "") : Value();
      } else {
        value = args.get(args.positional.size(), field);
      }
      if (value.is_undefined()) throw InputError("format(): a value is missing");
      out += value.text();
      i = end;
    } else {
      out += c;
    }
  }
  return runtime.made(std::move(out));
}

Value replace_method(Runtime& runtime, const Value& self, const Arguments& args) {
  const std::string& from = text_argument(args.get(0, "old"), "replace");
  const std::string& to = text_argument(args.get(1, "new"), "replace");
  const double size = self.string()->size() + 1;
  const double most = size * (to.size() + 1) / (from.empty() ? 1 : from.size());
  if (most > 64e6) throw InputError("a text grows too long");
  return runtime.made(replace(*self.string(), from, to, count_or(args.get(2, "count"), -1)));
}

Value join_method(Runtime& runtime, const Value& self, const Arguments& args) {
  std::string out;
  bool first = true;
  for (const Value& item : runtime.iterate(args.get(0, "iterable"))) {
    if (!first) out += *self.string();
    first = false;
    out += text_argument(item, "join");
    runtime.spend(self.string()->size() / 32 + 1);
  }
  return runtime.made(std::move(out));
}

template <class Change>
Method changed(Change change) {
  return [change](Runtime& runtime, const Value& self, const Arguments&) {
    return runtime.made(std::string(change(*self.string())));
  };
}

Method without(bool start) {
  return [start](Runtime& runtime, const Value& self, const Arguments& args) {
    const std::string& part = text_argument(args.get(0, "prefix"), "removeprefix");
    std::string text = *self.string();
    if (start && text.starts_with(part)) text.erase(0, part.size());
    if (!start && text.ends_with(part)) text.erase(text.size() - part.size());
    return runtime.made(std::move(text));
  };
}

const Methods& string_methods() {
  static const Methods methods = {
      {"strip", strip_method(Side::both)},
      {"lstrip", strip_method(Side::left)},
      {"rstrip", strip_method(Side::right)},
      {"split", split_method(false)},
      {"rsplit", split_method(true)},
      {"startswith", ends_method(true)},
      {"endswith", ends_method(false)},
      {"find", find_method_of(false, false)},
      {"rfind", find_method_of(true, false)},
      {"index", find_method_of(false, true)},
      {"rindex", find_method_of(true, true)},
      {"partition", partition_method(false)},
      {"rpartition", partition_method(true)},
      {"isdigit", class_method("digit")},
      {"isdecimal", class_method("digit")},
      {"isalpha", class_method("alpha")},
      {"isalnum", class_method("alnum")},
      {"isspace", class_method("space")},
      {"isupper", class_method("upper")},
      {"islower", class_method("lower")},
      {"ljust", pad_method(0, 1)},
      {"rjust", pad_method(1, 0)},
      {"center", pad_method(1, 1)},
      {"format", format_text},
      {"replace", replace_method},
      {"join", join_method},
      {"upper", changed(upper)},
      {"lower", changed(lower)},
      {"casefold", changed(lower)},
      {"capitalize", changed(capitalize)},
      {"title", changed(title)},
      {"removeprefix", without(true)},
      {"removesuffix", without(false)},
      {"splitlines",
       [](Runtime& runtime, const Value& self, const Arguments& args) {
         return texts(runtime, split_lines(*self.string(), args.get(0, "keepends").truth()));
       }},
      {"count",
       [](Runtime&, const Value& self, const Arguments& args) -> Value {
         const std::string& part = text_argument(args.get(0, "sub"), "count");
         if (part.empty()) return length(*self.string()) + 1;
         return static_cast<std::int64_t>(split(*self.string(), part, -1).size()) - 1;
       }},
  };
  return methods;
}

const Methods& list_methods() {
  static const Methods methods = {
      {"index",
       [](Runtime& runtime, const Value& self, const Arguments& args) -> Value {
         const std::vector<Value>& items = self.items()->items;
         runtime.spend(std::ssize(items));
         for (std::size_t i = 0; i < items.size(); ++i) {
           if (equal(items[i], args.get(0, "value"))) return static_cast<std::int64_t>(i);
         }
         throw InputError("index(): the value is not in the list");
       }},
      {"count",
       [](Runtime& runtime, const Value& self, const Arguments& args) -> Value {
         const std::vector<Value>& items = self.items()->items;
         runtime.spend(std::ssize(items));
         return static_cast<std::int64_t>(
             std::count_if(items.begin(), items.end(),
                           [&](const Value& x) { return equal(x, args.get(0, "value")); }));
       }},
  };
  return methods;
}

const Methods& map_methods() {
  static const Methods methods = {
      {"items",
       [](Runtime& runtime, const Value& self, const Arguments&) {
         std::vector<Value> out;
         for (const auto& [key, value] : self.map()->items)
           out.emplace_back(ListData{{key, value}, true});
         return runtime.made(std::move(out));
       }},
      {"keys", [](Runtime& runtime, const Value& self,
                  const Arguments&) { return runtime.made(runtime.iterate(self)); }},
      {"values",
       [](Runtime& runtime, const Value& self, const Arguments&) {
         std::vector<Value> out;
         for (const auto& item : self.map()->items) out.push_back(item.second);
         return runtime.made(std::move(out));
       }},
      {"get",
       [](Runtime& runtime, const Value& self, const Arguments& args) -> Value {
         runtime.spend(std::ssize(self.map()->items) / 16);
         if (const Value* found = find(*self.map(), args.get(0, "key"))) return *found;
         const Value fallback = args.get(1, "default");
         return fallback.is_undefined() ? Value(None{}) : fallback;
       }},
      {"copy", [](Runtime&, const Value& self, const Arguments&) { return self; }},
  };
  return methods;
}

constexpr std::string_view kChanging[] = {"append",     "extend",  "insert", "pop",
                                          "remove",     "reverse", "sort",   "clear",
                                          "setdefault", "update",  "popitem"};

}  // namespace

Value find_method(const Value& self, const std::string& name) {
  const Methods* methods = self.is_string() ? &string_methods()
                           : self.is_list() ? &list_methods()
                           : self.is_map()  ? &map_methods()
                                            : nullptr;
  if (!methods) return {};
  if (const auto it = methods->find(name); it != methods->end()) {
    const Method& method = it->second;
    return Value::function(name, [&method, self](Runtime& runtime, const Arguments& args) {
      return method(runtime, self, args);
    });
  }
  const bool changes = !self.is_string() && std::find(std::begin(kChanging), std::end(kChanging),
                                                      name) != std::end(kChanging);
  if (changes && !(self.is_map() && find_name(*self.map(), name))) {
    return Value::function(name, [name](Runtime&, const Arguments&) -> Value {
      throw InputError(fmt::format("{}() would change a value, which templates may not do", name));
    });
  }
  return {};
}

}  // namespace unpack::chat
