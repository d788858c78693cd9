// Any bytes as a GGUF file: an InputError of one line, or tensors that lie inside the file and can
// be read to their last element.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/gguf.h"
#include "unpack/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
    const unpack::model::Gguf gguf = unpack::model::parse_gguf(bytes, "fuzz.gguf");
    for (const unpack::model::GgufTensor& tensor : gguf.tensors) {
      if (!tensor.info) continue;
      if (tensor.data < bytes.data() || tensor.data + tensor.bytes > bytes.data() + size)
        __builtin_trap();
      const std::int64_t n = std::min<std::int64_t>(tensor.elements(), 1000);
      std::vector<float> values(static_cast<std::size_t>(n));
      unpack::model::make_blocks(*tensor.info, tensor.data)
          ->decode(tensor.elements() - n, n, values.data());
    }
  } catch (const unpack::InputError& e) {
    if (std::string_view(e.what()).find('\n') != std::string_view::npos) __builtin_trap();
  }
  return 0;
}
