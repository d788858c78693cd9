// The GGUF container: typed metadata, a table of tensors, their bytes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/blocks.h"
#include "model/safetensors.h"
#include "unpack/json.h"

namespace unpack::model {

struct GgufTensor {
  std::string name;
  std::vector<std::int64_t> shape;  // slowest first, as everywhere else here
  std::uint32_t type = 0;
  const BlockInfo* info = nullptr;  // nullptr: a type that is not read
  const std::byte* data = nullptr;
  std::size_t bytes = 0;

  std::int64_t elements() const;
};

struct Gguf {
  JsonValue metadata = JsonValue::object();  // by key; arrays as lists
  std::vector<GgufTensor> tensors;
};

// Throws InputError for what is no GGUF file of version 2 or 3, is cut short, or claims more than
// the file holds.
Gguf parse_gguf(std::span<const std::byte> file, const std::string& origin);

// A file with the files it was split into, mapped.
struct GgufFiles {
  std::filesystem::path path;  // of the first
  Gguf content;
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<const MappedFile*> file_of;  // by tensor
};
std::shared_ptr<const GgufFiles> open_gguf(const std::filesystem::path& path);

// The GGUF file that a path means: itself, or the only one (split ones count as one) of a folder
// without config.json. Empty where there is none.
std::filesystem::path find_gguf(const std::filesystem::path& path);

}  // namespace unpack::model
