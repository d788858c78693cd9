#include "unpack/models.h"

#include "base/files.h"
#include "model/checkpoint.h"
#include "model/family.h"
#include "model/gguf_model.h"
#include "model/load.h"

namespace unpack {

std::vector<std::string> supported_families() {
  std::vector<std::string> names;
  for (const model::Family* family : model::families()) names.emplace_back(family->model_type);
  return names;
}

std::vector<TokenId> prompt_prefix(const ModelConfig& config, const Tokenizer& tokenizer) {
  std::vector<TokenId> prefix = tokenizer.prefix();
  // GPT-2's and GPT-NeoX's files add nothing; a Llama file without a template leaves BOS to the
  // config.
  if (!prefix.empty() || !config.prepend_bos) return prefix;
  std::optional<TokenId> bos = config.bos_token;
  if (!bos || static_cast<std::size_t>(*bos) >= tokenizer.size())
    bos = tokenizer.id_of("<|endoftext|>");
  if (bos) prefix.push_back(*bos);
  return prefix;
}

std::vector<TokenId> prompt_prefix(const std::filesystem::path& folder,
                                   const Tokenizer& tokenizer) {
  if (const std::filesystem::path gguf = model::find_gguf(folder); !gguf.empty())
    return prompt_prefix(
        model::parse_config(model::gguf_config(*model::open_gguf(gguf)), gguf.string()), tokenizer);
  const std::filesystem::path file = folder / "config.json";
  if (!base::is_there(file)) return tokenizer.prefix();
  return prompt_prefix(model::parse_config(model::read_text_file(file), file.string()), tokenizer);
}

std::optional<Tokenizer> find_tokenizer(const std::filesystem::path& model) {
  if (const std::filesystem::path file = model::find_gguf(model); !file.empty()) {
    const std::string json = model::gguf_tokenizer(*model::open_gguf(file));
    if (!json.empty()) return Tokenizer::from_json(json, file.string());
    return std::nullopt;
  }
  if (!Tokenizer::exists(model)) return std::nullopt;
  return Tokenizer::load(model);
}

}  // namespace unpack
