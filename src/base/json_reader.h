// The one reader of JSON that comes from outside: configs, headers, indices, tokenizers, requests,
// lines of a batch, and the files that the program itself wrote and reads again. It takes time
// linear in the text. A text that is too long, nested too deeply or holds too many values, a number
// that no double holds, a NUL byte and anything behind the value are errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "unpack/json.h"

namespace unpack::base {

inline constexpr std::size_t kJsonDepth = 64;

struct JsonLimits {
  std::size_t bytes = 200'000'000;
  std::size_t values =
      20'000'000;  // a value takes some 50 bytes of memory at most, texts not counted
};
// What one request or one line may hold.
inline constexpr JsonLimits kSmallJson = {16u << 20, 1'000'000};

// All throw InputError that begins with `origin`. A key may not occur twice in an object.
JsonValue read_json(std::string_view text, const std::string& origin,
                    const JsonLimits& limits = {});
OrderedJson read_ordered_json(std::string_view text, const std::string& origin,
                              const JsonLimits& limits = {});

// What is read goes to `events` and nowhere else: for files of which only a part is wanted.
// Whatever it throws passes through; a key that occurs twice is its own business.
using JsonEvents = JsonValue::json_sax_t;
void scan_json(std::string_view text, const std::string& origin, JsonEvents& events,
               const JsonLimits& limits = {});

}  // namespace unpack::base
