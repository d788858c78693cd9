#include "model/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/files.h"
#include "base/json_reader.h"
#include "base/message.h"
#include "tokenizer/utf8.h"
#include "unpack/error.h"

namespace unpack::model {
namespace fs = std::filesystem;
namespace {

constexpr std::uint64_t kMaxDims = 4;
constexpr std::uint64_t kMaxKeys = 100'000, kMaxTensors = 1'000'000;

enum ValueType : std::uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

// Smallest number of bytes that a value of the type takes.
std::uint64_t least_bytes(std::uint32_t type) {
  switch (type) {
    case kU8:
    case kI8:
    case kBool:
      return 1;
    case kU16:
    case kI16:
      return 2;
    case kU32:
    case kI32:
    case kF32:
      return 4;
    default:
      return 8;
  }
}

class Reader {
 public:
  Reader(std::span<const std::byte> file, const std::string& origin)
      : file_(file), origin_(origin) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: {}", origin_, what));
  }

  std::size_t at() const { return at_; }
  std::size_t left() const { return file_.size() - at_; }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }

  std::string text(const char* what) {
    const auto n = number<std::uint64_t>();
    if (n > left())
      fail(fmt::format("{} of {} bytes leaves the file; it is damaged or cut short", what, n));
    const auto* p = reinterpret_cast<const char*>(take(n));
    return {p, static_cast<std::size_t>(n)};
  }

  JsonValue value(std::uint32_t type, int depth) {
    switch (type) {
      case kU8:
        return number<std::uint8_t>();
      case kI8:
        return number<std::int8_t>();
      case kU16:
        return number<std::uint16_t>();
      case kI16:
        return number<std::int16_t>();
      case kU32:
        return number<std::uint32_t>();
      case kI32:
        return number<std::int32_t>();
      case kF32:
        return number<float>();
      case kBool:
        return number<std::uint8_t>() != 0;
      case kString:
        return text("a text");
      case kU64:
        return number<std::uint64_t>();
      case kI64:
        return number<std::int64_t>();
      case kF64:
        return number<double>();
      case kArray: {
        if (depth > 2) fail("lists are nested too deeply; the file is damaged");
        const auto inner = number<std::uint32_t>();
        const auto n = number<std::uint64_t>();
        if (inner > kF64)
          fail(fmt::format("a list has the unknown type {}; the file is damaged", inner));
        if (n > left() / least_bytes(inner))
          fail(fmt::format("a list of {} values leaves the file; it is damaged or cut short", n));
        auto list = JsonValue::array();
        for (std::uint64_t i = 0; i < n; ++i) list.push_back(value(inner, depth + 1));
        return list;
      }
      default:
        fail(fmt::format("a value has the unknown type {}; the file is damaged", type));
    }
  }

 private:
  const std::byte* take(std::size_t n) {
    if (n > left()) fail("the file is cut short");
    const std::byte* p = file_.data() + at_;
    at_ += n;
    return p;
  }

  std::span<const std::byte> file_;
  const std::string& origin_;
  std::size_t at_ = 0;
};

GgufTensor read_tensor(Reader& in, std::uint64_t& offset) {
  GgufTensor tensor;
  tensor.name = in.text("the name of a tensor");
  const auto fail = [&](const std::string& what) {
    in.fail(fmt::format("tensor {} {}", base::shown(tensor.name), what));
  };
  if (tensor.name.empty()) in.fail("a tensor has no name; the file is damaged");
  const auto dims = in.number<std::uint32_t>();
  if (dims < 1 || dims > kMaxDims)
    fail(fmt::format("has {} dimensions; the file is damaged", dims));
  for (std::uint32_t i = 0; i < dims; ++i) {
    const auto n = in.number<std::uint64_t>();
    if (n < 1 || n > static_cast<std::uint64_t>(INT64_MAX))
      fail("has an impossible shape; the file is damaged");
    tensor.shape.insert(tensor.shape.begin(), n);
  }
  tensor.type = in.number<std::uint32_t>();
  tensor.info = find_block(tensor.type);
  offset = in.number<std::uint64_t>();
  if (tensor.info == nullptr) return tensor;
  std::int64_t elements = 1;
  for (const std::int64_t n : tensor.shape) {
    if (__builtin_mul_overflow(elements, n, &elements))
      fail("has an impossible shape; the file is damaged");
  }
  if (tensor.shape.back() % tensor.info->elements != 0)
    fail(fmt::format("has rows of {} elements, which are no whole blocks of {}",
                     tensor.shape.back(), tensor.info->name));
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / tensor.info->elements, tensor.info->bytes, &bytes))
    fail("has an impossible shape; the file is damaged");
  tensor.bytes = bytes;
  return tensor;
}

// NAME-00001-of-00003.gguf: the number and how many there are; 0 of 0 otherwise.
struct SplitPart {
  std::string stem;
  int number = 0, count = 0;
};
SplitPart split_part(const fs::path& path) {
  const std::string name = path.filename().string();
  SplitPart part;
  int used = 0;
  const std::size_t dash = name.size() > 20 ? name.size() - 20 : std::string::npos;
  if (dash == std::string::npos) return part;
  if (std::sscanf(name.c_str() + dash, "-%5d-of-%5d.gguf%n", &part.number, &part.count, &used) !=
          2 ||
      used != 20 || part.number < 1 || part.count < part.number)
    return {};
  part.stem = name.substr(0, dash);
  return part;
}

}  // namespace

std::int64_t GgufTensor::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t size : shape) n *= size;
  return n;
}

Gguf parse_gguf(std::span<const std::byte> file, const std::string& origin) {
  Reader in(file, origin);
  if (file.size() < 4 || std::memcmp(file.data(), "GGUF", 4) != 0)
    in.fail("is no GGUF file (it does not begin with GGUF)");
  if (file.size() < 24) in.fail("is cut off in its header");
  in.number<std::uint32_t>();
  const auto version = in.number<std::uint32_t>();
  if (version != 2 && version != 3)
    in.fail(version == 0x02000000 || version == 0x03000000
                ? "is a big-endian GGUF file, which is not read"
                : fmt::format("has GGUF version {}; versions 2 and 3 are read", version));
  const auto tensors = in.number<std::uint64_t>(), keys = in.number<std::uint64_t>();
  if (keys > kMaxKeys || keys > in.left() / 12 || tensors > kMaxTensors || tensors > in.left() / 24)
    in.fail(fmt::format("claims {} keys and {} tensors in {} bytes; it is damaged or cut short",
                        keys, tensors, file.size()));
  Gguf gguf;
  for (std::uint64_t i = 0; i < keys; ++i) {
    const std::string key = in.text("the name of a key");
    if (gguf.metadata.contains(key)) in.fail(fmt::format("key {} occurs twice", base::shown(key)));
    gguf.metadata[key] = in.value(in.number<std::uint32_t>(), 0);
  }
  std::uint64_t alignment = 32;
  if (const auto it = gguf.metadata.find("general.alignment"); it != gguf.metadata.end()) {
    if (!it->is_number_unsigned()) in.fail("general.alignment is no number");
    alignment = it->get<std::uint64_t>();
    if (alignment < 1 || alignment > 65536 || (alignment & (alignment - 1)) != 0)
      in.fail(fmt::format("an alignment of {} is not believable", alignment));
  }
  std::vector<std::uint64_t> offsets;
  std::set<std::string> names;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    std::uint64_t offset = 0;
    gguf.tensors.push_back(read_tensor(in, offset));
    if (!names.insert(gguf.tensors.back().name).second)
      in.fail(fmt::format("tensor {} occurs twice", base::shown(gguf.tensors.back().name)));
    offsets.push_back(offset);
  }
  const std::uint64_t begin = (in.at() + alignment - 1) / alignment * alignment;
  for (std::size_t i = 0; i < gguf.tensors.size(); ++i) {
    GgufTensor& tensor = gguf.tensors[i];
    if (tensor.info == nullptr) continue;
    if (begin > file.size() || offsets[i] > file.size() - begin ||
        tensor.bytes > file.size() - begin - offsets[i])
      in.fail(fmt::format("tensor {} leaves the file, which is damaged or cut short",
                          base::shown(tensor.name)));
    tensor.data = file.data() + begin + offsets[i];
  }
  return gguf;
}

std::shared_ptr<const GgufFiles> open_gguf(const fs::path& path) {
  auto all = std::make_shared<GgufFiles>();
  all->path = path;
  const auto add = [&](const fs::path& file) -> Gguf {
    return parse_gguf(all->files.emplace_back(std::make_unique<MappedFile>(file))->bytes(),
                      file.string());
  };
  const SplitPart part = split_part(path);
  const fs::path first = part.count > 0 ? path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf",
                                                                           part.stem, 1, part.count)
                                        : path;
  all->content = add(first);
  all->file_of.assign(all->content.tensors.size(), all->files[0].get());
  const JsonValue count = all->content.metadata.value("split.count", JsonValue(0));
  const auto pieces = count.is_number_integer() ? count.get<std::int64_t>() : 0;
  if (pieces > 1 && part.count != pieces)
    throw InputError(
        fmt::format("{}: is one of {} files, but its name does not end in -00001-of-{:05}.gguf",
                    path.string(), pieces, pieces));
  for (int i = 2; i <= part.count && pieces > 1; ++i) {
    const fs::path file =
        path.parent_path() / fmt::format("{}-{:05}-of-{:05}.gguf", part.stem, i, part.count);
    std::error_code error;
    if (!fs::is_regular_file(file, error))
      throw InputError(fmt::format("{}: part {} of {} is missing; download it too", file.string(),
                                   i, part.count));
    Gguf next = add(file);
    for (GgufTensor& tensor : next.tensors) {
      all->content.tensors.push_back(std::move(tensor));
      all->file_of.push_back(all->files.back().get());
    }
  }
  return all;
}

fs::path find_gguf(const fs::path& path) {
  std::error_code error;
  if (fs::is_regular_file(path, error)) return path.extension() == ".gguf" ? path : fs::path();
  if (!fs::is_directory(path, error) || fs::exists(path / "config.json", error)) return {};
  fs::path found;
  for (const fs::path& file : base::folder_contents(path, error)) {
    if (file.extension() != ".gguf") continue;
    if (split_part(file).number > 1) continue;
    if (!found.empty())
      throw InputError(fmt::format("{}: holds several GGUF files; name one of them, such as {}",
                                   path.string(), file.string()));
    found = file;
  }
  return found;
}

}  // namespace unpack::model
