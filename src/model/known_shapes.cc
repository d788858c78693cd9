// Published sizes of well-known models, as config.json texts.
#include <fmt/format.h>

#include <algorithm>

#include "base/message.h"
#include "model/load.h"
#include "unpack/error.h"

namespace unpack {
namespace {

struct Shape {
  std::string_view name;
  std::string_view config;
};

constexpr Shape kShapes[] = {
    {"gpt2-small",
     R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257,
 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "bos_token_id": 50256, "eos_token_id": 50256})"},
    {"gpt2-medium",
     R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 24, "n_head": 16, "n_embd": 1024, "n_positions": 1024, "vocab_size": 50257,
 "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05, "bos_token_id": 50256, "eos_token_id": 50256})"},
    {"pythia-160m",
     R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768,
 "intermediate_size": 3072, "max_position_embeddings": 2048, "vocab_size": 50304, "hidden_act": "gelu", "layer_norm_eps": 1e-05, "rotary_pct": 0.25,
 "rotary_emb_base": 10000, "use_parallel_residual": true, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 0})"},
    {"pythia-1.4b",
     R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "num_hidden_layers": 24, "num_attention_heads": 16, "hidden_size": 2048,
 "intermediate_size": 8192, "max_position_embeddings": 2048, "vocab_size": 50304, "hidden_act": "gelu", "layer_norm_eps": 1e-05, "rotary_pct": 0.25,
 "rotary_emb_base": 10000, "use_parallel_residual": true, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 0})"},
    {"pythia-6.9b",
     R"({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096,
 "intermediate_size": 16384, "max_position_embeddings": 2048, "vocab_size": 50432, "hidden_act": "gelu", "layer_norm_eps": 1e-05, "rotary_pct": 0.25,
 "rotary_emb_base": 10000, "use_parallel_residual": true, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 0})"},
    {"llama-3.2-1b",
     R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
 "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072, "vocab_size": 128256, "hidden_act": "silu", "rms_norm_eps": 1e-05,
 "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
 "original_max_position_embeddings": 8192}, "tie_word_embeddings": true, "bos_token_id": 128000, "eos_token_id": 128001, "torch_dtype": "bfloat16"})"},
    {"llama-3.1-8b",
     R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
 "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072, "vocab_size": 128256, "hidden_act": "silu", "rms_norm_eps": 1e-05,
 "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
 "original_max_position_embeddings": 8192}, "tie_word_embeddings": false, "bos_token_id": 128000, "eos_token_id": 128001, "torch_dtype": "bfloat16"})"},
    {"qwen3-0.6b",
     R"({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
 "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "vocab_size": 151936, "hidden_act": "silu", "rms_norm_eps": 1e-06,
 "rope_theta": 1000000, "rope_scaling": null, "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28, "attention_bias": false,
 "tie_word_embeddings": true, "bos_token_id": 151643, "eos_token_id": 151645, "torch_dtype": "bfloat16"})"},
};

}  // namespace

std::vector<std::string> known_shapes() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

std::string known_shape(std::string_view name) {
  const auto it = std::find_if(std::begin(kShapes), std::end(kShapes),
                               [&](const Shape& shape) { return shape.name == name; });
  if (it == std::end(kShapes))
    throw InputError(
        fmt::format("no known shape {} (known: {})", shown(name), joined(known_shapes())));
  return std::string(it->config);
}

}  // namespace unpack
