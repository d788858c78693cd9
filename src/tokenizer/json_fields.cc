#include "tokenizer/json_fields.h"

#include <limits>
#include <utility>

#include "unpack/error.h"

namespace unpack::tokenizer {

Fields::Fields(const JsonValue& object, std::string origin, std::string path)
    : object_(&object), origin_(std::move(origin)), path_(std::move(path)) {
  if (!object.is_object())
    throw InputError(origin_ + ": " + (path_.empty() ? "the file" : path_) +
                     " must be a JSON object, not " + object.type_name());
}

std::string Fields::name(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

void Fields::fail(std::string_view key, const std::string& what) const {
  throw InputError(origin_ + ": " + name(key) + " " + what);
}

bool Fields::missing(const char* key) const {
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null();
}

const JsonValue& Fields::value(const char* key) const {
  const auto found = object_->find(key);
  if (found == object_->end()) fail(key, "is missing");
  return *found;
}

bool Fields::boolean(const char* key, bool otherwise) const {
  if (missing(key)) return otherwise;
  if (!value(key).is_boolean()) fail(key, "must be true or false");
  return value(key).get<bool>();
}

std::int64_t Fields::integer(const char* key) const {
  const JsonValue& number = value(key);
  if (!number.is_number_integer()) fail(key, "must be a whole number");
  if (number.is_number_unsigned() &&
      number.get<std::uint64_t>() >
          static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    fail(key, "is out of range");
  }
  return number.get<std::int64_t>();
}

std::int64_t Fields::integer(const char* key, std::int64_t otherwise) const {
  return missing(key) ? otherwise : integer(key);
}

std::string Fields::string(const char* key) const {
  if (!value(key).is_string()) fail(key, "must be a string");
  return value(key).get<std::string>();
}

std::optional<std::string> Fields::optional_string(const char* key) const {
  if (missing(key)) return std::nullopt;
  return string(key);
}

Fields Fields::object(const char* key) const { return Fields(value(key), origin_, name(key)); }

std::vector<Fields> Fields::objects(const char* key) const {
  const JsonValue& list = value(key);
  if (!list.is_array()) fail(key, "must be a list");
  std::vector<Fields> items;
  items.reserve(list.size());
  for (std::size_t i = 0; i < list.size(); ++i)
    items.emplace_back(list[i], origin_, name(key) + "[" + std::to_string(i) + "]");
  return items;
}

}  // namespace unpack::tokenizer
