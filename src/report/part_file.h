// A file that takes its name when it is whole: until then it is called NAME.part, and where the
// work breaks off it is gone.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace unpack::report {

class PartFile {
 public:
  explicit PartFile(std::filesystem::path file);  // all throw InputError that says why
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  void add(std::string_view bytes);
  void close();

 private:
  void flush();
  std::filesystem::path path_, part_;
  int descriptor_ = -1;
  std::string buffer_;
};

}  // namespace unpack::report
