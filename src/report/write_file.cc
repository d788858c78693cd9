#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <tuple>

#include "unpack/error.h"
#include "unpack/report.h"

namespace unpack {
namespace {

[[noreturn]] void fail_to_write(const std::filesystem::path& file, int error) {
  const char* mend = error == ENOSPC || error == EDQUOT ? "free some space or write elsewhere"
                     : error == ENOENT                  ? "make its folder first"
                                       : "choose a file in a folder you may write to";
  throw InputError(
      fmt::format("cannot write {}: {}; {}", file.string(), std::strerror(error), mend));
}

bool write_all(int descriptor, const std::string& content) {
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t n = ::write(descriptor, content.data() + done, content.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    done += n;
  }
  return true;
}

// Pipes and devices such as /dev/stdout cannot be replaced by a rename.
bool is_no_plain_file(const std::filesystem::path& file) {
  std::error_code ignored;
  const auto status = std::filesystem::status(file, ignored);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

// A link stays a link: what it points to is replaced.
std::filesystem::path target_of(const std::filesystem::path& file) {
  std::error_code error;
  if (!std::filesystem::is_symlink(file, error)) return file;
  std::filesystem::path target = std::filesystem::weakly_canonical(file, error);
  if (error) fail_to_write(file, error.value());
  return target;
}

}  // namespace

void check_writable(const std::filesystem::path& file) {
  if (is_no_plain_file(file)) return;
  const std::filesystem::path target = target_of(file);
  std::error_code error;
  if (std::filesystem::is_directory(target, error)) fail_to_write(file, EISDIR);
  const std::filesystem::path folder =
      target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail_to_write(file, errno);
  struct stat there {};
  if (::stat(folder.c_str(), &there) == 0 && !S_ISDIR(there.st_mode)) fail_to_write(file, ENOTDIR);
  // A name that is too long shows up here.
  if (::lstat(target.c_str(), &there) != 0 && errno != ENOENT) fail_to_write(file, errno);
}

void write_file(const std::filesystem::path& file, const std::string& content) {
  if (is_no_plain_file(file)) {
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor < 0) fail_to_write(file, errno);
    const bool written = write_all(descriptor, content);
    const int error = errno;
    ::close(descriptor);
    if (!written) fail_to_write(file, error);
    return;
  }
  const std::filesystem::path target = target_of(file);
  static std::atomic<unsigned> counter{0};
  const std::string temporary =
      fmt::format("{}.part-{}-{}", target.string(), ::getpid(), counter++);
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) fail_to_write(file, errno);
  bool good = write_all(descriptor, content);
  int error = errno;
  if (::close(descriptor) != 0 && good) {
    good = false;
    error = errno;
  }
  struct stat old {};
  if (good && ::stat(target.c_str(), &old) == 0)
    std::ignore = ::chmod(temporary.c_str(), old.st_mode & 07777);
  if (good && ::rename(temporary.c_str(), target.c_str()) != 0) {
    good = false;
    error = errno;
  }
  if (!good) {
    ::unlink(temporary.c_str());
    fail_to_write(file, error);
  }
}

}  // namespace unpack
