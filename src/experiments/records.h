// results.jsonl: one record a line, appended as it comes; a second run finds what the first one left.
#pragma once

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace unpack {

using Json = nlohmann::ordered_json;

class Records {
 public:
  // `settings` is the first line. Throws InputError when the file was begun with other settings; a half-written last line is dropped.
  Records(const std::filesystem::path& file, const Json& settings);

  const Json* find(const std::string& key) const;
  const Json& add(const std::string& key, Json record);  // on disk when it returns

 private:
  struct Close {
    void operator()(std::FILE* f) const { std::fclose(f); }
  };
  void write(const Json& line);
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::map<std::string, Json> known_;
};

}  // namespace unpack
