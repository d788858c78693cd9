#include "model/torch_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/json_reader.h"
#include "base/message.h"
#include "model/zip.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

constexpr int kDeepest = 32;  // values inside each other
constexpr std::size_t kMostTensors = 1'000'000;

struct Item;
using ItemPtr = std::shared_ptr<const Item>;

// A value of the pickle. Lists and dicts grow while they are read, so they are held by pointer.
struct Item {
  enum Kind { none, number, text, tuple, list, dict, global, storage, tensor, mark } kind = none;
  std::int64_t value = 0;      // of a number; of a tensor: its first element
  std::string name;            // of a text or global; of a storage: its member
  std::vector<ItemPtr> items;  // of a tuple; of a tensor: storage, shape
  std::shared_ptr<std::vector<std::pair<ItemPtr, ItemPtr>>> entries;  // of a dict
  std::string type;  // of a storage: "torch.FloatStorage"
  int depth = 1;
};

struct StorageType {
  std::string_view name, dtype;
  std::size_t bytes;
  std::optional<DType> read;
};
constexpr StorageType kStorages[] = {
    {"torch.FloatStorage", "F32", 4, DType::f32},
    {"torch.HalfStorage", "F16", 2, DType::f16},
    {"torch.BFloat16Storage", "BF16", 2, DType::bf16},
    {"torch.DoubleStorage", "F64", 8, DType::f64},
    {"torch.LongStorage", "I64", 8, {}},
    {"torch.IntStorage", "I32", 4, {}},
    {"torch.ShortStorage", "I16", 2, {}},
    {"torch.CharStorage", "I8", 1, {}},
    {"torch.ByteStorage", "U8", 1, {}},
    {"torch.BoolStorage", "BOOL", 1, {}},
};
const StorageType* storage_type(std::string_view name) {
  const auto it = std::find_if(std::begin(kStorages), std::end(kStorages),
                               [&](const StorageType& t) { return t.name == name; });
  return it == std::end(kStorages) ? nullptr : it;
}

class Unpickler {
 public:
  Unpickler(std::span<const std::byte> bytes, const std::string& origin)
      : bytes_(bytes), origin_(origin) {}

  ItemPtr run() {
    for (;;) {
      const auto op = number<std::uint8_t>();
      if (op == '.') break;
      step(op);
    }
    return pop();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: its pickle {}", origin_, what));
  }

  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)), sizeof(T));
    return value;
  }
  const std::byte* take(std::size_t n) {
    if (n > bytes_.size() - at_) fail("is cut short");
    const std::byte* p = bytes_.data() + at_;
    at_ += n;
    return p;
  }
  std::string text(std::size_t n) { return {reinterpret_cast<const char*>(take(n)), n}; }
  std::string line() {
    std::string out;
    for (char c = number<char>(); c != '\n'; c = number<char>()) out += c;
    return out;
  }

  void push(Item item) {
    for (const ItemPtr& inner : item.items) item.depth = std::max(item.depth, inner->depth + 1);
    if (item.depth > kDeepest) fail("nests values too deeply");
    stack_.push_back(std::make_shared<const Item>(std::move(item)));
  }
  void push_number(std::int64_t value) { push({Item::number, value, {}, {}, {}, {}}); }
  void push_text(std::string value) { push({Item::text, 0, std::move(value), {}, {}, {}}); }
  ItemPtr pop() {
    if (stack_.empty() || stack_.back()->kind == Item::mark) fail("is damaged (nothing to take)");
    ItemPtr item = std::move(stack_.back());
    stack_.pop_back();
    return item;
  }
  const ItemPtr& top() const {
    if (stack_.empty()) fail("is damaged (nothing there)");
    return stack_.back();
  }
  std::vector<ItemPtr> pop_to_mark() {
    std::size_t begin = stack_.size();
    while (begin > 0 && stack_[begin - 1]->kind != Item::mark) --begin;
    if (begin == 0) fail("is damaged (no mark)");
    std::vector<ItemPtr> items(stack_.begin() + begin, stack_.end());
    stack_.resize(begin - 1);
    return items;
  }
  void push_tuple(std::vector<ItemPtr> items) {
    push({Item::tuple, 0, {}, std::move(items), {}, {}});
  }
  void push_dict() {
    push({Item::dict, 0, {}, {}, std::make_shared<std::vector<std::pair<ItemPtr, ItemPtr>>>(), {}});
  }
  void set_items(const std::vector<ItemPtr>& items) {
    const ItemPtr& target = top();
    if (target->kind != Item::dict || items.size() % 2 != 0) fail("is damaged (no dict to fill)");
    if (target->entries->size() + items.size() / 2 > kMostTensors) fail("holds too many entries");
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      // A dict inside itself would never end.
      const bool dict = items[i + 1]->kind == Item::dict;
      target->entries->emplace_back(items[i], dict ? std::make_shared<const Item>() : items[i + 1]);
    }
  }
  void get(std::uint64_t key) {
    if (key >= memo_.size() || !memo_[key]) fail("is damaged (an unknown reference)");
    stack_.push_back(memo_[key]);
  }
  void put(std::uint64_t key) {
    if (key > bytes_.size()) fail("is damaged (an impossible reference)");
    if (key >= memo_.size()) memo_.resize(key + 1);
    memo_[key] = top();
  }

  void step(std::uint8_t op) {
    switch (op) {
      case 0x80:  // protocol
        if (number<std::uint8_t>() > 5) fail("has an unknown protocol");
        return;
      case 0x95:  // frame
        number<std::uint64_t>();
        return;
      case '(':
        push({Item::mark, 0, {}, {}, {}, {}});
        return;
      case 'N':
        push({});
        return;
      case 0x88:
        return push_number(1);
      case 0x89:
        return push_number(0);
      case 'J':
        return push_number(number<std::int32_t>());
      case 'K':
        return push_number(number<std::uint8_t>());
      case 'M':
        return push_number(number<std::uint16_t>());
      case 'G':
        take(8);
        return push_number(0);
      case 0x8a:
        return long_number();
      case 'X':
        return push_text(text(number<std::uint32_t>()));
      case 0x8c:
        return push_text(text(number<std::uint8_t>()));
      case 'c': {
        const std::string module = line();
        return global(module + "." + line());
      }
      case 0x93: {
        const ItemPtr name = pop(), module = pop();
        return global(module->name + "." + name->name);
      }
      case 'q':
        return put(number<std::uint8_t>());
      case 'r':
        return put(number<std::uint32_t>());
      case 0x94:
        return put(memo_.size());
      case 'h':
        return get(number<std::uint8_t>());
      case 'j':
        return get(number<std::uint32_t>());
      case '}':
        return push_dict();
      case ']':
        push({Item::list, 0, {}, {}, {}, {}});
        return;
      case ')':
        return push_tuple({});
      case 't':
        return push_tuple(pop_to_mark());
      case 0x85: {
        ItemPtr a = pop();
        return push_tuple({std::move(a)});
      }
      case 0x86: {
        ItemPtr b = pop(), a = pop();
        return push_tuple({std::move(a), std::move(b)});
      }
      case 0x87: {
        ItemPtr c = pop(), b = pop(), a = pop();
        return push_tuple({std::move(a), std::move(b), std::move(c)});
      }
      case 's': {
        ItemPtr value = pop(), key = pop();
        return set_items({std::move(key), std::move(value)});
      }
      case 'u':
        return set_items(pop_to_mark());
      case 'a':
        pop();
        return;
      case 'e':
        pop_to_mark();
        return;
      case 'Q':
        return persistent(pop());
      case 'R': {
        const ItemPtr arguments = pop(), function = pop();
        return call(*function, *arguments);
      }
      case 'b':
        pop();  // attributes of a dict: nothing that weights need
        return;
      default:
        fail(fmt::format("uses the operation 0x{:02x}, which weights do not need", op));
    }
  }

  void long_number() {
    const auto n = number<std::uint8_t>();
    if (n > 8) fail("holds a number that is too large");
    std::int64_t value = 0;
    const std::byte* p = take(n);
    for (int i = 0; i < n; ++i) value |= std::to_integer<std::uint64_t>(p[i]) << (8 * i);
    if (n > 0 && n < 8 && (std::to_integer<int>(p[n - 1]) & 0x80) != 0)
      value -= std::int64_t{1} << (8 * n);
    push_number(value);
  }

  // Names alone: none of them is ever looked up.
  void global(const std::string& name) {
    const bool known = name == "collections.OrderedDict" ||
                       name == "torch._utils._rebuild_tensor_v2" ||
                       name == "torch._utils._rebuild_parameter" || storage_type(name) != nullptr;
    if (!known)
      fail(fmt::format(
          "asks for {}, which is no tensor; it is not read (save the model as safetensors)",
          base::shown(name)));
    push({Item::global, 0, name, {}, {}, {}});
  }

  void persistent(const ItemPtr& id) {
    if (id->kind != Item::tuple || id->items.size() < 5 || id->items[0]->name != "storage" ||
        id->items[1]->kind != Item::global || id->items[2]->kind != Item::text ||
        id->items[4]->kind != Item::number)
      fail("names a storage in an unknown way");
    push({Item::storage, id->items[4]->value, id->items[2]->name, {}, {}, id->items[1]->name});
  }

  void call(const Item& function, const Item& arguments) {
    if (function.kind != Item::global || arguments.kind != Item::tuple)
      fail("makes a call that is not read");
    if (function.name == "collections.OrderedDict") {
      if (!arguments.items.empty()) fail("fills a dict in an unknown way");
      return push_dict();
    }
    if (function.name == "torch._utils._rebuild_parameter") {
      if (arguments.items.empty() || arguments.items[0]->kind != Item::tensor)
        fail("holds a parameter that is no tensor");
      stack_.push_back(arguments.items[0]);
      return;
    }
    if (function.name != "torch._utils._rebuild_tensor_v2")
      fail(fmt::format("calls {}, which is not read", base::shown(function.name)));
    const std::vector<ItemPtr>& a = arguments.items;
    if (a.size() < 4 || a[0]->kind != Item::storage || a[1]->kind != Item::number ||
        a[2]->kind != Item::tuple || a[3]->kind != Item::tuple ||
        a[2]->items.size() != a[3]->items.size())
      fail("holds a tensor that is written in an unknown way");
    std::int64_t expected = 1;
    for (std::size_t i = a[2]->items.size(); i-- > 0;) {
      const Item &size = *a[2]->items[i], &stride = *a[3]->items[i];
      if (size.kind != Item::number || stride.kind != Item::number || size.value < 0)
        fail("holds a tensor of an impossible shape");
      if (size.value > 1 && stride.value != expected)
        fail("holds a tensor whose elements are not in order; save the model as safetensors");
      if (__builtin_mul_overflow(expected, std::max<std::int64_t>(size.value, 1), &expected))
        fail("holds a tensor of an impossible shape");
    }
    push({Item::tensor, a[1]->value, {}, {a[0], a[2]}, {}, {}});
  }

  std::span<const std::byte> bytes_;
  const std::string& origin_;
  std::size_t at_ = 0;
  std::vector<ItemPtr> stack_, memo_;
};

FileTensor file_tensor(const std::string& name, const Item& item, const std::string& folder,
                       const std::map<std::string, std::span<const std::byte>>& members,
                       const std::string& origin) {
  const auto fail = [&](const std::string& what) {
    throw InputError(fmt::format("{}: tensor {} {}", origin, base::shown(name), what));
  };
  const Item &storage = *item.items[0], &shape = *item.items[1];
  const StorageType* type = storage_type(storage.type);
  if (type == nullptr)
    fail(fmt::format("has the storage {}, which is not read", base::shown(storage.type)));
  const auto member = members.find(folder + "data/" + storage.name);
  if (member == members.end())
    fail(fmt::format("is kept in data/{}, which is not in the file", base::shown(storage.name)));
  FileTensor tensor;
  tensor.dtype_name = type->dtype;
  tensor.readable = type->read.has_value();
  tensor.stored.name = name;
  tensor.stored.dtype = type->read.value_or(DType::f32);
  std::int64_t bytes = type->bytes, begin = 0;
  bool overflow = item.value < 0 || __builtin_mul_overflow(item.value, bytes, &begin);
  for (const ItemPtr& size : shape.items) {
    tensor.stored.shape.push_back(size->value);
    overflow = __builtin_mul_overflow(bytes, size->value, &bytes) || overflow;
  }
  const std::int64_t held = member->second.size();
  if (overflow || begin > held || bytes > held - begin)
    fail(fmt::format(
        "of shape [{}] leaves its storage of {} bytes; the file is damaged or cut short",
        base::joined(tensor.stored.shape), held));
  tensor.stored.data = member->second.data() + begin;
  tensor.stored.bytes = bytes;
  return tensor;
}

}  // namespace

std::vector<FileTensor> parse_torch(std::span<const std::byte> file, const std::string& origin) {
  if (file.size() < 4 || std::memcmp(file.data(), "PK\x03\x04", 4) != 0)
    throw InputError(fmt::format(
        "{}: is no zip archive; PyTorch's files from before version 1.6 are not read, load it in "
        "Python and save it again, best as safetensors",
        origin));
  const auto members = read_zip(file, origin);
  const auto pickle = std::find_if(members.begin(), members.end(), [](const auto& member) {
    return member.first == "data.pkl" || member.first.ends_with("/data.pkl");
  });
  if (pickle == members.end())
    throw InputError(fmt::format("{}: holds no data.pkl that is stored as it is", origin));
  const std::string folder =
      pickle->first.substr(0, pickle->first.size() - std::string("data.pkl").size());
  const ItemPtr whole = Unpickler(pickle->second, origin).run();
  if (whole->kind != Item::dict)
    throw InputError(fmt::format("{}: its pickle is no dict of tensors", origin));
  std::vector<FileTensor> tensors;
  std::set<std::string> names;
  for (const auto& [key, value] : *whole->entries) {
    if (key->kind != Item::text)
      throw InputError(fmt::format("{}: its pickle has a key that is no text", origin));
    if (value->kind != Item::tensor)
      throw InputError(
          fmt::format("{}: {} in its pickle is no tensor; only files of weights are read", origin,
                      base::shown(key->name)));
    if (!names.insert(key->name).second)
      throw InputError(fmt::format("{}: tensor {} occurs twice", origin, base::shown(key->name)));
    tensors.push_back(file_tensor(key->name, *value, folder, members, origin));
  }
  if (tensors.empty()) throw InputError(fmt::format("{}: its pickle holds no tensors", origin));
  return tensors;
}

}  // namespace unpack::model
