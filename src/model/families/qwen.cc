// Qwen2 (bias on q, k, v) and Qwen3 (RMSNorm on q and k, a head size of its own): Llama's tensors
// and these.
#include <fmt/format.h>

#include "model/families/llama_like.h"
#include "base/message.h"

namespace unpack {
namespace {

// In force only when switched on, and then on the layers from max_window_layers or those that
// layer_types names.
std::optional<int> read_window(const ConfigReader& reader, int n_layers) {
  bool some_layer = false;
  const nlohmann::json* types = reader.find("layer_types");
  if (types != nullptr && !types->is_null()) {
    if (!types->is_array()) reader.fail("layer_types is no list");
    for (const nlohmann::json& type : *types) {
      if (!type.is_string()) reader.fail("layer_types holds something that is no string");
      const auto& name = type.get_ref<const std::string&>();
      if (name != "full_attention" && name != "sliding_attention") {
        reader.fail(fmt::format(
            "layer type {} is not supported (supported: full_attention, sliding_attention)",
            shown(name)));
      }
      some_layer = some_layer || name == "sliding_attention";
    }
  } else {
    some_layer = n_layers > reader.integer("max_window_layers").value_or(28);
  }
  if (!reader.flag("use_sliding_window", false) || reader.is_null("sliding_window") || !some_layer)
    return std::nullopt;
  return reader.size("sliding_window", 4096);
}

LlamaDefaults defaults(std::optional<int> head_dim) {
  return {.vocab_size = 151936,
          .intermediate_size = 22016,
          .max_position_embeddings = 32768,
          .num_key_value_heads = 32,
          .head_dim = head_dim,
          .bos_token = -1};
}

FamilyConfig read_qwen2(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, defaults(std::nullopt));
  family.qkv_bias = true;
  family.model.sliding_window = read_window(reader, family.model.n_layers);
  return family;
}

FamilyConfig read_qwen3(const ConfigReader& reader) {
  FamilyConfig family = read_llama_like(reader, defaults(128));
  family.model.qk_norm = true;
  family.qkv_bias = family.o_bias = reader.flag("attention_bias", false);
  family.model.sliding_window = read_window(reader, family.model.n_layers);
  return family;
}

}  // namespace

extern const Family kQwen2, kQwen3;
const Family kQwen2 = {"qwen2", "model.", read_qwen2, llama_tensors, llama_head};
const Family kQwen3 = {"qwen3", "model.", read_qwen3, llama_tensors, llama_head};

}  // namespace unpack
