#include "model/load.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/files.h"
#include "base/json_reader.h"
#include "model/assemble.h"
#include "model/gguf_model.h"
#include "model/quantised.h"
#include "unpack/error.h"

namespace unpack::model {
namespace fs = std::filesystem;

namespace {

// generation_config.json may name more tokens that end a text than config.json does.
void add_end_tokens(const fs::path& folder, ModelConfig& config) {
  const fs::path file = folder / "generation_config.json";
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return;
  const JsonValue root = base::read_json(read_text_file(file), file.string());
  if (!root.is_object()) throw InputError(fmt::format("{}: expected a JSON object", file.string()));
  for (const TokenId id : read_end(ConfigReader(root, file.string()), config.vocab_size, -1)) {
    if (std::find(config.end_tokens.begin(), config.end_tokens.end(), id) ==
        config.end_tokens.end())
      config.end_tokens.push_back(id);
  }
}

}  // namespace

ModelWeights load_folder(const fs::path& folder, bool mapped, LookAt look) {
  std::error_code error;
  if (const fs::path file = find_gguf(folder); !file.empty())
    return load_gguf(open_gguf(file), look);
  if (!fs::is_directory(folder, error))
    throw InputError(fmt::format("{}: no such folder", folder.string()));
  const fs::path config = folder / "config.json";
  if (!base::is_there(config)) throw InputError(explain_no_config(folder));
  const std::string text = read_text_file(config);
  const ParsedConfig parsed = parse_family_config(text, config.string());
  Checkpoint checkpoint = Checkpoint::open(folder, mapped);
  unfold_quantised(checkpoint, read_quantisation(text, config.string()));
  ModelWeights model = assemble(parsed, checkpoint, look);
  add_end_tokens(folder, model.config);
  const fs::path absolute = fs::absolute(folder, error).lexically_normal();
  model.config.name =
      (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string();
  return model;
}

std::string stored_type(const fs::path& folder) {
  if (const fs::path file = find_gguf(folder); !file.empty())
    return gguf_quantisation(open_gguf(file)->content);
  const fs::path config = folder / "config.json";
  return base::is_there(config) ? read_quantisation(read_text_file(config), config.string()).name()
                                : "";
}

ModelWeights from_memory(std::string_view config_json,
                         const std::map<std::string, StoredTensor>& tensors,
                         std::shared_ptr<const void> owner) {
  const ParsedConfig parsed = parse_family_config(config_json, "config in memory");
  if (const auto quantised = read_quantisation(config_json, "config in memory");
      quantised.method != QuantMethod::none)
    throw InputError(fmt::format(
        "config in memory: the weights are quantised ({}); such are read from files alone",
        quantised.name()));
  ModelWeights model = assemble(parsed, Checkpoint::from_memory(tensors, std::move(owner)));
  model.config.name = model.config.family;
  return model;
}

}  // namespace unpack::model
