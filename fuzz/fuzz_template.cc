// Any bytes as a chat template: an InputError of one line, or a text, in bounded time and memory.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "unpack/chat.h"
#include "unpack/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    (void)unpack::ChatTemplate::parse(text, "template")
        .render(R"({"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true,
                    "bos_token": "<s>", "n": 3, "l": [1, "a", {"k": null}]})");
  } catch (const unpack::InputError& e) {
    if (std::string_view(e.what()).find('\n') != std::string_view::npos) __builtin_trap();
  }
  return 0;
}
