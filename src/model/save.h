// Writing a model folder in Hugging Face format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "model/weights.h"

namespace unpack::model {

// config.json as given and the tensors: model.safetensors, or shards of at most max_shard_bytes (a
// larger tensor has its own) with their index. Makes the folder; throws InputError where it cannot
// be written.
void save_folder(const std::string& config_json, const std::map<std::string, StoredTensor>& tensors,
                 const std::filesystem::path& folder, std::size_t max_shard_bytes = SIZE_MAX);

}  // namespace unpack::model
