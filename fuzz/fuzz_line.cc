// Any bytes as a line of a batch or as a request: refused with one line, or a question that says
// the same when it is written down and read again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "one_line.h"
#include "unpack/error.h"
#include "unpack/question.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const bool plain : {false, true}) {
    try {
      unpack::Fields fields = unpack::read_fields(text, "the line");
      for (auto& [name, field] : fields) {
        (void)unpack::shown(field);
        field.plain_text = plain && std::holds_alternative<std::string>(field.value);
      }
      unpack::Asked asked;
      unpack::apply_fields(fields, asked);
      const std::string once = unpack::to_json(asked);
      unpack::Asked again;
      if (!unpack::apply_fields(unpack::read_fields(once, "itself"), again).empty() ||
          unpack::to_json(again) != once)
        __builtin_trap();
    } catch (const unpack::InputError& error) {
      expect_one_line(error.what());
    } catch (const unpack::UsageError& error) {
      expect_one_line(error.what());
    }
  }
  return 0;
}
