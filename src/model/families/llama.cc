// Llama 1, 2 and 3; Mistral and Granite, which have its tensors.
#include "model/families/llama_like.h"

namespace unpack::model {
namespace {

FamilyConfig read_llama(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.bos_token = 1, .eos_token = 2});
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  family.mlp_bias = reader.flag("mlp_bias", false);
  family.model.prepend_bos = true;
  return family;
}

FamilyConfig read_mistral(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.intermediate_size = 14336,
                                                 .max_position_embeddings = 131072,
                                                 .num_key_value_heads = 8,
                                                 .bos_token = 1,
                                                 .eos_token = 2});
  set_windows(reader, family, 4096, [](int) { return true; });
  family.model.prepend_bos = true;
  return family;
}

// Llama with a factor at the embedding, at what sublayers add, at attention and at the logits.
FamilyConfig read_granite(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, {.bos_token = 1, .eos_token = 2});
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  family.mlp_bias = reader.flag("mlp_bias", false);
  family.embedding_scale = reader.positive("embedding_multiplier", 1.0);
  family.residual_scale = reader.positive("residual_multiplier", 1.0);
  family.model.logit_scale = 1.0 / reader.positive("logits_scaling", 1.0);
  for (LayerConfig& layer : family.model.layers)
    layer.attention_scale = reader.positive("attention_multiplier", 1.0);
  return family;
}

}  // namespace

extern const Family kLlama, kMistral, kGranite;
const Family kLlama = {"llama", "model.", read_llama, llama_tensors, llama_head};
const Family kMistral = {"mistral", "model.", read_mistral, llama_tensors, llama_head};
const Family kGranite = {"granite", "model.", read_granite, llama_tensors, llama_head};

}  // namespace unpack::model
