#include "request_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "unpack/error.h"

namespace unpack::server {

const Field* RequestFields::find(const std::string& field) {
  if (std::find(known_.begin(), known_.end(), field) == known_.end()) known_.push_back(field);
  return find_field(fields_, field);
}

std::optional<std::string> RequestFields::text(const std::string& field) {
  const Field* value = find(field);
  return value ? std::optional(read_text(field, *value)) : std::nullopt;
}

std::optional<bool> RequestFields::flag(const std::string& field) {
  const Field* value = find(field);
  return value ? std::optional(read_flag(field, *value)) : std::nullopt;
}

std::optional<double> RequestFields::number(const std::string& field) {
  const Field* value = find(field);
  return value ? std::optional(read_number(field, *value)) : std::nullopt;
}

std::optional<int> RequestFields::integer(const std::string& field, int lowest, int highest) {
  const Field* value = find(field);
  return value ? std::optional(read_integer(field, *value, lowest, highest)) : std::nullopt;
}

std::optional<int> RequestFields::integer(const std::string& field) {
  const Field* value = find(field);
  return value ? std::optional(read_integer(field, *value)) : std::nullopt;
}

std::optional<std::vector<TokenId>> RequestFields::ids(const std::string& field, int vocabulary,
                                                       std::size_t longest) {
  const Field* value = find(field);
  return value ? std::optional(read_ids(field, *value, vocabulary, longest)) : std::nullopt;
}

std::optional<std::vector<std::string>> RequestFields::texts(const std::string& field,
                                                             std::size_t longest) {
  const Field* value = find(field);
  return value ? std::optional(read_texts(field, *value, longest)) : std::nullopt;
}

std::optional<std::string> RequestFields::json(const std::string& field) {
  const Field* value = find(field);
  return value ? std::optional(read_json(field, *value)) : std::nullopt;
}

std::optional<std::vector<int>> RequestFields::integers(const std::string& field,
                                                        std::size_t longest) {
  const Field* value = find(field);
  return value ? std::optional(read_integers(field, *value, longest)) : std::nullopt;
}

void RequestFields::at_most_one_of(const std::vector<std::string>& fields) {
  const std::string* first = nullptr;
  for (const std::string& field : fields) {
    if (!find(field)) continue;
    if (first) throw InputError(fmt::format("give {} or {}, not both", *first, field));
    first = &field;
  }
}

Fields RequestFields::others() const {
  Fields rest;
  for (const auto& field : fields_) {
    if (std::find(known_.begin(), known_.end(), field.first) == known_.end()) rest.push_back(field);
  }
  return rest;
}

void RequestFields::expect_no_others(const std::vector<std::string>& unread,
                                     const std::vector<std::string>& known) const {
  const auto contains = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const auto& [field, value] : fields_) {
    if (contains(known_, field) || (!known.empty() && !contains(unread, field))) continue;
    std::vector<std::string> names = known_;
    names.insert(names.end(), known.begin(), known.end());
    std::sort(names.begin(), names.end());
    throw InputError(fmt::format("unknown field {}; known here: {}", shown(text_field(field)),
                                 fmt::join(names, ", ")));
  }
}

}  // namespace unpack::server
