// Any bytes as a PyTorch file: an InputError of one line, or tensors that lie inside the file.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "model/torch_file.h"
#include "unpack/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
    for (const unpack::model::FileTensor& tensor :
         unpack::model::parse_torch(bytes, "pytorch_model.bin")) {
      if (tensor.stored.data < bytes.data() ||
          tensor.stored.data + tensor.stored.bytes > bytes.data() + size)
        __builtin_trap();
    }
  } catch (const unpack::InputError& e) {
    if (std::string_view(e.what()).find('\n') != std::string_view::npos) __builtin_trap();
  }
  return 0;
}
