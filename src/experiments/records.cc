#include "experiments/records.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "unpack/error.h"

namespace unpack {

Records::Records(const std::filesystem::path& file, const Json& settings) : path_(file) {
  bool begun = false;
  std::uintmax_t good = 0;
  if (std::ifstream in(file, std::ios::binary); in) {
    std::string line;
    while (std::getline(in, line)) {
      if (in.eof()) break;  // no line end: the write was cut short
      Json record = Json::parse(line, nullptr, false);
      if (record.is_discarded()) break;
      if (!begun) {
        if (record != settings) {
          throw InputError(
              fmt::format("{} belongs to a run with other settings ({}): choose another --out, or delete the folder", file.string(), record.dump()));
        }
        begun = true;
      } else {
        const std::string key = record.value("key", "");
        known_[key] = std::move(record);
      }
      good += line.size() + 1;
    }
  }
  std::error_code error;
  if (std::filesystem::exists(file, error)) std::filesystem::resize_file(file, good, error);
  if (error) throw InputError(fmt::format("cannot write {}: {}", file.string(), error.message()));
  file_.reset(std::fopen(file.c_str(), "ab"));
  if (!file_) throw InputError(fmt::format("cannot write {}: {}", file.string(), std::strerror(errno)));
  if (!begun) write(settings);
}

void Records::write(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() || std::fflush(file_.get()) != 0) {
    throw InputError(fmt::format("cannot write {}: {}", path_.string(), std::strerror(errno)));
  }
}

const Json* Records::find(const std::string& key) const {
  const auto found = known_.find(key);
  return found == known_.end() ? nullptr : &found->second;
}

const Json& Records::add(const std::string& key, Json record) {
  Json line = {{"key", key}};
  line.update(record);
  write(line);
  return known_[key] = std::move(line);
}

}  // namespace unpack
