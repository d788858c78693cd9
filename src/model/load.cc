#include "model/load.h"

#include <fmt/format.h>

#include <algorithm>

#include "model/assemble.h"
#include "model/json_text.h"
#include "unpack/error.h"

namespace unpack {
namespace fs = std::filesystem;

namespace {

// generation_config.json may name more tokens that end a text than config.json does.
void add_end_tokens(const fs::path& folder, ModelConfig& config) {
  const fs::path file = folder / "generation_config.json";
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return;
  const nlohmann::json root = parse_json(read_text_file(file), file.string());
  if (!root.is_object()) throw InputError(fmt::format("{}: expected a JSON object", file.string()));
  for (const TokenId id : read_end(ConfigReader(root, file.string()), config.vocab_size, -1)) {
    if (std::find(config.end_tokens.begin(), config.end_tokens.end(), id) ==
        config.end_tokens.end())
      config.end_tokens.push_back(id);
  }
}

}  // namespace

ModelWeights load_folder(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    throw InputError(fmt::format("{}: no such folder", folder.string()));
  const fs::path config = folder / "config.json";
  if (!fs::exists(fs::symlink_status(config, error))) throw InputError(explain_no_config(folder));
  const ParsedConfig parsed = parse_family_config(read_text_file(config), config.string());
  ModelWeights model = assemble(parsed, Checkpoint::open(folder));
  add_end_tokens(folder, model.config);
  const fs::path absolute = fs::absolute(folder, error).lexically_normal();
  model.config.name =
      (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string();
  return model;
}

ModelWeights from_memory(std::string_view config_json,
                         const std::map<std::string, StoredTensor>& tensors,
                         std::shared_ptr<const void> owner) {
  const ParsedConfig parsed = parse_family_config(config_json, "config in memory");
  ModelWeights model = assemble(parsed, Checkpoint::from_memory(tensors, std::move(owner)));
  model.config.name = model.config.family;
  return model;
}

}  // namespace unpack
