// Metadata of a GGUF file in the words of config.json.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json_reader.h"
#include "base/message.h"
#include "model/gguf_model.h"
#include "unpack/error.h"

namespace unpack::model {
namespace {

using Json = JsonValue;

// What a key of the architecture says.
class Keys {
 public:
  explicit Keys(const GgufFiles& gguf)
      : metadata_(gguf.content.metadata), origin_(gguf.path.string()) {
    const auto it = metadata_.find("general.architecture");
    if (it == metadata_.end() || !it->is_string())
      throw InputError(fmt::format("{}: has no general.architecture", origin_));
    arch = it->get<std::string>();
  }

  std::string arch;

  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(fmt::format("{}: {}", origin_, what));
  }
  const Json* find(const std::string& key) const {
    const auto it = metadata_.find(arch + "." + key);
    return it == metadata_.end() ? nullptr : &*it;
  }
  const Json* find_whole(const std::string& key) const {
    const auto it = metadata_.find(key);
    return it == metadata_.end() ? nullptr : &*it;
  }
  // A number, or a list of equal ones (one a layer).
  std::optional<double> number(const std::string& key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_array() && !value->empty()) {
      for (const Json& x : *value) {
        if (x != value->front())
          fail(fmt::format("{}.{} differs between layers, which is not supported", arch, key));
      }
      value = &value->front();
    }
    if (!value->is_number()) fail(fmt::format("{}.{} is no number", arch, key));
    return value->get<double>();
  }
  std::int64_t count(const std::string& key) const {
    const auto value = number(key);
    if (!value) fail(fmt::format("{}.{} is missing", arch, key));
    if (!(*value >= 0 && *value <= 1e9) || *value != std::floor(*value))
      fail(fmt::format("{}.{} is {}, which is no size", arch, key, *value));
    return *value;
  }
  std::optional<std::string> text(const std::string& key) const {
    const Json* value = find(key);
    return value && value->is_string() ? std::optional(value->get<std::string>()) : std::nullopt;
  }

 private:
  const Json& metadata_;
  std::string origin_;
};

const GgufTensor* find_tensor(const GgufFiles& gguf, const std::string& name) {
  for (const GgufTensor& tensor : gguf.content.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

std::vector<double> values_of(const GgufTensor& tensor) {
  constexpr std::int64_t kMost = 1 << 16;
  if (tensor.info == nullptr || tensor.elements() > kMost) return {};
  std::vector<float> values(tensor.elements());
  make_blocks(*tensor.info, tensor.data)->decode(0, tensor.elements(), values.data());
  return {values.begin(), values.end()};
}

const char* model_type(const Keys& keys) {
  struct Name {
    const char *arch, *type;
  };
  constexpr Name kNames[] = {{"llama", "llama"},        {"qwen2", "qwen2"}, {"qwen3", "qwen3"},
                             {"qwen3moe", "qwen3_moe"}, {"gemma", "gemma"}, {"gemma2", "gemma2"},
                             {"gemma3", "gemma3_text"}, {"phi3", "phi3"},   {"gpt2", "gpt2"},
                             {"gptneox", "gpt_neox"},   {"olmo2", "olmo2"}, {"granite", "granite"},
                             {"smollm3", "smollm3"},    {"olmoe", "olmoe"}, {"gpt-oss", "gpt_oss"}};
  std::string known;
  for (const Name& name : kNames) {
    if (keys.arch == name.arch)
      return keys.arch == "llama" && keys.number("expert_count").value_or(0) > 0 ? "mixtral"
                                                                                 : name.type;
    known += std::string(known.empty() ? "" : ", ") + name.arch;
  }
  keys.fail(
      fmt::format("architecture {} is not supported; known are {}", base::shown(keys.arch), known));
}

void set_rope(const GgufFiles& gguf, const Keys& keys, Json& config) {
  config["rope_theta"] = keys.number("rope.freq_base").value_or(10000.0);
  const std::string type = keys.text("rope.scaling.type").value_or("none");
  const auto factor = keys.number("rope.scaling.factor");
  const auto original = keys.number("rope.scaling.original_context_length");
  const auto factors = [&](const char* name) {
    const GgufTensor* tensor = find_tensor(gguf, name);
    return tensor ? values_of(*tensor) : std::vector<double>{};
  };
  const std::vector<double> both = factors("rope_freqs.weight");
  const std::vector<double> small = factors("rope_factors_short.weight"),
                            large = factors("rope_factors_long.weight");
  if (!both.empty() || !large.empty()) {
    Json scaling = {{"rope_type", "longrope"},
                    {"short_factor", both.empty() ? small : both},
                    {"long_factor", both.empty() ? large : both}};
    const double context = original.value_or(keys.count("context_length"));
    scaling["original_max_position_embeddings"] = static_cast<std::int64_t>(context);
    // Frequencies that were scaled when the file was made carry no factor of their own.
    if (!both.empty()) scaling["attention_factor"] = 1.0;
    if (both.empty() && keys.number("rope.scaling.attn_factor"))
      scaling["attention_factor"] = *keys.number("rope.scaling.attn_factor");
    config["rope_scaling"] = scaling;
    if (both.empty())
      config["original_max_position_embeddings"] = static_cast<std::int64_t>(context);
  } else if (type == "linear" && factor) {
    config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", *factor}};
  } else if (type == "yarn" && factor) {
    Json scaling = {{"rope_type", "yarn"}, {"factor", *factor}};
    if (original)
      scaling["original_max_position_embeddings"] = static_cast<std::int64_t>(*original);
    if (keys.arch == "gpt-oss") scaling["truncate"] = false;
    config["rope_scaling"] = scaling;
  } else if (type != "none") {
    keys.fail(fmt::format("rope scaling {} is not supported", base::shown(type)));
  }
}

void set_gemma(const Keys& keys, Json& config) {
  const std::int64_t layers = keys.count("block_count");
  const auto scale = keys.number("attention.scale");
  const double key_length = config["head_dim"].get<double>();
  // The largest of each kind divides by the model's width per head.
  const bool by_width =
      (keys.arch == "gemma2" && layers == 46) || (keys.arch == "gemma3" && layers == 62);
  config["query_pre_attn_scalar"] =
      scale ? 1.0 / (*scale * *scale)
      : by_width
          ? static_cast<double>(keys.count("embedding_length")) / keys.count("attention.head_count")
          : key_length;
  config["attn_logit_softcapping"] = nullptr;
  config["final_logit_softcapping"] = nullptr;
  for (const auto& [key, name] :
       {std::pair{"attn_logit_softcapping", "attn_logit_softcapping"},
        std::pair{"final_logit_softcapping", "final_logit_softcapping"}}) {
    if (const auto cap = keys.number(key); cap && *cap > 0) config[name] = *cap;
  }
  if (keys.number("attention.sliding_window"))
    config["sliding_window"] = keys.count("attention.sliding_window");
  if (keys.arch == "gemma3") {
    config["rope_local_base_freq"] = keys.number("rope.freq_base_swa").value_or(10000.0);
    if (const Json* pattern = keys.find("attention.sliding_window_pattern");
        pattern && pattern->is_number_integer())
      config["sliding_window_pattern"] = *pattern;
  }
}

// One flag a layer: whether it sees a window.
void set_layer_types(const Keys& keys, Json& config) {
  const Json* pattern = keys.find("attention.sliding_window_pattern");
  if (pattern == nullptr || !pattern->is_array()) return;
  Json types = Json::array();
  for (const Json& slides : *pattern)
    types.push_back(slides.is_boolean() && slides.get<bool>() ? "sliding_attention"
                                                              : "full_attention");
  config["layer_types"] = types;
}

void set_experts(const GgufFiles& gguf, const Keys& keys, Json& config) {
  if (keys.number("expert_count").value_or(0) <= 0) return;
  config["num_experts"] = config["num_local_experts"] = keys.count("expert_count");
  config["num_experts_per_tok"] = keys.count("expert_used_count");
  if (keys.number("expert_feed_forward_length")) {
    config["moe_intermediate_size"] = keys.count("expert_feed_forward_length");
    if (keys.arch != "qwen3moe")
      config["intermediate_size"] = keys.count("expert_feed_forward_length");
  }
  if (keys.arch != "qwen3moe") return;
  config["norm_topk_prob"] = true;
  config["mlp_only_layers"] = Json::array();
  for (std::int64_t l = 0; l < std::min<std::int64_t>(keys.count("block_count"), 10'000); ++l) {
    if (find_tensor(gguf, fmt::format("blk.{}.ffn_gate.weight", l)))
      config["mlp_only_layers"].push_back(l);
  }
}

Json gpt2_config(const Keys& keys) {
  return {{"n_layer", keys.count("block_count")},
          {"n_head", keys.count("attention.head_count")},
          {"n_embd", keys.count("embedding_length")},
          {"n_inner", keys.count("feed_forward_length")},
          {"n_positions", keys.count("context_length")},
          {"layer_norm_epsilon", keys.number("attention.layer_norm_epsilon").value_or(1e-5)}};
}

Json neox_config(const Keys& keys) {
  const std::int64_t width = keys.count("embedding_length"),
                     heads = keys.count("attention.head_count");
  Json config = {{"num_hidden_layers", keys.count("block_count")},
                 {"num_attention_heads", heads},
                 {"hidden_size", width},
                 {"intermediate_size", keys.count("feed_forward_length")},
                 {"max_position_embeddings", keys.count("context_length")},
                 {"layer_norm_eps", keys.number("attention.layer_norm_epsilon").value_or(1e-5)},
                 {"rotary_emb_base", keys.number("rope.freq_base").value_or(10000.0)}};
  if (heads > 0 && width >= heads)
    config["rotary_pct"] =
        static_cast<double>(keys.count("rope.dimension_count")) / (width / heads);
  const Json* parallel = keys.find("use_parallel_residual");
  config["use_parallel_residual"] = !parallel || !parallel->is_boolean() || parallel->get<bool>();
  return config;
}

Json llama_config(const GgufFiles& gguf, const Keys& keys) {
  Json config = {{"num_hidden_layers", keys.count("block_count")},
                 {"num_attention_heads", keys.count("attention.head_count")},
                 {"hidden_size", keys.count("embedding_length")},
                 {"intermediate_size",
                  keys.number("feed_forward_length") ? keys.count("feed_forward_length") : 1},
                 {"max_position_embeddings", keys.count("context_length")},
                 {"rms_norm_eps", keys.number("attention.layer_norm_rms_epsilon").value_or(1e-6)}};
  const std::int64_t heads = keys.count("attention.head_count");
  config["num_key_value_heads"] =
      keys.number("attention.head_count_kv") ? keys.count("attention.head_count_kv") : heads;
  if (heads < 1) keys.fail("the model has no heads");
  config["head_dim"] = keys.number("attention.key_length") ? keys.count("attention.key_length")
                                                           : keys.count("embedding_length") / heads;
  set_rope(gguf, keys, config);
  if (const auto dims = keys.number("rope.dimension_count"); dims && keys.arch == "phi3")
    config["partial_rotary_factor"] = *dims / config["head_dim"].get<double>();
  if (find_tensor(gguf, "blk.0.attn_q.bias") && keys.arch != "qwen2")
    config["attention_bias"] = true;
  if (find_tensor(gguf, "blk.0.ffn_up.bias")) config["mlp_bias"] = true;
  if (keys.arch == "gemma2" || keys.arch == "gemma3") set_gemma(keys, config);
  if (keys.arch == "granite") {
    config["attention_multiplier"] = keys.number("attention.scale").value_or(1.0);
    config["embedding_multiplier"] = keys.number("embedding_scale").value_or(1.0);
    config["residual_multiplier"] = keys.number("residual_scale").value_or(1.0);
    config["logits_scaling"] = keys.number("logit_scale").value_or(1.0);
  }
  if (keys.arch == "phi3" || keys.arch == "gpt-oss") {
    const double window = keys.number("attention.sliding_window").value_or(0);
    if (window > 0) config["sliding_window"] = keys.count("attention.sliding_window");
    if (window <= 0 && keys.arch == "phi3") config["sliding_window"] = nullptr;
  }
  set_layer_types(keys, config);
  set_experts(gguf, keys, config);
  return config;
}

}  // namespace

std::string gguf_config(const GgufFiles& gguf) {
  const Keys keys(gguf);
  const std::string type = model_type(keys);
  Json config = type == "gpt2"       ? gpt2_config(keys)
                : type == "gpt_neox" ? neox_config(keys)
                                     : llama_config(gguf, keys);
  config["model_type"] = type;
  const GgufTensor* embed = find_tensor(gguf, "token_embd.weight");
  if (embed == nullptr || embed->shape.size() != 2)
    keys.fail("tensor token_embd.weight is missing");
  config["vocab_size"] = embed->shape[0];
  config["tie_word_embeddings"] = find_tensor(gguf, "output.weight") == nullptr;
  for (const auto& [key, name] :
       {std::pair{"bos", "bos_token_id"}, std::pair{"eos", "eos_token_id"}}) {
    const Json* id = keys.find_whole(fmt::format("tokenizer.ggml.{}_token_id", key));
    config[name] = id && id->is_number_unsigned() && *id < embed->shape[0] ? *id : Json();
  }
  return config.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace unpack::model
