// The filters that chat templates use.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "chat/runtime.h"
#include "chat/text.h"

namespace unpack::chat {
namespace {

using Filters = std::map<std::string, Native, std::less<>>;

bool given(const Value& x) { return !x.is_undefined(); }

// "a.b" or an index looked up in a value.
Value by_path(Runtime& runtime, Value value, const Value& path) {
  if (!path.is_string()) return runtime.item(value, path);
  for (const std::string& part : split(*path.string(), ".", -1)) {
    const bool number =
        !part.empty() && part.size() < 10 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = number ? runtime.item(value, Value(static_cast<std::int64_t>(std::stol(part))))
                   : runtime.item(value, Value(part));
  }
  return value;
}

Value folded(const Value& value, bool case_sensitive) {
  return value.is_string() && !case_sensitive ? Value(lower(*value.string())) : value;
}

Native text_filter(std::string (*change)(std::string_view)) {
  return [change](Runtime& runtime, const Arguments& args) {
    return runtime.made(change(args.get(0, "s").text()));
  };
}

Value default_filter(Runtime&, const Arguments& args) {
  const Value value = args.get(0, "value"), fallback = args.get(1, "default_value");
  const bool empty = value.is_undefined() || (args.get(2, "boolean").truth() && !value.truth());
  if (!empty) return value;
  return given(fallback) ? fallback : Value("");
}

Value length_filter(Runtime&, const Arguments& args) {
  const Value value = args.get(0, "value");
  if (const std::string* text = value.string()) return length(*text);
  if (const ListData* list = value.items()) return std::ssize(list->items);
  if (const MapData* map = value.map()) return std::ssize(map->items);
  if (value.is_undefined()) return std::int64_t{0};
  throw InputError(fmt::format("{} has no length", value.type_name()));
}

Value trim_filter(Runtime& runtime, const Arguments& args) {
  const std::string text = args.get(0, "value").text();
  const Value chars = args.get(1, "chars");
  return runtime.made(std::string(chars.is_string() ? strip(text, Side::both, *chars.string())
                                                    : strip(text, Side::both)));
}

Value join_filter(Runtime& runtime, const Arguments& args) {
  const Value separator = args.get(1, "d"), attribute = args.get(2, "attribute");
  const std::string between = given(separator) ? separator.text() : "";
  std::string out;
  bool first = true;
  for (const Value& item : runtime.iterate(args.get(0, "value"))) {
    if (!first) out += between;
    first = false;
    out += (given(attribute) && !attribute.is_none() ? by_path(runtime, item, attribute) : item)
               .text();
    runtime.spend(1 + std::ssize(between) / 32);
  }
  return runtime.made(std::move(out));
}

Value replace_filter(Runtime& runtime, const Arguments& args) {
  const Value count = args.get(3, "count");
  const std::string text = args.get(0, "s").text(), from = args.get(1, "old").text(),
                    to = args.get(2, "new").text();
  if (static_cast<double>(text.size() + 1) * (to.size() + 1) / (from.empty() ? 1 : from.size()) >
      64e6)
    throw InputError("a text grows too long");
  return runtime.made(
      replace(text, from, to, given(count) && !count.is_none() ? count.integer() : -1));
}

Value json_filter(Runtime& runtime, const Arguments& args) {
  // As transformers defines it for chat templates, not as Jinja does for web pages.
  JsonStyle style;
  style.ascii = args.get(1, "ensure_ascii").truth();
  const Value indent = args.get(2, "indent"), separators = args.get(3, "separators");
  if (given(indent) && !indent.is_none()) {
    style.indent = std::clamp<std::int64_t>(indent.integer(), 0, 64);
  }
  if (const ListData* pair = separators.items(); pair && pair->items.size() == 2) {
    style.item_separator = pair->items[0].text();
    style.key_separator = pair->items[1].text();
  }
  style.sort_keys = args.get(4, "sort_keys").truth();
  return runtime.made(to_json_text(args.get(0, "x"), style));
}

Value end_filter(Runtime& runtime, const Arguments& args, bool first) {
  const std::vector<Value> items = runtime.iterate(args.get(0, "seq"));
  if (items.empty())
    return Undefined{fmt::format("no {} item, the sequence was empty", first ? "first" : "last")};
  return first ? items.front() : items.back();
}

Value reverse_filter(Runtime& runtime, const Arguments& args) {
  const Value value = args.get(0, "value");
  std::vector<Value> items = runtime.iterate(value);
  std::reverse(items.begin(), items.end());
  if (!value.is_string()) return runtime.made(std::move(items));
  std::string out;
  for (const Value& item : items) out += *item.string();
  return runtime.made(std::move(out));
}

Arguments rest(const Arguments& args, std::size_t first, Value value) {
  Arguments out;
  out.positional.push_back(std::move(value));
  for (std::size_t i = first; i < args.positional.size(); ++i)
    out.positional.push_back(args.positional[i]);
  out.named = args.named;
  return out;
}

Value map_filter(Runtime& runtime, const Arguments& args) {
  const Value attribute = args.get(99, "attribute"), fallback = args.get(99, "default");
  std::vector<Value> out;
  for (const Value& item : runtime.iterate(args.get(0, "value"))) {
    if (given(attribute)) {
      Value found = by_path(runtime, item, attribute);
      out.push_back(found.is_undefined() && given(fallback) ? fallback : found);
    } else {
      const Value name = args.get(1, "name");
      if (!name.is_string()) throw InputError("map wants the name of a filter or attribute=");
      out.push_back(runtime.filter(*name.string(), rest(args, 2, item)));
    }
  }
  return runtime.made(std::move(out));
}

// select, reject, selectattr, rejectattr.
Native choose(bool wanted, bool attribute) {
  return [wanted, attribute](Runtime& runtime, const Arguments& args) {
    const std::size_t at = attribute ? 2 : 1;
    std::vector<Value> out;
    for (const Value& item : runtime.iterate(args.get(0, "value"))) {
      const Value looked_at = attribute ? by_path(runtime, item, args.get(1, "attribute")) : item;
      const Value name = args.get(at, "");
      const bool holds = name.is_string()
                             ? runtime.test(*name.string(), rest(args, at + 1, looked_at))
                             : looked_at.truth();
      if (holds == wanted) out.push_back(item);
    }
    return runtime.made(std::move(out));
  };
}

Value sort_filter(Runtime& runtime, const Arguments& args) {
  std::vector<Value> items = runtime.iterate(args.get(0, "value"));
  const bool reverse = args.get(1, "reverse").truth(),
             exact = args.get(2, "case_sensitive").truth();
  const Value attribute = args.get(3, "attribute");
  std::vector<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    Value key = given(attribute) && !attribute.is_none() ? by_path(runtime, item, attribute) : item;
    keyed.emplace_back(folded(key, exact), std::move(item));
  }
  runtime.spend(std::ssize(keyed) * 8);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(b.first, a.first) : less(a.first, b.first);
  });
  std::vector<Value> out;
  for (auto& item : keyed) out.push_back(std::move(item.second));
  return runtime.made(std::move(out));
}

Value unique_filter(Runtime& runtime, const Arguments& args) {
  const bool exact = args.get(1, "case_sensitive").truth();
  const Value attribute = args.get(2, "attribute");
  std::vector<Value> seen, out;
  for (const Value& item : runtime.iterate(args.get(0, "value"))) {
    const Value key = folded(given(attribute) ? by_path(runtime, item, attribute) : item, exact);
    runtime.spend(std::ssize(seen));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& x) { return equal(x, key); }))
      continue;
    seen.push_back(key);
    out.push_back(item);
  }
  return runtime.made(std::move(out));
}

Value dictsort_filter(Runtime& runtime, const Arguments& args) {
  const Value value = args.get(0, "value"), by = args.get(2, "by");
  if (!value.is_map()) throw InputError("dictsort takes a dict");
  const bool exact = args.get(1, "case_sensitive").truth();
  const bool by_value = by.is_string() && *by.string() == "value";
  const bool reverse = args.get(3, "reverse").truth();
  auto items = value.map()->items;
  runtime.spend(std::ssize(items) * 8);
  std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) {
    const Value x = folded(by_value ? a.second : a.first, exact),
                y = folded(by_value ? b.second : b.first, exact);
    return reverse ? less(y, x) : less(x, y);
  });
  std::vector<Value> out;
  for (auto& [key, item] : items) out.emplace_back(ListData{{key, item}, true});
  return runtime.made(std::move(out));
}

Value extreme(Runtime& runtime, const Arguments& args, bool largest) {
  const bool exact = args.get(1, "case_sensitive").truth();
  const Value attribute = args.get(2, "attribute");
  const std::vector<Value> items = runtime.iterate(args.get(0, "value"));
  if (items.empty()) return Undefined{"no aggregated item, the sequence was empty"};
  const auto key = [&](const Value& x) {
    return folded(given(attribute) ? by_path(runtime, x, attribute) : x, exact);
  };
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    const bool better =
        largest ? less(key(items[best]), key(items[i])) : less(key(items[i]), key(items[best]));
    if (better) best = i;
  }
  return items[best];
}

Value sum_filter(Runtime& runtime, const Arguments& args) {
  const Value attribute = args.get(1, "attribute"), start = args.get(2, "start");
  Value total = given(start) ? start : Value(std::int64_t{0});
  for (const Value& item : runtime.iterate(args.get(0, "iterable"))) {
    const bool inside = given(attribute) && !attribute.is_none();
    total = arithmetic(runtime, Op::add, total, inside ? by_path(runtime, item, attribute) : item);
  }
  return total;
}

Value int_filter(Runtime&, const Arguments& args) {
  const Value value = args.get(0, "value"), fallback = args.get(1, "default");
  const Value otherwise = given(fallback) ? fallback : Value(std::int64_t{0});
  double number = 0;
  if (value.is_number()) {
    if (!value.is_real()) return value.integer();
    number = value.real();
  } else if (const std::string* text = value.string()) {
    const std::string trimmed(strip(*text, Side::both));
    char* end = nullptr;
    errno = 0;
    const long long whole = std::strtoll(trimmed.c_str(), &end, 10);
    if (!trimmed.empty() && *end == 0 && errno == 0) return static_cast<std::int64_t>(whole);
    number = std::strtod(trimmed.c_str(), &end);
    if (trimmed.empty() || *end != 0) return otherwise;
  } else {
    return otherwise;
  }
  if (!(std::abs(number) < 9e18)) return otherwise;
  return static_cast<std::int64_t>(number);
}

Value float_filter(Runtime&, const Arguments& args) {
  const Value value = args.get(0, "value"), fallback = args.get(1, "default");
  if (value.is_number()) return value.real();
  if (const std::string* text = value.string()) {
    const std::string trimmed(strip(*text, Side::both));
    char* end = nullptr;
    const double number = std::strtod(trimmed.c_str(), &end);
    if (!trimmed.empty() && *end == 0) return number;
  }
  return given(fallback) ? fallback : Value(0.0);
}

Value round_filter(Runtime&, const Arguments& args) {
  const double value = args.get(0, "value").real();
  const Value digits = args.get(1, "precision"), method = args.get(2, "method");
  const double scale = std::pow(10.0, given(digits) ? digits.integer() : 0.0);
  const std::string how = method.is_string() ? *method.string() : "common";
  if (how == "ceil") return std::ceil(value * scale) / scale;
  if (how == "floor") return std::floor(value * scale) / scale;
  // Python rounds halves to even.
  return std::nearbyint(value * scale) / scale;
}

Value abs_filter(Runtime& runtime, const Arguments& args) {
  const Value value = args.get(0, "x");
  if (value.is_real()) return std::abs(value.real());
  return value.integer() < 0 ? arithmetic(runtime, Op::subtract, Value(std::int64_t{0}), value)
                             : Value(value.integer());
}

Value indent_filter(Runtime& runtime, const Arguments& args) {
  const Value width = args.get(1, "width");
  const bool first = args.get(2, "first").truth(), blank = args.get(3, "blank").truth();
  std::string space = "    ";
  if (width.is_string()) space = *width.string();
  if (width.is_integer()) space.assign(std::clamp<std::int64_t>(width.integer(), 0, 1000), ' ');
  const std::string text = args.get(0, "s").text();
  std::string out;
  std::vector<std::string> lines = split(text, "\n", -1);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if ((i > 0 || first) && (blank || !lines[i].empty() || i == 0)) out += space;
    out += lines[i];
    runtime.spend(1);
  }
  return runtime.made(std::move(out));
}

Value escape_filter(Runtime& runtime, const Arguments& args) {
  std::string out;
  for (const char c : args.get(0, "s").text()) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&#34;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return runtime.made(std::move(out));
}

Value items_filter(Runtime& runtime, const Arguments& args) {
  const Value value = args.get(0, "value");
  if (value.is_undefined()) return runtime.made(std::vector<Value>{});
  if (!value.is_map()) throw InputError("items takes a dict");
  return runtime.call(find_method(value, "items"), {});
}

Value batch_filter(Runtime& runtime, const Arguments& args) {
  const std::int64_t size = args.get(1, "linecount").integer();
  if (size < 1) throw InputError("batch takes a number of 1 or more");
  const Value fill = args.get(2, "fill_with");
  std::vector<Value> out, group;
  for (const Value& item : runtime.iterate(args.get(0, "value"))) {
    if (std::ssize(group) == size) out.push_back(runtime.made(std::exchange(group, {})));
    group.push_back(item);
  }
  while (!group.empty() && given(fill) && std::ssize(group) < size) {
    runtime.spend(1);
    group.push_back(fill);
  }
  if (!group.empty()) out.push_back(runtime.made(std::move(group)));
  return runtime.made(std::move(out));
}

const Filters& filters() {
  static const Filters table = {
      {"abs", abs_filter},
      {"attr",
       [](Runtime& runtime, const Arguments& args) {
         return runtime.attribute(args.get(0, "obj"), args.get(1, "name").text());
       }},
      {"batch", batch_filter},
      {"capitalize", text_filter(capitalize)},
      {"count", length_filter},
      {"d", default_filter},
      {"default", default_filter},
      {"dictsort", dictsort_filter},
      {"e", escape_filter},
      {"escape", escape_filter},
      {"first", [](Runtime& r, const Arguments& a) { return end_filter(r, a, true); }},
      {"float", float_filter},
      {"format",
       [](Runtime& runtime, const Arguments& args) {
         std::vector<Value> values(args.positional.begin() + 1, args.positional.end());
         return runtime.made(printf_format(runtime, args.get(0, "value").text(),
                                           Value(ListData{std::move(values), true})));
       }},
      {"indent", indent_filter},
      {"int", int_filter},
      {"items", items_filter},
      {"join", join_filter},
      {"last", [](Runtime& r, const Arguments& a) { return end_filter(r, a, false); }},
      {"length", length_filter},
      {"list",
       [](Runtime& runtime, const Arguments& args) {
         return runtime.made(runtime.iterate(args.get(0, "value")));
       }},
      {"lower", text_filter(lower)},
      {"map", map_filter},
      {"max", [](Runtime& r, const Arguments& a) { return extreme(r, a, true); }},
      {"min", [](Runtime& r, const Arguments& a) { return extreme(r, a, false); }},
      {"reject", choose(false, false)},
      {"rejectattr", choose(false, true)},
      {"replace", replace_filter},
      {"reverse", reverse_filter},
      {"round", round_filter},
      {"safe", [](Runtime&, const Arguments& args) { return args.get(0, "value"); }},
      {"select", choose(true, false)},
      {"selectattr", choose(true, true)},
      {"sort", sort_filter},
      {"string", [](Runtime& r, const Arguments& a) { return r.made(a.get(0, "s").text()); }},
      {"sum", sum_filter},
      {"title", text_filter(filter_title)},
      {"tojson", json_filter},
      {"trim", trim_filter},
      {"unique", unique_filter},
      {"upper", text_filter(upper)},
      {"wordcount",
       [](Runtime& runtime, const Arguments& args) -> Value {
         const std::string text = args.get(0, "s").text();
         runtime.spend(std::ssize(text) / 32);
         return static_cast<std::int64_t>(split_blanks(text, -1).size());
       }},
  };
  return table;
}

}  // namespace

const Native* find_filter(std::string_view name) {
  const auto it = filters().find(name);
  return it == filters().end() ? nullptr : &it->second;
}

}  // namespace unpack::chat
