#include "model/save.h"

#include <fmt/format.h>

#include <fstream>
#include <vector>

#include "unpack/error.h"
#include "unpack/json.h"

namespace unpack::model {
namespace fs = std::filesystem;
namespace {

const char* safetensors_name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::f64:
      return "F64";
  }
  throw InternalError("unknown dtype");
}

void write_or_throw(const fs::path& path, const auto& write) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  if (out) write(out);
  out.close();
  if (!out) throw InputError(fmt::format("{}: cannot write the file", path.string()));
}

using Shard = std::vector<std::pair<std::string, const StoredTensor*>>;

void write_safetensors(const Shard& shard, const fs::path& path) {
  OrderedJson header;
  header["__metadata__"] = {{"format", "pt"}};
  std::size_t at = 0;
  for (const auto& [name, tensor] : shard) {
    header[name] = {{"dtype", safetensors_name(tensor->dtype)},
                    {"shape", tensor->shape},
                    {"data_offsets", {at, at + tensor->bytes}}};
    at += tensor->bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // keeps the data aligned
  write_or_throw(path, [&](std::ofstream& out) {
    const std::uint64_t size = text.size();
    out.write(reinterpret_cast<const char*>(&size), sizeof(size));
    out.write(text.data(), text.size());
    for (const auto& [name, tensor] : shard)
      out.write(reinterpret_cast<const char*>(tensor->data), tensor->bytes);
  });
}

}  // namespace

void save_folder(const std::string& config_json, const std::map<std::string, StoredTensor>& tensors,
                 const fs::path& folder, std::size_t max_shard_bytes) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!fs::is_directory(folder, error))
    throw InputError(fmt::format("{}: cannot make the folder", folder.string()));
  write_or_throw(folder / "config.json", [&](std::ofstream& out) { out << config_json; });

  std::vector<Shard> shards(1);
  std::size_t in_shard = 0, total = 0;
  for (const auto& [name, tensor] : tensors) {
    if (!shards.back().empty() &&
        tensor.bytes > max_shard_bytes - std::min(in_shard, max_shard_bytes)) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().emplace_back(name, &tensor);
    in_shard += tensor.bytes;
    total += tensor.bytes;
  }
  if (shards.size() == 1) return write_safetensors(shards.front(), folder / "model.safetensors");

  OrderedJson index;
  index["metadata"]["total_size"] = total;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    for (const auto& [name, tensor] : shards[i]) index["weight_map"][name] = file;
    write_safetensors(shards[i], folder / file);
  }
  write_or_throw(folder / "model.safetensors.index.json",
                 [&](std::ofstream& out) { out << index.dump(1); });
}

}  // namespace unpack::model
