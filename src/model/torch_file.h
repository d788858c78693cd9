// PyTorch's files of weights (pytorch_model.bin): a zip archive with a pickle that says which
// tensor is where. The pickle is read as data: it may build dicts, lists and tensors and name
// nothing else.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace unpack::model {

// Throws InputError that names what the pickle asks for and is not read. Nothing is executed.
std::vector<FileTensor> parse_torch(std::span<const std::byte> file, const std::string& origin);

}  // namespace unpack::model
