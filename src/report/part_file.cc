#include "report/part_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "unpack/error.h"

namespace unpack::report {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 16;

[[noreturn]] void fail_part(const std::filesystem::path& file, int error) {
  throw InputError(fmt::format("cannot write {}: {}", file.string(), std::strerror(error)));
}

}  // namespace

PartFile::PartFile(std::filesystem::path file)
    : path_(std::move(file)), part_(path_.string() + ".part") {
  descriptor_ = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
  if (descriptor_ < 0) fail_part(path_, errno);
}

PartFile::~PartFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(part_.c_str());
}

void PartFile::flush() {
  std::string_view rest = buffer_;
  while (!rest.empty()) {
    const ssize_t n = ::write(descriptor_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_part(path_, errno);
    rest.remove_prefix(n);
  }
  buffer_.clear();
}

void PartFile::add(std::string_view bytes) {
  buffer_ += bytes;
  if (buffer_.size() >= kBuffer) flush();
}

void PartFile::close() {
  flush();
  const int error = ::fsync(descriptor_) != 0 && errno != EINVAL && errno != EROFS ? errno : 0;
  if (error != 0) fail_part(path_, error);
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed == 0 && ::rename(part_.c_str(), path_.c_str()) == 0) return;
  const int reason = errno;
  ::unlink(part_.c_str());
  fail_part(path_, reason);
}

}  // namespace unpack::report
