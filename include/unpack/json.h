// The project's JSON values, for what is built from its source: the one header here that needs
// nlohmann's library, and no other includes it. The library's own kinds take a nested value apart
// with a list on the heap, in a destructor: where memory has run out, that ends the process. These
// are the same templates with another allocator's name, and give memory back without asking for
// any. A child is destroyed inside its parent, so a value may be as deep as the stack allows: what
// comes from outside is at most kJsonDepth levels deep (src/base/json_reader.h), what we make
// ourselves far less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace unpack {

template <class T>
struct JsonAllocator {
  using value_type = T;
  JsonAllocator() = default;
  template <class U>
  JsonAllocator(const JsonAllocator<U>&) noexcept {}  // NOLINT(google-explicit-constructor)
  T* allocate(std::size_t n) { return std::allocator<T>().allocate(n); }
  void deallocate(T* p, std::size_t n) noexcept { std::allocator<T>().deallocate(p, n); }
  friend bool operator==(const JsonAllocator&, const JsonAllocator&) { return true; }
};

template <template <class, class, class...> class Object>
using JsonOf = nlohmann::basic_json<Object, std::vector, std::string, bool, std::int64_t,
                                    std::uint64_t, double, JsonAllocator>;

using JsonValue = JsonOf<std::map>;                 // keys in alphabetical order
using OrderedJson = JsonOf<nlohmann::ordered_map>;  // keys as they were given

template <class T>
void destroy_json(T* content) noexcept {
  if (content == nullptr) return;  // it could not be made
  std::destroy_at(content);
  std::allocator<T>().deallocate(content, 1);
}

template <class Contents>
void destroy_json(Contents& contents, JsonValue::value_t kind) noexcept {
  if (kind == JsonValue::value_t::object) destroy_json(contents.object);
  if (kind == JsonValue::value_t::array) destroy_json(contents.array);
  if (kind == JsonValue::value_t::string) destroy_json(contents.string);
  if (kind == JsonValue::value_t::binary) destroy_json(contents.binary);
}

}  // namespace unpack

template <>
inline void unpack::JsonValue::json_value::destroy(value_t kind) {
  unpack::destroy_json(*this, kind);
}
template <>
inline void unpack::OrderedJson::json_value::destroy(value_t kind) {
  unpack::destroy_json(*this, kind);
}
