#include "model/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include "model/json_text.h"
#include "unpack/error.h"

namespace unpack {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;  // what the format's own library accepts
static_assert(std::endian::native == std::endian::little,
              "safetensors files are little-endian and are used in place");

struct KnownType {
  std::string_view name;
  std::size_t bytes;
  std::optional<DType> dtype;
};

constexpr KnownType kTypes[] = {
    {"F32", 4, DType::f32}, {"F16", 2, DType::f16}, {"BF16", 2, DType::bf16},
    {"F64", 8, DType::f64}, {"I64", 8, {}},         {"I32", 4, {}},
    {"I16", 2, {}},         {"I8", 1, {}},          {"U64", 8, {}},
    {"U32", 4, {}},         {"U16", 2, {}},         {"U8", 1, {}},
    {"BOOL", 1, {}},        {"F8_E4M3", 1, {}},     {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
};

const KnownType* known_type(std::string_view name) {
  const auto it = std::find_if(std::begin(kTypes), std::end(kTypes),
                               [&](const KnownType& t) { return t.name == name; });
  return it == std::end(kTypes) ? nullptr : it;
}

// A whole number >= 0 that fits int64, or nothing.
std::optional<std::int64_t> count_of(const nlohmann::json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto n = value.get<std::uint64_t>();
  return n > static_cast<std::uint64_t>(INT64_MAX)
             ? std::nullopt
             : std::optional<std::int64_t>(static_cast<std::int64_t>(n));
}

struct Place {
  std::int64_t begin, end;
  const std::string* name;
};

void check_overlap(std::vector<Place> places, const std::string& origin) {
  std::erase_if(places, [](const Place& p) { return p.begin == p.end; });
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].begin < places[i - 1].end) {
      throw InputError(fmt::format(
          "{}: tensors {} and {} overlap (bytes {}..{} and {}..{}); the file is damaged", origin,
          shown(*places[i - 1].name), shown(*places[i].name), places[i - 1].begin,
          places[i - 1].end, places[i].begin, places[i].end));
    }
  }
}

FileTensor parse_tensor(const std::string& name, const nlohmann::json& entry,
                        std::span<const std::byte> data, const std::string& origin) {
  const auto fail = [&](const std::string& what) {
    throw InputError(fmt::format("{}: tensor {}: {}", origin, shown(name), what));
  };
  if (!entry.is_object()) fail("its header entry is no JSON object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) fail(fmt::format("its header entry has no {}", key));
  }
  const nlohmann::json &dtype = entry["dtype"], &shape = entry["shape"],
                       &offsets = entry["data_offsets"];
  if (!dtype.is_string()) fail("its dtype is no string");
  if (!shape.is_array()) fail("its shape is no list");
  if (!offsets.is_array() || offsets.size() != 2) fail("its data_offsets are no pair");

  FileTensor tensor;
  tensor.dtype_name = dtype.get<std::string>();
  tensor.stored.name = name;
  std::int64_t elements = 1;
  bool overflow = false;
  for (const nlohmann::json& dim : shape) {
    const auto size = count_of(dim);
    if (!size) fail("its shape holds something other than a whole number");
    tensor.stored.shape.push_back(*size);
    overflow = __builtin_mul_overflow(elements, *size, &elements) || overflow;
  }
  const auto begin = count_of(offsets[0]), end = count_of(offsets[1]);
  if (!begin || !end || *begin > *end || *end > static_cast<std::int64_t>(data.size())) {
    fail(
        fmt::format("its data_offsets {} leave the file, which holds {} bytes of data; the file is "
                    "damaged or cut short",
                    offsets.dump(), data.size()));
  }
  tensor.stored.data = data.data() + *begin;
  tensor.stored.bytes = static_cast<std::size_t>(*end - *begin);

  if (const KnownType* type = known_type(tensor.dtype_name)) {
    std::int64_t expected = 0;
    overflow =
        __builtin_mul_overflow(elements, static_cast<std::int64_t>(type->bytes), &expected) ||
        overflow;
    if (overflow || expected != *end - *begin) {
      fail(fmt::format("its shape {} of {} does not fit its {} bytes", shown(shape.dump()),
                       tensor.dtype_name, *end - *begin));
    }
    tensor.readable = type->dtype.has_value();
    if (type->dtype) tensor.stored.dtype = *type->dtype;
  }
  return tensor;
}

}  // namespace

std::vector<FileTensor> parse_safetensors(std::span<const std::byte> file,
                                          const std::string& origin) {
  std::uint64_t header_size = 0;
  if (file.size() < sizeof(header_size))
    throw InputError(
        fmt::format("{}: {} bytes are too few for a safetensors file", origin, file.size()));
  std::memcpy(&header_size, file.data(), sizeof(header_size));
  const std::span<const std::byte> rest = file.subspan(sizeof(header_size));
  if (header_size > kMaxHeader || header_size > rest.size()) {
    throw InputError(
        fmt::format("{}: a header of {} bytes in a file of {} is not believable; this is no "
                    "safetensors file, or it is cut short",
                    origin, header_size, file.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(rest.data()),
                              static_cast<std::size_t>(header_size));
  const nlohmann::json header = parse_json(text, origin + " (header)");
  if (!header.is_object())
    throw InputError(fmt::format("{}: the header is no JSON object", origin));

  const std::span<const std::byte> data = rest.subspan(static_cast<std::size_t>(header_size));
  std::vector<FileTensor> tensors;
  std::vector<Place> places;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    tensors.push_back(parse_tensor(name, entry, data, origin));
  }
  for (const FileTensor& t : tensors) {
    const std::int64_t begin = t.stored.data - data.data();
    places.push_back({begin, begin + static_cast<std::int64_t>(t.stored.bytes), &t.stored.name});
  }
  check_overlap(std::move(places), origin);
  return tensors;
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const auto fail = [&](const char* what) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    throw InputError(
        fmt::format("{}: cannot {} the file ({})", path.string(), what, std::strerror(error)));
  };
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) fail("open");
  struct stat info = {};
  if (::fstat(fd_, &info) != 0) fail("examine");
  if (!S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw InputError(fmt::format("{}: expected a plain file", path.string()));
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ == 0) return;
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd_, 0);
  if (mapped == MAP_FAILED) fail("map");
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::read(const std::byte* from, std::size_t n, std::byte* to) const {
  off_t at = from - data_;
  while (n > 0) {
    const ssize_t got = ::pread(fd_, to, n, at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw InputError(fmt::format("{}: cannot read the file ({})", path_.string(),
                                   got < 0 ? std::strerror(errno) : "it became shorter"));
    n -= static_cast<std::size_t>(got);
    to += got;
    at += got;
  }
}

void release_pages(const std::byte* data, std::size_t bytes) {
  static const std::uintptr_t page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace unpack
