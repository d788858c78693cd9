// Mistral: Llama's tensors, with other defaults and a sliding window.
#include "model/families/llama_like.h"

namespace unpack {
namespace {

FamilyConfig read(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.vocab_size = 32000,
                                                 .intermediate_size = 14336,
                                                 .max_position_embeddings = 131072,
                                                 .num_key_value_heads = 8,
                                                 .head_dim = {},
                                                 .bos_token = 1});
  if (!reader.is_null("sliding_window"))
    family.model.sliding_window = reader.size("sliding_window", 4096);
  return family;
}

}  // namespace

extern const Family kMistral;
const Family kMistral = {"mistral", "model.", read, llama_tensors, llama_head};

}  // namespace unpack
