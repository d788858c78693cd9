#include "report/line_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/checksum.h"
#include "base/files.h"
#include "base/system.h"
#include "report/json.h"
#include "unpack/error.h"

namespace unpack::report {

namespace {

// How a sealed line ends: the member, its digits, the end.
constexpr std::string_view kMember = ",\"crc32\":\"", kEnd = "\"}";
constexpr std::size_t kDigits = 8;

[[noreturn]] void fail(const std::filesystem::path& file, int error) {
  const char* mend = error == ENOSPC || error == EDQUOT
                         ? "; free some space and run it again, it goes on from here"
                         : "";
  throw InputError(fmt::format("cannot write {}: {}{}", file.string(), std::strerror(error), mend));
}

[[noreturn]] void fail_to_read(const std::filesystem::path& file, int error) {
  throw InputError(fmt::format("cannot read {}: {}", file.string(), std::strerror(error)));
}

}  // namespace

std::string seal(OrderedJson object) {
  std::string body = compact(object);
  body.pop_back();  // what stands in front of the member of the checksum
  object["crc32"] = base::crc32_text(body);
  return compact(object);
}

bool is_sealed(std::string_view line) {
  const std::size_t tail = kMember.size() + kDigits + kEnd.size();
  if (line.size() <= tail) return false;
  const std::string_view body = line.substr(0, line.size() - tail);
  const std::string_view end = line.substr(body.size());
  return end.starts_with(kMember) && end.ends_with(kEnd) &&
         end.substr(kMember.size(), kDigits) == base::crc32_text(body);
}

std::uintmax_t read_sealed(const std::filesystem::path& file,
                           const std::function<void(std::string_view line)>& each) {
  std::uintmax_t good = 0;
  std::size_t number = 0, damaged = 0;  // lines, from 1
  if (!base::is_there(file)) return 0;
  (void)base::InputFile(file);  // a folder or a pipe of this name is refused
  std::ifstream in(file, std::ios::binary);
  if (!in) fail_to_read(file, errno);
  std::string line;
  while (std::getline(in, line)) {
    if (in.eof()) break;  // no line end: the write was cut short
    ++number;
    if (!is_sealed(line)) {
      // A first line that is whole and yet not ours is somebody's file; it must not be cut off.
      if (good == 0)
        throw InputError(
            fmt::format("{} was not written by this program, or its first line is damaged: choose "
                        "another folder",
                        file.string()));
      if (damaged == 0) damaged = number;
      continue;
    }
    // What a broken write leaves is the end of the file. Good lines behind it are somebody's work.
    if (damaged > 0)
      throw InputError(
          fmt::format("{}: line {} is damaged, and good lines follow it; put it back, or keep the "
                      "lines in front "
                      "of it (head -n {}) and the others are made again",
                      file.string(), damaged, damaged - 1));
    good += line.size() + 1;
    each(line);
  }
  if (in.bad()) fail_to_read(file, errno);
  return good;
}

LineLog::LineLog(const std::filesystem::path& file,
                 const std::function<void(std::string_view line)>& each)
    : path_(file) {
  if (base::is_there(file)) (void)base::InputFile(file);  // no folder, no pipe
  file_ = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file_ < 0) fail(file, errno);
  try {
    // A file system without locks is no reason to refuse the work.
    if (::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw InputError(fmt::format(
          "another run is writing {}: wait for it, or choose another folder", file.string()));
    }
    const std::uintmax_t good = read_sealed(file, each);
    if (::ftruncate(file_, good) != 0) fail(file, errno);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

LineLog::~LineLog() { ::close(file_); }

void LineLog::append(std::string_view sealed_lines) {
  while (!sealed_lines.empty()) {
    const ssize_t n = ::write(file_, sealed_lines.data(), sealed_lines.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(path_, errno);
    sealed_lines.remove_prefix(n);
  }
}

void LineLog::sync() {
  if (base::sync_data(file_) != 0 && errno != EINVAL && errno != EROFS) fail(path_, errno);
}

}  // namespace unpack::report
