// From a name, a folder, memory or a random generator to ModelWeights. Throws InputError with one
// line that names file, tensor and expectation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/weights.h"
#include "unpack/models.h"

namespace unpack::model {

// Sources
// -------------------------------------------------------------------------------------------------

ModelWeights load_folder(const std::filesystem::path& folder, bool mapped = true,
                         LookAt look = LookAt::loaded);
// "Q4_K", ...: what quantised weights are stored as; empty where they are plain.
std::string stored_type(const std::filesystem::path& folder);

// Weights held by the caller (Python, tests): the config as JSON text, tensors under their Hugging
// Face names. `owner` keeps them alive.
ModelWeights from_memory(std::string_view config_json,
                         const std::map<std::string, StoredTensor>& tensors,
                         std::shared_ptr<const void> owner);

// Random weights of any shape: normal(0, 0.02)-like and deterministic for a seed; output
// projections scaled so that activations stay finite.
ModelWeights random_weights(std::string_view config_json, std::uint64_t seed,
                            DType dtype = DType::f32);
// The same tensors under their Hugging Face names, to be saved or changed.
struct TensorSet {
  std::map<std::string, StoredTensor> tensors;
  std::shared_ptr<const void> owner;
};
TensorSet random_tensors(std::string_view config_json, std::uint64_t seed,
                         DType dtype = DType::f32);
// config.json texts of well-known shapes for benchmarks: "gpt2-small", "gpt2-medium",
// "pythia-160m", "pythia-1.4b", "pythia-6.9b", "llama-3.2-1b", "llama-3.1-8b", "qwen3-0.6b".
std::string known_shape(std::string_view name);
std::vector<std::string> known_shapes();

// Parses config.json alone (family, sizes); throws InputError for unknown families and unsupported
// settings.
ModelConfig parse_config(std::string_view config_json, const std::string& origin);

}  // namespace unpack::model
