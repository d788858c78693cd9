#include "request_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

#include "unpack/error.h"

namespace unpack::server {
namespace {

constexpr int kDeepest = 4;  // an object of arrays is all that any request needs

using nlohmann::json;

std::string shown(const std::string& text) {
  constexpr std::size_t kLongest = 60;
  const json quoted = text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
  return quoted.dump(-1, ' ', false, json::error_handler_t::replace);
}

const char* kind_of(const json& value) {
  if (value.is_number_integer()) return "an integer";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a text";
  if (value.is_boolean()) return "true or false";
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return "null";
}

[[noreturn]] void wrong_type(const std::string& field, const char* wanted, const json& got) {
  throw InputError(fmt::format("field {} must be {}, not {}", shown(field), wanted, kind_of(got)));
}

int to_integer(const std::string& field, const json& value, int lowest, int highest) {
  if (!value.is_number_integer()) wrong_type(field, "an integer", value);
  // Unsigned values beyond int64 would turn negative through get<int64_t>.
  const bool too_large =
      value.is_number_unsigned() &&
      value.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<int>::max());
  const std::int64_t number =
      too_large ? std::numeric_limits<std::int64_t>::max() : value.get<std::int64_t>();
  if (number < lowest || number > highest)
    throw InputError(
        fmt::format("field {} must lie between {} and {}", shown(field), lowest, highest));
  return static_cast<int>(number);
}

}  // namespace

json parse_object(std::string_view body) {
  std::set<std::string> seen;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > kDeepest)
      throw InputError(fmt::format("the request is nested more than {} levels deep", kDeepest));
    if (event == json::parse_event_t::key && depth == 1 &&
        !seen.insert(parsed.get<std::string>()).second) {
      throw InputError(fmt::format("field {} is given twice", shown(parsed.get<std::string>())));
    }
    return true;
  };
  try {
    json parsed = json::parse(body.begin(), body.end(), watch);
    if (!parsed.is_object())
      throw InputError(fmt::format("the request must be a JSON object, not {}", kind_of(parsed)));
    return parsed;
  } catch (const json::exception& error) {
    throw InputError(fmt::format("the request is not valid JSON: {}", error.what()));
  }
}

const json* RequestFields::find(const std::string& field) {
  known_.insert(field);
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool RequestFields::has(const std::string& field) { return find(field) != nullptr; }

std::optional<std::string> RequestFields::text(const std::string& field) {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_string()) wrong_type(field, "a text", *value);
  return value->get<std::string>();
}

std::optional<bool> RequestFields::flag(const std::string& field) {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) wrong_type(field, "true or false", *value);
  return value->get<bool>();
}

std::optional<double> RequestFields::number(const std::string& field) {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_number()) wrong_type(field, "a number", *value);
  return value->get<double>();
}

std::optional<int> RequestFields::integer(const std::string& field, int lowest, int highest) {
  const json* value = find(field);
  if (!value) return std::nullopt;
  return to_integer(field, *value, lowest, highest);
}

std::optional<std::vector<TokenId>> RequestFields::ids(const std::string& field, int vocabulary,
                                                       std::size_t longest) {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_array()) wrong_type(field, "a list of token ids", *value);
  if (value->empty())
    throw InputError(fmt::format("field {} must hold at least one token id", shown(field)));
  if (value->size() > longest)
    throw InputError(fmt::format("field {} holds {} token ids, more than the limit of {}",
                                 shown(field), value->size(), longest));
  std::vector<TokenId> ids;
  ids.reserve(value->size());
  for (const json& item : *value) {
    if (!item.is_number_integer())
      throw InputError(
          fmt::format("field {} must hold integers only, not {}", shown(field), kind_of(item)));
    const bool inside = item.is_number_unsigned() &&
                        item.get<std::uint64_t>() < static_cast<std::uint64_t>(vocabulary);
    if (!inside)
      throw InputError(fmt::format("field {} holds an id outside the vocabulary (0 to {})",
                                   shown(field), vocabulary - 1));
    ids.push_back(item.get<TokenId>());
  }
  return ids;
}

std::optional<std::vector<double>> RequestFields::numbers(const std::string& field,
                                                          std::size_t count) {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_array() || value->size() != count)
    wrong_type(field, fmt::format("a list of {} numbers", count).c_str(), *value);
  for (const json& item : *value) {
    if (!item.is_number())
      throw InputError(
          fmt::format("field {} must hold numbers only, not {}", shown(field), kind_of(item)));
  }
  return value->get<std::vector<double>>();
}

std::optional<std::vector<std::string>> RequestFields::texts(const std::string& field,
                                                             std::size_t longest) {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_array() || value->size() > longest)
    wrong_type(field, fmt::format("a list of at most {} texts", longest).c_str(), *value);
  for (const json& item : *value) {
    if (!item.is_string())
      throw InputError(
          fmt::format("field {} must hold texts only, not {}", shown(field), kind_of(item)));
  }
  return value->get<std::vector<std::string>>();
}

std::optional<std::vector<int>> RequestFields::integers(const std::string& field,
                                                        std::size_t longest) {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_array() || value->size() > longest)
    wrong_type(field, fmt::format("a list of at most {} integers", longest).c_str(), *value);
  std::vector<int> list;
  for (const json& item : *value)
    list.push_back(
        to_integer(field, item, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
  return list;
}

std::optional<std::size_t> RequestFields::choice(const std::string& field,
                                                 const std::vector<std::string>& choices) {
  const std::optional<std::string> value = text(field);
  if (!value) return std::nullopt;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (choices[i] == *value) return i;
  }
  throw InputError(fmt::format("field {} must be one of {}, not {}", shown(field),
                               fmt::join(choices, ", "), shown(*value)));
}

void RequestFields::at_most_one_of(const std::vector<std::string>& fields) {
  const std::string* first = nullptr;
  for (const std::string& field : fields) {
    if (!has(field)) continue;
    if (first)
      throw InputError(fmt::format("give either {} or {}, not both", shown(*first), shown(field)));
    first = &field;
  }
}

void RequestFields::expect_no_others() const {
  for (const auto& [field, value] : object_.items()) {
    if (!known_.contains(field))
      throw InputError(
          fmt::format("unknown field {}; known here: {}", shown(field), fmt::join(known_, ", ")));
  }
}

}  // namespace unpack::server
