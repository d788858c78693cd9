#include "base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>

#include "unpack/error.h"
#include "unpack/given_file.h"

namespace unpack {
namespace {

timespec changed_at(const struct stat& info) {
#if defined(__APPLE__)
  return info.st_mtimespec;
#else
  return info.st_mtim;
#endif
}

}  // namespace

base::InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // A FIFO without a writer would block a plain open.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  const int error = errno;
  if (descriptor_ < 0)
    throw InputError(
        fmt::format("{}: cannot open the file ({})", path.string(), std::strerror(error)));
  struct stat info = {};
  const bool plain = ::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode);
  if (!plain) {
    ::close(descriptor_);
    throw InputError(
        fmt::format("{}: is {}, expected a plain file", path.string(),
                    S_ISDIR(info.st_mode) ? "a folder" : "a device, a pipe or a socket"));
  }
  size_ = info.st_size;
  const timespec changed = changed_at(info);
  seconds_ = changed.tv_sec;
  nanoseconds_ = changed.tv_nsec;
}

base::InputFile::~InputFile() { ::close(descriptor_); }

void base::InputFile::read(std::size_t at, void* to, std::size_t bytes) const {
  auto* out = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, out, bytes, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw InputError(fmt::format("{}: cannot read the file ({})", path_.string(),
                                   got < 0 ? std::strerror(errno) : "it became shorter"));
    at += got;
    out += got;
    bytes -= got;
  }
}

bool base::InputFile::unchanged() const {
  struct stat now = {};
  if (::fstat(descriptor_, &now) != 0 || static_cast<std::size_t>(now.st_size) != size_)
    return false;
  const timespec changed = changed_at(now);
  return changed.tv_sec == seconds_ && changed.tv_nsec == nanoseconds_;
}

std::string base::read_plain_file(const std::filesystem::path& path, std::size_t most) {
  const base::InputFile file(path);
  if (file.size() > most)
    throw InputError(fmt::format("{}: {} bytes are too many", path.string(), file.size()));
  std::string text(file.size(), '\0');
  if (file.size() > 0) {
    file.read(0, text.data(), text.size());
    return text;
  }
  // Files of /proc say that they are empty.
  for (char block[4096];;) {
    const ssize_t got = ::pread(file.descriptor(), block, sizeof block, text.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      throw InputError(
          fmt::format("{}: cannot read the file ({})", path.string(), std::strerror(errno)));
    if (got == 0) return text;
    text.append(block, got);
    if (text.size() > most)
      throw InputError(fmt::format("{}: more than {} bytes are too many", path.string(), most));
  }
}

std::string read_given_file(const std::string& name) {
  constexpr std::size_t kLargest = std::size_t{16} << 20;
  return base::read_plain_file(name, kLargest);
}

std::vector<std::filesystem::path> base::folder_contents(const std::filesystem::path& folder,
                                                         std::error_code& error) {
  std::vector<std::filesystem::path> found;
  struct Close {
    void operator()(DIR* open) const { ::closedir(open); }
  };
  const std::unique_ptr<DIR, Close> open(::opendir(folder.c_str()));
  errno = open == nullptr ? errno : 0;
  while (open != nullptr) {
    const dirent* entry = ::readdir(open.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") found.push_back(folder / name);
    errno = 0;
  }
  error = std::error_code(errno, std::generic_category());
  std::sort(found.begin(), found.end());
  return found;
}

bool base::is_there(const std::filesystem::path& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) == 0) return true;
  const int error = errno;
  if (error == ENOENT || error == ENOTDIR) return false;
  throw InputError(fmt::format("cannot look for {}: {}", path.string(), std::strerror(error)));
}

}  // namespace unpack
