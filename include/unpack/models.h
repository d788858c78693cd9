// Where models live: what is bundled, cached and supported.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "unpack/config.h"
#include "unpack/tokenizer.h"

namespace unpack {

// A folder; a name of the local Hugging Face cache, `org/name` or `org/name@revision`; a bundled
// name. Throws InputError that lists where it looked.
std::filesystem::path locate_model(const std::string& name);

struct FoundModel {
  std::string name;
  std::filesystem::path folder;
  std::string origin;             // "bundled", "cache", "folder"
  std::string family;             // model_type as the config names it, or ""
  std::string problem;            // why it cannot be used, or ""
  std::string quantisation = {};  // "float16", "Q4_K", ...
  std::uint64_t bytes = 0;        // of the weights as they are stored
  std::uint64_t parameters = 0;
  int context = 0;
  std::uint64_t memory = 0;  // that the weights take while the program works with them
};
std::vector<FoundModel> list_models(const std::vector<std::filesystem::path>& extra);
std::uint64_t free_memory();  // of this machine, in bytes; 0: unknown

// Of a folder or a GGUF file; nothing where it has no tokenizer.
std::optional<Tokenizer> find_tokenizer(const std::filesystem::path& model);

// Where the local Hugging Face cache may be: $HF_HUB_CACHE, $HF_HOME, the home folder.
std::vector<std::filesystem::path> model_cache_folders();

std::vector<std::string> supported_families();  // as config.json names them

// The special tokens that go in front of a prompt: those of the tokenizer's post-processor, or BOS
// where the family wants it and the file adds none.
std::vector<TokenId> prompt_prefix(const ModelConfig& config, const Tokenizer& tokenizer);
// The same for a folder that may hold tokenizer files alone.
std::vector<TokenId> prompt_prefix(const std::filesystem::path& folder, const Tokenizer& tokenizer);

}  // namespace unpack
