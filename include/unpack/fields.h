// Named values as they come from outside: a JSON object, a row of a table, options of a command
// line, arguments of Python. All front ends read them with the functions below, so that a field has
// the same range and the same message everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "unpack/config.h"

namespace unpack {

struct Field;
using FieldList = std::vector<Field>;

// Nothing, true or false, a whole number, a number, a text, a list. `other` names what none of
// these is ("an object"). A whole number past 64 bits is a number.
struct Field {
  struct Other {
    std::string kind;
    std::string json;  // of an object that came as JSON
  };
  std::variant<std::monostate, bool, std::int64_t, double, std::string, FieldList, Other> value;
  bool plain_text = false;  // a cell or an argument: numbers and lists are texts in it

  bool missing() const { return std::holds_alternative<std::monostate>(value); }
};

// A cell of a table or the text of an option.
Field text_field(std::string text);

// In the order in which they were given; no name occurs twice.
using Fields = std::vector<std::pair<std::string, Field>>;
const Field* find_field(const Fields& fields, std::string_view name);  // null: not there, or null

// One JSON object. Throws InputError that begins with `origin` where it is none, is nested too
// deeply, is too large or gives a name twice.
Fields read_fields(std::string_view json, const std::string& origin);
std::string read_json_text(std::string_view json, const std::string& origin);  // one JSON string

// Each throws KindError for another kind and UsageError for a value out of range; both read
// `{name} takes {what}, not {what was given}`.
std::string read_text(const std::string& name, const Field& field);
bool read_flag(const std::string& name, const Field& field);
double read_number(const std::string& name, const Field& field);
int read_integer(const std::string& name, const Field& field, int lowest, int highest);
int read_integer(const std::string& name, const Field& field);  // any
std::vector<double> read_numbers(const std::string& name, const Field& field, std::size_t count);
std::vector<int> read_integers(const std::string& name, const Field& field, std::size_t longest);
std::vector<std::string> read_texts(const std::string& name, const Field& field,
                                    std::size_t longest);
// The index of the text among `words`.
std::size_t read_choice(const std::string& name, const Field& field,
                        const std::vector<std::string>& words);
TokenId read_id(const std::string& name, const Field& field, int vocabulary);  // one, likewise
// At least one id, all inside the vocabulary (InputError). vocabulary 0: not known yet.
std::vector<TokenId> read_ids(const std::string& name, const Field& field, int vocabulary,
                              std::size_t longest);

// A list or an object as JSON; a text is taken for JSON that was written out.
std::string read_json(const std::string& name, const Field& field);

// How a value looks in a message: JSON, shortened.
std::string shown(const Field& field);
[[noreturn]] void wrong_value(const std::string& name, const std::string& takes,
                              const Field& field);  // UsageError

}  // namespace unpack
