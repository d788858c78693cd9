// Strict reading of a request: every field has a type and a range, and a field nobody asked for is
// an error. The readers themselves are the library's, as in every front end.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "unpack/choice.h"
#include "unpack/fields.h"

namespace unpack::server {

// Reads the fields of one request and remembers which were read. All getters throw InputError or
// UsageError that names the field.
class RequestFields {
 public:
  explicit RequestFields(const Fields& fields) : fields_(fields) {}

  std::optional<std::string> text(const std::string& field);
  std::optional<bool> flag(const std::string& field);
  std::optional<double> number(const std::string& field);
  std::optional<int> integer(const std::string& field, int lowest, int highest);
  std::optional<int> integer(const std::string& field);
  std::optional<std::vector<TokenId>> ids(const std::string& field, int vocabulary,
                                          std::size_t longest);
  std::optional<std::vector<std::string>> texts(const std::string& field, std::size_t longest);
  std::optional<std::string> json(const std::string& field);  // a list or an object, as its text
  std::optional<std::vector<int>> integers(const std::string& field, std::size_t longest);
  template <class T>
  std::optional<T> word(const std::string& field, const Words<T>& words) {
    const Field* value = find(field);
    return value ? std::optional(read_word(field, *value, words)) : std::nullopt;
  }

  // Throws when two of these are given.
  void at_most_one_of(const std::vector<std::string>& fields);
  // What was not asked for, for another reader.
  Fields others() const;
  // To be called last, with the names that another reader knows: throws for one that nobody asked
  // for, and lists those that exist.
  void expect_no_others(const std::vector<std::string>& unread = {},
                        const std::vector<std::string>& known = {}) const;

 private:
  const Field* find(const std::string& field);

  const Fields& fields_;
  std::vector<std::string> known_;
};

}  // namespace unpack::server
