// Where memory has run out: values of JSON are given back without asking for more, and what lists a
// folder throws.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>
#include <system_error>

#include "base/files.h"
#include "base/json_reader.h"
#include "unit/weights_files.h"

namespace {
thread_local long left = -1;  // allocations of this thread until one fails; below 0: none does
}

[[gnu::noinline]] void* operator new(std::size_t size) {
  if (left >= 0 && left-- == 0) throw std::bad_alloc();
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  if (left >= 0 && left-- == 0) return nullptr;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace unpack {
namespace {

constexpr const char* kText =
    R"({"a": [[1, "a text that is longer than what a string keeps in itself"], {"b": {}}],
        "c": {"d": {"e": [null, [true, [2.5]]]}}})";

template <class Json>
void give_back(Json value) {
  left = 0;
  value = nullptr;
  left = -1;
}

TEST(NoMemory, JsonIsGivenBackWithoutAsking) {
  give_back(base::read_json(kText, "text"));
  give_back(base::read_ordered_json(kText, "text"));
  give_back(base::read_json(std::string(base::kJsonDepth, '[') + std::string(base::kJsonDepth, ']'),
                            "text"));
  left = 0;
  EXPECT_THROW((void)std::string(100, 'x'), std::bad_alloc);  // that is what was meant
  left = -1;
}

// The n-th allocation fails, for every n: bad_alloc, or all is well.
template <class Work>
int failures(const Work& work) {
  for (int n = 0;; ++n) {
    left = n;
    try {
      work();
      left = -1;
      return n;
    } catch (const std::bad_alloc&) {
      left = -1;
    }
  }
}

TEST(NoMemory, JsonCanBeReadCopiedAndPrinted) {
  const std::string text = kText;
  EXPECT_GT(failures([&] {
              const OrderedJson value = base::read_ordered_json(text, "text");
              const JsonValue other = value;
              (void)other.dump();
            }),
            50);
}

TEST(NoMemory, AFolderCanBeListed) {
  const test::TempFolder folder;
  for (const char* name : {"b", "a", "c/d"}) folder.write(name, "x");
  std::error_code error;
  EXPECT_GT(failures([&] { (void)base::folder_contents(folder.path(), error); }), 3);
  const auto found = base::folder_contents(folder.path(), error);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_FALSE(error);
  EXPECT_EQ(found[0], folder.path() / "a");
  EXPECT_EQ(found[2], folder.path() / "c");
  EXPECT_TRUE(base::folder_contents(folder.path() / "none", error).empty());
  EXPECT_EQ(error, std::errc::no_such_file_or_directory);
}

}  // namespace
}  // namespace unpack
