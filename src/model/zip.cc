#include "model/zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/json_reader.h"
#include "base/message.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

constexpr std::uint32_t kEnd = 0x06054b50, kEnd64 = 0x06064b50, kLocator64 = 0x07064b50,
                        kCentral = 0x02014b50, kLocal = 0x04034b50;
constexpr std::size_t kEndBytes = 22, kCentralBytes = 46, kLocalBytes = 30;

class Archive {
 public:
  Archive(std::span<const std::byte> file, const std::string& origin)
      : file_(file), origin_(origin) {}

  std::map<std::string, std::span<const std::byte>> members() {
    std::uint64_t at = 0, count = 0;
    find_directory(at, count);
    std::map<std::string, std::span<const std::byte>> found;
    for (std::uint64_t i = 0; i < count; ++i) member(at, found);
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: {}; the file is damaged or cut short", origin_, what));
  }

  template <class T>
  T number(std::uint64_t at) const {
    if (at > file_.size() || sizeof(T) > file_.size() - at) fail("the archive leaves the file");
    T value;
    std::memcpy(&value, file_.data() + at, sizeof(T));
    return value;
  }

  void find_directory(std::uint64_t& at, std::uint64_t& count) const {
    if (file_.size() < kEndBytes) fail("is too short for a zip archive");
    // A comment of up to 65535 bytes may follow the end.
    const std::uint64_t last = file_.size() - kEndBytes;
    std::uint64_t end = last;
    while (number<std::uint32_t>(end) != kEnd) {
      if (end == 0 || last - end >= 65535) fail("has no end of a zip archive");
      --end;
    }
    count = number<std::uint16_t>(end + 10);
    at = number<std::uint32_t>(end + 16);
    if (end >= 20 && number<std::uint32_t>(end - 20) == kLocator64) {
      const auto end64 = number<std::uint64_t>(end - 12);
      if (number<std::uint32_t>(end64) != kEnd64) fail("has a wrong end of a zip64 archive");
      count = number<std::uint64_t>(end64 + 32);
      at = number<std::uint64_t>(end64 + 48);
    }
    if (count > file_.size() / kCentralBytes) fail(fmt::format("claims {} members", count));
  }

  void member(std::uint64_t& at, std::map<std::string, std::span<const std::byte>>& found) const {
    if (number<std::uint32_t>(at) != kCentral) fail("has a wrong directory");
    const auto method = number<std::uint16_t>(at + 10), flags = number<std::uint16_t>(at + 8);
    std::uint64_t packed = number<std::uint32_t>(at + 20), size = number<std::uint32_t>(at + 24),
                  local = number<std::uint32_t>(at + 42);
    const auto name_bytes = number<std::uint16_t>(at + 28), extra = number<std::uint16_t>(at + 30),
               comment = number<std::uint16_t>(at + 32);
    const std::uint64_t name_at = at + kCentralBytes;
    if (name_at > file_.size() || name_bytes > file_.size() - name_at)
      fail("has a wrong directory");
    const std::string name(reinterpret_cast<const char*>(file_.data() + name_at), name_bytes);
    // Sizes that do not fit 32 bits stand in an extra field.
    for (std::uint64_t field = name_at + name_bytes, end = field + extra; field + 4 <= end;) {
      const auto id = number<std::uint16_t>(field), n = number<std::uint16_t>(field + 2);
      std::uint64_t value = field + 4;
      if (id == 1) {
        for (std::uint64_t* target : {&size, &packed, &local}) {
          if (*target != 0xFFFFFFFFU) continue;
          *target = number<std::uint64_t>(value);
          value += 8;
        }
      }
      field += 4U + n;
    }
    at = name_at + name_bytes + extra + comment;
    if ((flags & 1U) != 0) fail(fmt::format("member {} is encrypted", base::shown(name)));
    if (method != 0) return;
    if (number<std::uint32_t>(local) != kLocal)
      fail(fmt::format("member {} is not where it should be", base::shown(name)));
    const std::uint64_t begin =
        local + kLocalBytes + number<std::uint16_t>(local + 26) + number<std::uint16_t>(local + 28);
    if (begin > file_.size() || size > file_.size() - begin || size != packed)
      fail(fmt::format("member {} leaves the file", base::shown(name)));
    if (!found.emplace(name, file_.subspan(begin, size)).second)
      fail(fmt::format("member {} occurs twice", base::shown(name)));
  }

  std::span<const std::byte> file_;
  const std::string& origin_;
};

}  // namespace

std::map<std::string, std::span<const std::byte>> read_zip(std::span<const std::byte> file,
                                                           const std::string& origin) {
  return Archive(file, origin).members();
}

}  // namespace unpack::model
