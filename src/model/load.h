// From a name, a folder, memory or a random generator to ModelWeights. Throws InputError with one line that names file, tensor and expectation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/weights.h"

namespace unpack {

// Where models live -------------------------------------------------------------------------------------------------------------

// A folder; a name of the local Hugging Face cache, `org/name` or `org/name@revision`; a bundled name. Throws InputError that lists where it looked.
std::filesystem::path locate_model(const std::string& name);

struct FoundModel {
  std::string name;
  std::filesystem::path folder;
  std::string origin;   // "bundled", "cache", "folder"
  std::string family;   // model_type as the config names it, or ""
  std::string problem;  // why it cannot be used, or ""
};
std::vector<FoundModel> list_models(const std::vector<std::filesystem::path>& extra);

// Sources -----------------------------------------------------------------------------------------------------------------------

ModelWeights load_folder(const std::filesystem::path& folder);

// Weights held by the caller (Python, tests): the config as JSON text, tensors under their Hugging Face names. `owner` keeps them alive.
ModelWeights from_memory(std::string_view config_json, const std::map<std::string, StoredTensor>& tensors, std::shared_ptr<const void> owner);

// Random weights of any shape: normal(0, 0.02)-like and deterministic for a seed; output projections scaled so that activations stay finite.
ModelWeights random_weights(std::string_view config_json, std::uint64_t seed, DType dtype = DType::f32);
// config.json texts of well-known shapes for benchmarks: "gpt2-small", "gpt2-medium", "pythia-160m", "pythia-1.4b", "pythia-6.9b", "llama-3.2-1b", "llama-3.1-8b", "qwen3-0.6b".
std::string known_shape(std::string_view name);
std::vector<std::string> known_shapes();

// Parses config.json alone (family, sizes); throws InputError for unknown families and unsupported settings.
ModelConfig parse_config(std::string_view config_json, const std::string& origin);

}  // namespace unpack
