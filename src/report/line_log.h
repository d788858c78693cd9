// A file of JSON lines that survives kill -9 at any point: lines are appended whole, each carries a
// checksum, and whatever follows the last good line is cut off when the file is opened again.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "unpack/json.h"

namespace unpack::report {

// `{...}` -> `{...,"crc32":"0123abcd"}`: of everything in front of that member.
std::string seal(OrderedJson object);
bool is_sealed(std::string_view line);  // the checksum is there, and right

// Calls `each` with every good line, its checksum with it; returns how many bytes these take. A
// file that is not there has none. What a broken write left at its end is passed over; InputError
// for a bad line that good ones follow, and for a file that is not ours.
std::uintmax_t read_sealed(const std::filesystem::path& file,
                           const std::function<void(std::string_view line)>& each);

class LineLog {
 public:
  // Reads what is there, cuts off what is not whole, and takes the file for itself: InputError
  // while another process has it open.
  LineLog(const std::filesystem::path& file,
          const std::function<void(std::string_view line)>& each);
  ~LineLog();
  LineLog(const LineLog&) = delete;
  LineLog& operator=(const LineLog&) = delete;

  void append(std::string_view
                  sealed_lines);  // with their line ends; in the kernel's hands when it returns
  void sync();                    // on the disk when it returns

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

}  // namespace unpack::report
