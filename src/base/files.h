// Files that come from outside. What is no plain file (a FIFO, a device) is refused before it can
// block or run on without end.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace unpack::base {

// Opens for reading without blocking; throws InputError that names the path and why. `what` of a
// stat is checked: a plain file.
class InputFile {
 public:
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::size_t size() const { return size_; }  // when it was opened
  // Exactly so many bytes from a place; InputError where the file has become shorter.
  void read(std::size_t at, void* to, std::size_t bytes) const;
  // Whether size and time stamp are still what they were.
  bool unchanged() const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::size_t size_ = 0;
  long seconds_ = 0, nanoseconds_ = 0;
};

// The whole file. Throws InputError where it is larger than `most`.
std::string read_plain_file(const std::filesystem::path& path, std::size_t most = 200'000'000);

// What is in a folder, in alphabetical order and without "." and ".."; nothing, and why in `error`,
// where it cannot be read. The standard library's own iterators end the process where memory runs
// out.
std::vector<std::filesystem::path> folder_contents(const std::filesystem::path& folder,
                                                   std::error_code& error);

// Whether something of this name is there. Throws InputError where that cannot be known: a folder
// without permission, a loop of links, a name that is too long.
bool is_there(const std::filesystem::path& path);

}  // namespace unpack::base
