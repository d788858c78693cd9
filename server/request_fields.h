// Strict reading of a JSON request: every field has a type and a range, and a field nobody asked
// for is an error.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/config.h"

namespace unpack::server {

// Throws InputError that says what is wrong: not JSON, not an object, nested too deeply, a field
// given twice.
nlohmann::json parse_object(std::string_view body);

// Reads the fields of one object and remembers which were read. All getters throw InputError that
// names the field.
class RequestFields {
 public:
  explicit RequestFields(const nlohmann::json& object) : object_(object) {}

  bool has(const std::string& field);  // present and not null
  std::optional<std::string> text(const std::string& field);
  std::optional<bool> flag(const std::string& field);
  std::optional<double> number(const std::string& field);
  std::optional<int> integer(const std::string& field, int lowest, int highest);
  std::optional<std::vector<TokenId>> ids(const std::string& field, int vocabulary,
                                          std::size_t longest);
  std::optional<std::vector<double>> numbers(const std::string& field, std::size_t count);
  std::optional<std::vector<std::string>> texts(const std::string& field, std::size_t longest);
  std::optional<std::vector<int>> integers(const std::string& field, std::size_t longest);
  // The index of the field's text in `choices`.
  std::optional<std::size_t> choice(const std::string& field,
                                    const std::vector<std::string>& choices);

  // Throws when two of these are given.
  void at_most_one_of(const std::vector<std::string>& fields);
  // To be called last: throws for a field that no getter asked for, and lists those that exist.
  void expect_no_others() const;

 private:
  const nlohmann::json* find(const std::string& field);

  const nlohmann::json& object_;
  std::set<std::string> known_;
};

}  // namespace unpack::server
