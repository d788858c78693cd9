// Any bytes as a safetensors file: either an InputError, or tensors whose bytes are all there.
#include <cstddef>
#include <cstdint>
#include <span>

#include "model/safetensors.h"
#include "unpack/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    for (const unpack::model::FileTensor& tensor : unpack::model::parse_safetensors(
             std::as_bytes(std::span(data, size)), "fuzz.safetensors")) {
      if (!tensor.readable) continue;
      const auto n = static_cast<std::int64_t>(tensor.stored.bytes /
                                               unpack::tensor::dtype_size(tensor.stored.dtype));
      if (unpack::tensor::find_non_finite(tensor.stored.data, tensor.stored.dtype, n) >= n)
        __builtin_trap();
    }
  } catch (const unpack::InputError& e) {
    if (std::string_view(e.what()).find('\n') != std::string_view::npos) __builtin_trap();
  }
  return 0;
}
