#include "model/safetensors.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/index.h"
#include "base/json_reader.h"
#include "base/message.h"
#include "unpack/error.h"

namespace unpack::model {
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
std::optional<Index> count_of(const JsonValue& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto n = value.get<std::uint64_t>();
  return n > static_cast<std::uint64_t>(INT64_MAX) ? std::nullopt : std::optional<Index>(n);
}

struct Place {
  Index begin, end;
  const std::string* name;
};

// In the order of their bytes the tensors follow each other without overlap or hole, and the last
// ends where the file does.
void check_places(std::vector<Place> places, Index data_size, const std::string& origin) {
  std::erase_if(places, [](const Place& p) { return p.begin == p.end; });
  std::sort(places.begin(), places.end(),
            [](const Place& a, const Place& b) { return a.begin < b.begin; });
  Index end = 0;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].begin < end) {
      throw InputError(fmt::format(
          "{}: tensors {} and {} overlap (bytes {}..{} and {}..{}); the file is damaged", origin,
          base::shown(*places[i - 1].name), base::shown(*places[i].name), places[i - 1].begin,
          places[i - 1].end, places[i].begin, places[i].end));
    }
    if (places[i].begin > end)
      throw InputError(
          fmt::format("{}: {} bytes in front of tensor {} belong to no tensor; the file is damaged",
                      origin, places[i].begin - end, base::shown(*places[i].name)));
    end = places[i].end;
  }
  if (end != data_size)
    throw InputError(
        fmt::format("{}: {} bytes behind the last tensor belong to no tensor; the file is damaged",
                    origin, data_size - end));
}

void check_metadata(const JsonValue& metadata, const std::string& origin) {
  const bool texts =
      metadata.is_object() && std::all_of(metadata.begin(), metadata.end(),
                                          [](const JsonValue& x) { return x.is_string(); });
  if (!texts)
    throw InputError(
        fmt::format("{}: the header's __metadata__ holds something else than texts", origin));
}

FileTensor parse_tensor(const std::string& name, const JsonValue& entry,
                        std::span<const std::byte> data, const std::string& origin) {
  const auto fail = [&](const std::string& what) {
    throw InputError(fmt::format("{}: tensor {}: {}", origin, base::shown(name), what));
  };
  if (!entry.is_object()) fail("its header entry is no JSON object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) fail(fmt::format("its header entry has no {}", key));
  }
  const JsonValue &dtype = entry["dtype"], &shape = entry["shape"],
                  &offsets = entry["data_offsets"];
  if (!dtype.is_string()) fail("its dtype is no string");
  if (!shape.is_array()) fail("its shape is no list");
  if (!offsets.is_array() || offsets.size() != 2) fail("its data_offsets are no pair");

  FileTensor tensor;
  tensor.dtype_name = dtype.get<std::string>();
  tensor.stored.name = name;
  Index elements = 1;
  bool overflow = false;
  for (const JsonValue& dim : shape) {
    const auto size = count_of(dim);
    if (!size) fail("its shape holds something other than a whole number");
    tensor.stored.shape.push_back(*size);
    overflow = __builtin_mul_overflow(elements, *size, &elements) || overflow;
  }
  const auto begin = count_of(offsets[0]), end = count_of(offsets[1]);
  if (!begin || !end || *begin > *end || *end > std::ssize(data)) {
    fail(
        fmt::format("its data_offsets {} leave the file, which holds {} bytes of data; the file is "
                    "damaged or cut short",
                    base::shown(offsets.dump()), data.size()));
  }
  tensor.stored.data = data.data() + *begin;
  tensor.stored.bytes = *end - *begin;

  if (const KnownType* type = known_type(tensor.dtype_name)) {
    Index expected = 0;
    overflow =
        __builtin_mul_overflow(elements, static_cast<Index>(type->bytes), &expected) || overflow;
    if (overflow || expected != *end - *begin) {
      fail(fmt::format("its shape {} of {} does not fit its {} bytes", base::shown(shape.dump()),
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
  const std::string_view text(reinterpret_cast<const char*>(rest.data()), header_size);
  const JsonValue header = base::read_json(text, origin + " (header)");
  const std::size_t last = text.find_last_not_of(' ');
  if (text[0] != '{' || text[last] != '}')
    throw InputError(fmt::format(
        "{}: the header is no JSON object that begins at its first byte and is padded by spaces",
        origin));
  if (!header.is_object())
    throw InputError(fmt::format("{}: the header is no JSON object", origin));

  const std::span<const std::byte> data = rest.subspan(header_size);
  std::vector<FileTensor> tensors;
  std::vector<Place> places;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(entry, origin);
      continue;
    }
    tensors.push_back(parse_tensor(name, entry, data, origin));
  }
  for (const FileTensor& t : tensors) {
    const Index begin = t.stored.data - data.data();
    places.push_back({begin, begin + static_cast<Index>(t.stored.bytes), &t.stored.name});
  }
  check_places(std::move(places), std::ssize(data), origin);
  return tensors;
}

MappedFile::MappedFile(const std::filesystem::path& path, bool mapped)
    : path_(path), file_(path), mapped_(mapped), size_(file_.size()) {
  if (size_ == 0) return;
  if (!mapped_) {
    own_ = std::make_unique_for_overwrite<std::byte[]>(size_);
    file_.read(0, own_.get(), size_);
    data_ = own_.get();
    return;
  }
  void* at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file_.descriptor(), 0);
  if (at == MAP_FAILED)
    throw InputError(
        fmt::format("{}: cannot map the file ({})", path.string(), std::strerror(errno)));
  data_ = static_cast<const std::byte*>(at);
}

MappedFile::~MappedFile() {
  if (mapped_ && data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::read(const std::byte* from, std::size_t n, std::byte* to) const {
  if (mapped_) {
    file_.read(from - data_, to, n);
  } else {
    std::memcpy(to, from, n);
  }
}

void release_pages(const std::byte* data, std::size_t bytes) {
  static const std::uintptr_t page = ::sysconf(_SC_PAGESIZE);
  const std::uintptr_t begin = (reinterpret_cast<std::uintptr_t>(data) + page - 1) / page * page;
  const std::uintptr_t end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace unpack::model
