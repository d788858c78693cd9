// Any bytes as tokenizer.json: they load or are refused with InputError, and what loads encodes and
// decodes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "unpack/error.h"
#include "unpack/tokenizer.h"

namespace {

void use(const unpack::Tokenizer& tokenizer, std::string_view text) {
  for (const bool special : {false, true}) {
    try {
      for (const unpack::TokenId id : tokenizer.encode(text, special)) tokenizer.token_text(id);
      tokenizer.decode(tokenizer.encode(text, special));
    } catch (const unpack::InputError&) {  // a pattern that needs too many steps, a normaliser that
                                           // grows without bound
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  try {
    const unpack::Tokenizer tokenizer = unpack::Tokenizer::from_json(json, "fuzz");
    tokenizer.prefix();
    tokenizer.id_of("a");
    use(tokenizer, "");
    use(tokenizer,
        "ab ab<s>  b a's 12\n\xC3\xA9\xE2\x96\x81 \xE6\x97\xA5\xF0\x9F\x91\x8D e\xCC\x81");
    use(tokenizer, std::string(200, 'a') + std::string(100, ' '));
    use(tokenizer,
        json.substr(0,
                    300));  // its own text, which holds its tokens; refused where it is not UTF-8
  } catch (const unpack::InputError&) {
  }
  return 0;
}
