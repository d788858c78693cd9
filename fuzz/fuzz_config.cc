// Any bytes as config.json: either an InputError, or a config whose numbers fit together and whose
// table of tensors can be made.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/family.h"
#include "model/load.h"
#include "unpack/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const unpack::model::ParsedConfig parsed =
        unpack::model::parse_family_config(text, "config.json");
    const unpack::ModelConfig& c = parsed.config.model;
    if (c.n_layers < 1 || c.n_heads < 1 || c.n_kv_heads < 1 || c.n_heads % c.n_kv_heads != 0 ||
        c.d_head < 1 || c.d_model < 1 || c.most_entries() < 1)
      __builtin_trap();
    // -1: what stands outside the layers; of the layers, whose number is anybody's, a few.
    for (int layer = -1; layer < std::min(c.n_layers, 2); ++layer) {
      for (const unpack::model::TensorRow& row : parsed.family->tensors(parsed.config, layer)) {
        std::int64_t elements = 8;
        for (const std::int64_t n : row.shape) {
          if (n < 1 || __builtin_mul_overflow(elements, n, &elements)) __builtin_trap();
        }
      }
    }
  } catch (const unpack::InputError& e) {
    if (std::string_view(e.what()).find('\n') != std::string_view::npos) __builtin_trap();
  }
  return 0;
}
