#include "unpack/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>
#include <limits>

#include "base/json_reader.h"
#include "base/message.h"
#include "unpack/error.h"
#include "unpack/field_json.h"

namespace unpack {
namespace {

using Json = OrderedJson;

Field from_json(const Json& json) {
  Field field;
  if (json.is_boolean()) {
    field.value = json.get<bool>();
  } else if (json.is_number_unsigned() &&
             json.get<std::uint64_t>() >
                 static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    field.value = json.get<double>();  // get<int64_t> would turn it negative
  } else if (json.is_number_integer()) {
    field.value = json.get<std::int64_t>();
  } else if (json.is_number()) {
    field.value = json.get<double>();
  } else if (json.is_string()) {
    field.value = json.get<std::string>();
  } else if (json.is_array()) {
    FieldList list;
    list.reserve(json.size());
    for (const Json& member : json) list.push_back(from_json(member));
    field.value = std::move(list);
  } else if (json.is_object()) {
    field.value = Field::Other{"an object", json.dump()};
  }
  return field;
}

template <class T>
bool parse_whole(std::string_view text, T& value) {
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

[[noreturn]] void wrong_kind(const std::string& name, const std::string& takes,
                             const Field& field) {
  const std::string message = fmt::format("{} takes {}, not {}", name, takes, shown(field));
  // What comes as text has no kind of its own: it is out of range, as any other bad text.
  if (field.plain_text) throw UsageError(message);
  throw KindError(message);
}

// [3, 17], or "3,17" and "3 17" in a table.
FieldList members(const std::string& name, const std::string& takes, const Field& field) {
  if (const auto* list = std::get_if<FieldList>(&field.value)) return *list;
  const auto* text = std::get_if<std::string>(&field.value);
  if (!field.plain_text || !text) wrong_kind(name, takes, field);
  FieldList out;
  std::string piece;
  bool comma = false;  // the last separator; two of them leave a gap
  const auto end_piece = [&] {
    if (!piece.empty()) out.push_back(text_field(std::exchange(piece, {})));
  };
  for (const char c : *text) {
    if (c == ',' || c == ';') {
      if (piece.empty() && (comma || out.empty())) wrong_value(name, takes, field);
      end_piece();
      comma = true;
    } else if (c == ' ' || c == '\t') {
      end_piece();
    } else {
      piece += c;
      comma = false;
    }
  }
  if (comma) wrong_value(name, takes, field);
  end_piece();
  return out;
}

// `refuse`: what is an object of another language.
template <class Refuse>
Json written(const Field& field, const Refuse& refuse) {
  struct Write {
    const Field& field;
    const Refuse& refuse;
    Json operator()(const FieldList& list) const {
      Json out = Json::array();
      for (const Field& member : list) out.push_back(written(member, refuse));
      return out;
    }
    Json operator()(const Field::Other& x) const {
      if (x.json.empty()) refuse(field);
      return Json::parse(x.json);
    }
    Json operator()(std::monostate) const { return nullptr; }
    Json operator()(bool x) const { return x; }
    Json operator()(std::int64_t x) const { return x; }
    Json operator()(double x) const { return x; }
    Json operator()(const std::string& x) const { return x; }
  };
  return std::visit(Write{field, refuse}, field.value);
}

}  // namespace

Field text_field(std::string text) {
  Field field;
  field.value = std::move(text);
  field.plain_text = true;
  return field;
}

const Field* find_field(const Fields& fields, std::string_view name) {
  for (const auto& [known, field] : fields) {
    if (known == name) return field.missing() ? nullptr : &field;
  }
  return nullptr;
}

Fields read_fields(std::string_view json, const std::string& origin) {
  const Json object = base::read_ordered_json(json, origin, base::kSmallJson);
  if (!object.is_object())
    throw InputError(
        fmt::format("{}: must be a JSON object, not {}", origin, shown(from_json(object))));
  return fields_of(object);
}

Fields fields_of(const OrderedJson& object) {
  Fields fields;
  fields.reserve(object.size());
  for (const auto& [name, value] : object.items()) fields.emplace_back(name, from_json(value));
  return fields;
}

std::string read_json_text(std::string_view json, const std::string& origin) {
  const Json text = base::read_ordered_json(json, origin, base::kSmallJson);
  if (!text.is_string()) throw InputError(fmt::format("{}: is not a JSON string", origin));
  return text.get<std::string>();
}

std::string shown(const Field& field) {
  constexpr std::size_t kLongest = 60;
  struct Show {
    std::string operator()(std::monostate) const { return "null"; }
    std::string operator()(bool x) const { return x ? "true" : "false"; }
    std::string operator()(std::int64_t x) const { return fmt::format("{}", x); }
    std::string operator()(double x) const { return fmt::format("{}", x); }
    std::string operator()(const std::string& x) const {
      return "\"" + base::one_line(x, kLongest) + "\"";
    }
    std::string operator()(const Field::Other& x) const { return x.kind; }
    std::string operator()(const FieldList& list) const {
      std::string out = "[";
      for (const Field& member : list) {
        if (out.size() > kLongest) return out + ", ...]";
        // A list inside a list is not looked into.
        const bool inner = std::holds_alternative<FieldList>(member.value);
        out += (out.size() > 1 ? ", " : "") + (inner ? "[...]" : shown(member));
      }
      return out + "]";
    }
  };
  return std::visit(Show{}, field.value);
}

void wrong_value(const std::string& name, const std::string& takes, const Field& field) {
  throw UsageError(fmt::format("{} takes {}, not {}", name, takes, shown(field)));
}

std::string read_text(const std::string& name, const Field& field) {
  const auto* text = std::get_if<std::string>(&field.value);
  if (!text) wrong_kind(name, "a text", field);
  return *text;
}

bool read_flag(const std::string& name, const Field& field) {
  if (const bool* flag = std::get_if<bool>(&field.value)) return *flag;
  if (field.plain_text) {
    const std::string& text = std::get<std::string>(field.value);
    if (text == "true" || text == "1") return true;
    if (text == "false" || text == "0") return false;
  }
  wrong_kind(name, "true or false", field);
}

double read_number(const std::string& name, const Field& field) {
  double x = 0;
  if (const auto* whole = std::get_if<std::int64_t>(&field.value)) {
    x = *whole;
  } else if (const double* number = std::get_if<double>(&field.value)) {
    x = *number;
  } else if (!field.plain_text || !parse_whole(std::get<std::string>(field.value), x)) {
    wrong_kind(name, "a number", field);
  }
  if (!std::isfinite(x)) wrong_value(name, "a finite number", field);
  return x;
}

int read_integer(const std::string& name, const Field& field, int lowest, int highest) {
  constexpr int kLeast = std::numeric_limits<int>::min(), kMost = std::numeric_limits<int>::max();
  const std::string takes = lowest == kLeast && highest == kMost ? "a whole number"
                            : highest == kMost
                                ? fmt::format("a whole number of {} or more", lowest)
                                : fmt::format("a whole number between {} and {}", lowest, highest);
  std::int64_t number = 0;
  if (const auto* whole = std::get_if<std::int64_t>(&field.value)) {
    number = *whole;
  } else if (const double* past = std::get_if<double>(&field.value);
             past && std::fabs(*past) >= 9.2e18) {
    wrong_value(name, takes, field);  // a whole number of more than 64 bits
  } else if (!field.plain_text) {
    wrong_kind(name, takes, field);
  } else if (!parse_whole(std::get<std::string>(field.value), number)) {
    wrong_value(name, takes, field);
  }
  if (number < lowest || number > highest) wrong_value(name, takes, field);
  return number;
}

int read_integer(const std::string& name, const Field& field) {
  return read_integer(name, field, std::numeric_limits<int>::min(),
                      std::numeric_limits<int>::max());
}

std::vector<double> read_numbers(const std::string& name, const Field& field, std::size_t count) {
  const std::string takes = fmt::format("{} numbers", count);
  const FieldList list = members(name, takes, field);
  if (list.size() != count) wrong_value(name, takes, field);
  std::vector<double> out;
  for (const Field& member : list) out.push_back(read_number(name, member));
  return out;
}

std::vector<int> read_integers(const std::string& name, const Field& field, std::size_t longest) {
  const std::string takes = fmt::format("at most {} whole numbers", longest);
  const FieldList list = members(name, takes, field);
  if (list.size() > longest) wrong_value(name, takes, field);
  std::vector<int> out;
  for (const Field& member : list) out.push_back(read_integer(name, member));
  return out;
}

std::vector<std::string> read_texts(const std::string& name, const Field& field,
                                    std::size_t longest) {
  const auto* list = std::get_if<FieldList>(&field.value);
  const std::string takes = fmt::format("a list of at most {} texts", longest);
  if (!list) wrong_kind(name, takes, field);
  if (list->size() > longest) wrong_value(name, takes, field);
  std::vector<std::string> out;
  for (const Field& member : *list) out.push_back(read_text(name, member));
  return out;
}

std::string read_json(const std::string& name, const Field& field) {
  if (const auto* text = std::get_if<std::string>(&field.value)) return *text;
  if (!std::holds_alternative<FieldList>(field.value) &&
      !std::holds_alternative<Field::Other>(field.value))
    wrong_kind(name, "a list or an object", field);
  return written(field,
                 [&](const Field& member) { wrong_kind(name, "a list or an object", member); })
      .dump();
}

OrderedJson field_json(const Field& field) {
  return written(field, [](const Field& member) {
    throw InternalError(fmt::format("{} has no JSON", shown(member)));
  });
}

OrderedJson fields_json(const Fields& fields) {
  Json out = Json::object();
  for (const auto& [name, field] : fields) out[name] = field_json(field);
  return out;
}

std::size_t read_choice(const std::string& name, const Field& field,
                        const std::vector<std::string>& words) {
  const std::string takes = fmt::format("one of {}", fmt::join(words, ", "));
  const auto* text = std::get_if<std::string>(&field.value);
  if (!text) wrong_kind(name, takes, field);
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == *text) return i;
  }
  wrong_value(name, takes, field);
}

TokenId read_id(const std::string& name, const Field& field, int vocabulary) {
  const auto* past = std::get_if<double>(&field.value);
  std::int64_t id = past && std::fabs(*past) >= 9.2e18 ? -1 : 0;
  if (const auto* whole = std::get_if<std::int64_t>(&field.value)) {
    id = *whole;
  } else if (field.plain_text ? !parse_whole(std::get<std::string>(field.value), id) : id == 0) {
    wrong_kind(name, "token ids", field);
  }
  if (id < 0 || id >= (vocabulary > 0 ? vocabulary : std::numeric_limits<TokenId>::max())) {
    throw InputError(vocabulary > 0
                         ? fmt::format("{}: token id {} is outside the vocabulary (0 to {})", name,
                                       shown(field), vocabulary - 1)
                         : fmt::format("{}: {} is no token id", name, shown(field)));
  }
  return static_cast<TokenId>(id);
}

std::vector<TokenId> read_ids(const std::string& name, const Field& field, int vocabulary,
                              std::size_t longest) {
  if (std::holds_alternative<std::int64_t>(field.value)) return {read_id(name, field, vocabulary)};
  const FieldList list = members(name, "token ids", field);
  if (list.empty()) wrong_value(name, "at least one token id", field);
  if (list.size() > longest)
    throw InputError(fmt::format("{} holds {} token ids, more than the limit of {}", name,
                                 list.size(), longest));
  std::vector<TokenId> out;
  out.reserve(list.size());
  for (const Field& member : list)
    out.push_back(read_id(fmt::format("{}[{}]", name, out.size()), member, vocabulary));
  return out;
}

}  // namespace unpack
