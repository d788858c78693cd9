#include "unpack/models.h"

#include "model/checkpoint.h"
#include "model/family.h"
#include "model/load.h"

namespace unpack {

std::vector<std::string> supported_families() {
  std::vector<std::string> names;
  for (const Family* family : families()) names.emplace_back(family->model_type);
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
  const std::filesystem::path file = folder / "config.json";
  if (!std::filesystem::exists(file)) return tokenizer.prefix();
  return prompt_prefix(parse_config(read_text_file(file), file.string()), tokenizer);
}

}  // namespace unpack
