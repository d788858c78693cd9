#include "model/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/files.h"
#include "base/index.h"
#include "base/json_reader.h"
#include "base/message.h"
#include "model/torch_file.h"
#include "unpack/error.h"

namespace unpack::model {
namespace fs = std::filesystem;
namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kTorch = "pytorch_model.bin";
constexpr const char* kTorchIndex = "pytorch_model.bin.index.json";
constexpr std::size_t kMaxText = 200'000'000;

struct FileStorage {
  std::vector<std::unique_ptr<MappedFile>> files;
};

std::vector<fs::path> files_ending_in(const fs::path& folder, std::string_view ending) {
  std::vector<fs::path> found;
  std::error_code error;
  for (const fs::path& file : base::folder_contents(folder, error)) {
    if (file.filename().string().ends_with(ending)) found.push_back(file);
  }
  return found;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// A name that is there without a file behind it: a snapshot of the Hugging Face cache whose
// download was broken off.
bool is_broken_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error))) return false;
  const bool there = fs::exists(path, error);
  return !there && (!error || error == std::errc::no_such_file_or_directory);
}

[[noreturn]] void fail_broken(const fs::path& path) {
  throw InputError(
      fmt::format("{}: the link leads nowhere; download the model again", path.string()));
}

// What other formats the folder holds, with the way out; empty where it holds none that we know.
std::string other_format(const fs::path& folder) {
  if (const std::vector<fs::path> files = files_ending_in(folder, ".gguf"); !files.empty()) {
    return fmt::format(
        "{}: holds a config.json but no *.safetensors; to use the GGUF file beside it give the "
        "file "
        "itself, {}",
        folder.string(), files.front().string());
  }
  for (const char* ending : {".bin", ".bin.index.json", ".pt", ".pth"}) {
    for (const fs::path& file : files_ending_in(folder, ending)) {
      const std::string name = file.filename().string();
      if (!name.starts_with("pytorch_model-") && !name.starts_with("consolidated")) continue;
      return fmt::format(
          "{}: holds only {}, which is not read; convert it in Python with "
          "transformers.AutoModelForCausalLM.from_pretrained(\"{}\").save_pretrained(\"NEW_"
          "FOLDER\", safe_serialization=True)",
          folder.string(), name, folder.string());
    }
  }
  for (const char* name : {"tf_model.h5", "flax_model.msgpack"}) {
    if (is_file(folder / name)) {
      return fmt::format(
          "{}: holds only {}, which is not read; load it with transformers and save it with "
          "save_pretrained(..., safe_serialization=True)",
          folder.string(), name);
    }
  }
  if (is_file(folder / "adapter_model.safetensors") || is_file(folder / "adapter_config.json")) {
    return fmt::format(
        "{}: holds only an adapter; merge it into its base model (peft: merge_and_unload, then "
        "save_pretrained)",
        folder.string());
  }
  return {};
}

std::map<std::string, std::string> read_index(const fs::path& path) {
  const JsonValue index = base::read_json(read_text_file(path), path.string());
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw InputError(fmt::format("{}: expected a JSON object with a weight_map", path.string()));
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    // A shard is a file beside the index; anything else would let a downloaded file reach out of
    // its folder.
    if (!file.is_string() || file.get_ref<const std::string&>().empty() ||
        fs::path(file.get<std::string>()).filename() != file.get<std::string>()) {
      throw InputError(
          fmt::format("{}: tensor {} is not mapped to the name of a file beside the index",
                      path.string(), base::shown(tensor)));
    }
    shard_of[tensor] = file.get<std::string>();
  }
  if (shard_of.empty()) throw InputError(fmt::format("{}: the weight_map is empty", path.string()));
  return shard_of;
}

}  // namespace

std::string read_text_file(const fs::path& path) {
  if (is_broken_link(path)) fail_broken(path);
  return base::read_plain_file(path, kMaxText);
}

std::string explain_no_config(const fs::path& folder) {
  std::string other = other_format(folder);
  if (!other.empty()) return other;
  return fmt::format(
      "{}: no config.json in this folder; a model folder holds config.json, *.safetensors and "
      "tokenizer.json",
      folder.string());
}

fs::path find_weights(const fs::path& folder) {
  for (const char* name : {kSingle, kIndex}) {
    if (is_broken_link(folder / name)) fail_broken(folder / name);
    // A pipe or a folder of this name is refused when it is opened.
    if (base::is_there(folder / name)) return folder / name;
  }
  std::vector<fs::path> others = files_ending_in(folder, ".safetensors");
  std::erase_if(others,
                [](const fs::path& p) { return p.filename() == "adapter_model.safetensors"; });
  if (others.size() == 1) return others.front();
  if (others.size() > 1) {
    throw InputError(fmt::format(
        "{}: {} *.safetensors files but no {} that says which tensor is where; download it too",
        folder.string(), others.size(), kIndex));
  }
  for (const char* name : {kTorch, kTorchIndex}) {
    if (is_broken_link(folder / name)) fail_broken(folder / name);
    if (is_file(folder / name)) return folder / name;
  }
  const std::string other = other_format(folder);
  throw InputError(!other.empty()
                       ? other
                       : fmt::format("{}: no weights here, expected {} or {} with its shards",
                                     folder.string(), kSingle, kIndex));
}

Checkpoint Checkpoint::open(const fs::path& folder, bool mapped) {
  const fs::path weights = find_weights(folder);
  Checkpoint checkpoint;
  checkpoint.origin_ = weights.string();
  checkpoint.mapped_ = mapped;
  const auto storage = std::make_shared<FileStorage>();
  checkpoint.storage_ = storage;
  const auto add = [&](const fs::path& path, auto&& wanted) {
    const MappedFile& file =
        *storage->files.emplace_back(std::make_unique<MappedFile>(path, mapped));
    const bool torch = path.extension() == ".bin";
    for (FileTensor& tensor : torch ? parse_torch(file.bytes(), path.string())
                                    : parse_safetensors(file.bytes(), path.string())) {
      if (!wanted(tensor.stored.name)) continue;
      const std::string name = tensor.stored.name;
      checkpoint.entries_[name] = {std::move(tensor), &file, path.string()};
    }
  };
  if (weights.filename() != kIndex && weights.filename() != kTorchIndex) {
    add(weights, [](const std::string&) { return true; });
    return checkpoint;
  }

  const std::map<std::string, std::string> shard_of = read_index(weights);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : shard_of) shards.insert(shard);
  for (const std::string& shard : shards) {
    if (is_broken_link(folder / shard)) fail_broken(folder / shard);
    if (!base::is_there(folder / shard))
      throw InputError(fmt::format("{}: shard {} is missing from the folder; download it too",
                                   weights.string(), base::shown(shard)));
    add(folder / shard, [&](const std::string& name) {
      const auto it = shard_of.find(name);
      return it != shard_of.end() && it->second == shard;
    });
  }
  for (const auto& [tensor, shard] : shard_of) {
    if (!checkpoint.find(tensor)) {
      throw InputError(
          fmt::format("{}: tensor {} is missing, although {} says that it is in this file",
                      (folder / shard).string(), base::shown(tensor), weights.filename().string()));
    }
  }
  return checkpoint;
}

Checkpoint Checkpoint::from_memory(const std::map<std::string, StoredTensor>& tensors,
                                   std::shared_ptr<const void> owner) {
  Checkpoint checkpoint;
  checkpoint.origin_ = "weights in memory";
  checkpoint.storage_ = std::move(owner);
  for (const auto& [name, stored] : tensors) {
    Index bytes = tensor::dtype_size(stored.dtype);
    bool overflow = false;
    for (const Index size : stored.shape)
      overflow = size < 0 || __builtin_mul_overflow(bytes, size, &bytes) || overflow;
    if (overflow || stored.bytes != static_cast<std::size_t>(bytes) ||
        (stored.data == nullptr && bytes > 0)) {
      throw InputError(fmt::format("{}: tensor {} has {} bytes, which do not fit its shape",
                                   checkpoint.origin_, base::shown(name), stored.bytes));
    }
    Entry entry;
    entry.tensor.stored = stored;
    entry.tensor.stored.name = name;
    entry.tensor.dtype_name = to_string(stored.dtype);
    entry.tensor.readable = true;
    entry.origin = checkpoint.origin_;
    checkpoint.entries_[name] = std::move(entry);
  }
  return checkpoint;
}

Checkpoint Checkpoint::empty(std::string origin, std::shared_ptr<const void> storage) {
  Checkpoint checkpoint;
  checkpoint.origin_ = std::move(origin);
  checkpoint.storage_ = std::move(storage);
  checkpoint.mapped_ = true;
  return checkpoint;
}

const Checkpoint::Entry* Checkpoint::find(std::string_view name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

const std::byte* Checkpoint::fetch(const Entry& entry, std::size_t offset, std::size_t n,
                                   std::byte* buffer) {
  const std::byte* from = entry.tensor.stored.data + offset;
  if (entry.file == nullptr) return from;
  entry.file->read(from, n, buffer);
  return buffer;
}

}  // namespace unpack::model
