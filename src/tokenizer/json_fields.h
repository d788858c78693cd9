// Typed access to the fields of a JSON object, with errors that name the file and the field.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "unpack/json.h"

namespace unpack::tokenizer {

class Fields {
 public:
  // `path` is how the object is reached from the top of the file, "" for the top itself. Throws
  // InputError if it is no object.
  Fields(const JsonValue& object, std::string origin, std::string path);

  bool missing(const char* key) const;  // or null
  bool boolean(const char* key, bool otherwise) const;
  std::int64_t integer(const char* key) const;
  std::int64_t integer(const char* key, std::int64_t otherwise) const;
  std::string string(const char* key) const;
  std::optional<std::string> optional_string(const char* key) const;
  Fields object(const char* key) const;
  std::vector<Fields> objects(const char* key) const;  // a list of objects
  const JsonValue& value(const char* key) const;       // must be there

  const std::string& origin() const { return origin_; }
  std::string name(std::string_view key) const;  // the field's full path
  [[noreturn]] void fail(std::string_view key, const std::string& what) const;

 private:
  const JsonValue* object_;
  std::string origin_;
  std::string path_;
};

}  // namespace unpack::tokenizer
